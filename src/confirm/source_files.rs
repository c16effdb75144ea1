//! The files that `[confirm]` names: CAs, API key and canary.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hyper::header::HeaderValue;
use keygate_core::regular_file::cause;
use keygate_core::spki::{self, Fingerprint};
use keygate_core::tls;
use rustls::ClientConfig;
use zeroize::Zeroizing;

use crate::config::{AlpnProtocol, CanaryConfig, ConfirmConfig, KeyPlace, PlacedProblem};
use crate::files;
use crate::http_client;
use crate::sources::{self, ExposedKeyFile};

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

/// Why the table `[confirm]` cannot be used, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct ConfirmError {
    /// The configuration key that names the file; `None` if the process is the cause.
    key: Option<&'static str>,
    problem: String,
}

impl ConfirmError {
    pub(super) fn thread(error: &io::Error) -> Self {
        let problem = format!("cannot start the thread that reads the files of [confirm]: {error}");
        Self { key: None, problem }
    }

    /// The file at `path`, which `key` names, has this problem.
    fn file(key: &'static str, path: &Path, problem: impl Display) -> Self {
        let (path, remedy) = (path.display(), remedy(key));
        Self { key: Some(key), problem: format!("{key} {path}: {problem}; {remedy}") }
    }

    /// The directory of proofs, or of saved proofs, cannot be used.
    pub(super) fn directory(key: &'static str, path: &Path, error: &io::Error) -> Self {
        let (path, cause) = (path.display(), cause(error));
        let remedy = "create it, readable for the user that runs keygate";
        Self { key: Some(key), problem: format!("{key}: directory {path}: {cause}; {remedy}") }
    }

    /// The error with the key of the configuration that names the file.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        PlacedProblem { place: self.key.map(KeyPlace::new), problem: self.to_string() }
    }
}

/// The remedy if the file of this configuration key cannot be used.
fn remedy(key: &str) -> &'static str {
    match key {
        "confirm.api_key" => "put the key alone into the file, or remove confirm.api_key",
        "confirm.canary" => "give \"published\", \"off\" or a file with a key",
        _ => "give the CAs of the source in PEM",
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
                let anchors = tls::trust_anchors(&pem)
                    .map_err(|error| ConfirmError::file("confirm.trust_anchors", path, error))?;
                let alpn = [AlpnProtocol::Http11.as_bytes()];
                let client = tls::client_config(&anchors, None, &alpn, &[]).map_err(|error| {
                    let problem = tls::tls_error(&error);
                    let problem = format!("confirm.url: TLS cannot be configured: {problem}");
                    ConfirmError { key: Some("confirm.url"), problem }
                })?;
                is_secure.then(|| Arc::new(client))
            }
            None => None,
        };
        let api_key = config.api_key.as_deref().map(authorization).transpose()?;
        let (authorization, exposed) = api_key.map_or((None, None), |it| (Some(it.0), it.1));
        let canaries = match &config.canary {
            CanaryConfig::File(path) => canaries(path)?,
            CanaryConfig::Off => Vec::new(),
            CanaryConfig::Published => published(),
        };
        Ok(Self { tls, authorization, canaries, exposed })
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, ConfirmError> {
    let read = files::read_bounded(path, MAX_SIZE);
    read.map_err(|error| ConfirmError::file(key, path, cause(&error)))
}

/// The value of `Authorization`, and the problem with the permissions of the file.
fn authorization(path: &Path) -> Result<(HeaderValue, Option<ExposedKeyFile>), ConfirmError> {
    let file = sources::read_private_key(path, MAX_API_KEY);
    let file = file.map_err(|error| ConfirmError::file("confirm.api_key", path, cause(&error)))?;
    let key = file.content.trim_ascii();
    let invalid = || {
        let problem = format_args!("not one line of 1 to {MAX_API_KEY} printable ASCII characters");
        ConfirmError::file("confirm.api_key", path, problem)
    };
    if key.is_empty() || !key.iter().all(u8::is_ascii_graphic) {
        return Err(invalid());
    }
    const SCHEME: &[u8] = b"Bearer ";
    // The capacity suffices, because a growing buffer leaves copies in memory.
    let mut value = Zeroizing::new(Vec::with_capacity(SCHEME.len() + key.len()));
    value.extend_from_slice(SCHEME);
    value.extend_from_slice(key);
    let value = http_client::secret_value(value).ok_or_else(invalid)?;
    Ok((value, file.exposed))
}

fn canaries(path: &Path) -> Result<Vec<CanaryKey>, ConfirmError> {
    let content = Zeroizing::new(read("confirm.canary", path)?); // may have a private key
    let mut keys = Vec::new();
    for finding in spki::keys_in(&content) {
        let key = finding.key;
        keys.push(canary(key.map_err(|error| ConfirmError::file("confirm.canary", path, error))?));
    }
    if (1..=MAX_CANARIES).contains(&keys.len()) {
        return Ok(keys);
    }
    let problem = format_args!("{} keys instead of 1 to {MAX_CANARIES}", keys.len());
    Err(ConfirmError::file("confirm.canary", path, problem))
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
        assert_eq!(value.as_bytes(), b"Bearer abc-123");
        assert_eq!(format!("{value:?}"), "Sensitive");
        for wrong in ["", "\n", "two lines\n", "a\nb", "a\u{e9}"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(authorization(&path).is_err(), "{wrong:?}");
        }
    }
}
