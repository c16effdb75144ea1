//! A state file in the state directory: JSON, replaced atomically.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use keygate_core::json;
use keygate_core::regular_file::{self, FileSize};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files;

/// Start of the name of a file that is being written.
const STAGED_PREFIX: &str = ".state-";
/// Maximum size of a state file, 16 MiB: enough for thousands of filters, or for tens of thousands
/// of revocation lists. A larger file is an error, and is not written.
const MAX_SIZE: u64 = 16 << 20;

/// The content of the file at `path`.
///
/// # Errors
/// Returns an error if the file cannot be read, is larger than [`MAX_SIZE`], or is not a `T`.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(json::parse(&regular_file::read(path, MAX_SIZE)?)?)
}

/// The content of a file that was read, or the default without a file.
///
/// # Errors
/// Returns the error of reading, unless there is no file.
pub(crate) fn or_default<T: Default>(content: io::Result<T>) -> io::Result<T> {
    match content {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        content => content,
    }
}

/// Replaces the file at `path` atomically: after a crash it holds the old content or the new.
///
/// # Errors
/// Returns an error if the content is larger than [`MAX_SIZE`], or if the file cannot be written.
pub(crate) fn write(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(content)?;
    text.push('\n');
    // The next start would reject the file.
    if text.len() as u64 > MAX_SIZE {
        let (size, max) = (FileSize(text.len() as u64), FileSize(MAX_SIZE));
        let problem = format!("the state has {size}, and a start reads at most {max}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    replace(path, &[text.as_bytes()])
}

/// Replaces the file at `path` with `pieces`, one after the other, atomically.
pub(crate) fn replace(path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
    files::replace(path, STAGED_PREFIX, pieces)?;
    File::open(regular_file::directory_of(path))?.sync_all()
}

/// Removes the files in `directory` whose name is outdated, and what a killed process left.
pub(crate) fn remove_if(directory: &Path, is_outdated: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if (is_outdated(name) || name.starts_with(STAGED_PREFIX)) && entry.file_type()?.is_file() {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_a_start_would_reject_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        write(&path, &"1").unwrap();
        let error = write(&path, &"1".repeat(16 << 20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().ends_with("and a start reads at most 16 MiB"), "{error}");
        assert_eq!(read::<String>(&path).unwrap(), "1");
        std::fs::write(&path, " ".repeat((16 << 20) + 1)).unwrap();
        let error = read::<String>(&path).unwrap_err();
        assert!(error.to_string().starts_with("larger than 16 MiB: it has 16777217 "), "{error}");
    }

    #[test]
    fn without_a_file_the_state_is_empty_and_damage_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        assert!(or_default(read::<Vec<u8>>(&path)).unwrap().is_empty());
        std::fs::write(&path, "[300]").unwrap();
        let error = or_default(read::<Vec<u8>>(&path)).unwrap_err().to_string();
        assert_eq!(error, "[0]: invalid value: integer `300`, expected u8 at line 1 column 4");
    }
}
