//! Puts the next version of a file and its companions in use.
//!
//! The companions are renamed before the file, within a moment that is shorter than the time for
//! which the proxy waits after a change. A reader in between finds companions that do not match the
//! old file, and rejects the pair. The next version is complete on disk until the last rename, so
//! that the next run completes an update that was killed.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use keygate_core::regular_file::directory_of;
use serde::{Deserialize, Serialize};

use super::error::FetchError;
use super::record::{NO_LINK, SourceId, read_json, write_json};

/// The record of a next version that has passed every check.
const CHECKED: &str = ".checked";

/// The next version of a file, in a directory of its own.
pub(super) struct NextVersion {
    directory: PathBuf,
    source: SourceId,
    /// The file in use.
    target: PathBuf,
    /// Names of the companions, then of the file.
    names: Vec<OsString>,
}

/// The content of [`CHECKED`].
#[derive(Serialize, Deserialize)]
struct CheckedVersion {
    source: SourceId,
    /// Names of the companions, then of the file.
    names: Vec<String>,
}

impl NextVersion {
    /// An empty next version of the file at `target`, from `source`.
    pub(super) fn create(
        directory: PathBuf,
        target: &Path,
        source: SourceId,
    ) -> Result<Self, FetchError> {
        let this = Self { directory, source, target: target.to_owned(), names: Vec::new() };
        this.remove()?;
        this.io(fs::create_dir(&this.directory))?;
        Ok(this)
    }

    /// The next version that an earlier run has checked and not put in use. `None` if it is of
    /// another source than `source`: it was downloaded from a server that is no longer configured.
    pub(super) fn from_earlier_run(
        directory: PathBuf,
        target: &Path,
        source: &SourceId,
    ) -> Option<Self> {
        let CheckedVersion { source: found, names } = read_json(&directory.join(CHECKED))?;
        let is_plain = |name: &String| Path::new(name).file_name().is_some_and(|it| it == &**name);
        let is_complete = names.iter().all(|it| is_plain(it) && directory.join(it).is_file());
        let names: Vec<_> = names.iter().map(OsString::from).collect();
        let has_file = names.last().map(OsString::as_os_str) == target.file_name();
        let is_usable = found == *source && is_complete && has_file;
        let target = target.to_owned();
        is_usable.then_some(Self { directory, source: found, target, names })
    }

    /// The path of the file in this version.
    pub(super) fn file(&self) -> PathBuf {
        self.directory.join(self.target.file_name().unwrap_or_default())
    }

    /// Adds a companion, which has the place `path` in use.
    pub(super) fn add_companion(&mut self, path: &Path, content: &[u8]) -> Result<(), FetchError> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let staged = self.directory.join(&name);
        let write = || {
            let mut file = File::create_new(&staged)?;
            file.write_all(content)?;
            adopt(&file, path)?;
            file.sync_all()
        };
        write().map_err(FetchError::io(&staged))?;
        self.names.push(name);
        Ok(())
    }

    /// Adds the file, which was written to [`NextVersion::file`] and synced.
    pub(super) fn add_file(&mut self) -> Result<(), FetchError> {
        let staged = self.file();
        let opened = OpenOptions::new().read(true).custom_flags(NO_LINK).open(&staged);
        let adopted = opened.and_then(|file| {
            adopt(&file, &self.target)?;
            file.sync_all()
        });
        adopted.map_err(FetchError::io(&staged))?;
        self.names.extend(self.target.file_name().map(OsString::from));
        Ok(())
    }

    /// Adds the file in use, because only companions change.
    pub(super) fn keep_file(&mut self) -> Result<(), FetchError> {
        self.io(link_or_copy(&self.target, &self.file()))?;
        self.names.extend(self.target.file_name().map(OsString::from));
        Ok(())
    }

    /// Whether every file of this version has the content of the one in use.
    pub(super) fn is_in_use(&self) -> bool {
        self.names.iter().all(|name| {
            let files = [self.directory.join(name), self.target.with_file_name(name)];
            let [next, in_use] = files.map(|file| sha256_of(&file).ok());
            next.is_some() && next == in_use
        })
    }

    /// The files as they are in use once this version is installed.
    pub(super) fn installed_paths(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| self.target.with_file_name(name)).collect()
    }

    /// Puts this version, which has passed every check, in use.
    ///
    /// # Errors
    /// Returns an error if a file cannot be renamed. The companions before it are in use then, and
    /// the next run renames the rest.
    pub(super) fn install(self) -> Result<(), FetchError> {
        let names = self.names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let checked = CheckedVersion { source: self.source.clone(), names };
        self.io(write_json(&self.directory.join(CHECKED), &checked))?;
        self.io(sync(&self.directory))?;
        for name in &self.names {
            let place = self.target.with_file_name(name);
            replace(&self.directory.join(name), &place).map_err(FetchError::io(&place))?;
        }
        self.io(sync(directory_of(&self.target)))?;
        self.remove()
    }

    /// Removes this version.
    pub(super) fn remove(&self) -> Result<(), FetchError> {
        // First, so that a version that is partly removed is not installed.
        let removed = fs::remove_file(self.directory.join(CHECKED)).or_else(if_missing);
        self.io(removed.and_then(|()| fs::remove_dir_all(&self.directory).or_else(if_missing)))
    }

    fn io<T>(&self, result: io::Result<T>) -> Result<T, FetchError> {
        result.map_err(FetchError::io(&self.directory))
    }
}

