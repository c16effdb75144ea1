//! A log file that is opened again on request, so that another program can rename it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keygate_core::regular_file::cause;
use rustix::fs::{Access, access};
use tracing::warn;

/// Permissions of a log file that keygate creates. Names of clients are in it.
const MODE: u32 = 0o640;

/// A log file. Lines are appended to it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    reopener: LogReopener,
    /// Whether the last line is complete. A line is in one file as a whole.
    is_at_line_start: bool,
}

/// Requests that a log file is opened again. Clones are for the same file.
#[derive(Debug, Clone, Default)]
pub struct LogReopener(Arc<AtomicBool>);

impl LogReopener {
    /// Opens the file again before the next line.
    pub fn reopen(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl LogFile {
    /// Opens or creates the file at `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened for appending.
    pub fn open(path: &Path, reopener: LogReopener) -> io::Result<Self> {
        let file = append(path)?;
        Ok(Self { path: path.to_owned(), file, reopener, is_at_line_start: true })
    }

    /// Checks that the file at `path` can be opened, without creating it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened for appending, or if it does not exist and its
    /// directory cannot be written.
    pub fn check(path: &Path) -> io::Result<()> {
        match options().open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
                let directory = directory.unwrap_or(Path::new("."));
                if !directory.metadata()?.is_dir() {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
            }
            // A pipe without a reader. A socket has the same error.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                if path.metadata()?.file_type().is_fifo() { Ok(()) } else { Err(error) }
            }
            opened => opened.map(drop),
        }
    }

    fn reopen_if_requested(&mut self) {
        if !self.is_at_line_start || !self.reopener.0.swap(false, Ordering::AcqRel) {
            return;
        }
        match append(&self.path) {
            Ok(file) => self.file = file,
            Err(error) => {
                let (path, error) = (self.path.display(), cause(&error));
                warn!(%path, %error, "access log cannot be reopened, the open file stays in use");
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    options().create(true).mode(MODE).open(path)
}

/// Opens for appending, without a wait for the reader of a named pipe.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(libc::O_NONBLOCK);
    options
}

impl Write for LogFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.reopen_if_requested();
        let count = self.file.write(text)?;
        let written = text.get(..count).unwrap_or(text);
        self.is_at_line_start = written.last().is_none_or(|byte| *byte == b'\n');
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_check_creates_nothing_and_takes_files_and_pipes_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name| directory.path().join(name);
        LogFile::check(&path("new.log")).unwrap();
        assert!(!path("new.log").exists());
        let pipe = path("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        LogFile::check(&pipe).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        LogFile::check(&path("socket")).unwrap_err();
        LogFile::check(&path("missing/a.log")).unwrap_err();
        LogFile::check(&path("pipe/a.log")).unwrap_err();
        LogFile::check(directory.path()).unwrap_err();
    }
}
