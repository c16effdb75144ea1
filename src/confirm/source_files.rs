//! The files that `[confirm]` names: CAs, API key and canary.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::HeaderValue;
use keygate_core::regular_file::cause;
use keygate_core::spki::{self, Fingerprint, InputError};
use keygate_core::tls::{self, TlsFileError};
use rustls::ClientConfig;
use zeroize::Zeroizing;

use crate::config::{AlpnProtocol, CanaryConfig, ConfirmConfig, KeyPlace, PlacedProblem};
use crate::http_client;
use crate::snapshot::{self, ExposedKeyFile};

/// Maximum size of a file of CAs or of a canary, 16 MiB.
const MAX_SIZE: u64 = 16 << 20;
/// Maximum size of an API key, in bytes.
const MAX_API_KEY: u64 = 4096;
/// Maximum number of keys in a canary file. Each is a request with each check.
const MAX_CANARIES: usize = 4;

/// The example keys of pwnedkeys.com in base64: RSA-2048 and P-256. The service answers to them "at
/// all times". Source: <https://pwnedkeys.com/search.html>
const PUBLISHED: [&str; 2] = [
    "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAnY1iCLqFMvkRgj7ZDxnGbWUpON+2lBQdgoCJL34gOR94gfpoOspPMqLSH9LVVWDMteoe2K9c5siwJ4EyFKaAc7kIOROusJ+9EMZAdOubMtxWDPA+MJDFvTj9ifdUqHqGJ5MCdJ7vCx0xf0/RqU78SQlb0jKGBLBdRhxRQsJeGEDmD7HHq6sa+3Xz/5sJbpS68AcWJm13A0bbpH/HgDcul6PHJHrBoSfZ3YXv1utNJ+sWUzU6AV4lsiNf41pM70Y9zb4ALzx9sqSZugEA9cJDVRafsjVaqC/cWSUviy4djbt3MBrnEvUCO0YOH+DP52i9OuXg2C8RBXoEjOWXwKfXJwIDAQAB",
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEHVxRyjcxg0ACwmeKOuMSs76eZhxuncq8vYPJfu0ENzYtHMSBbb/0O8g73PbBoiAAfGJBemdp2NyGLLcPOZpJ+Q==",
];

/// A key with its fingerprint.
pub(super) type CanaryKey = (Fingerprint, Arc<[u8]>);

/// Why the table `[confirm]` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfirmError {
    /// The file of the API key is not a key.
    #[error(
        "confirm.api_key {}: not one line of 1 to {MAX_API_KEY} printable ASCII characters; \
         put the key alone into the file",
        path.display()
    )]
    ApiKey {
        /// Path of the file.
        path: PathBuf,
    },
    /// The canary file has an unusable place.
    #[error("confirm.canary {}: {source}; give \"published\", \"off\" or a file with a key", path.display())]
    Canary {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: InputError,
    },
    /// The canary file has too many keys.
    #[error("confirm.canary {}: {keys} keys; give 1 to {MAX_CANARIES}", path.display())]
    CanaryCount {
        /// Path of the file.
        path: PathBuf,
        /// Number of keys in it.
        keys: usize,
    },
    /// The directory of proofs, or that of kept proofs, cannot be used.
    #[error("{key}: directory {}: {}; create it, readable for the user that runs keygate", path.display(), cause(source))]
    Directory {
        /// Configuration key that names the directory, or its parent.
        key: &'static str,
        /// Path of the directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("{key} {}: {}{}", path.display(), cause(source), remedy(key))]
    Read {
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The thread that reads the files cannot be started.
    #[error("cannot start the thread that reads the files of [confirm]: {0}")]
    Thread(#[source] io::Error),
    /// rustls rejects the configuration.
    #[error("confirm.url: TLS cannot be configured: {}", tls::tls_error(.0))]
    Tls(#[from] rustls::Error),
    /// The file of CAs cannot be used.
    #[error("confirm.trust_anchors {}: {source}{}", path.display(), remedy("confirm.trust_anchors"))]
    TrustAnchors {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        source: TlsFileError,
    },
}

impl ConfirmError {
    /// The error with the key of the configuration that names the file.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        let key = match self {
            Self::ApiKey { .. } => Some("confirm.api_key"),
            Self::Canary { .. } | Self::CanaryCount { .. } => Some("confirm.canary"),
            Self::Directory { key, .. } | Self::Read { key, .. } => Some(*key),
            Self::Thread(_) => None,
            Self::Tls(_) => Some("confirm.url"),
            Self::TrustAnchors { .. } => Some("confirm.trust_anchors"),
        };
        PlacedProblem { place: key.map(KeyPlace::new), problem: self.to_string() }
    }
}

/// The remedy if the file of this configuration key cannot be read.
fn remedy(key: &str) -> &'static str {
    match key {
        "confirm.api_key" => "; put the key into the file, or remove confirm.api_key",
        "confirm.canary" => "; give \"published\", \"off\" or a file with a key",
        "confirm.trust_anchors" => "; give the CAs of the source in PEM",
        _ => "",
    }
}

