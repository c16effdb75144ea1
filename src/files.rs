//! Files as the loader reads them: their state on disk, and their content within the sandbox.
//!
//! A network file system that hangs blocks every call that touches it, and no flag prevents that.
//! The calls therefore run on threads of their own, with a deadline.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use keygate_core::pkbf::FileStamp;
use keygate_core::regular_file;
use tracing::{error, info};

use crate::blocking::{BlockingError, BlockingPool};
use crate::process::sandbox;

/// Minimum time since the last change of a file, 200 ms; a file that changed later is read later,
/// because its writer may not have finished.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);

/// Maximum time for one call on a file, 10 s. A read has one second more for each [`MIN_RATE`].
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the metadata of a file while another file hangs, 1 s. Most often both are on
/// the same file system.
const TIMEOUT_WHILE_HUNG: Duration = Duration::from_secs(1);
/// Number of bytes that a file system must read or write in a second, 4 MiB.
const MIN_RATE: u64 = 4 << 20;
/// Number of hung files from which on other files in their directories are not tried either, so
/// that threads remain for other directories.
const MAX_HUNG_FILES: usize = 8;

/// The state of a file on disk. Two equal states mean that the file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// The file exists.
    Present(FileStamp),
    /// The metadata of the file cannot be read; often, the file does not exist.
    Unreadable(io::ErrorKind),
}

impl FileState {
    /// The current state of the file at `path`, following symbolic links.
    pub(crate) fn read(path: &Path) -> Self {
        match stamp_of(path) {
            Ok(stamp) => Self::Present(stamp),
            Err(error) => Self::Unreadable(error.kind()),
        }
    }

    /// Whether the file has not changed for [`SETTLE`] before `now`.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        match self {
            Self::Present(stamp) => stamp.changed_before(now, SETTLE),
            Self::Unreadable(_) => true,
        }
    }

    /// Whether another file has replaced the one in the state `before`, which a rename does.
    pub(crate) fn replaces(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Present(stamp), Self::Present(before)) => !stamp.is_same_file(before),
            (Self::Present(_) | Self::Unreadable(_), _) => false,
        }
    }
}

fn stamp_of(path: &Path) -> io::Result<FileStamp> {
    let owned = path.to_owned();
    within(path, metadata_timeout(), move || FileStamp::read(&owned))
}

fn metadata_timeout() -> Duration {
    if hung_files() == 0 { TIMEOUT } else { TIMEOUT_WHILE_HUNG }
}

/// The path of the file at `path` without symbolic links.
///
/// # Errors
/// Returns an error if the file does not exist, or does not respond in time.
pub(crate) fn canonical(path: &Path) -> io::Result<PathBuf> {
    let owned = path.to_owned();
    within(path, metadata_timeout(), move || owned.canonicalize())
}

/// Whether the file system of the file or directory at `path` responds.
pub(crate) fn responds(path: &Path) -> io::Result<()> {
    match stamp_of(path) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        Err(_) | Ok(_) => Ok(()),
    }
}

/// Reads the regular file at `path` within the sandbox.
///
/// # Errors
/// Returns an error if the sandbox does not allow the file, or if it cannot be read, is not a
/// regular file, is larger than `max_size` bytes, or does not respond in time.
pub(crate) fn read_bounded(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    read_with(path, move |path| {
        sandbox::check(path)?;
        regular_file::read(path, max_size)
    })
}

