//! A file that the table of a service or an authorizer names.

use std::io;
use std::path::Path;

use keygate_core::tls::{self, TrustAnchors};
use rustls::pki_types::CertificateDer;

use crate::config::CrlConfig;
use crate::files::read_bounded;
use crate::sources::credential_files::CredentialFiles;
use crate::sources::load_error::{CredentialError, LoadError};
use crate::sources::warning::Warning;

/// Maximum size of a PEM file, 16 MiB: about fifty times the size of all public CAs together.
pub(super) const MAX_PEM_SIZE: u64 = 16 << 20;

/// A file that the table of a service or an authorizer names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServiceFile<'a> {
    pub(crate) files: CredentialFiles<'a>,
    /// Configuration key that names the file.
    pub(crate) key: &'static str,
    pub(crate) path: &'a Path,
}

impl ServiceFile<'_> {
    pub(super) fn read(self) -> Result<Vec<u8>, LoadError> {
        self.read_up_to(MAX_PEM_SIZE)
    }

    pub(super) fn read_up_to(self, max_size: u64) -> Result<Vec<u8>, LoadError> {
        let has_source = |crl: &CrlConfig| crl.path == self.path && !crl.sources.is_empty();
        read_bounded(self.path, max_size).map_err(|error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            if is_missing && self.files.clients.crls.iter().any(has_source) {
                return self.error(CredentialError::NotDownloaded(error));
            }
            self.error(error)
        })
    }

    pub(super) fn trust_anchors(self, content: &[u8]) -> Result<TrustAnchors, LoadError> {
        tls::trust_anchors(content).map_err(|source| self.error(source))
    }

    pub(super) fn certificates(
        self,
        content: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, LoadError> {
        tls::certificates(content).map_err(|source| self.error(source))
    }

    /// A warning about the file, which `problem` explains.
    pub(super) fn warning(self, event: &'static str, problem: &str) -> Warning {
        let (owner, path) = (self.files.owner(), self.path.display());
        let text = format!("{owner}: {} {path}: {problem}", self.key);
        Warning::about_owner(&owner, event, text)
    }

    /// The error of the file.
    pub(crate) fn error(self, source: impl Into<CredentialError>) -> LoadError {
        let (owner, path) = (self.files.owner(), self.path.to_owned());
        LoadError::Credentials { owner, key: self.key, path, source: source.into() }
    }
}
