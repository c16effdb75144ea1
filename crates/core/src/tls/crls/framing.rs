//! The lists in a file, and a check that no other part of the file holds one.
//!
//! Readers of PEM skip what is outside of a section. A list there may be the newest one, and
//! without it a revoked client would be admitted.

mod labels;

use data_encoding::BASE64;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;

use crate::tls::TlsFileError;

/// The first byte of every list in DER; PEM begins with a dash or with text.
const DER_SEQUENCE: u8 = 0x30;

/// Length of a word from which it counts as base64 of DER, although it may be incomplete.
const LONG_WORD: usize = 40;
/// Number of characters in base64 that hold the tag and the length of a DER element.
const START: usize = 8;

/// The lists in a file, one after the other: only one at a time is in memory in DER.
pub(super) fn ders(
    file: &[u8],
) -> Box<dyn Iterator<Item = Result<CertificateRevocationListDer<'_>, TlsFileError>> + '_> {
    if is_der(file) {
        return Box::new(std::iter::once(Ok(CertificateRevocationListDer::from(file))));
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(file);
    Box::new(lists.map(|list| list.map_err(TlsFileError::Pem)))
}

/// Checks that a file, of which `read` lists were read, holds no other list.
///
/// # Errors
/// Returns an error if more lists begin, or if the file has binary data or base64 of DER outside of
/// the sections.
pub(super) fn check_rest(file: &[u8], read: usize) -> Result<(), TlsFileError> {
    if is_der(file) {
        return Ok(()); // trailing data is an error of the list
    }
    let begun = sections_begun(file);
    if begun > read {
        return Err(TlsFileError::CrlSection { begun, read });
    }
    labels::check(file)?;
    let (mut section, mut run) = (None, Base64Run::default());
    for (number, line) in (1..).zip(file.split(|byte| *byte == b'\n')) {
        for line in line.split(|byte| *byte == b'\r') {
            let Some(text) = outside(line, &mut section) else { continue };
            let found = match std::str::from_utf8(text) {
                Ok(text) if !text.chars().any(is_binary) => {
                    if !run.holds_der(text) {
                        continue;
                    }
                    "base64 of DER"
                }
                Ok(_) | Err(_) => "binary data",
            };
            return Err(TlsFileError::CrlOutside { line: number, found });
        }
    }
    Ok(())
}

fn is_der(file: &[u8]) -> bool {
    file.first() == Some(&DER_SEQUENCE)
}

fn is_binary(character: char) -> bool {
    character.is_control() && !character.is_whitespace()
}

/// Number of lists that begin in a file, wherever in a line. The reader of PEM skips a section that
/// does not begin a line, such as one that was appended to a file without a final line break. It
/// may be the newest list.
fn sections_begun(file: &[u8]) -> usize {
    const BEGIN: &[u8] = b"-----BEGIN X509 CRL-----";
    let lines = file.split(|byte| *byte == b'\n').filter(|line| line.contains(&b'-'));
    lines.flat_map(|line| line.windows(BEGIN.len())).filter(|window| *window == BEGIN).count()
}

/// The part of `line` that is outside of the sections. The body of a section is inside if its label
/// stands for a list, a certificate or a key; the reader of PEM skips all others.
fn outside<'a>(line: &'a [u8], section: &mut Option<&'a [u8]>) -> Option<&'a [u8]> {
    if let Some(label) = line.strip_prefix(b"-----BEGIN ") {
        let end = label.iter().rposition(|byte| !matches!(byte, b'-' | b' '));
        *section = label.get(..=end?);
        return None;
    }
    let Some(label) = *section else { return Some(line) };
    let end = line.strip_prefix(b"-----END ").and_then(|line| line.strip_prefix(label));
    if let Some(rest) = end.and_then(|end| end.strip_prefix(b"-----")) {
        *section = None;
        return Some(rest);
    }
    let is_read = [&b"X509 CRL"[..], b"CERTIFICATE", b"KEY"]
        .iter()
        .any(|known| label.windows(known.len()).any(|part| part == *known));
    if is_read { None } else { Some(line) }
}

/// Lines that follow each other and have nothing but base64.
#[derive(Debug, Default)]
struct Base64Run {
    /// Number of characters so far.
    length: usize,
    /// The last characters, from the first line on that is followed by fewer than [`START`].
    recent: String,
    /// Where lines begin in `recent`.
    starts: Vec<usize>,
    /// Number of characters with which a DER element that began in the run is whole.
    whole_at: Option<usize>,
}

impl Base64Run {
    /// Adds a line. Returns whether the run now holds a DER element, or the line a long word that
    /// begins like one.
    fn holds_der(&mut self, line: &str) -> bool {
        if line.split_whitespace().any(|word| word.len() >= LONG_WORD && length(word).is_some()) {
            return true;
        }
        let line = line.trim();
        if line.is_empty() || !is_base64(line) {
            *self = Self::default();
            return false;
        }
        self.starts.push(self.recent.len());
        self.recent.push_str(line);
        // An element may begin in any line, and its header may be in several short lines.
        let before = self.length.saturating_add(line.len()).saturating_sub(self.recent.len());
        let is_short = |start: &usize| self.recent.len().saturating_sub(*start) < START;
        let short = self.starts.iter().position(is_short).unwrap_or(self.starts.len());
        for start in self.starts.drain(..short) {
            if let Some(length) = self.recent.get(start..).and_then(length) {
                let whole_at = before.saturating_add(start).saturating_add(length);
                self.whole_at = Some(self.whole_at.map_or(whole_at, |known| known.min(whole_at)));
            }
        }
        let rest = self.starts.first().copied().unwrap_or(self.recent.len());
        self.recent.drain(..rest);
        self.starts.iter_mut().for_each(|start| *start = start.saturating_sub(rest));
        self.length = self.length.saturating_add(line.len());
        self.whole_at.is_some_and(|whole_at| self.length >= whole_at)
    }
}

fn is_base64(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='))
}

/// Length in base64, without padding, of the DER SEQUENCE of 128 bytes or more that begins in
/// `text`. No list is shorter.
fn length(text: &str) -> Option<usize> {
    let start = BASE64.decode(text.as_bytes().get(..START)?).ok().filter(|_| is_base64(text))?;
    let [DER_SEQUENCE, form @ 0x80..=0x84, octets @ ..] = start.as_slice() else { return None };
    let octets = octets.get(..usize::from(form & 0x0f))?;
    let content = octets.iter().fold(0_usize, |sum, octet| (sum << 8) | usize::from(*octet));
    let whole = content.saturating_add(octets.len()).saturating_add(2);
    Some(whole.saturating_mul(4).div_ceil(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";

    /// A SEQUENCE of 135 bytes.
    fn der() -> Vec<u8> {
        [&[0x30, 0x81, 132][..], &[7; 132]].concat()
    }

    fn problem(rest: &[u8]) -> Option<String> {
        let file = [LIST.as_bytes(), rest].concat();
        assert_eq!(ders(&file).filter(Result::is_ok).count(), 1);
        check_rest(&file, 1).err().map(|error| error.to_string())
    }

    #[test]
    fn text_outside_of_the_sections_is_no_list() {
        let certificate = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\r\n",
            BASE64.encode(&der())
        );
        for text in [
            "",
            "\n\t \r\n",
            "Certificate Revocation List (CRL):\n    Version 2 (0x1)\n",
            "Issuer: CN=Zertifizierungsstelle für Geräte\n",
            "Serial Number: 5D3C\n        30:82:01:0a:02:82:01:01:00:c4:\n        8d:11\n",
            "MIIBIjANBgkq\nMIIB\n",
            "sha256\nMII\n9e107d9d372bb6826bd81d3542a419d6d6d6d6d6d6d6d6d6d6d6d6\n",
            &certificate,
        ] {
            assert_eq!(problem(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_list_outside_of_the_sections_is_found() {
        let base64 = BASE64.encode(&der());
        let wrapped = |width: usize| {
            let lines: Vec<_> = base64.as_bytes().chunks(width).map(<[u8]>::to_vec).collect();
            lines.join(&b"\n"[..])
        };
        let label = [b"-----BEGIN CRL-----\n", &wrapped(64)[..], b"\n-----END CRL-----\n"];
        for (rest, found) in [
            (der(), "binary data"),
            ([b"text\n", &der()[..]].concat(), "binary data"),
            (b"\0".to_vec(), "binary data"),
            (base64.clone().into_bytes(), "base64 of DER"),
            (wrapped(64), "base64 of DER"),
            (wrapped(16), "base64 of DER"),
            (wrapped(7), "base64 of DER"),
            (wrapped(3), "base64 of DER"),
            (wrapped(1), "base64 of DER"),
            ([b"sha\n", &wrapped(4)[..]].concat(), "base64 of DER"),
            ([b"text\nnext\n  ", &wrapped(64)[..]].concat(), "base64 of DER"),
            (format!("DER {base64}").into_bytes(), "base64 of DER"),
            (wrapped(64).get(..64).unwrap().to_vec(), "base64 of DER"),
            (base64.trim_end_matches('=').as_bytes().to_vec(), "base64 of DER"),
            (label.concat(), "base64 of DER"),
        ] {
            let problem = problem(&rest).unwrap();
            assert!(problem.contains(found), "{problem}: {}", rest.escape_ascii());
        }
        // The reader of PEM ignores the rest of a line after the end of a section.
        let file = [LIST.trim_end().as_bytes(), &der()].concat();
        assert!(check_rest(&file, 1).unwrap_err().to_string().contains("line 3 "));
    }
}
