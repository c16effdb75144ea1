//! `NAME.sha256` beside a filter or a list: what `sha256sum` writes, checked when it is there.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

use super::FilterError;
use crate::regular_file;

/// More than any `sha256sum` of one directory writes, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The file that holds the checksum of the filter at `path`, if it is there.
#[must_use]
pub fn sidecar_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sha256");
    PathBuf::from(name)
}

/// The SHA-256 that the filter at `path` must have; `None` if nobody wrote one.
fn expected(path: &Path) -> Result<Option<[u8; 32]>, FilterError> {
    let sidecar = sidecar_of(path);
    let unusable =
        |problem: String| FilterError::ChecksumFile { sidecar: sidecar.clone(), problem };
    match read(&sidecar) {
        Ok(text) => parse(&text, path).map(Some).map_err(unusable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(error.to_string())), // there, and not to be ignored
    }
}

/// Checks the file at `path` against its checksum, if it has one. `sha256` is asked for then only.
///
/// # Errors
/// The checksum is another one, or cannot be read.
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

/// The line that `sha256sum` writes for the filter at `path`.
pub(super) fn line(path: &Path, sha256: &[u8; 32]) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{}  {name}\n", HEXLOWER.encode(sha256))
}

fn read(sidecar: &Path) -> io::Result<String> {
    let mut text = String::new();
    regular_file::open(sidecar)?.take(MAX_SIZE).read_to_string(&mut text)?;
    Ok(text)
}

/// The checksum of the file at `path` among the lines of `sha256sum`: the one that names the file,
/// or the only one there is, under whatever name the file had when it was made.
fn parse(text: &str, path: &Path) -> Result<[u8; 32], String> {
    let lines: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.trim().is_empty()).map(split).collect();
    let names_it =
        |name: &str| Path::new(name).file_name().is_some_and(|name| Some(name) == path.file_name());
    let digits = match lines.as_slice() {
        [] => return Err("it is empty".to_owned()),
        [(digits, _)] => digits,
        several => match several.iter().find(|(_, name)| names_it(name)) {
            Some((digits, _)) => digits,
            None => return Err(format!("none of its {} lines names the filter", several.len())),
        },
    };
    let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).unwrap_or_default();
    bytes.try_into().map_err(|_| "it does not begin with the 64 hex digits of a SHA-256".to_owned())
}

/// Digits and name: two spaces, or a space and an asterisk, are between them.
fn split(line: &str) -> (&str, &str) {
    let (digits, name) = line.split_once(' ').unwrap_or((line.trim_end(), ""));
    (digits, name.strip_prefix([' ', '*']).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn parsed(text: &str) -> Result<String, String> {
        parse(text, Path::new("dir/lost.pkbf")).map(|sum| HEXLOWER.encode(&sum))
    }

    #[test]
    fn what_sha256sum_writes_is_read() {
        for text in [
            format!("{SUM}  lost.pkbf\n"),
            format!("{SUM} *lost.pkbf\n"),
            format!("{SUM}  /build/out/another-name.pkbf\n"),
            format!("{SUM}\n"),
            format!("{}  lost.pkbf\r\n", SUM.to_uppercase()),
            format!("{OTHER}  a.pkbf\n{SUM}  ./lost.pkbf\n"),
        ] {
            assert_eq!(parsed(&text).as_deref(), Ok(SUM), "{text}");
        }
    }

    #[test]
    fn what_is_no_checksum_says_why() {
        for (text, problem) in [
            (String::new(), "empty"),
            ("\n \n".to_owned(), "empty"),
            ("<html>".to_owned(), "64 hex digits"),
            (format!("{SUM}0  lost.pkbf"), "64 hex digits"),
            (format!("{SUM}  a\n{OTHER}  b\n"), "none of its 2 lines"),
        ] {
            assert!(parsed(&text).unwrap_err().contains(problem), "{text}");
        }
    }

    #[test]
    fn a_line_that_is_written_is_read_back() {
        let sum = parse(SUM, Path::new("x")).unwrap();
        assert_eq!(line(Path::new("dir/lost.pkbf"), &sum), format!("{SUM}  lost.pkbf\n"));
    }
}
