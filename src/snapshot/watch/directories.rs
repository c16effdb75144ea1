//! Watches the directories of files for changes.
//!
//! Directories are watched and not files, because a watch on a file ends when another file is
//! renamed over it. This also covers files reached through the `..data` symbolic link of
//! Kubernetes.

use std::collections::HashSet;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};

use inotify::{Inotify, WatchMask};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::warn;

use crate::files;

/// Size of the buffer for events, in bytes. Only the arrival of an event matters.
const BUFFER_SIZE: usize = 4096;

/// The watched directories. Without inotify (no instance left), only the poll remains.
pub(crate) struct Directories {
    inotify: Option<AsyncFd<Inotify>>,
    buffer: Vec<u8>,
    /// Directories for which a failure was logged.
    failed: HashSet<PathBuf>,
}

impl Directories {
    /// No directories yet.
    pub(crate) fn new() -> Self {
        let inotify = Inotify::init().and_then(register).inspect_err(no_events).ok();
        Self { inotify, buffer: vec![0; BUFFER_SIZE], failed: HashSet::new() }
    }

    /// Waits for a change in a directory. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        while let Some(inotify) = &mut self.inotify {
            let read = match inotify.readable_mut().await {
                Ok(mut ready) => {
                    let buffer = &mut self.buffer;
                    ready.try_io(|inotify| inotify.get_mut().read_events(buffer).map(drop))
                }
                Err(error) => Ok(Err(error)),
            };
            match read {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    no_events(&error);
                    self.inotify = None;
                }
                Err(_would_block) => {}
            }
        }
        pending::<()>().await;
    }

    /// Watches the directories of `files` and of the files that symbolic links lead to.
    ///
    /// Called after every refresh, because a directory may have been replaced by another one.
    pub(crate) fn watch(&mut self, files: &[PathBuf]) {
        let Some(inotify) = &self.inotify else { return };
        let mut watches = inotify.get_ref().watches();
        let resolved: Vec<PathBuf> =
            files.iter().filter_map(|file| files::canonical(file).ok()).collect();
        let directories: HashSet<&Path> =
            files.iter().chain(&resolved).filter_map(|file| directory_of(file)).collect();
        for directory in directories {
            // A call on inotify has no deadline.
            if files::responds(directory).is_err() {
                continue;
            }
            match watches.add(directory, changes()) {
                Ok(_) => {
                    self.failed.remove(directory);
                }
                Err(error) if self.failed.insert(directory.to_owned()) => {
                    let directory = directory.display();
                    warn!(%directory, %error, "directory cannot be watched, it is polled only");
                }
                Err(_) => {} // logged before
            }
        }
    }
}

/// The events that show a change of a file or of the directory itself.
fn changes() -> WatchMask {
    WatchMask::ATTRIB
        | WatchMask::CLOSE_WRITE
        | WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MODIFY
        | WatchMask::MOVE
        | WatchMask::MOVE_SELF
}

#[expect(
    deprecated,
    reason = "unsound only for types that do not own their descriptor; the replacement is `unsafe`"
)]
fn register(inotify: Inotify) -> io::Result<AsyncFd<Inotify>> {
    AsyncFd::with_interest(inotify, Interest::READABLE)
}

fn no_events(error: &io::Error) {
    warn!(%error, "no file events, files are polled only");
}

fn directory_of(file: &Path) -> Option<&Path> {
    let directory = file.parent()?;
    Some(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}
