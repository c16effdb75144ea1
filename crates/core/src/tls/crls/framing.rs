//! The lists in a file, and a check that no other part of the file holds one.
//!
//! Readers of PEM skip what is outside of a section. A list there may be the newest one, and
//! without it a revoked client would be admitted. `docs/decisions/crl-files.md` has the reasons.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

use crate::spki;
use crate::tls::TlsFileError;

/// The first byte of every list in DER; PEM begins with a dash or with text.
const DER_SEQUENCE: u8 = 0x30;

/// The sections whose content is read. The lines of any other section are outside.
const SECTIONS: [&str; 2] = ["X509 CRL", "CERTIFICATE"];

/// Length of a word of base64 from which it counts anywhere in a line, if it begins like DER.
const LONG_WORD: usize = 40;

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
/// Returns an error if more lists begin, if a section CERTIFICATE has no certificate, or if the file
/// has binary data or base64 outside of the sections.
pub(super) fn check_rest(file: &[u8], read: usize) -> Result<(), TlsFileError> {
    if is_der(file) {
        return Ok(()); // trailing data is an error of the list
    }
    let begun = sections_begun(file);
    if begun > read {
        return Err(TlsFileError::CrlSection { begun, read });
    }
    for (position, certificate) in (1..).zip(CertificateDer::pem_slice_iter(file)) {
        if spki::of_certificate(&certificate.map_err(TlsFileError::Pem)?).is_err() {
            return Err(TlsFileError::CrlLabel { position });
        }
    }
    let mut section = None;
    for (number, line) in (1..).zip(file.split(|byte| *byte == b'\n')) {
        for line in line.split(|byte| *byte == b'\r') {
            let Some(text) = outside(line, &mut section) else { continue };
            let found = match std::str::from_utf8(text) {
                Ok(text) if text.chars().any(is_binary) => "binary data",
                Ok(text) if holds_base64(text) => "base64",
                Ok(_) => continue,
                Err(_) => "binary data",
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

/// The part of `line` that is outside of the [`SECTIONS`]. `section` is the end of the section that
/// the line is in.
fn outside<'a>(line: &'a [u8], section: &mut Option<String>) -> Option<&'a [u8]> {
    let begun = SECTIONS
        .iter()
        .find(|label| line.starts_with(format!("-----BEGIN {label}-----").as_bytes()));
    if line.starts_with(b"-----BEGIN ") {
        *section = begun.map(|label| format!("-----END {label}-----"));
        return None;
    }
    let Some(end) = section else { return Some(line) };
    let rest = line.strip_prefix(end.as_bytes())?;
    *section = None;
    Some(rest)
}

/// Whether a line may be a part of a list in base64: it is one word at its start, or has a long word
/// that begins with the tag and the length of a SEQUENCE.
fn holds_base64(line: &str) -> bool {
    let is_base64 = |word: &str| {
        let is_letter =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
        !word.is_empty() && word.bytes().all(is_letter)
    };
    let is_list = |word: &str| word.len() >= LONG_WORD && word.starts_with("MI") && is_base64(word);
    is_base64(line.trim_end()) || line.split_whitespace().any(is_list)
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::*;

    const LIST: &str = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";

    /// A SEQUENCE of 135 bytes.
    fn der() -> Vec<u8> {
        [&[0x30, 0x81, 132][..], &[7; 132]].concat()
    }

    fn section(label: &str, der: &[u8]) -> String {
        let body = BASE64.encode(der);
        format!("text of it\n-----BEGIN {label}-----\n{body}\n-----END {label}-----\r\n")
    }

    fn certificate() -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&key).unwrap().der().to_vec()
    }

    fn problem(rest: &[u8]) -> Option<String> {
        let file = [LIST.as_bytes(), rest].concat();
        check_rest(&file, 1).err().map(|error| error.to_string())
    }

    #[test]
    fn text_outside_of_the_sections_is_no_list() {
        for text in [
            "",
            "\n\t \r\n",
            "Certificate Revocation List (CRL):\n    Version 2 (0x1)\n",
            "            X509v3 CRL Number: \n                4096\nNo Revoked Certificates.\n",
            "Issuer: CN=Zertifizierungsstelle für Geräte\n",
            "Serial Number: 5D3C\n        30:82:01:0a:02:82:01:01:00:c4:\n        8d\n",
            "# orders\nsha256 9e107d9d372bb6826bd81d3542a419d6d6d6d6d6d6d6d6d6d6d6d6\n",
            &section("CERTIFICATE", &certificate()),
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
        for (rest, found) in [
            (der(), "binary data"),
            ([b"a text\n", &der()[..]].concat(), "binary data"),
            (b"\0".to_vec(), "binary data"),
            (base64.clone().into_bytes(), "base64"),
            (wrapped(64), "base64"),
            (wrapped(16), "base64"),
            (wrapped(7), "base64"),
            (wrapped(3), "base64"),
            (wrapped(1), "base64"),
            ([b"sha 1\n", &wrapped(4)[..]].concat(), "base64"),
            ([b"a text\nand next\n  ", &wrapped(64)[..]].concat(), "base64"),
            (format!("DER {base64}").into_bytes(), "base64"),
            (wrapped(64).get(..64).unwrap().to_vec(), "base64"),
            (base64.trim_end_matches('=').as_bytes().to_vec(), "base64"),
            (section("CRL", &der()).into_bytes(), "base64"),
            (section("X509 CRL OF CA", &der()).into_bytes(), "base64"),
            (section("PRIVATE KEY", &der()).into_bytes(), "base64"),
        ] {
            let problem = problem(&rest).unwrap();
            assert!(problem.contains(found), "{problem}: {}", rest.escape_ascii());
        }
        // The reader of PEM ignores the rest of a line after the end of a section.
        let file = [LIST.trim_end().as_bytes(), &der()].concat();
        assert!(check_rest(&file, 1).unwrap_err().to_string().contains("line 3 "));
    }

    #[test]
    fn a_section_for_a_certificate_with_something_else_is_found() {
        let list: &[u8] = b"\x30\x0b\x30\x09\x02\x01\x01\x30\x00\x30\x00\x17\x00";
        let cut_off: &[u8] = b"\x30\x83\x10\x00\x00\x30\x82\xff\x00\x30\x00\x30\x00\x17\x0d";
        for der in [list, cut_off, b"\x30\x80"] {
            let text = section("CERTIFICATE", &certificate()) + &section("CERTIFICATE", der);
            let problem = problem(text.as_bytes()).unwrap();
            assert!(problem.contains("section CERTIFICATE number 2 "), "{problem}");
            let unfinished = text.rsplit_once("-----END").unwrap().0;
            let problem = self::problem(unfinished.as_bytes()).unwrap();
            assert!(problem.contains("broken PEM"), "{problem}");
        }
    }
}
