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

/// Paths of the files of a list: its own, its checksum file, the metadata of a blocklist.
pub(super) fn paths(config: &ListConfig) -> Vec<PathBuf> {
    let metadata = match config.format {
        ListFormat::Badkeys(_) => Some(badkeys::metadata_path(&config.path)),
        ListFormat::Fingerprints => None,
    };
    let own = [config.path.clone(), sidecar_of(&config.path)];
    own.into_iter().chain(metadata).collect()
}

/// Reads the list, while the list `before` is in use.
pub(crate) fn read(
    config: &ListConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<ExactList, ListFileError> {
    match config.format {
        ListFormat::Badkeys(settings) => read_blocklist(config, settings, before),
        ListFormat::Fingerprints => read_fingerprints(config, before),
    }
}

fn read_blocklist(
    config: &ListConfig,
    settings: BlocklistConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<ExactList, ListFileError> {
    let max_size = config.max_size;
    let file = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        sandbox::check(&badkeys::metadata_path(path))?;
        badkeys::read(path, max_size)
    });
    let badkeys::BlocklistFile { blocklist, sha256, metadata } =
        file.map_err(|error: BlocklistFileError| ListFileError::from(error))?;
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
    Ok(Arc::new(list).into())
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
) -> Result<ExactList, ListFileError> {
    let max_size = config.max_size;
    let content = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        let content = regular_file::read(path, max_size)?;
        let sha256 = || digest(&SHA256, &content).as_ref().try_into().unwrap_or_default();
        check_sidecar(path, sha256)?;
        Ok::<_, ListFileError>(content)
    })?;
    // A writer that truncates the file first may not have written yet, or may have failed.
    if content.iter().all(u8::is_ascii_whitespace) {
        let entries = before().map_or(0, |list| list.len());
        if entries > 0 {
            return Err(ListFileError::Emptied { entries });
        }
    }
    let text = String::from_utf8(content).map_err(ListFileError::Text)?;
    Ok(Arc::new(FingerprintList::parse(&config.name, &text)?).into())
}
