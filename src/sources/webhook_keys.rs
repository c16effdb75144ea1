//! The keys with which webhooks sign their questions.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::hmac;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use zeroize::Zeroizing;

use super::credential_files::CredentialFiles;
use super::credential_unit::CredentialUnit;
use super::load_error::CredentialError;
use super::load_errors::LoadErrors;
use super::private_key::{self, ExposedKeyFile};
use super::service_file::ServiceFile;
use super::unit_files::UnitFiles;

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
    exposed: Vec<ExposedKeyFile>,
}

impl UnitFiles for WebhookKeys {
    const UNIT: CredentialUnit = CredentialUnit::Webhooks;

    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf> {
        files.webhooks.iter().map(|webhook| webhook.secret.clone()).collect()
    }

    fn read(files: CredentialFiles<'_>, _: &Self, _: SystemTime) -> Result<Self, LoadErrors> {
        let (mut keys, mut exposed) = (Vec::new(), Vec::new());
        for webhook in files.webhooks {
            let file = ServiceFile { files, key: "webhooks", path: &webhook.secret };
            let read = private_key::read(file.path, MAX_FILE).map_err(|it| file.error(it))?;
            let secret = BASE64.decode(read.content.trim_ascii()).map(Zeroizing::new).ok();
            let secret = secret.filter(|secret| secret.len() >= MIN_SECRET);
            let secret = secret.ok_or_else(|| file.error(CredentialError::Secret))?;
            keys.push((webhook.id.clone(), hmac::Key::new(hmac::HMAC_SHA256, &secret)));
            exposed.extend(read.exposed.map(|exposed| exposed.with("secret of a webhook")));
        }
        Ok(Self { keys: keys.into(), exposed })
    }

    fn exposed(&self) -> &[ExposedKeyFile] {
        &self.exposed
    }
}

impl WebhookKeys {
    /// Whether the webhook with this id has signed `body`: `signature` is HMAC-SHA256 in hex. The
    /// comparison takes the same time for every signature.
    pub(crate) fn verify(&self, id: &[u8], body: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = HEXLOWER_PERMISSIVE.decode(signature) else { return false };
        let mut keys = self.keys.iter();
        let key = keys.find(|(known, _)| known.as_bytes() == id);
        key.is_some_and(|(_, key)| hmac::verify(key, body, &signature).is_ok())
    }
}
