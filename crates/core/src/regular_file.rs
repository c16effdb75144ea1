//! Opens regular files only, and reads them up to a maximum size.
//!
//! Pipes, sockets, devices and directories are rejected. A configured path may name any of them by
//! mistake, and a read of a pipe would wait for its writer.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The error for a directory, a pipe, a socket or a device.
const NOT_REGULAR: &str = "not a regular file";

/// Opens the regular file at `path`, following symbolic links. Never waits for another process.
///
/// # Errors
/// Returns an error if `path` names anything but a regular file, or cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
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
pub fn read(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let metadata = file.metadata()?;
    let before = state_of(&metadata);
    // One byte more than the file has, so that its end is found without another allocation.
    let size = usize::try_from(metadata.size().min(max_size)).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    content.try_reserve_exact(size.saturating_add(1))?;
    (&mut file).take(max_size.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > max_size {
        return Err(too_large(metadata.size().max(content.len() as u64), max_size));
    }
    if state_of(&file.metadata()?) != before {
        let changed = "the file changed while it was read";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, changed));
    }
    Ok(content)
}

/// The cause of an error of the operating system, and the remedy if the path, its permissions or
/// the size of the file may be wrong.
pub fn explain(error: &io::Error) -> String {
    explain_with_remedy(
        error,
        "give the path of another file, because no setting raises this maximum",
    )
}

/// Like [`explain`], with the remedy for a file that is too large.
pub fn explain_with_remedy(error: &io::Error, if_too_large: &str) -> String {
    let cause = cause(error);
    let remedy = if error.kind() == io::ErrorKind::NotFound {
        "create it, or correct the path"
    } else if error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_some() {
        "correct the owner or the mode"
    } else if error.raw_os_error() == Some(libc::ELOOP) {
        "correct the path, because its symbolic links lead to each other"
    } else if is_too_large(error) {
        if_too_large
    } else if cause == NOT_REGULAR {
        "give the path of a file"
    } else {
        return cause;
    };
    format!("{cause}; {remedy}")
}

/// The cause of an error of the operating system, without its number.
pub fn cause(error: &io::Error) -> String {
    without_numbers(&error.to_string())
}

/// `text` without the numbers of errors of the operating system, such as ` (os error 111)`.
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// The attributes that a write to a file changes.
fn state_of(metadata: &Metadata) -> (u64, i64, i64) {
    (metadata.size(), metadata.mtime(), metadata.mtime_nsec())
}

/// The error for a file of `found` bytes, which is larger than `max_size` bytes.
pub fn too_large(found: u64, max_size: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TooLarge { found, max_size })
}

/// Whether an error comes from [`too_large`].
pub fn is_too_large(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<TooLarge>())
}

/// A file is larger than its maximum size.
#[derive(Debug, thiserror::Error)]
#[error("larger than {}: it has {}", FileSize(*max_size), FileSize(*found))]
struct TooLarge {
    found: u64,
    max_size: u64,
}

/// A size in bytes as people read it: `16 KiB`, `31 bytes`, `16385 bytes (16.0 KiB)`.
#[derive(Debug, Clone, Copy)]
pub struct FileSize(pub u64);

impl fmt::Display for FileSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Self(bytes) = *self;
        match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
            None => write!(formatter, "{bytes} bytes"),
            Some((unit, name)) if bytes % unit == 0 => write!(formatter, "{} {name}", bytes / unit),
            Some((unit, name)) => {
                let (whole, rest) = (bytes / unit, bytes % unit);
                write!(formatter, "{bytes} bytes ({whole}.{} {name})", rest * 10 / unit)
            }
        }
    }
}

/// The directory of the file at `path`.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
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
        assert_eq!(error.to_string(), "larger than 4 bytes: it has 5 bytes");
        let remedy = "give the path of another file, because no setting raises this maximum";
        assert_eq!(explain(&error), format!("{error}; {remedy}"));
        assert_eq!(explain_with_remedy(&error, "raise it"), format!("{error}; raise it"));
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
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("loop");
        std::os::unix::fs::symlink("loop", &link).unwrap();
        assert_eq!(
            explain(&open(&link).unwrap_err()),
            "Too many levels of symbolic links; correct the path, because its symbolic links lead to each other"
        );
        assert_eq!(without_numbers("a: b (os error 1): c (os error 22)"), "a: b: c");
        // The sandbox, whose text has a remedy of its own.
        let outside = io::Error::new(io::ErrorKind::PermissionDenied, "outside; restart");
        assert_eq!(explain(&outside), "outside; restart");
    }

    #[test]
    fn a_size_has_the_unit_of_a_person_and_no_byte_is_lost() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (16_385, "16385 bytes (16.0 KiB)"),
            (131_096, "131096 bytes (128.0 KiB)"),
            (256 << 20, "256 MiB"),
            (1_073_741_848, "1073741848 bytes (1.0 GiB)"),
            (u64::MAX, "18446744073709551615 bytes (17179869183.9 GiB)"),
        ] {
            assert_eq!(FileSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_directory_and_a_device_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), Path::new("/dev/null")] {
            assert_eq!(open(path).unwrap_err().to_string(), "not a regular file");
        }
    }
}
