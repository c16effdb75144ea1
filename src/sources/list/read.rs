//! Reads the file of a list in its format, and compares it with the list in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::badkeys::{self, BlocklistFileError};
use keygate_core::guard::{ExactList, FingerprintList, NamedBlocklist};
use keygate_core::pkbf::{check_sidecar, sidecar_of};
use keygate_core::regular_file;
use keygate_core::unix_time;

use crate::config::{ListConfig, ListFormat, Rollback};
use crate::files::read_with;
use crate::process::sandbox;
use crate::saved_state::copies::{self, Content, Original, OriginalMetadata};
use crate::saved_state::saved_credentials::sha256;
use crate::sources::check::MAX_CLOCK_SKEW;
use crate::sources::check::canary::ensure_canaries_listed;
use crate::sources::file_rejection::FileRejection;
use crate::sources::signed::{VerifiedList, signature_paths, verify_beside};

/// Paths of the files of a list: its own, its checksum file, the metadata of a blocklist, the
/// signatures, the keys and the canaries.
pub(super) fn paths(config: &ListConfig) -> Vec<PathBuf> {
    let keys = config.minisign_key.as_deref();
    let mut paths = vec![config.path.clone(), sidecar_of(&config.path)];
    paths.extend(signature_paths(&config.path, keys));
    match config.format {
        ListFormat::Badkeys => {
            let metadata = badkeys::metadata_path(&config.path);
            paths.extend(signature_paths(&metadata, keys));
            paths.push(metadata);
        }
        ListFormat::Fingerprints => {}
    }
    paths.extend(config.canaries.iter().cloned());
    paths
}

