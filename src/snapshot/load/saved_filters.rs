//! Copies of the filters in use, kept in the state directory. A start whose filter file is rejected
//! uses the copy.
//!
//! A copy is written from memory and named by its SHA-256. A hard link to the configured file would
//! share its inode, and a writer that edits the file in place would change the copy as well.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use keygate_core::guard::NamedFilter;
use keygate_core::pkbf::HEADER_SIZE;

use super::state_file;

/// Start of the name of a copy. The SHA-256 in hex and [`SUFFIX`] follow.
const PREFIX: &str = "last-good-";
/// End of the name of a copy.
const SUFFIX: &str = ".pkbf";

/// Number of bytes of a copy that are compared at a time, 1 MiB.
const CHUNK: usize = 1 << 20;

/// Path of the copy with this SHA-256, in hex, in the state directory.
pub(super) fn path_in(directory: &Path, sha256: &str) -> PathBuf {
    directory.join(format!("{PREFIX}{sha256}{SUFFIX}"))
}

/// Writes a copy of `named`, whose SHA-256 in hex is `sha256`, unless there is one. A copy that is
/// not known to this process is compared with the filter. After a crash the copy is complete or
/// missing.
///
/// # Errors
/// Returns an error if the copy cannot be written, for example because the disk is full.
pub(super) fn keep(
    directory: &Path,
    named: &NamedFilter,
    sha256: &str,
    is_known: bool,
) -> io::Result<()> {
    let path = path_in(directory, sha256);
    let (header, bits) = named.filter.to_parts();
    let size = (HEADER_SIZE as u64).saturating_add(bits.len() as u64);
    let is_whole = |found: fs::Metadata| found.is_file() && found.len() == size;
    if fs::symlink_metadata(&path).is_ok_and(is_whole)
        && (is_known || has_content(&path, [&header, bits]).unwrap_or(false))
    {
        return Ok(());
    }
    state_file::replace(&path, &[&header, bits])
}

/// Whether the file at `path` begins with `pieces`.
fn has_content(path: &Path, pieces: [&[u8]; 2]) -> io::Result<bool> {
    let (mut file, mut found) = (File::open(path)?, Vec::with_capacity(CHUNK));
    for chunk in pieces.iter().flat_map(|piece| piece.chunks(CHUNK)) {
        found.clear();
        (&mut file).take(chunk.len() as u64).read_to_end(&mut found)?;
        if found != chunk {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes all copies but those with a SHA-256 in `kept`, and what a killed process left.
///
/// # Errors
/// Returns an error if the directory cannot be read, or a file cannot be removed.
pub(super) fn remove_others(directory: &Path, kept: &HashSet<String>) -> io::Result<()> {
    state_file::remove_if(directory, |name| {
        let sha256 = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
        sha256.is_some_and(|sha256| !kept.contains(sha256))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keygate_core::pkbf::{self, Filter, Parameters};

    fn named(key: &[u8]) -> (NamedFilter, String) {
        let mut filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        filter.insert(key);
        let sha256 = filter.sha256();
        let hex = data_encoding::HEXLOWER.encode(&sha256);
        (NamedFilter { name: "lost".into(), filter, sha256 }, hex)
    }

    #[test]
    fn a_copy_has_the_bytes_in_use_and_outdated_copies_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let ((one, sha256_one), (two, sha256_two)) = (named(b"one"), named(b"two"));
        keep(directory.path(), &one, &sha256_one, false).unwrap();
        keep(directory.path(), &two, &sha256_two, false).unwrap();
        fs::write(directory.path().join(".state-x1y2z3"), b"half").unwrap();
        fs::write(directory.path().join("filters.json"), b"{}").unwrap();
        let path = path_in(directory.path(), &sha256_two);
        assert_eq!(pkbf::read(&path, 1 << 20).unwrap().sha256(), &two.sha256);

        remove_others(directory.path(), &HashSet::from([sha256_two.clone()])).unwrap();
        let files = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name());
        let mut files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, ["filters.json".to_owned(), format!("last-good-{sha256_two}.pkbf")]);
    }

    #[test]
    fn a_truncated_or_changed_copy_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let (one, sha256) = named(b"one");
        keep(directory.path(), &one, &sha256, false).unwrap();
        let path = path_in(directory.path(), &sha256);
        let mut changed = fs::read(&path).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        for (content, is_known) in [(b"pkbfv1".to_vec(), true), (changed, false)] {
            fs::write(&path, content).unwrap();
            keep(directory.path(), &one, &sha256, is_known).unwrap();
            assert_eq!(pkbf::read(&path, 1 << 20).unwrap().sha256(), &one.sha256);
        }
    }
}
