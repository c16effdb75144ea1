//! The lock on the state directory, so that one process at a time writes it.
//!
//! During a restart, an earlier and a later process of the same configuration may run side by side.
//! The later one writes nothing until the earlier one has ended. A process of another configuration
//! does not start, because it would use and remove the state of foreign filters.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::StateError;
use super::state_directory::{self, StateDirectoryError};
use crate::files;

/// Name of the lock file in the state directory.
const NAME: &str = "state.lock";
/// Maximum number of bytes read from the lock file, 8 KiB: more than any path has.
const MAX_SIZE: u64 = 8 << 10;
/// Maximum time to wait for the record of a process that has just taken the lock, 2 s.
const MAX_RECORD_WAIT: Duration = Duration::from_secs(2);
/// Pause between two looks at the record.
const RECORD_PAUSE: Duration = Duration::from_millis(50);

/// The lock of this process on its state directory, held or awaited. Clones share it.
#[derive(Debug, Clone)]
pub struct StateLock {
    path: PathBuf,
    file: Arc<File>,
    /// Names this process in the lock file while it holds the lock.
    record: Arc<str>,
    is_held: Arc<AtomicBool>,
}

impl StateLock {
    /// Takes the lock on `directory` for a process with this configuration file. Another process
    /// with the same configuration file may hold it; a later refresh takes it then.
    ///
    /// # Errors
    /// Returns an error if a process with another configuration file holds the lock, or if the
    /// directory cannot be used.
    pub(crate) fn acquire(
        directory: &Path,
        configuration: Option<&Path>,
    ) -> Result<Self, StateError> {
        Self::take(directory, configuration)
            .map_err(|source| StateError::Directory { path: directory.to_owned(), source })
    }

    fn take(directory: &Path, configuration: Option<&Path>) -> Result<Self, StateDirectoryError> {
        state_directory::check(directory)?;
        let path = directory.join(NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock_path = path.clone();
        let file = files::call_with(&path, move || options.open(lock_path));
        let file = file.map_err(StateDirectoryError::Lock)?;
        let configuration = configuration.map(|path| {
            files::canonical(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
        });
        let configuration = configuration.unwrap_or_default();
        let record = format!("{}\n{configuration}\n", std::process::id());
        let file = Arc::new(file);
        let lock = Self { path, file, record: record.into(), is_held: Arc::default() };
        let start = Instant::now();
        loop {
            if lock.lock_file().map_err(StateDirectoryError::Lock)? {
                lock.is_held.store(true, Ordering::Relaxed);
                return Ok(lock);
            }
            let holder = lock.holder().map_err(StateDirectoryError::Lock)?;
            let (process, holders) = holder.split_once('\n').unwrap_or_default();
            let holders = holders.trim_end_matches('\n');
            if !process.is_empty() && holders == configuration {
                let directory = directory.display();
                warn!(
                    %directory,
                    process,
                    configuration,
                    "state directory is in use by another process, nothing is saved until it ends"
                );
                return Ok(lock);
            }
            if start.elapsed() >= MAX_RECORD_WAIT {
                let (process, configuration) = (process.to_owned(), holders.to_owned());
                return Err(StateDirectoryError::InUse { process, configuration });
            }
            std::thread::sleep(RECORD_PAUSE);
        }
    }

    /// The record of the process that holds the lock.
    fn holder(&self) -> io::Result<String> {
        let path = self.path.clone();
        let record = files::call_with(&self.path, move || {
            let mut record = Vec::new();
            File::open(path)?.take(MAX_SIZE).read_to_end(&mut record)?;
            Ok::<_, io::Error>(record)
        })?;
        Ok(String::from_utf8_lossy(&record).into_owned())
    }

    /// Locks the file with a deadline. Returns false if another process holds the lock.
    fn lock_file(&self) -> io::Result<bool> {
        let (file, record) = (Arc::clone(&self.file), Arc::clone(&self.record));
        files::call_with(&self.path, move || lock_file(&file, &record))
    }

    /// Whether this process holds the lock. Takes it if its holder has ended. Blocks.
    ///
    /// # Errors
    /// Returns an error if the file system refuses the lock, or does not respond in time.
    pub fn try_hold(&self) -> Result<bool, StateError> {
        if self.is_held() {
            return Ok(true);
        }
        let held = self.lock_file();
        let held = held.map_err(|source| StateError::File { path: self.path.clone(), source })?;
        if held && !self.is_held.swap(true, Ordering::Relaxed) {
            info!(file = %self.path.display(), "state directory is free, this process saves its state");
        }
        Ok(held)
    }

    /// Whether this process held the lock at the last attempt to take it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }
}

/// Locks `file` and writes `record` to it. Returns false if another process holds the lock.
fn lock_file(file: &File, record: &str) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    file.write_all_at(record.as_bytes(), 0)?;
    Ok(true)
}
