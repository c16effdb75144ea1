//! Checksum files: `NAME.sha256` beside a filter or a list, in the format of `sha256sum`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

use super::{ChecksumFileError, FilterError};
use crate::regular_file;

/// Maximum size of a checksum file, in bytes; the rest is not read.
const MAX_SIZE: u64 = 1 << 20;

/// The path of the checksum file for the file at `path`.
#[must_use]
pub fn sidecar_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sha256");
    PathBuf::from(name)
}

/// The SHA-256 that the file at `path` must have; `None` without a checksum file.
fn expected(path: &Path) -> Result<Option<[u8; 32]>, FilterError> {
    let sidecar = sidecar_of(path);
    let parsed = match read(&sidecar) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error.into()),
    };
    parsed.map(Some).map_err(|source| FilterError::ChecksumFile { sidecar, source })
}

/// Checks the file at `path` against its checksum file, if there is one. Calls `sha256` only then.
///
/// # Errors
/// Returns an error if the checksum differs or the checksum file cannot be used.
pub fn check_sidecar(path: &Path, sha256: impl FnOnce() -> [u8; 32]) -> Result<(), FilterError> {
    let Some(expected) = expected(path)? else { return Ok(()) };
    let found = sha256();
    if expected == found {
        return Ok(());
    }
    Err(FilterError::Checksum {
        sidecar: sidecar_of(path),
        expected: HEXLOWER.encode(&expected),
        found: HEXLOWER.encode(&found),
    })
}

/// The line of `sha256sum` for the filter at `path`.
pub(super) fn line(path: &Path, sha256: &[u8; 32]) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{}  {name}\n", HEXLOWER.encode(sha256))
}

/// Reads a checksum file up to [`MAX_SIZE`].
fn read(sidecar: &Path) -> io::Result<String> {
    let mut text = String::new();
    regular_file::open(sidecar)?.take(MAX_SIZE).read_to_string(&mut text)?;
    Ok(text)
}

/// The checksum of the file at `path` in the output of `sha256sum`. If there is a single line, its
/// name is ignored, because the file may have been renamed since.
fn parse(text: &str, path: &Path) -> Result<[u8; 32], ChecksumFileError> {
    let lines: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.trim().is_empty()).map(split).collect();
    let is_named =
        |name: &str| Path::new(name).file_name().is_some_and(|name| Some(name) == path.file_name());
    let digits = match lines.as_slice() {
        [] => return Err(ChecksumFileError::Empty),
        [(digits, _)] => digits,
        several => match several.iter().find(|(_, name)| is_named(name)) {
            Some((digits, _)) => digits,
            None => return Err(ChecksumFileError::NotListed { lines: several.len() }),
        },
    };
    let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).unwrap_or_default();
    bytes.try_into().map_err(|_| ChecksumFileError::NoDigest)
}

/// The digits and the name of a line, separated by two spaces or by a space and an asterisk.
fn split(line: &str) -> (&str, &str) {
    let (digits, name) = line.split_once(' ').unwrap_or((line.trim_end(), ""));
    (digits, name.strip_prefix([' ', '*']).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn parsed(text: &str) -> Result<String, ChecksumFileError> {
        parse(text, Path::new("dir/lost.pkbf")).map(|sum| HEXLOWER.encode(&sum))
    }

    #[test]
    fn the_output_of_sha256sum_is_read() {
        for text in [
            format!("{SUM}  lost.pkbf\n"),
            format!("{SUM} *lost.pkbf\n"),
            format!("{SUM}  /build/out/another-name.pkbf\n"),
            format!("{SUM}\n"),
            format!("{}  lost.pkbf\r\n", SUM.to_uppercase()),
            format!("{OTHER}  a.pkbf\n{SUM}  ./lost.pkbf\n"),
        ] {
            assert_eq!(parsed(&text).unwrap(), SUM, "{text}");
        }
    }

    #[test]
    fn an_error_names_what_is_wrong_with_a_checksum_file() {
        for (text, problem) in [
            (String::new(), "empty"),
            ("\n \n".to_owned(), "empty"),
            ("<html>".to_owned(), "64 hex digits"),
            (format!("{SUM}0  lost.pkbf"), "64 hex digits"),
            (format!("{SUM}  a\n{OTHER}  b\n"), "none of its 2 lines"),
        ] {
            assert!(parsed(&text).unwrap_err().to_string().contains(problem), "{text}");
        }
    }

    #[test]
    fn a_written_line_is_read_back() {
        let sum = parse(SUM, Path::new("x")).unwrap();
        assert_eq!(line(Path::new("dir/lost.pkbf"), &sum), format!("{SUM}  lost.pkbf\n"));
    }
}
