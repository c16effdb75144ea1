//! Copies of the filters and lists in use, kept in the state directory: the bytes of the file, of
//! its signature, and of the metadata of a blocklist. A start whose file is rejected reads the copy
//! as it would read the file.
//!
//! A copy is written from memory. A hard link to the configured file would share its inode, and a
//! writer that edits the file in place would change the copy as well.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use keygate_core::guard::{NamedBlocklist, NamedFilter};
use keygate_core::signature::{FileSignature, signature_path};

use super::{saved_credentials, state_file};

/// Start of the name of a copy. Its id and the ending of its [`CopyKind`] follow.
const PREFIX: &str = "last-good-";
/// Number of bytes of a copy that are compared at a time, 1 MiB.
const CHUNK: usize = 1 << 20;

/// The kind of the file that is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyKind {
    Blocklist,
    Filter,
    Fingerprints,
}

impl CopyKind {
    /// End of the name of a copy.
    fn ending(self) -> &'static str {
        match self {
            Self::Blocklist => "dat",
            Self::Filter => "pkbf",
            Self::Fingerprints => "txt",
        }
    }

    /// Path of the copy with this id in the state directory.
    pub(crate) fn path_in(self, directory: &Path, id: &str) -> PathBuf {
        directory.join(format!("{PREFIX}{id}.{}", self.ending()))
    }
}

/// Path of the metadata of the copy of a blocklist at `path`.
pub(crate) fn metadata_path(path: &Path) -> PathBuf {
    path.with_extension("json")
}

/// The content of a file in use.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Blocklist(Arc<NamedBlocklist>),
    Filter(Arc<NamedFilter>),
    /// A list of fingerprints; `None` once its copy was written.
    Fingerprints(Option<Arc<[u8]>>),
}

/// The metadata of a blocklist, and their signature.
#[derive(Debug, Clone)]
pub(crate) struct OriginalMetadata {
    pub(crate) content: Arc<[u8]>,
    pub(crate) signature: Option<Arc<FileSignature>>,
}

/// A filter or list in use with the files beside it, as they were read.
#[derive(Debug, Clone)]
pub(crate) struct Original {
    pub(crate) content: Content,
    /// SHA-256 of the file.
    pub(crate) sha256: [u8; 32],
    pub(crate) signature: Option<Arc<FileSignature>>,
    pub(crate) metadata: Option<OriginalMetadata>,
}

impl Original {
    fn kind(&self) -> CopyKind {
        match self.content {
            Content::Blocklist(_) => CopyKind::Blocklist,
            Content::Filter(_) => CopyKind::Filter,
            Content::Fingerprints(_) => CopyKind::Fingerprints,
        }
    }

    /// The SHA-256 of the file, in hex; with metadata, the SHA-256 of the SHA-256 of both files. A copy
    /// that was damaged or changed has another id when it is read.
    pub(crate) fn id(&self) -> String {
        let Some(metadata) = &self.metadata else { return HEXLOWER.encode(&self.sha256) };
        let metadata = digest(&SHA256, &metadata.content);
        HEXLOWER.encode(digest(&SHA256, &[&self.sha256, metadata.as_ref()].concat()).as_ref())
    }

    /// Path of the copy in the state directory.
    pub(super) fn path_in(&self, directory: &Path) -> PathBuf {
        self.kind().path_in(directory, &self.id())
    }

    /// Size of the file, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.with_pieces(|pieces| pieces.iter().map(|piece| piece.len() as u64).sum())
    }

    /// Calls `call` with the pieces of the file; there are none if the copy was written.
    fn with_pieces<T>(&self, call: impl FnOnce(&[&[u8]]) -> T) -> T {
        match &self.content {
            Content::Blocklist(list) => call(&[list.blocklist.content()]),
            Content::Filter(named) => {
                let (header, bits) = named.filter.to_parts();
                call(&[&header, bits])
            }
            Content::Fingerprints(text) => call(text.as_deref().as_slice()),
        }
    }

    /// The files beside the copy at `path`.
    fn side_files(&self, path: &Path) -> Vec<(PathBuf, &[u8])> {
        let mut files = Vec::new();
        if let Some(signature) = &self.signature {
            files.push((signature_path(path), signature.text().as_bytes()));
        }
        if let Some(metadata) = &self.metadata {
            let path = metadata_path(path);
            if let Some(signature) = &metadata.signature {
                files.push((signature_path(&path), signature.text().as_bytes()));
            }
            files.push((path, &metadata.content));
        }
        files
    }

    /// Writes a copy unless there is one, and adds its files to `kept`. A copy that is not known to this
    /// process is compared with what is in use. After a crash each file is complete or missing.
    ///
    /// # Errors
    /// Returns an error if the copy cannot be written, for example because the disk is full.
    pub(super) fn keep(
        &self,
        directory: &Path,
        is_known: bool,
        kept: &mut HashSet<PathBuf>,
    ) -> io::Result<()> {
        let path = self.path_in(directory);
        for (path, content) in self.side_files(&path) {
            keep_file(&path, &[content], false)?;
            kept.insert(path);
        }
        let is_written = matches!(self.content, Content::Fingerprints(None));
        if is_written {
            fs::symlink_metadata(&path)?;
        } else {
            self.with_pieces(|pieces| keep_file(&path, pieces, is_known))?;
        }
        kept.insert(path);
        Ok(())
    }
}

