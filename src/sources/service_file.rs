//! A file that the table of a service or an authorizer names, and a certificate with its key from
//! two files.

use std::io;
use std::path::Path;

use keygate_core::tls::{self, Credentials, TlsFileError, TrustAnchors};
use rustls::pki_types::CertificateDer;

use crate::config::CrlConfig;
use crate::files::read_bounded;
use crate::saved_state::saved_credentials::sha256;
use crate::sources::credential_files::CredentialFiles;
use crate::sources::load_error::{CredentialError, LoadError};
use crate::sources::load_errors::{LoadErrors, both};
use crate::sources::private_key::{self, ExposedKeyFile};

/// Maximum size of a PEM file, 16 MiB: about fifty times the size of all public CAs together.
const MAX_PEM_SIZE: u64 = 16 << 20;

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
            if is_missing && self.files.crls.iter().any(has_source) {
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

    /// The error of the file.
    pub(crate) fn error(self, source: impl Into<CredentialError>) -> LoadError {
        let (owner, path) = (self.files.owner(), self.path.to_owned());
        LoadError::Credentials { owner, key: self.key, path, source: source.into() }
    }
}

/// A certificate chain with its private key, and facts about their files.
#[derive(Debug)]
pub(crate) struct KeyPair {
    pub(super) credentials: Credentials,
    /// SHA-256 of the certificate file and of the private key file, one after the other.
    pub(super) digests: Vec<u8>,
    /// The private key file, if its permissions are unsafe.
    pub(super) exposed: Option<ExposedKeyFile>,
}

impl KeyPair {
    /// Reads both files.
    ///
    /// # Errors
    /// Returns the errors of both files, or one if they do not belong together.
    pub(super) fn read(
        certificate: ServiceFile<'_>,
        key: ServiceFile<'_>,
    ) -> Result<Self, LoadErrors> {
        let chain = certificate.read().and_then(|pem| Ok((certificate.certificates(&pem)?, pem)));
        let key_file = private_key::read(key.path, MAX_PEM_SIZE);
        let key_file = key_file.map_err(|source| key.error(source)).and_then(|file| {
            let private_key = tls::private_key(&file.content);
            Ok((private_key.map_err(|source| key.error(source))?, file))
        });
        let ((chain, chain_pem), (private_key, key_file)) = both(chain, key_file)?;
        let credentials = tls::key_pair(chain, private_key);
        let credentials = credentials.map_err(|source| {
            let is_about_key = matches!(
                source,
                TlsFileError::KeyMismatch
                    | TlsFileError::NoPrivateKey(_)
                    | TlsFileError::PrivateKey(_)
                    | TlsFileError::PrivateKeyPem(_)
            );
            let file = if is_about_key { key } else { certificate };
            file.error(source)
        })?;
        let digests = [sha256(&chain_pem), sha256(&key_file.content)].concat();
        Ok(Self { credentials, digests, exposed: key_file.exposed })
    }
}
