//! Reads the file of a list in its format, and compares it with the list in use.

use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};

use crate::badkeys::{self, Blocklist, BlocklistFileError};
use crate::config::{BlocklistConfig, ListConfig, ListFormat, Shrink};
use crate::guard::{ExactList, FingerprintList, NamedBlocklist};
use crate::pkbf::{check_sidecar, sidecar_of};
use crate::process::sandbox;
use crate::regular_file;
use crate::snapshot::load::error::ListFileError;
use crate::snapshot::load::file::read_with;
use crate::snapshot::load::signed::{LoadedList, SignedContent, signature_paths, verify_beside};

/// Paths of the files of a list: its own, its checksum file, the metadata of a blocklist, the
/// signatures and the keys.
pub(super) fn paths(config: &ListConfig) -> Vec<PathBuf> {
    let keys = config.minisign_key.as_deref();
    let mut paths = vec![config.path.clone(), sidecar_of(&config.path)];
    paths.extend(signature_paths(&config.path, keys));
    match config.format {
        ListFormat::Badkeys(_) => {
            let metadata = badkeys::metadata_path(&config.path);
            paths.extend(signature_paths(&metadata, keys));
            paths.push(metadata);
        }
        ListFormat::Fingerprints => {}
    }
    paths
}

/// Reads the list, while the list `before` is in use.
pub(crate) fn read(
    config: &ListConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<LoadedList, ListFileError> {
    match config.format {
        ListFormat::Badkeys(settings) => read_blocklist(config, settings, before),
        ListFormat::Fingerprints => read_fingerprints(config, before),
    }
}

fn read_blocklist(
    config: &ListConfig,
    settings: BlocklistConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<LoadedList, ListFileError> {
    let max_size = config.max_size;
    let file = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        sandbox::check(&badkeys::metadata_path(path))?;
        badkeys::read(path, max_size)
    });
    let badkeys::BlocklistFile { blocklist, sha256, metadata, metadata_content } =
        file.map_err(|error: BlocklistFileError| ListFileError::from(error))?;
    let keys = config.minisign_key.as_deref();
    let signature = verify_beside(&config.path, keys, &[blocklist.content()])?;
    if metadata.is_some() {
        verify_beside(&badkeys::metadata_path(&config.path), keys, &[&metadata_content])?;
    }
    let (found, min) = (blocklist.len(), settings.min_records);
    if found < min {
        return Err(ListFileError::TooFew { found, min });
    }
    match settings.shrink {
        Shrink::Allow => {}
        Shrink::Refuse => ensure_most_records_stay(before(), &blocklist)?,
    }
    let metadata = metadata.unwrap_or_default();
    let list = NamedBlocklist {
        name: config.name.as_str().into(),
        blocklist,
        sha256,
        findings: metadata.findings,
        date: metadata.date,
        is_deprecated: metadata.is_deprecated,
    };
    let signed = signature.map(|signature| SignedContent { signature, text: Vec::new() });
    Ok(LoadedList { list: Arc::new(list).into(), signed: signed.map(Arc::new) })
}

/// Checks that `update` has at least half of the records in use.
fn ensure_most_records_stay(
    before: Option<ExactList>,
    update: &Blocklist,
) -> Result<(), ListFileError> {
    let Some(ExactList::Badkeys(list)) = before else { return Ok(()) };
    let (lost, before) = (list.blocklist.difference(update).0, list.blocklist.len());
    if lost > before / 2 { Err(ListFileError::Shrunk { lost, before }) } else { Ok(()) }
}

fn read_fingerprints(
    config: &ListConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<LoadedList, ListFileError> {
    let max_size = config.max_size;
    let content = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        let content = regular_file::read(path, max_size)?;
        let sha256 = || digest(&SHA256, &content).as_ref().try_into().unwrap_or_default();
        check_sidecar(path, sha256)?;
        Ok::<_, ListFileError>(content)
    })?;
    let signature = verify_beside(&config.path, config.minisign_key.as_deref(), &[&content])?;
    // A writer that truncates the file first may not have written yet, or may have failed.
    if content.iter().all(u8::is_ascii_whitespace) {
        let entries = before().map_or(0, |list| list.len());
        if entries > 0 {
            return Err(ListFileError::Emptied { entries });
        }
    }
    let text = String::from_utf8(content).map_err(ListFileError::Text)?;
    let list = Arc::new(FingerprintList::parse(&config.name, &text)?).into();
    let signed = signature.map(|signature| SignedContent { signature, text: text.into_bytes() });
    Ok(LoadedList { list, signed: signed.map(Arc::new) })
}