fn keep_file(path: &Path, pieces: &[&[u8]], is_known: bool) -> io::Result<()> {
    let size: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let is_whole = |found: fs::Metadata| found.is_file() && found.len() == size;
    if fs::symlink_metadata(path).is_ok_and(is_whole)
        && (is_known || has_content(path, pieces).unwrap_or(false))
    {
        return Ok(());
    }
    state_file::replace(path, pieces)
}

/// Whether the file at `path` begins with `pieces`.
fn has_content(path: &Path, pieces: &[&[u8]]) -> io::Result<bool> {
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

/// Removes all copies of filters and lists but those in `kept`, and what a killed process left.
pub(super) fn remove_others(directory: &Path, kept: &HashSet<PathBuf>) -> io::Result<()> {
    state_file::remove_if(directory, |name| {
        let is_copy = name.starts_with(PREFIX) && !saved_credentials::is_copy(name);
        is_copy && !kept.contains(&directory.join(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keygate_core::pkbf::{self, Filter, Parameters};

    fn original(key: &[u8]) -> Original {
        let mut filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        filter.insert(key);
        let sha256 = filter.sha256();
        let named = NamedFilter { name: "lost".into(), filter, sha256 };
        let content = Content::Filter(Arc::new(named));
        Original { content, sha256, signature: None, metadata: None }
    }

    fn sha256_of(path: &Path) -> [u8; 32] {
        *pkbf::read(path, 1 << 20).unwrap().sha256()
    }

    #[test]
    fn a_copy_has_the_bytes_in_use_and_outdated_copies_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (original(b"one"), original(b"two"));
        one.keep(directory.path(), false, &mut HashSet::new()).unwrap();
        let mut kept = HashSet::new();
        two.keep(directory.path(), false, &mut kept).unwrap();
        fs::write(directory.path().join(".state-x1y2z3"), b"half").unwrap();
        for name in ["filters.json", "last-good-ca-0-0", "last-good-crl-0"] {
            fs::write(directory.path().join(name), b"{}").unwrap();
        }
        assert_eq!(sha256_of(&two.path_in(directory.path())), two.sha256);

        remove_others(directory.path(), &kept).unwrap();
        let files = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name());
        let mut files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        let copy = format!("last-good-{}.pkbf", two.id());
        let mut expected = ["filters.json", &copy, "last-good-ca-0-0", "last-good-crl-0"];
        expected.sort_unstable();
        assert_eq!(files, expected);
    }

    #[test]
    fn a_truncated_or_changed_copy_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let one = original(b"one");
        let keep = |is_known| one.keep(directory.path(), is_known, &mut HashSet::new()).unwrap();
        keep(false);
        let path = one.path_in(directory.path());
        let mut changed = fs::read(&path).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        for (content, is_known) in [(b"pkbfv1".to_vec(), true), (changed, false)] {
            fs::write(&path, content).unwrap();
            keep(is_known);
            assert_eq!(sha256_of(&path), one.sha256);
        }
    }

    #[test]
    fn metadata_belong_to_the_id_of_a_copy() {
        let with = |content: &[u8]| {
            let metadata = OriginalMetadata { content: content.into(), signature: None };
            Original { metadata: Some(metadata), ..original(b"one") }.id()
        };
        assert_eq!(with(b"{}"), with(b"{}"));
        assert_ne!(with(b"{}"), with(b"{ }"));
        assert_ne!(with(b"{}"), original(b"one").id());
    }
}
