//! Opens regular files only, and reads them up to a maximum size.
//!
//! Pipes, sockets, devices and directories are rejected. A configured path may name any of them by
//! mistake, and a read of a pipe would wait for its writer.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde_json::error::Category;

/// The error for a directory, a pipe, a socket or a device.
const NOT_REGULAR: &str = "not a regular file";

/// Opens the regular file at `path`, following symbolic links. Never waits for another process.
///
/// # Errors
/// Returns an error if `path` names anything but a regular file, or cannot be opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Opening a device can have an effect, so that its type is checked first.
    ensure_regular(&std::fs::metadata(path)?)?;
    // A pipe that replaced the file meanwhile does not block, and a terminal does not become ours.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    ensure_regular(&file.metadata()?)?;
    Ok(file)
}

fn ensure_regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_REGULAR))
}

/// Reads the whole regular file at `path`.
///
/// # Errors
/// Returns an error if [`open`] does, if reading fails, if the file is larger than `max_size`
/// bytes, if there is not enough memory, or if the file changes during the read
/// ([`io::ErrorKind::ResourceBusy`]).
pub(crate) fn read(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let metadata = file.metadata()?;
    let before = state_of(&metadata);
    // One byte more than the file has, so that its end is found without another allocation.
    let size = usize::try_from(metadata.size().min(max_size)).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    content.try_reserve_exact(size.saturating_add(1))?;
    (&mut file).take(max_size.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > max_size {
        return Err(too_large(max_size));
    }
    if state_of(&file.metadata()?) != before {
        let changed = "the file changed while it was read";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, changed));
    }
    Ok(content)
}

/// The cause of an error of the operating system, and the remedy if the path or its permissions may
/// be wrong.
pub(crate) fn explain(error: &io::Error) -> String {
    let cause = cause(error);
    let remedy = if error.kind() == io::ErrorKind::NotFound {
        "; create it, or correct the path"
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        "; correct the owner or the mode"
    } else if cause == NOT_REGULAR {
        "; give the path of a file"
    } else {
        ""
    };
    format!("{cause}{remedy}")
}

/// The cause of an error of the operating system, without its number.
pub(crate) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// Why JSON cannot be used, with its place and without the words of the parser.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    let cause = match error.classify() {
        Category::Data => "a member is missing, unknown or of another type",
        Category::Eof => "the JSON ends too early",
        Category::Io | Category::Syntax => "not JSON",
    };
    match error.line() {
        0 => cause.to_owned(),
        line => format!("{cause} (line {line}, column {})", error.column()),
    }
}

/// [`json_problem`] as an error of the file.
pub(crate) fn json_error(error: serde_json::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, json_problem(&error))
}

/// The attributes that a write to a file changes.
fn state_of(metadata: &Metadata) -> (u64, i64, i64) {
    (metadata.size(), metadata.mtime(), metadata.mtime_nsec())
}

/// The error for a file that is larger than `max_size` bytes.
pub(crate) fn too_large(max_size: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("larger than {max_size} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_maximum_size_is_read_and_a_larger_one_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let error = read(&path, 4).unwrap_err();
        assert_eq!(error.to_string(), "larger than 4 bytes");
    }

    #[test]
    fn an_error_has_a_remedy_and_no_number() {
        let missing = open(Path::new("/nowhere")).unwrap_err();
        assert_eq!(explain(&missing), "No such file or directory; create it, or correct the path");
        let directory = open(Path::new("/")).unwrap_err();
        assert_eq!(explain(&directory), "not a regular file; give the path of a file");
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(explain(&denied), "Permission denied; correct the owner or the mode");
        assert_eq!(explain(&io::Error::from_raw_os_error(libc::EIO)), "Input/output error");
    }

    #[test]
    fn a_problem_of_json_has_its_place() {
        let problem = |text| json_problem(&serde_json::from_str::<Vec<u8>>(text).unwrap_err());
        assert_eq!(problem("[1,\n x]"), "not JSON (line 2, column 2)");
        assert_eq!(problem("[1"), "the JSON ends too early (line 1, column 2)");
        let data = "a member is missing, unknown or of another type";
        assert_eq!(problem("[true]"), format!("{data} (line 1, column 5)"));
        let error = serde_json::from_value::<u8>(serde_json::Value::Null).unwrap_err();
        assert_eq!(json_problem(&error), data);
    }

    #[test]
    fn a_directory_and_a_device_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), Path::new("/dev/null")] {
            assert_eq!(open(path).unwrap_err().to_string(), "not a regular file");
        }
    }
}
