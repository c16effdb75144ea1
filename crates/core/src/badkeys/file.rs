//! Reads a blocklist with the metadata beside it, and checks both.

use std::io;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;

use super::{Blocklist, BlocklistError, Metadata, MetadataError};
use crate::pkbf::{FilterError, check_sidecar};
use crate::regular_file;

/// Name of the metadata beside a blocklist.
const METADATA: &str = "badkeysdata.json";
/// Maximum size of the metadata, in bytes, 1 MiB; a larger file is rejected. The published file has
/// 3 KiB.
pub const MAX_METADATA_SIZE: u64 = 1 << 20;

/// A blocklist with its metadata.
#[derive(Debug)]
pub struct BlocklistFile {
    /// The records.
    pub blocklist: Blocklist,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// The metadata; `None` if there is no file beside the blocklist.
    pub metadata: Option<Metadata>,
    /// The content of the file of the metadata, empty without one.
    pub metadata_content: Vec<u8>,
}

/// Why a blocklist or its metadata cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BlocklistFileError {
    /// The checksum file does not match, or cannot be used.
    #[error(transparent)]
    Checksum(#[from] FilterError),
    /// The content of the blocklist is wrong.
    #[error(transparent)]
    Content(#[from] BlocklistError),
    /// The file does not match the SHA-256 in the metadata.
    #[error(
        "its SHA-256 is {found}, but blocklist_sha256 in {} is {expected}: one of the two is damaged or outdated; fetch both again",
        metadata.display()
    )]
    Digest {
        /// The metadata file.
        metadata: PathBuf,
        /// The SHA-256 in the metadata, in hex.
        expected: String,
        /// The SHA-256 of the blocklist, in hex.
        found: String,
    },
    /// The metadata cannot be read or are wrong.
    #[error("{}: {source}", path.display())]
    Metadata {
        /// The metadata file.
        path: PathBuf,
        /// Why the metadata cannot be used.
        source: MetadataError,
    },
    /// The file cannot be read.
    #[error("{}", regular_file::explain_with_remedy(.0, "raise max_size, or give the path of a blocklist"))]
    Read(#[from] io::Error),
}

/// The path of the metadata of the blocklist at `path`: `badkeysdata.json` beside it.
#[must_use]
pub fn metadata_path(path: &Path) -> PathBuf {
    path.with_file_name(METADATA)
}

/// Reads the blocklist at `path`, and the metadata beside it if there are any. A checksum file
/// beside it is checked as well.
///
/// # Errors
/// Returns an error if a file cannot be read, if the blocklist is larger than `max_size` bytes, if
/// either is malformed, or if the SHA-256 in the metadata or in the checksum file is another one.
pub fn read(path: &Path, max_size: u64) -> Result<BlocklistFile, BlocklistFileError> {
    read_with_metadata(path, &metadata_path(path), max_size)
}

/// Like [`read`], with the metadata at `metadata_path`.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn read_with_metadata(
    path: &Path,
    metadata_path: &Path,
    max_size: u64,
) -> Result<BlocklistFile, BlocklistFileError> {
    // Before the blocklist, so that a mistake here costs no read of 60 MB.
    let (metadata, metadata_content) = read_metadata(metadata_path)?.unzip();
    let metadata_content = metadata_content.unwrap_or_default();
    let blocklist = Blocklist::parse(regular_file::read(path, max_size)?)?;
    let sha256 = blocklist.sha256();
    check_sidecar(path, || sha256)?;
    let expected = metadata.as_ref().and_then(|metadata| metadata.blocklist_sha256);
    if let Some(expected) = expected.filter(|expected| *expected != sha256) {
        return Err(BlocklistFileError::Digest {
            metadata: metadata_path.to_owned(),
            expected: HEXLOWER.encode(&expected),
            found: HEXLOWER.encode(&sha256),
        });
    }
    Ok(BlocklistFile { blocklist, sha256, metadata, metadata_content })
}

fn read_metadata(path: &Path) -> Result<Option<(Metadata, Vec<u8>)>, BlocklistFileError> {
    let metadata = match regular_file::read(path, MAX_METADATA_SIZE) {
        Ok(json) => Metadata::parse(&json).map(|metadata| Some((metadata, json))),
        // A link to a missing file is damage; a list without metadata has no file.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
        {
            Ok(None)
        }
        Err(error) => Err(MetadataError::Read(error)),
    };
    metadata.map_err(|source| BlocklistFileError::Metadata { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::pkbf::sidecar_of;

    const RECORDS: &[u8; 32] = b"00000000000000010000000000000012";

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            let files = Self(tempfile::tempdir().unwrap());
            fs::write(files.list(), RECORDS).unwrap();
            files
        }

        fn list(&self) -> PathBuf {
            self.0.path().join("blocklist.dat")
        }

        fn write_metadata(&self, sha256: &str) {
            let json = format!(
                r#"{{"bkformat": 0, "date": "2026-08-20", "blocklist_sha256": "{sha256}", "blocklists": []}}"#
            );
            fs::write(metadata_path(&self.list()), json).unwrap();
        }

        fn problem(&self, max_size: u64) -> String {
            read(&self.list(), max_size).unwrap_err().to_string()
        }
    }

    #[test]
    fn a_list_is_read_with_and_without_metadata() {
        let files = Files::new();
        let alone = read(&files.list(), 32).unwrap();
        assert_eq!((alone.blocklist.len(), alone.metadata), (2, None));
        files.write_metadata(&HEXLOWER.encode(&alone.sha256));
        let both = read(&files.list(), 32).unwrap();
        assert_eq!(both.metadata.unwrap().blocklist_sha256, Some(alone.sha256));
        assert_eq!(both.blocklist, alone.blocklist);
    }

    #[test]
    fn an_error_names_the_file_and_what_differs() {
        let files = Files::new();
        let problem = "larger than 31 bytes: it has 32 bytes; raise max_size, or give the path of a blocklist";
        assert_eq!(files.problem(31), problem);
        let other = "00".repeat(32);
        files.write_metadata(&other);
        let problem = files.problem(32);
        assert!(problem.contains(&format!("badkeysdata.json is {other}")), "{problem}");
        let metadata = metadata_path(&files.list());
        fs::write(&metadata, "{}").unwrap();
        let problem = files.problem(32);
        let expected =
            "badkeysdata.json: not the metadata of a blocklist: missing field `bkformat` at line 1";
        assert!(problem.contains(expected), "{problem}");
        fs::write(&metadata, " ".repeat((1 << 20) + 1)).unwrap();
        let problem = "badkeysdata.json: larger than 1 MiB: it has 1048577 bytes (1.0 MiB); fetch the file again";
        assert!(files.problem(32).ends_with(problem), "{}", files.problem(32));
        fs::remove_file(&metadata).unwrap();
        symlink("missing.json", &metadata).unwrap();
        assert!(files.problem(32).contains("badkeysdata.json: No such file"));
        fs::remove_file(&metadata).unwrap();
        fs::write(sidecar_of(&files.list()), format!("{other}  blocklist.dat\n")).unwrap();
        assert!(files.problem(32).contains("blocklist.dat.sha256"));
    }
}
