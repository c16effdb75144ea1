//! Opens regular files only, and reads them up to a maximum size.
//!
//! Pipes, sockets, devices and directories are rejected. A configured path may name any of them by
//! mistake, and opening a pipe would block until a writer opens it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens the regular file at `path`, following symbolic links.
///
/// # Errors
/// Returns an error if `path` names anything but a regular file, or cannot be opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // The type is checked before the file is opened, because opening a pipe would block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// Reads the whole regular file at `path`.
///
/// # Errors
/// Returns an error if [`open`] does, if reading fails, or if the file is larger than `max_size`
/// bytes.
pub(crate) fn read(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(max_size.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > max_size {
        return Err(too_large(max_size));
    }
    Ok(content)
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
    fn a_directory_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(open(directory.path()).unwrap_err().to_string(), "not a regular file");
    }
}
