//! Copies of the files with the CAs and CRLs of clients in use, kept in the state directory. A start
//! whose file is rejected uses the copy.
//!
//! A copy has the bytes of the file. It is used only if it has the SHA-256 of the file in use when
//! it is written, or, for a CRL, a signature of a CA in use. A file with a private key has no copy.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use keygate_core::regular_file;
use keygate_core::tls::{CrlIssuers, CrlLoader, CrlMarks, Crls};

use super::StateError;
use super::state_file;
use crate::config::CredentialOwner;
use crate::config::ExpiredCrl;
use crate::files;

/// Maximum size of a file with CRLs, 128 MiB: more than a million entries with serial numbers of 20
/// octets, in PEM.
pub(crate) const MAX_CRL_SIZE: u64 = 128 << 20;

/// Start of the name of the copy of a file with CAs. Two SHA-256 in hex follow: of owner, key and
/// path, and of the content.
const CA_PREFIX: &str = "last-good-ca-";
/// Start of the name of the copy of a file with CRLs. Its SHA-256 in hex follows.
const CRL_PREFIX: &str = "last-good-crl-";

/// A file in use, and the name of its copy.
#[derive(Debug, Clone)]
pub(crate) struct SavedFile {
    name: String,
    path: PathBuf,
    sha256: [u8; 32],
}

impl SavedFile {
    /// The file with CAs that `key` of `owner` names.
    pub(crate) fn from_ca(
        owner: &CredentialOwner,
        key: &str,
        path: &Path,
        sha256: [u8; 32],
    ) -> Self {
        let place = [owner.table(), owner.name(), key].join("\0");
        let place = [place.as_bytes(), b"\0", path.as_os_str().as_encoded_bytes()].concat();
        let [place, content] =
            [digest(&SHA256, &place).as_ref(), &sha256].map(|it| HEXLOWER.encode(it));
        Self { name: format!("{CA_PREFIX}{place}-{content}"), path: path.to_owned(), sha256 }
    }

    /// A file with CRLs.
    pub(crate) fn from_crls(sha256: [u8; 32], path: &Path) -> Self {
        let name = format!("{CRL_PREFIX}{}", HEXLOWER.encode(&sha256));
        Self { name, path: path.to_owned(), sha256 }
    }

    /// The content of the file at `path`, if the file is the one in use.
    fn read_from(&self, path: &Path) -> Option<Vec<u8>> {
        read(path).ok().filter(|content| sha256(content) == self.sha256)
    }
}

/// The copies in the state directory.
#[derive(Debug, Default)]
pub(crate) struct SavedCredentials {
    /// `None` without a state directory. There are no copies then.
    directory: Option<PathBuf>,
    /// The names of the copies that this process wrote or compared.
    written: BTreeSet<String>,
}

