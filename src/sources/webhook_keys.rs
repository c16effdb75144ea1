//! The keys with which webhooks sign their questions.

use std::sync::Arc;

use aws_lc_rs::hmac;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use zeroize::Zeroizing;

use super::credential_files::{CredentialFiles, WEBHOOKS};
use super::load_error::CredentialError;
use super::load_errors::LoadErrors;
use super::private_key::{self, ExposedKeyFile};
use super::service_file::ServiceFile;

/// Maximum size of a file with a secret, in bytes.
const MAX_FILE: u64 = 4096;
/// Minimum length of a secret, in bytes. step-ca makes secrets of 64 bytes.
const MIN_SECRET: usize = 16;

/// The keys of all webhooks of an authorizer.
#[derive(Debug, Clone, Default)]
pub(crate) struct WebhookKeys {
    /// The id of each webhook and its key.
    keys: Arc<[(String, hmac::Key)]>,
    /// The files with unsafe permissions.
    pub(super) exposed: Vec<ExposedKeyFile>,
}

impl WebhookKeys {
    /// Reads the secret of each webhook.
    ///
    /// # Errors
    /// Returns the first error, with its file.
    pub(super) fn read(files: CredentialFiles<'_>) -> Result<Self, LoadErrors> {
        let (mut keys, mut exposed) = (Vec::new(), Vec::new());
        for webhook in files.webhooks {
            let file = ServiceFile { files, key: WEBHOOKS, path: &webhook.secret };
            let read = private_key::read(file.path, MAX_FILE).map_err(|it| file.error(it))?;
            let secret = BASE64.decode(read.content.trim_ascii()).map(Zeroizing::new).ok();
            let secret = secret.filter(|secret| secret.len() >= MIN_SECRET);
            let secret = secret.ok_or_else(|| file.error(CredentialError::Secret))?;
            keys.push((webhook.id.clone(), hmac::Key::new(hmac::HMAC_SHA256, &secret)));
            exposed.extend(read.exposed.map(|exposed| exposed.with("secret of a webhook")));
        }
        Ok(Self { keys: keys.into(), exposed })
    }

    /// Whether the webhook with this id has signed `body`: `signature` is HMAC-SHA256 in hex. The
    /// comparison takes the same time for every signature.
    pub(crate) fn verify(&self, id: &[u8], body: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = HEXLOWER_PERMISSIVE.decode(signature) else { return false };
        let mut keys = self.keys.iter();
        let key = keys.find(|(known, _)| known.as_bytes() == id);
        key.is_some_and(|(_, key)| hmac::verify(key, body, &signature).is_ok())
    }
}
