//! Checksum files: `NAME.sha256` beside a filter or a list, in the format of `sha256sum`.

use std::borrow::Cow;
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

/// Whether there is a checksum file for the file at `path`, even one that cannot be used.
pub(super) fn has_sidecar(path: &Path) -> bool {
    let missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    !sidecar_of(path).symlink_metadata().is_err_and(missing)
}

/// The SHA-256 digests that the file at `path` may have; `None` without a checksum file.
fn expected(path: &Path) -> Result<Option<Vec<[u8; 32]>>, FilterError> {
    let sidecar = sidecar_of(path);
    let parsed = match read(&sidecar) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link to a missing file is damage; a filter without a checksum has no file.
            if sidecar.symlink_metadata().is_err() {
                return Ok(None);
            }
            Err(ChecksumFileError::Dangling)
        }
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
    if expected.contains(&found) {
        return Ok(());
    }
    let expected: Vec<String> = expected.iter().map(|sum| HEXLOWER.encode(sum)).collect();
    Err(FilterError::Checksum {
        sidecar: sidecar_of(path),
        expected: expected.join(" or "),
        found: HEXLOWER.encode(&found),
    })
}

/// The line of `sha256sum` for the filter at `path`.
pub(super) fn line(path: &Path, sha256: &[u8; 32]) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let escaped = name.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    let mark = if escaped == name { "" } else { "\\" };
    format!("{mark}{}  {escaped}\n", HEXLOWER.encode(sha256))
}

/// Reads a checksum file up to [`MAX_SIZE`].
fn read(sidecar: &Path) -> io::Result<String> {
    let mut text = String::new();
    regular_file::open(sidecar)?.take(MAX_SIZE).read_to_string(&mut text)?;
    Ok(text)
}

/// The checksums of the file at `path` in the output of `sha256sum`. If there is a single line, its
/// name is ignored, because the file may have been renamed since. Several lines may name the file:
/// an update writes the old and the new checksum before it replaces the file.
fn parse(text: &str, path: &Path) -> Result<Vec<[u8; 32]>, ChecksumFileError> {
    let lines: Vec<ChecksumLine> =
        text.lines().filter(|it| !it.trim().is_empty()).map(ChecksumLine::new).collect();
    let is_named =
        |name: &str| Path::new(name).file_name().is_some_and(|name| Some(name) == path.file_name());
    let named: Vec<&ChecksumLine> = match lines.as_slice() {
        [] => return Err(ChecksumFileError::Empty),
        [only] => vec![only],
        several => several.iter().filter(|line| is_named(&line.name)).collect(),
    };
    if named.is_empty() {
        return Err(ChecksumFileError::NotListed { lines: lines.len() });
    }
    let sums = named.iter().map(|line| {
        let bytes = HEXLOWER_PERMISSIVE.decode(line.digits.as_bytes()).unwrap_or_default();
        bytes.try_into().map_err(|_| ChecksumFileError::NoDigest)
    });
    sums.collect()
}

/// A line of a checksum file.
struct ChecksumLine<'a> {
    digits: &'a str,
    name: Cow<'a, str>,
}

impl<'a> ChecksumLine<'a> {
    /// A line of `sha256sum`, `sha256sum --tag` or `openssl dgst -sha256`. After a backslash at its
    /// start, the name is escaped.
    fn new(line: &'a str) -> Self {
        let (line, is_escaped) = match line.strip_prefix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        let (digits, name) = tagged(line).unwrap_or_else(|| split(line));
        Self { digits, name: if is_escaped { unescaped(name).into() } else { name.into() } }
    }
}

/// The digits and the name of a line of the form `SHA256 (NAME) = DIGITS`.
fn tagged(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("SHA256").or_else(|| line.strip_prefix("SHA2-256"))?;
    let (name, digits) = rest.trim_start().strip_prefix('(')?.rsplit_once(')')?;
    Some((digits.trim_start().strip_prefix('=')?.trim(), name))
}

/// The digits and the name of a line, separated by two spaces or by a space and an asterisk.
fn split(line: &str) -> (&str, &str) {
    let (digits, name) = line.split_once(' ').unwrap_or((line.trim_end(), ""));
    (digits, name.strip_prefix([' ', '*']).unwrap_or(name))
}

/// `name` with its escapes `\\`, `\n` and `\r` resolved.
fn unescaped(name: &str) -> String {
    let mut characters = name.chars();
    let mut unescaped = String::with_capacity(name.len());
    while let Some(character) = characters.next() {
        unescaped.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            },
            other => other,
        });
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn parsed(text: &str) -> Result<String, ChecksumFileError> {
        let sums = parse(text, Path::new("dir/lost.pkbf"))?;
        let sums: Vec<_> = sums.iter().map(|sum| HEXLOWER.encode(sum)).collect();
        Ok(sums.join(" "))
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
            format!("\\{SUM}  a\\\\name\\nwith\\rescapes.pkbf\n"),
            format!("{OTHER}  a.pkbf\n\\{SUM}  a\\\\b/lost.pkbf\n"),
            format!("SHA256 (lost.pkbf) = {SUM}\n"),
            format!("\\SHA256 (a\\\\b (1)/lost.pkbf) = {SUM}\n"),
            format!("SHA256 (a (1).pkbf) = {OTHER}\nSHA256 (lost.pkbf) = {SUM}\r\n"),
            format!("SHA2-256(lost.pkbf)= {SUM}\n"),
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
            (format!("SHA512 (lost.pkbf) = {SUM}{OTHER}"), "64 hex digits"),
            ("SHA256 (lost.pkbf) = \n".to_owned(), "64 hex digits"),
            ("SHA256 (".to_owned(), "64 hex digits"),
            ("\\".to_owned(), "64 hex digits"),
            (format!("{SUM}0  lost.pkbf"), "64 hex digits"),
            (format!("{SUM}  a\n{OTHER}  b\n"), "none of its 2 lines"),
        ] {
            assert!(parsed(&text).unwrap_err().to_string().contains(problem), "{text}");
        }
    }

    #[test]
    fn every_line_that_names_the_file_counts() {
        let text = format!("{SUM}  lost.pkbf\n{OTHER}  lost.pkbf\n{OTHER}  a.pkbf\n");
        assert_eq!(parsed(&text).unwrap(), format!("{SUM} {OTHER}"));
        let broken = format!("{SUM}  lost.pkbf\nx  lost.pkbf\n");
        assert!(matches!(parsed(&broken), Err(ChecksumFileError::NoDigest)));
    }

    #[test]
    fn a_link_to_a_missing_checksum_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lost.pkbf");
        check_sidecar(&path, || [0; 32]).unwrap();
        std::os::unix::fs::symlink("missing", sidecar_of(&path)).unwrap();
        let error = check_sidecar(&path, || [0; 32]).unwrap_err().to_string();
        assert!(error.contains("it is a link to a missing file"), "{error}");
    }

    #[test]
    fn a_written_line_is_read_back() {
        let sum = parse(SUM, Path::new("x")).unwrap();
        assert_eq!(line(Path::new("dir/lost.pkbf"), &sum[0]), format!("{SUM}  lost.pkbf\n"));
        let odd = Path::new("dir/a\\b\nc\rd");
        let text = line(odd, &sum[0]) + &line(Path::new("other"), &[0; 32]);
        assert_eq!(parse(&text, odd).unwrap(), sum);
        assert_eq!(text.lines().count(), 2);
    }
}
