//! Copies of the exact lists in use, kept in the state directory. A start whose list file is
//! rejected uses the copy.
//!
//! A copy is named by the SHA-256 of the name of its list. Its first line has the SHA-256 of the
//! content after it. The content has the form of the list:
//!
//! | list | content |
//! | --- | --- |
//! | fingerprints | a line for each digest, in ascending order; the file itself if it was signed |
//! | badkeys | a line of JSON with date and names, as in `badkeysdata.json`, then the records |
//!
//! The content of a list that was signed begins with the four lines of the signature. It is
//! verified again, because another key may be configured at the next start.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256, digest};
use data_encoding::HEXLOWER;
use keygate_core::badkeys::{Blocklist, BlocklistFileError, Metadata};
use keygate_core::guard::{ExactList, FingerprintList, NamedBlocklist};
use keygate_core::pkbf::FilterError;
use keygate_core::regular_file;
use keygate_core::signature::{MAX_SIZE as MAX_SIGNATURE_SIZE, SIGNATURE_LINES, SIGNATURE_START};
use keygate_core::unix_time::rfc3339;
use serde_json::json;
use tracing::error;

use super::error::{ListFileError, LoadError};
use super::file;
use super::signed::{LoadedList, SignedContent, verify_saved};
use super::state_file;
use crate::config::{ListConfig, ListFormat};

/// Start of the name of a copy. The SHA-256 of the name of the list in hex and a suffix follow.
const PREFIX: &str = "last-good-list-";
/// End of the name of a copy of fingerprints.
const TEXT_SUFFIX: &str = ".txt";
/// End of the name of a copy of a blocklist.
const BLOCKLIST_SUFFIX: &str = ".dat";
/// Start of the first line of a copy. The SHA-256 of the content after it in hex follows.
const FIRST_LINE: &str = "# SHA-256 of the lines below: ";
/// Maximum length of a line of a copy, in bytes: `rsa-modulus:`, a SHA-256 in hex, and a line feed.
const LINE_LENGTH: u64 = 77;
/// Length of the shortest line of a list, in bytes: a SHA-256 in base64.
const SHORTEST_LINE: u64 = 43;
/// Maximum length of the JSON of a copy, in bytes. 256 names of 64 characters take 24 KiB.
const MAX_METADATA: u64 = 64 << 10;

/// The copies of lists in the state directory.
#[derive(Debug, Default)]
pub(crate) struct SavedLists {
    /// `None` without a state directory. There are no copies then.
    directory: Option<PathBuf>,
    /// The lists whose copies this process has written, by name. `None` before the first time.
    written: Option<BTreeMap<Arc<str>, LoadedList>>,
}

impl SavedLists {
    /// The copies in `directory`.
    pub(crate) fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_owned), written: None }
    }

    /// The copy of a list, which had this `name` when it was written, if there is one. Logs why one
    /// cannot be used.
    pub(crate) fn read(&self, config: &ListConfig, name: &str) -> Option<LoadedList> {
        let suffix = match config.format {
            ListFormat::Badkeys(_) => BLOCKLIST_SUFFIX,
            ListFormat::Fingerprints => TEXT_SUFFIX,
        };
        let path = path_in(self.directory.as_deref()?, name, suffix);
        let content = match config.format {
            ListFormat::Badkeys(_) => config.max_size.saturating_add(MAX_METADATA),
            // A file that was signed is kept with its comments.
            ListFormat::Fingerprints => {
                (config.max_size / SHORTEST_LINE).saturating_mul(LINE_LENGTH).max(config.max_size)
            }
        };
        let max_size = content.saturating_add(LINE_LENGTH * 2).saturating_add(MAX_SIGNATURE_SIZE);
        let content = file::read_with(&path, move |path| regular_file::read(path, max_size));
        let list = match content {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.into()),
            Ok(content) => parse(&path, config, content),
        };
        list.inspect_err(|error| {
            let (list, path) = (&config.name, path.display());
            error!(%list, %path, %error, "the copy of the last good list cannot be used");
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
        in_use: impl Iterator<Item = LoadedList>,
        may_write: bool,
    ) -> Result<(), LoadError> {
        let Some(directory) = self.directory.clone().filter(|_| may_write) else { return Ok(()) };
        let in_use = in_use.map(|loaded| (Arc::clone(loaded.list.name()), loaded));
        let in_use: BTreeMap<_, _> = in_use.collect();
        let is_written = |list: &&LoadedList| {
            let known = self.written.as_ref().and_then(|written| written.get(list.list.name()));
            known.is_some_and(|known| known.is_same(list))
        };
        let changed: Vec<_> = in_use.values().filter(|it| !is_written(it)).cloned().collect();
        let before = self.written.as_ref().map(BTreeMap::len);
        if changed.is_empty() && before == Some(in_use.len()) {
            return Ok(());
        }
        let size = changed.iter().map(size_of_copy).fold(0, u64::saturating_add);
        let kept: Vec<_> = in_use.values().map(|it| path_of(&directory, &it.list)).collect();
        let path = directory.clone();
        let written = file::write_with(&path, size, move || {
            changed.iter().try_for_each(|list| write(&directory, list))?;
            let is_kept = |name: &str| kept.contains(&directory.join(name));
            state_file::remove_if(&directory, |name| name.starts_with(PREFIX) && !is_kept(name))
        });
        written.map_err(|source| LoadError::LastGoodList { directory: path, source })?;
        self.written = Some(in_use);
        Ok(())
    }
}

