//! A certificate with its private key, from two files.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use keygate_core::tls::{self, Credentials, TlsFileError};

use super::credential_files::CredentialFiles;
use super::credential_unit::CredentialUnit;
use super::load_errors::{LoadErrors, both};
use super::private_key::{self, ExposedKeyFile};
use super::service_file::{MAX_PEM_SIZE, ServiceFile};
use super::unit_files::UnitFiles;
use crate::saved_state::saved_credentials::sha256;

/// A certificate chain with its private key, and facts about their files.
#[derive(Debug)]
pub(crate) struct KeyPair {
    pub(super) credentials: Credentials,
    /// SHA-256 of the certificate file and of the private key file, one after the other.
    pub(super) digests: Vec<u8>,
    /// The private key file, if its permissions are unsafe.
    pub(super) exposed: Option<ExposedKeyFile>,
}

/// The own certificate and its key, or the alternative ones; `None` for an authorizer without TLS,
/// and without alternative ones.
#[derive(Debug, Default)]
pub(crate) struct OwnPair<const ALTERNATIVE: bool>(pub(super) Option<KeyPair>);

impl<const ALTERNATIVE: bool> OwnPair<ALTERNATIVE> {
    fn of(files: CredentialFiles<'_>) -> Option<(&Path, &Path)> {
        if ALTERNATIVE { files.alternative() } else { files.server }
    }
}

impl<const ALTERNATIVE: bool> UnitFiles for OwnPair<ALTERNATIVE> {
    const UNIT: CredentialUnit =
        if ALTERNATIVE { CredentialUnit::AlternativeServer } else { CredentialUnit::Server };

    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf> {
        let pair = Self::of(files).into_iter();
        pair.flat_map(|(certificate, key)| [certificate, key]).map(Path::to_owned).collect()
    }

    fn read(files: CredentialFiles<'_>, _: &Self, _: SystemTime) -> Result<Self, LoadErrors> {
        let Some((certificate, private_key)) = Self::of(files) else { return Ok(Self(None)) };
        let [certificate_key, private_key_key] = if ALTERNATIVE {
            ["tls.alternative.certificate", "tls.alternative.private_key"]
        } else {
            ["tls.certificate", "tls.private_key"]
        };
        let file = |key, path| ServiceFile { files, key, path };
        let pair =
            KeyPair::read(file(certificate_key, certificate), file(private_key_key, private_key));
        pair.map(|pair| Self(Some(pair)))
    }

    fn exposed(&self) -> &[ExposedKeyFile] {
        self.0.as_ref().map_or(&[], |pair| pair.exposed.as_slice())
    }
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