/// Reads the list, while the list `before` is in use.
pub(crate) fn read(
    config: &ListConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<VerifiedList, FileRejection> {
    read_with_metadata(config, badkeys::metadata_path(&config.path), before)
}

/// Reads the copy of the list at `path` in the state directory.
pub(super) fn read_copy(config: &ListConfig, path: &Path) -> Result<VerifiedList, FileRejection> {
    let copy = ListConfig { path: path.to_owned(), ..config.clone() };
    read_with_metadata(&copy, copies::metadata_path(path), || None)
}

fn read_with_metadata(
    config: &ListConfig,
    metadata: PathBuf,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<VerifiedList, FileRejection> {
    let loaded = match config.format {
        ListFormat::Badkeys => read_blocklist(config, metadata, before),
        ListFormat::Fingerprints => read_fingerprints(config, before),
    }?;
    let (found, min) = (loaded.list.len(), config.min_records);
    if found < min {
        return Err(FileRejection::TooFew { found, min });
    }
    ensure_canaries_listed(&loaded.list, &config.canaries)?;
    Ok(loaded)
}

fn read_blocklist(
    config: &ListConfig,
    metadata_path: PathBuf,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<VerifiedList, FileRejection> {
    let (max_size, beside) = (config.max_size, metadata_path.clone());
    let file = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        sandbox::check(&beside)?;
        badkeys::read_with_metadata(path, &beside, max_size)
    });
    let badkeys::BlocklistFile { blocklist, sha256, metadata, metadata_content } =
        file.map_err(|error: BlocklistFileError| FileRejection::from(error))?;
    let keys = config.minisign_key.as_deref();
    let signature = verify_beside(&config.path, keys, &[blocklist.content()])?;
    let original = match &metadata {
        Some(_) => {
            let signature = verify_beside(&metadata_path, keys, &[&metadata_content])?;
            let (content, signature) = (metadata_content.into(), signature.map(Arc::new));
            Some(OriginalMetadata { content, signature })
        }
        None => None,
    };
    let metadata = metadata.unwrap_or_default();
    let list = NamedBlocklist::new(&config.name, blocklist, sha256, metadata);
    if let Some(ExactList::Badkeys(in_use)) = before() {
        ensure_not_older(config.rollback, &in_use, &list, SystemTime::now())?;
    }
    let list = Arc::new(list);
    let content = Content::Blocklist(Arc::clone(&list));
    let signature = signature.map(Arc::new);
    let original = Original { content, sha256, signature, metadata: original };
    Ok(VerifiedList { list: list.into(), original })
}

/// Checks that `update` is not older than the list `in_use`. A list without a date may be of any
/// age, so that it never replaces a dated one: the next one could be older. A date in the future is
/// no bound, because a forged one would reject every later update. If both dates are in the future,
/// the clock is late, and the dates are compared.
fn ensure_not_older(
    rollback: Rollback,
    in_use: &NamedBlocklist,
    update: &NamedBlocklist,
    now: SystemTime,
) -> Result<(), FileRejection> {
    let latest = unix_time::seconds(now).saturating_add(MAX_CLOCK_SKEW);
    let is_future = |date: &u64| *date > latest;
    let is_clock_late = in_use.date.iter().all(is_future) && update.date.iter().any(is_future);
    let is_bound = |date: &u64| is_clock_late || !is_future(date);
    let Some(known) = in_use.date.filter(is_bound) else { return Ok(()) };
    let is_older = update.date.is_none_or(|date| date < known);
    match rollback {
        Rollback::Refuse if is_older => {
            Err(FileRejection::OlderBlocklist { found: update.date, in_use: known })
        }
        Rollback::Allow | Rollback::Refuse => Ok(()),
    }
}

fn read_fingerprints(
    config: &ListConfig,
    before: impl FnOnce() -> Option<ExactList>,
) -> Result<VerifiedList, FileRejection> {
    let max_size = config.max_size;
    let content = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        let content = regular_file::read(path, max_size)?;
        check_sidecar(path, || sha256(&content))?;
        Ok::<_, FileRejection>(content)
    })?;
    let signature = verify_beside(&config.path, config.minisign_key.as_deref(), &[&content])?;
    // A writer that truncates the file first may not have written yet, or may have failed.
    if content.iter().all(u8::is_ascii_whitespace) {
        let entries = before().map_or(0, |list| list.len());
        if entries > 0 {
            return Err(FileRejection::Emptied { entries });
        }
    }
    let sha256 = sha256(&content);
    let text = String::from_utf8(content).map_err(FileRejection::Text)?;
    let list = Arc::new(FingerprintList::parse(&config.name, &text)?).into();
    let content = Content::Fingerprints(Some(text.into_bytes().into()));
    let original = Original { content, sha256, signature: signature.map(Arc::new), metadata: None };
    Ok(VerifiedList { list, original })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::sources::guarded::GuardedFile;
    use keygate_core::badkeys::{Blocklist, Metadata};

    const DAY: u64 = 86_400;

    fn list(record: u8, date: Option<u64>) -> NamedBlocklist {
        let blocklist = Blocklist::parse(vec![record; 16]).unwrap();
        let metadata = Metadata { date, ..Metadata::default() };
        NamedBlocklist::new("badkeys", blocklist, [record; 32], metadata)
    }

    #[test]
    fn an_older_list_is_rejected_also_by_a_machine_whose_clock_is_late() {
        let date = 1_000 * DAY;
        // The date of the update, the time, and the result.
        for (update, now, is_accepted) in [
            (Some(date), date, true),
            (Some(date + DAY), date, true),
            (Some(date - 1), date, false),
            (None, date, false),
            // Both dates are in the future of this clock.
            (Some(date - 1), date - 500 * DAY, false),
            (Some(date), date - 500 * DAY, true),
            // Only the date in use is in the future, as a forged one would be.
            (Some(date - 900 * DAY), date - 500 * DAY, true),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(now);
            let (in_use, update) = (list(1, Some(date)), list(2, update));
            let checked = ensure_not_older(Rollback::Refuse, &in_use, &update, now);
            assert_eq!(checked.is_ok(), is_accepted, "{:?} {now:?}", update.date);
            assert!(ensure_not_older(Rollback::Allow, &in_use, &update, now).is_ok());
        }
    }

    #[test]
    fn an_unchanged_list_that_is_read_again_is_not_twice_in_memory() {
        let loaded = |date| {
            let list = Arc::new(list(1, Some(date)));
            let content = Content::Blocklist(Arc::clone(&list));
            let original = Original { content, sha256: [0; 32], signature: None, metadata: None };
            VerifiedList { list: list.into(), original }
        };
        let (mut in_use, again) = (loaded(1), loaded(1));
        assert!(in_use.judges_like(&again));
        in_use.adopt(again);
        let (ExactList::Badkeys(list), Content::Blocklist(bytes)) =
            (&in_use.list, &in_use.original.content)
        else {
            panic!("{in_use:?}")
        };
        assert!(Arc::ptr_eq(list, bytes));
    }
}
