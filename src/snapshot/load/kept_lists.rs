//! Copies of the exact lists in use, kept in the state directory. A start whose list file is rejected
//! uses the copy.
//!
//! A copy is named by the SHA-256 of the name of its list. Its first line has the SHA-256 of the other
//! lines, which are the fingerprints in hex, in ascending order.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use tracing::error;

use super::error::{ListFileError, LoadError};
use super::file;
use super::kept_filters::STAGED_STATE_PREFIX;
use crate::config::ListConfig;
use crate::guard::FingerprintList;
use crate::pkbf::FilterError;
use crate::regular_file;

/// Start of the name of a copy. The SHA-256 of the name of the list in hex and [`SUFFIX`] follow.
const PREFIX: &str = "last-good-list-";
/// End of the name of a copy.
const SUFFIX: &str = ".txt";
/// Start of the first line of a copy. The SHA-256 of the other lines in hex follows.
const FIRST_LINE: &str = "# SHA-256 of the lines below: ";
/// Length of a line of a copy, in bytes: a SHA-256 in hex, and a line feed.
const LINE_LENGTH: u64 = 65;
/// Length of the shortest line of a list, in bytes: a SHA-256 in base64.
const SHORTEST_LINE: u64 = 43;

/// The copies of lists in the state directory.
#[derive(Debug, Default)]
pub(crate) struct KeptLists {
    /// `None` without a state directory. There are no copies then.
    directory: Option<PathBuf>,
    /// The lists whose copies this process has written, by name. `None` before the first time.
    written: Option<BTreeMap<Arc<str>, Arc<FingerprintList>>>,
}

impl KeptLists {
    /// The copies in `directory`.
    pub(crate) fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_owned), written: None }
    }

    /// The copy of a list, if there is one. Logs why one cannot be used.
    pub(crate) fn read(&self, config: &ListConfig) -> Option<FingerprintList> {
        let path = path_in(self.directory.as_deref()?, &config.name);
        let max_size = config.max_size / SHORTEST_LINE * LINE_LENGTH + LINE_LENGTH * 2;
        let content = file::read_with(&path, move |path| regular_file::read(path, max_size));
        let list = match content {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.into()),
            Ok(content) => parse(&path, config, content),
        };
        list.inspect_err(|error| {
            let (list, path) = (&config.name, path.display());
            error!(%list, %path, %error, "the last good list cannot be used either");
        })
        .ok()
    }

    /// Writes a copy of each list `in_use` that has changed, and removes the copies of other lists.
    /// Without `may_write`, nothing is written.
    ///
    /// # Errors
    /// Returns an error if a copy cannot be written or removed.
    pub(crate) fn save(
        &mut self,
        in_use: impl Iterator<Item = Arc<FingerprintList>>,
        may_write: bool,
    ) -> Result<(), LoadError> {
        let Some(directory) = self.directory.clone().filter(|_| may_write) else { return Ok(()) };
        let in_use: BTreeMap<_, _> = in_use.map(|list| (Arc::clone(&list.name), list)).collect();
        let is_written = |list: &&Arc<FingerprintList>| {
            let known = self.written.as_ref().and_then(|written| written.get(&list.name));
            known.is_some_and(|known| Arc::ptr_eq(known, list))
        };
        let changed: Vec<_> = in_use.values().filter(|it| !is_written(it)).cloned().collect();
        let before = self.written.as_ref().map(BTreeMap::len);
        if changed.is_empty() && before == Some(in_use.len()) {
            return Ok(());
        }
        let size = changed.iter().map(|list| (list.len() as u64).saturating_mul(LINE_LENGTH));
        let size = size.fold(0, u64::saturating_add);
        let kept: Vec<_> = in_use.keys().map(|name| path_in(&directory, name)).collect();
        let path = directory.clone();
        let written = file::write_with(&path, size, move || {
            changed.iter().try_for_each(|list| write(&directory, list))?;
            remove_others(&directory, &kept)
        });
        written.map_err(|source| LoadError::LastGoodList { directory: path, source })?;
        self.written = Some(in_use);
        Ok(())
    }
}

/// Path of the copy of the list with this name, in the state directory.
fn path_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{PREFIX}{}{SUFFIX}", sha256(name.as_bytes())))
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

fn parse(
    path: &Path,
    config: &ListConfig,
    content: Vec<u8>,
) -> Result<FingerprintList, ListFileError> {
    let text = String::from_utf8(content).map_err(ListFileError::Text)?;
    let (first, lines) = text.split_once('\n').unwrap_or_default();
    let expected = first.strip_prefix(FIRST_LINE).unwrap_or_default().to_owned();
    let found = sha256(lines.as_bytes());
    if found != expected {
        let sidecar = path.to_owned();
        return Err(FilterError::Checksum { sidecar, expected, found }.into());
    }
    Ok(FingerprintList::parse(&config.name, lines)?)
}

/// Replaces the copy of a list. After a crash, it is the old one or the new one.
fn write(directory: &Path, list: &FingerprintList) -> io::Result<()> {
    let mut lines: Vec<_> = list.iter().map(|fingerprint| format!("{fingerprint}\n")).collect();
    lines.sort_unstable();
    let lines = lines.concat();
    let mut staged = tempfile::Builder::new().prefix(STAGED_STATE_PREFIX).tempfile_in(directory)?;
    writeln!(staged, "{FIRST_LINE}{}", sha256(lines.as_bytes()))?;
    staged.write_all(lines.as_bytes())?;
    staged.as_file().sync_all()?;
    staged.persist(path_in(directory, &list.name)).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Removes the copies that are not at one of the paths `kept`.
fn remove_others(directory: &Path, kept: &[PathBuf]) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_copy =
            name.to_str().is_some_and(|it| it.starts_with(PREFIX) && it.ends_with(SUFFIX));
        if is_copy && entry.file_type()?.is_file() && !kept.contains(&entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
