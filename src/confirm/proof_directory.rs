//! A directory of proofs, whose files have the names of fingerprints.
//!
//! Files are opened by name. A directory of millions of proofs needs no index.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::proof::MAX_BODY;
use keygate_core::regular_file::{self, explain, explain_with_remedy};
use keygate_core::spki::Fingerprint;

use crate::files;

/// Suffixes of the names of proofs.
const SUFFIXES: [&str; 3] = ["", ".jws", ".json"];

/// The files for `fingerprint`, each with its path and bytes. Blocks.
///
/// A file that cannot be read, that is larger than a proof, or a link without its target is an
/// error. It may be the proof.
pub(crate) fn files<'a>(
    directory: &'a Path,
    fingerprint: &'a Fingerprint,
) -> impl Iterator<Item = io::Result<(PathBuf, Vec<u8>)>> + 'a {
    SUFFIXES.iter().filter_map(move |suffix| {
        let path = directory.join(format!("{fingerprint}{suffix}"));
        match regular_file::read(&path, MAX_BODY as u64) {
            Ok(body) => Some(Ok((path, body))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => None,
            Err(error) => {
                let problem = explain_with_remedy(&error, "a proof is smaller: remove the file");
                Some(Err(io::Error::new(error.kind(), format!("{}: {problem}", path.display()))))
            }
        }
    })
}

/// Checks that `directory` is there. Without it, a missing file is no answer. Blocks.
///
/// # Errors
/// Returns an error if there is no such directory.
pub(super) fn ensure_exists(directory: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(directory).and_then(|metadata| {
        if metadata.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
    });
    metadata.map_err(|error| {
        let problem = explain(&error);
        io::Error::new(error.kind(), format!("{}: {problem}", directory.display()))
    })
}

/// Whether `directory` has a file for `fingerprint`. Blocks.
pub(super) fn has(directory: &Path, fingerprint: &Fingerprint) -> bool {
    SUFFIXES.iter().any(|suffix| directory.join(format!("{fingerprint}{suffix}")).exists())
}

/// The file in `directory` in which this process saves the proof for `fingerprint`.
pub(super) fn saved_path(directory: &Path, fingerprint: &Fingerprint) -> PathBuf {
    directory.join(format!("{fingerprint}.jws"))
}

/// Replaces the file at `path`. After a crash, it has the old content or the new. Blocks.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    files::replace(path, ".staged-", &[content])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_that_cannot_be_read_is_an_error_and_does_not_hide_another_file() {
        let directory = tempfile::tempdir().unwrap();
        let fingerprint = Fingerprint::of(b"key");
        let path = |suffix| directory.path().join(format!("{fingerprint}{suffix}"));
        let found = || {
            let files = files(directory.path(), &fingerprint);
            files.map(|file| file.map(|(_, body)| body).ok()).collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        std::fs::create_dir(path("")).unwrap();
        symlink("nowhere", path(".jws")).unwrap();
        std::fs::write(path(".json"), "proof").unwrap();
        assert_eq!(found(), [None, None, Some(b"proof".to_vec())]);
    }

    #[test]
    fn a_file_that_is_larger_than_a_proof_is_named_with_its_size_and_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let fingerprint = Fingerprint::of(b"key");
        let path = directory.path().join(format!("{fingerprint}.jws"));
        std::fs::write(&path, [b' '; MAX_BODY + 1]).unwrap();
        let error = files(directory.path(), &fingerprint).next().unwrap().unwrap_err();
        let problem = "larger than 16 KiB: it has 16385 bytes (16.0 KiB)";
        let remedy = "a proof is smaller: remove the file";
        assert_eq!(error.to_string(), format!("{}: {problem}; {remedy}", path.display()));
    }

    #[test]
    fn a_directory_that_has_gone_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        ensure_exists(directory.path()).unwrap();
        assert!(ensure_exists(&directory.path().join("gone")).is_err());
    }
}