/// Replaces the file at `path` with `pieces`, one after the other. After a crash, it has the old
/// content or the new. The name of a file that a killed process leaves starts with `prefix`. Blocks.
pub(crate) fn replace(path: &Path, prefix: &str, pieces: &[&[u8]]) -> io::Result<()> {
    let directory = regular_file::directory_of(path);
    let mut staged = tempfile::Builder::new().prefix(prefix).tempfile_in(directory)?;
    pieces.iter().try_for_each(|piece| staged.write_all(piece))?;
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Calls `read` with `path`, on another thread and with a deadline by the size of the file.
///
/// # Errors
/// Returns the error of `read`, or an error if the file does not respond in time.
pub(crate) fn read_with<T, E>(
    path: &Path,
    read: impl FnOnce(&Path) -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<io::Error> + Send + 'static,
{
    let size = stamp_of(path).map(|stamp| stamp.size())?;
    let owned = path.to_owned();
    within(path, timeout_of(size), move || read(&owned))
}

/// Calls `call`, which reads and writes a few bytes in the file or directory at `path`, on another
/// thread and with a deadline.
///
/// # Errors
/// Returns the error of `call`, or an error if the file does not respond in time. `call` may
/// succeed later.
pub(crate) fn call_with<T, E>(
    path: &Path,
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<io::Error> + Send + 'static,
{
    within(path, metadata_timeout(), call)
}

/// Calls `write`, which writes `size` bytes at `path`, on another thread and with a deadline.
///
/// # Errors
/// Returns the error of `write`, or an error if the file does not respond in time. `write` may
/// succeed later.
pub(crate) fn write_with<T: Send + 'static>(
    path: &Path,
    size: u64,
    write: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    within(path, timeout_of(size), write)
}

fn timeout_of(size: u64) -> Duration {
    TIMEOUT.saturating_add(Duration::from_secs(size / MIN_RATE))
}

/// The number of files for which a call has not returned since its deadline.
pub(crate) fn hung_files() -> usize {
    CALLS.get().map_or(0, |calls| calls.hung().len())
}

/// The calls of this process. The number of threads that may hang is limited for the process.
static CALLS: OnceLock<Calls> = OnceLock::new();

/// The thread for the calls, and the calls that hang.
#[derive(Debug)]
struct Calls {
    pool: BlockingPool,
    hung: Mutex<Vec<HungCall>>,
}

#[derive(Debug)]
struct HungCall {
    path: PathBuf,
    has_returned: Arc<AtomicBool>,
}

/// Sets its flag when the call has returned, panicked, or was dropped in the queue.
struct Returned(Arc<AtomicBool>);

impl Drop for Returned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Makes the thread for the calls, unless it exists.
pub(crate) fn start_thread() -> io::Result<()> {
    calls().map(|_| ())
}

fn calls() -> io::Result<&'static Calls> {
    if let Some(calls) = CALLS.get() {
        return Ok(calls);
    }
    let pool = BlockingPool::new("keygate-files", 1)?;
    Ok(CALLS.get_or_init(|| Calls { pool, hung: Mutex::default() }))
}

/// Runs `call`, which touches the file at `path`, on another thread.
///
/// # Errors
/// Returns the error of `call`. Returns an error of the kind [`io::ErrorKind::TimedOut`] if `call`
/// does not return in time, or if an earlier call on the same file still hangs.
fn within<T, E>(
    path: &Path,
    timeout: Duration,
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<io::Error> + Send + 'static,
{
    Ok(calls()?.run(path, timeout, call)?)?
}

impl Calls {
    fn run<T: Send + 'static>(
        &self,
        path: &Path,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if self.is_hung(path) {
            return Err(no_response());
        }
        let has_returned = Arc::new(AtomicBool::new(false));
        let returned = Returned(Arc::clone(&has_returned));
        let result = self.pool.call_within(timeout, move || {
            let result = call();
            drop(returned);
            result
        });
        result.map_err(|error| match error {
            BlockingError::TimedOut(_) => {
                let (file, timeout) = (path.display(), humantime::format_duration(timeout));
                error!(%file, %timeout, "file does not respond, others are read meanwhile");
                self.hung().push(HungCall { path: path.to_owned(), has_returned });
                no_response()
            }
            error @ (BlockingError::NoThread(_)
            | BlockingError::Panicked
            | BlockingError::QueueFull) => io::Error::other(error),
        })
    }

    /// Whether a call on the file hangs; with many hung calls, one in the same directory.
    fn is_hung(&self, path: &Path) -> bool {
        let hung = self.hung();
        let is_wide = hung.len() >= MAX_HUNG_FILES;
        hung.iter().any(|call| call.path == path || is_wide && call.path.parent() == path.parent())
    }

    /// The calls that hang. Calls that have returned are removed.
    fn hung(&self) -> std::sync::MutexGuard<'_, Vec<HungCall>> {
        let mut hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
        for call in hung.extract_if(.., |call| call.has_returned.load(Ordering::Acquire)) {
            info!(file = %call.path.display(), "file responds again");
        }
        hung
    }
}

fn no_response() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no response from the file system")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    fn calls() -> Calls {
        Calls { pool: BlockingPool::new("test", 1).unwrap(), hung: Mutex::default() }
    }

    /// Hangs a call on the file at `path` until the sender is dropped.
    fn hang(calls: &Calls, path: &str) -> Sender<()> {
        loop {
            let ((report, has_begun), (release, released)) = (channel(), channel());
            let error = calls.run(Path::new(path), SHORT, move || {
                report.send(()).unwrap();
                let _ = released.recv();
            });
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
            if has_begun.try_recv().is_ok() {
                return release;
            }
            // It found no thread in time and was dropped.
            drop(release);
            while calls.hung().iter().any(|call| call.path == Path::new(path)) {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_file_that_hangs_is_not_tried_again_until_its_call_returns_and_others_are_read() {
        let calls = calls();
        let release = hang(&calls, "dir/hung");
        let error = calls.run(Path::new("dir/hung"), LONG, || 1).unwrap_err();
        assert_eq!(error.to_string(), "no response from the file system");
        assert_eq!(calls.run(Path::new("dir/other"), LONG, || 2).unwrap(), 2);
        drop(release);
        while !calls.hung().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(calls.run(Path::new("dir/hung"), LONG, || 3).unwrap(), 3);
    }

    #[test]
    fn with_many_hung_files_their_directory_is_not_tried_and_other_directories_are() {
        let calls = calls();
        let hung = (0..MAX_HUNG_FILES).map(|number| hang(&calls, &format!("dir/{number}")));
        let _hung: Vec<_> = hung.collect();
        assert!(calls.run(Path::new("dir/other"), LONG, || 1).is_err());
        assert_eq!(calls.run(Path::new("elsewhere/file"), LONG, || 2).unwrap(), 2);
    }
}