/// Path of the copy of the list with this name, in the state directory.
fn path_in(directory: &Path, name: &str, suffix: &str) -> PathBuf {
    let name = HEXLOWER.encode(digest(&SHA256, name.as_bytes()).as_ref());
    directory.join(format!("{PREFIX}{name}{suffix}"))
}

fn path_of(directory: &Path, list: &ExactList) -> PathBuf {
    let suffix = match list {
        ExactList::Badkeys(_) => BLOCKLIST_SUFFIX,
        ExactList::Fingerprints(_) => TEXT_SUFFIX,
    };
    path_in(directory, list.name(), suffix)
}

/// Maximum size of the copy of a list, in bytes.
fn size_of_copy(LoadedList { list, signed, .. }: &LoadedList) -> u64 {
    let text = signed.as_ref().map_or(0, |signed| signed.text.len() as u64);
    text.saturating_add(match list {
        ExactList::Badkeys(list) => {
            MAX_METADATA.saturating_add(list.blocklist.content().len() as u64)
        }
        ExactList::Fingerprints(list) => (list.len() as u64).saturating_mul(LINE_LENGTH),
    })
}

fn parse(path: &Path, config: &ListConfig, mut copy: Vec<u8>) -> Result<LoadedList, ListFileError> {
    let mut content = split_line(&mut copy);
    let first = String::from_utf8_lossy(&copy);
    let expected = first.trim_end().strip_prefix(FIRST_LINE).unwrap_or_default().to_owned();
    let sha256: [u8; 32] = digest(&SHA256, &content).as_ref().try_into().unwrap_or_default();
    let found = HEXLOWER.encode(&sha256);
    if found != expected {
        let sidecar = path.to_owned();
        return Err(FilterError::Checksum { sidecar, expected, found }.into());
    }
    let signature = take_signature(&mut content)?;
    let (signature, keys) = (signature.as_deref(), config.minisign_key.as_deref());
    let (list, signed) = match config.format {
        ListFormat::Badkeys(_) => {
            let list = parse_blocklist(path, &config.name, content)?;
            let signature = verify_saved(path, keys, signature, &[list.blocklist.content()])?;
            (Arc::new(list).into(), signature.map(|signature| (signature, Vec::new())))
        }
        ListFormat::Fingerprints => {
            let signature = verify_saved(path, keys, signature, &[&content])?;
            let text = String::from_utf8(content).map_err(ListFileError::Text)?;
            let list = Arc::new(FingerprintList::parse(&config.name, &text)?).into();
            (list, signature.map(|signature| (signature, text.into_bytes())))
        }
    };
    let signed = signed.map(|(signature, text)| Arc::new(SignedContent { signature, text }));
    Ok(LoadedList { list, signed, sha256 })
}

fn parse_blocklist(
    path: &Path,
    name: &str,
    mut content: Vec<u8>,
) -> Result<NamedBlocklist, ListFileError> {
    let records = split_line(&mut content);
    let metadata = Metadata::parse(&content)
        .map_err(|source| BlocklistFileError::Metadata { path: path.to_owned(), source })?;
    let blocklist = Blocklist::parse(records).map_err(BlocklistFileError::from)?;
    let sha256 = blocklist.sha256();
    Ok(NamedBlocklist::new(name, blocklist, sha256, metadata))
}

/// Removes the signature from the start of `content` and returns it, if there is one.
fn take_signature(content: &mut Vec<u8>) -> Result<Option<String>, ListFileError> {
    if !content.starts_with(SIGNATURE_START) {
        return Ok(None);
    }
    let mut signature = Vec::new();
    for _ in 0..SIGNATURE_LINES {
        let rest = split_line(content);
        signature.append(content);
        *content = rest;
    }
    String::from_utf8(signature).map(Some).map_err(ListFileError::Text)
}

/// Leaves the first line in `content`, line feed included, and returns the rest.
fn split_line(content: &mut Vec<u8>) -> Vec<u8> {
    let end = content.iter().position(|byte| *byte == b'\n').map_or(content.len(), |end| end + 1);
    content.split_off(end)
}

/// The pieces of the content of a copy, without the signature.
fn content_of(LoadedList { list, signed, .. }: &LoadedList) -> (Cow<'_, [u8]>, &[u8]) {
    match list {
        ExactList::Badkeys(list) => {
            let names = list.findings.iter().map(|(id, name)| json!({ "id": id, "name": name }));
            let metadata = json!({
                "bkformat": 0,
                "date": list.date.map(rfc3339),
                "deprecated": list.is_deprecated,
                "blocklists": names.collect::<Vec<_>>(),
            });
            (format!("{metadata}\n").into_bytes().into(), list.blocklist.content())
        }
        ExactList::Fingerprints(list) => match signed {
            Some(signed) => (signed.text.as_slice().into(), &[]),
            None => {
                let mut lines: Vec<_> = list.iter().map(|digest| format!("{digest}\n")).collect();
                lines.sort_unstable();
                (lines.concat().into_bytes().into(), &[])
            }
        },
    }
}

/// Replaces the copy of a list. After a crash, it is the old one or the new one.
fn write(directory: &Path, loaded: &LoadedList) -> io::Result<()> {
    let signature = loaded.signature().map_or_else(String::new, |signature| signature.lines());
    let (start, rest) = content_of(loaded);
    let mut sha256 = Context::new(&SHA256);
    [signature.as_bytes(), &start, rest].iter().for_each(|piece| sha256.update(piece));
    let first = format!("{FIRST_LINE}{}\n", HEXLOWER.encode(sha256.finish().as_ref()));
    let pieces = [first.as_bytes(), signature.as_bytes(), &start, rest];
    state_file::replace(&path_of(directory, &loaded.list), &pieces)
}
