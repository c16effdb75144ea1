//! A directory of proofs, whose files have the names of fingerprints.
//!
//! Files are opened by name. A directory of millions of proofs needs no index.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::proof::MAX_BODY;
use crate::regular_file;
use crate::spki::Fingerprint;

/// Suffixes of the names of proofs.
const SUFFIXES: [&str; 3] = ["", ".jws", ".json"];

/// The bytes of the file with the proof for `fingerprint`, and its path; `None` if there is none.
/// Blocks.
///
/// # Errors
/// Returns an error if a file with such a name cannot be read, or is larger than a proof.
pub(super) fn find(
    directory: &Path,
    fingerprint: &Fingerprint,
) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
    for suffix in SUFFIXES {
        let path = directory.join(format!("{fingerprint}{suffix}"));
        match regular_file::read(&path, MAX_BODY as u64) {
            Ok(body) => return Ok(Some((path, body))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
            }
        }
    }
    Ok(None)
}

/// Whether `directory` has a file for `fingerprint`. Blocks.
pub(super) fn has(directory: &Path, fingerprint: &Fingerprint) -> bool {
    SUFFIXES.iter().any(|suffix| directory.join(format!("{fingerprint}{suffix}")).exists())
}

/// Keeps `proof` in `directory`. After a crash, the file is whole or not there. Blocks.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(super) fn keep(
    directory: &Path,
    fingerprint: &Fingerprint,
    proof: &[u8],
) -> io::Result<PathBuf> {
    let path = directory.join(format!("{fingerprint}.jws"));
    let mut staged = tempfile::Builder::new().prefix(".staged-").tempfile_in(directory)?;
    staged.write_all(proof)?;
    staged.as_file().sync_all()?;
    staged.persist(&path).map_err(|error| error.error)?;
    Ok(path)
}