fn if_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Renames a link to the file at `staged` over the one at `place`. On a file system without links,
/// renames the file itself.
fn replace(staged: &Path, place: &Path) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(place.file_name().unwrap_or_default());
    name.push(".fetched");
    let link = place.with_file_name(name);
    fs::remove_file(&link).or_else(if_missing)?;
    match fs::hard_link(staged, &link) {
        Ok(()) => {
            fs::rename(&link, place)?;
            // A rename between two links to one file leaves both.
            fs::remove_file(&link).or_else(if_missing)
        }
        Err(_) => fs::rename(staged, place),
    }
}

fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(_) => {
            fs::copy(from, to)?;
            let copy = File::open(to)?;
            adopt(&copy, from)?;
            copy.sync_all()
        }
    }
}

/// Gives `file` the mode and the owner of the file at `replaced`; without one, the mode 644.
///
/// # Errors
/// Returns an error if the owner cannot be given, and the readers of the old file might not be able
/// to read the new one.
fn adopt(file: &File, replaced: &Path) -> io::Result<()> {
    let old = match fs::symlink_metadata(replaced) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) | Err(_) => return file.set_permissions(Permissions::from_mode(0o644)),
    };
    let new = file.metadata()?;
    let is_public = old.mode() & 0o004 != 0;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        match fchown(file, Some(old.uid()), Some(old.gid())) {
            Err(_) if !is_public => return Err(io::Error::other(foreign_owner(&old))),
            Ok(()) | Err(_) => {}
        }
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o777))
}

fn foreign_owner(old: &Metadata) -> String {
    let (owner, group, mode) = (old.uid(), old.gid(), old.mode() & 0o777);
    format!(
        "the file in use belongs to user {owner} and group {group} (mode {mode:04o}), to whom this user cannot give the new file; give it to the user that runs keygate fetch, or make it readable for everybody"
    )
}

/// SHA-256 of the content of a file.
pub(super) fn sha256_of(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        context.update(chunk);
    }
    Ok(context.finish().as_ref().try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FetchConfig, SourceUrl};

    fn source(url: &str, trust_anchors: Option<&str>) -> SourceId {
        let url = SourceUrl::parse(url).unwrap();
        let trust_anchors = trust_anchors.map(PathBuf::from);
        SourceId::new(&url, &FetchConfig { trust_anchors, ..FetchConfig::at(url.clone()) })
    }

    fn source_of_a() -> SourceId {
        source("https://a.example/a", None)
    }

    #[test]
    fn only_a_complete_version_of_the_same_source_with_plain_names_is_installed_later() {
        let directory = tempfile::tempdir().unwrap();
        let (next, target) = (directory.path().join("next"), directory.path().join("a"));
        let found = |source| NextVersion::from_earlier_run(next.clone(), &target, &source);
        fs::create_dir(&next).unwrap();
        fs::write(next.join("a"), "new").unwrap();
        fs::write(directory.path().join("outside"), "x").unwrap();
        for names in [&[][..], &["b"], &["b", "a"], &["../outside", "a"], &["/etc/passwd", "a"]] {
            let names = names.iter().map(ToString::to_string).collect();
            let checked = CheckedVersion { source: source_of_a(), names };
            write_json(&next.join(CHECKED), &checked).unwrap();
            assert!(found(source_of_a()).is_none(), "{:?}", checked.names);
        }
        for record in ["", "[\"a\"]", "{\"names\":[\"a\"]}"] {
            fs::write(next.join(CHECKED), record).unwrap();
            assert!(found(source_of_a()).is_none(), "{record}");
        }
        let checked = CheckedVersion { source: source_of_a(), names: vec!["a".to_owned()] };
        write_json(&next.join(CHECKED), &checked).unwrap();
        assert!(found(source("https://a.example/b", None)).is_none());
        assert!(found(source("https://a.example/a", Some("ca.pem"))).is_none());
        found(source_of_a()).unwrap().install().unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert!(!next.exists());
    }

    #[test]
    fn a_version_is_in_use_if_every_file_has_the_same_content() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("a");
        fs::write(&target, "same").unwrap();
        let next = directory.path().join("next");
        let mut next = NextVersion::create(next, &target, source_of_a()).unwrap();
        next.keep_file().unwrap();
        assert!(next.is_in_use());
        let companion = directory.path().join("a.sha256");
        next.add_companion(&companion, b"one").unwrap();
        assert!(!next.is_in_use());
        fs::write(&companion, "one").unwrap();
        assert!(next.is_in_use());
        fs::write(&companion, "two").unwrap();
        assert!(!next.is_in_use());
    }
}