impl SavedCredentials {
    /// The copies in `directory`.
    pub(crate) fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_owned), written: BTreeSet::new() }
    }

    /// The content of the copy of the file with CAs that `key` names, of the first of `owners` that
    /// has one.
    ///
    /// # Errors
    /// Returns an error if there is no copy with its SHA-256.
    pub(crate) fn read_ca(
        &self,
        mut owners: impl Iterator<Item = CredentialOwner>,
        key: &str,
        path: &Path,
    ) -> io::Result<Vec<u8>> {
        let directory = self.directory.iter();
        let copies = directory.flat_map(|directory| copies(directory, CA_PREFIX));
        let copies: Vec<_> = copies.filter_map(|copy| Some((read(&copy).ok()?, copy))).collect();
        let content = owners.find_map(|owner| {
            copies.iter().find_map(|(content, copy)| {
                let name = SavedFile::from_ca(&owner, key, path, sha256(content)).name;
                (copy.file_name()? == name.as_str()).then(|| content.clone())
            })
        });
        content.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The lists of `issuers` in all copies that were in use according to `marks`.
    pub(crate) fn crls(&self, issuers: &CrlIssuers, marks: &CrlMarks) -> Crls {
        // The clock may be wrong since the restart, and each list was in use before.
        let mut loader = CrlLoader::new(issuers, ExpiredCrl::Accept, marks, u64::MAX);
        loader.are_copies = true;
        for path in self.directory.iter().flat_map(|directory| copies(directory, CRL_PREFIX)) {
            if let Ok(content) = read(&path) {
                loader.add(&path, &content);
            }
        }
        let mut crls = loader.finish().crls;
        crls.name_files(marks);
        crls
    }

    /// Writes a copy of each file `in_use` that has changed, and removes other copies. A file that
    /// has been replaced since it was read is left out. Without `may_write`, nothing is written.
    pub(crate) fn save(
        &mut self,
        in_use: Vec<SavedFile>,
        may_write: bool,
    ) -> Result<(), StateError> {
        let Some(directory) = self.directory.clone().filter(|_| may_write) else { return Ok(()) };
        let failed = |source| StateError::CredentialCopy { directory: directory.clone(), source };
        // Before a write that may fail: a CA of an outdated copy must not be trusted again.
        let (owned, names) = (directory.clone(), in_use.iter().map(|file| file.name.clone()));
        let names: BTreeSet<_> = names.collect();
        let found = copies(&directory, CA_PREFIX);
        let removed = files::call_with(&directory, move || {
            take_over(&owned, &found, &names)?;
            state_file::remove_if(&owned, |name| is_copy(name) && !names.contains(name))
        });
        removed.map_err(failed)?;
        let mut kept = BTreeSet::new();
        for SavedFile { name, path, sha256 } in in_use {
            let is_written = self.written.contains(&name) || kept.contains(&name);
            let copy = directory.join(&name);
            let file = SavedFile { name, path, sha256 };
            if is_written || file.read_from(&copy).is_some() {
                kept.insert(file.name);
            } else if let Some(content) =
                file.read_from(&file.path).filter(|content| !has_private_key(content))
            {
                let size = content.len() as u64;
                files::write_with(&directory, size, move || {
                    state_file::replace(&copy, &[&content])
                })
                .map_err(failed)?;
                kept.insert(file.name);
            }
        }
        self.written = kept;
        Ok(())
    }
}

/// Renames copies among `found` that `names` lacks to names in `names` with the same content. The file
/// of a service that was renamed may have another content already.
fn take_over(directory: &Path, found: &[PathBuf], names: &BTreeSet<String>) -> io::Result<()> {
    let is_named = |copy: &&PathBuf| names.iter().any(|name| copy.ends_with(name));
    let mut outdated: Vec<_> = found.iter().filter(|copy| !is_named(copy)).collect();
    for name in names {
        let copy = directory.join(name);
        let content = name.strip_prefix(CA_PREFIX).and_then(|name| name.split_once('-'));
        let Some((_, content)) = content.filter(|_| !found.contains(&copy)) else { continue };
        let is_same = |it: &mut &PathBuf| it.to_string_lossy().ends_with(content);
        if let Some(same) = outdated.extract_if(.., is_same).next() {
            fs::rename(same, copy)?;
        }
    }
    Ok(())
}

/// SHA-256 of the content of a file.
pub(crate) fn sha256(content: &[u8]) -> [u8; 32] {
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest(&SHA256, content).as_ref());
    sha256
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    files::read_with(path, |path| regular_file::read(path, MAX_CRL_SIZE))
}

pub(super) fn is_copy(name: &str) -> bool {
    [CA_PREFIX, CRL_PREFIX].iter().any(|prefix| name.starts_with(prefix))
}

/// The copies in the state directory whose names begin with `prefix`.
fn copies(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let owned = directory.to_owned();
    let names = files::call_with(directory, move || {
        fs::read_dir(owned)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()
    });
    let is_copy = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(prefix)
    };
    names.unwrap_or_default().into_iter().filter(is_copy).collect()
}

fn has_private_key(content: &[u8]) -> bool {
    const LABEL: &[u8] = b"PRIVATE KEY-----";
    content.windows(LABEL.len()).any(|window| window == LABEL)
}
