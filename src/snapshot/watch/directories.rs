//! Watches the directories of files for changes.
//!
//! Directories are watched and not files, because a watch on a file ends when another file is
//! renamed over it. This also covers files reached through the `..data` symbolic link of
//! Kubernetes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tracing::warn;

/// The watched directories. Without a watcher (no inotify instance left), only the poll remains.
pub(super) struct Directories {
    watcher: Option<RecommendedWatcher>,
    /// Directories for which a failure was logged.
    failed: HashSet<PathBuf>,
}

impl Directories {
    /// No directories yet. Their changes are sent to `events`.
    pub(super) fn new(events: mpsc::Sender<()>) -> Self {
        let send = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = events.try_send(()); // a full channel already holds an event
            }
        };
        let watcher = notify::recommended_watcher(send)
            .inspect_err(|error| warn!(%error, "no file events, files are polled only"))
            .ok();
        Self { watcher, failed: HashSet::new() }
    }

    /// Watches the directories of `files` and of the files that symbolic links lead to.
    ///
    /// Called after every refresh, because a directory may have been replaced by another one.
    pub(super) fn watch(&mut self, files: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else { return };
        let resolved: Vec<PathBuf> =
            files.iter().filter_map(|file| file.canonicalize().ok()).collect();
        let directories: HashSet<&Path> =
            files.iter().chain(&resolved).filter_map(|file| directory_of(file)).collect();
        for directory in directories {
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
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

fn directory_of(file: &Path) -> Option<&Path> {
    let directory = file.parent()?;
    Some(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}