/// The content of the files of the source.
#[derive(Debug, Clone)]
pub(super) struct SourceFiles {
    /// `None` for a source without TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// The value of `Authorization`, zeroized on drop.
    pub(super) authorization: Option<HeaderValue>,
    /// Keys that the source must know; none if nothing is cleared.
    pub(super) canaries: Vec<CanaryKey>,
    /// The problem with the permissions of the file with the API key.
    pub(super) exposed: Option<ExposedKeyFile>,
}

impl SourceFiles {
    /// Reads the files that `config` names. Blocks.
    pub(super) fn read(config: &ConfirmConfig) -> Result<Self, ConfirmError> {
        let is_secure = config.url.as_ref().is_some_and(|url| url.is_secure);
        let tls = match &config.trust_anchors {
            Some(path) => {
                let pem = read("confirm.trust_anchors", path)?;
                let unusable = |source| ConfirmError::TrustAnchors { path: path.clone(), source };
                let anchors = tls::trust_anchors(&pem).map_err(unusable)?;
                let alpn = [AlpnProtocol::Http11.as_bytes()];
                let client = tls::client_config(&anchors, None, &alpn)?;
                is_secure.then(|| Arc::new(client))
            }
            None => None,
        };
        let (authorization, exposed) = match &config.api_key {
            Some(path) => authorization(path)?,
            None => (None, None),
        };
        let canaries = match &config.canary {
            CanaryConfig::File(path) => canaries(path)?,
            CanaryConfig::Off => Vec::new(),
            CanaryConfig::Published => published(),
        };
        Ok(Self { tls, authorization, canaries, exposed })
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, ConfirmError> {
    let read = snapshot::read_bounded(path, MAX_SIZE);
    read.map_err(|source| ConfirmError::Read { key, path: path.to_owned(), source })
}

/// The value of `Authorization`, and the problem with the permissions of the file.
fn authorization(
    path: &Path,
) -> Result<(Option<HeaderValue>, Option<ExposedKeyFile>), ConfirmError> {
    let file = snapshot::read_private_key(path, MAX_API_KEY);
    let file = file.map_err(|source| ConfirmError::Read {
        key: "confirm.api_key",
        path: path.to_owned(),
        source,
    })?;
    let key = file.content.trim_ascii();
    let invalid = || ConfirmError::ApiKey { path: path.to_owned() };
    if key.is_empty() || !key.iter().all(u8::is_ascii_graphic) {
        return Err(invalid());
    }
    const SCHEME: &[u8] = b"Bearer ";
    // The capacity suffices, because a growing buffer leaves copies in memory.
    let mut value = Zeroizing::new(Vec::with_capacity(SCHEME.len() + key.len()));
    value.extend_from_slice(SCHEME);
    value.extend_from_slice(key);
    let value = http_client::secret_value(value).ok_or_else(invalid)?;
    Ok((Some(value), file.exposed))
}

fn canaries(path: &Path) -> Result<Vec<CanaryKey>, ConfirmError> {
    let content = Zeroizing::new(read("confirm.canary", path)?); // may have a private key
    let mut keys = Vec::new();
    for finding in spki::keys_in(&content) {
        let unusable = |source| ConfirmError::Canary { path: path.to_owned(), source };
        keys.push(canary(finding.key.map_err(unusable)?));
    }
    if (1..=MAX_CANARIES).contains(&keys.len()) {
        return Ok(keys);
    }
    Err(ConfirmError::CanaryCount { path: path.to_owned(), keys: keys.len() })
}

fn published() -> Vec<CanaryKey> {
    let decoded = PUBLISHED.iter().map(|key| data_encoding::BASE64.decode(key.as_bytes()));
    decoded.flatten().map(canary).collect()
}

fn canary(spki: Vec<u8>) -> CanaryKey {
    (Fingerprint::of(&spki), spki.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_canaries_are_the_example_keys_of_pwnedkeys() {
        let fingerprints: Vec<_> = published().iter().map(|(it, _)| it.to_string()).collect();
        assert_eq!(
            fingerprints,
            [
                "9e03b56749abe821a6f5299d6f634b35404975f0552eb3347bf3adfad9af1109",
                "819f7d1dcd9f07bfcb59b7699f68994d89390c3bcd498cf7fb2e1ef3d272b89b",
            ]
        );
    }

    #[test]
    fn an_api_key_is_one_line_and_is_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.key");
        std::fs::write(&path, "abc-123\n").unwrap();
        let (value, _) = authorization(&path).unwrap();
        let value = value.unwrap();
        assert_eq!(value.as_bytes(), b"Bearer abc-123");
        assert_eq!(format!("{value:?}"), "Sensitive");
        for wrong in ["", "\n", "two lines\n", "a\nb", "a\u{e9}"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(authorization(&path).is_err(), "{wrong:?}");
        }
    }
}
