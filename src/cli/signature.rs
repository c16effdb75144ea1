//! The signature beside a file, as the commands show it.

use std::path::{Path, PathBuf};

use clap::ValueHint;
use keygate_core::signature::{MinisignKeys, SignatureError, signature_path};
use serde::Serialize;

use super::{CliError, print};

/// The option `--minisign-key`.
#[derive(Debug, Default, clap::Args)]
pub(super) struct SignatureArgs {
    /// Verify the signature of the file (FILE.minisig) with the keys in this file.
    #[arg(long, value_name = "KEYS", value_hint = ValueHint::FilePath)]
    minisign_key: Option<PathBuf>,
}

/// The signature beside a file.
#[derive(Debug, Serialize)]
pub(super) struct SignatureInfo {
    pub(super) path: String,
    /// Whether it was verified. The rest is null otherwise, because nothing in it can be relied on.
    pub(super) verified: bool,
    pub(super) key_id: Option<String>,
    pub(super) comment: Option<String>,
}

impl SignatureArgs {
    /// Verifies the signature of the file at `path`, which has this `content`. Without the option,
    /// only looks whether there is one.
    pub(super) fn check(
        &self,
        path: &Path,
        content: &[&[u8]],
    ) -> Result<Option<SignatureInfo>, CliError> {
        let signature = signature_path(path);
        let shown = signature.display().to_string();
        let Some(keys) = &self.minisign_key else {
            let unverified =
                SignatureInfo { path: shown, verified: false, key_id: None, comment: None };
            return Ok(signature.symlink_metadata().is_ok().then_some(unverified));
        };
        let verified = verify(keys, path, content)?;
        let (key_id, comment) = (Some(verified.key_id()), Some(verified.comment()));
        Ok(Some(SignatureInfo { path: shown, verified: true, key_id, comment }))
    }
}

/// Verifies the signature of the file at `path`, which has this `content`, with the keys in the
/// file `keys`.
pub(super) fn verify(
    keys: &Path,
    path: &Path,
    content: &[&[u8]],
) -> Result<keygate_core::signature::FileSignature, CliError> {
    let failed = |source: SignatureError| CliError::file(path, source);
    let keys = MinisignKeys::read(keys).map_err(failed)?;
    keys.verify_beside(path, content.iter().copied()).map_err(failed)
}

/// Prints the signature of a file after `label`.
pub(super) fn show(label: &str, signature: Option<&SignatureInfo>) -> Result<(), CliError> {
    let Some(SignatureInfo { path, key_id, comment, .. }) = signature else {
        return print(format_args!("{label}none"));
    };
    match (key_id, comment) {
        (Some(key_id), Some(comment)) => {
            print(format_args!("{label}valid, with the key {key_id} ({comment})"))
        }
        _ => print(format_args!("{label}not verified ({path}); give --minisign-key")),
    }
}
