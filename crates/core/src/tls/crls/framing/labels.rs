//! Sections of a PEM file that contain a list, but have another label. Readers of
//! lists skip them.

use data_encoding::BASE64;

use crate::tls::TlsFileError;

/// The label of a list (RFC 7468, 7).
const LIST: &[u8] = b"X509 CRL";
/// Maximum number of characters of a section that are examined, 64 KiB: many times the length of
/// the fields before `thisUpdate`.
const MAX_EXAMINED: usize = 64 << 10;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;

/// Checks that no section with another label holds a list.
///
/// # Errors
/// Returns an error with the line of the label.
pub(super) fn check(file: &[u8]) -> Result<(), TlsFileError> {
    let mut section: Option<(usize, Vec<u8>)> = None;
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let mut number = 1;
    for line in file.split_inclusive(is_break) {
        let at = number;
        number += usize::from(line.ends_with(b"\n"));
        if let Some(label) = line.strip_prefix(b"-----BEGIN ") {
            let is_list = label.strip_prefix(LIST).is_some_and(|rest| rest.starts_with(b"-----"));
            end(section.take())?; // a section without an end
            section = (!is_list).then(|| (at, Vec::new()));
        } else if line.starts_with(b"-----END ") {
            end(section.take())?;
        } else if let Some((_, body)) = &mut section {
            let room = MAX_EXAMINED.saturating_sub(body.len());
            body.extend(line.iter().filter(|byte| !byte.is_ascii_whitespace()).take(room));
        }
    }
    end(section)
}

fn end(section: Option<(usize, Vec<u8>)>) -> Result<(), TlsFileError> {
    let Some((line, mut body)) = section else { return Ok(()) };
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    // A section without an end may continue with other text.
    let length = body.iter().take_while(|byte| is_base64(byte)).count();
    body.truncate(length / 4 * 4);
    match BASE64.decode(&body) {
        Ok(der) if is_list(&der) => Err(TlsFileError::CrlLabel { line }),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Whether `der` begins like a list (RFC 5280, 5.1): after an optional version, `tbsCertList` has
/// an algorithm, a name and a time. A certificate has a serial number and a validity there.
fn is_list(der: &[u8]) -> bool {
    let is_list = || {
        let (fields, _) = element(element(der, SEQUENCE)?.0, SEQUENCE)?;
        let fields = element(fields, INTEGER).map_or(fields, |(_, rest)| rest);
        let (_, fields) = element(fields, SEQUENCE)?;
        let (_, fields) = element(fields, SEQUENCE)?;
        fields.first().map(|tag| matches!(*tag, UTC_TIME | GENERALIZED_TIME))
    };
    is_list().unwrap_or_default()
}

/// The content of the element with this tag at the start of `der`, and what follows it. The content
/// may be cut off.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, form, rest @ ..] = der else { return None };
    if *found != tag {
        return None;
    }
    let (length, rest) = match *form {
        form @ 0..=0x7f => (usize::from(form), rest),
        form @ 0x81..=0x84 => {
            let (octets, rest) = rest.split_at_checked(usize::from(form & 0x7f))?;
            let length = octets.iter().fold(0_usize, |sum, octet| (sum << 8) | usize::from(*octet));
            (length, rest)
        }
        0x80 | 0x85..=0xff => return None,
    };
    Some(rest.split_at(length.min(rest.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(label: &str, der: &[u8]) -> String {
        let body = BASE64.encode(der);
        format!("text\n-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    }

    #[test]
    fn only_a_list_has_a_time_after_the_name_of_its_issuer() {
        let list: &[u8] = b"\x30\x0b\x30\x09\x02\x01\x01\x30\x00\x30\x00\x17\x00";
        let without_version: &[u8] = b"\x30\x08\x30\x06\x30\x00\x30\x00\x18\x00";
        let cut_off: &[u8] = b"\x30\x83\x10\x00\x00\x30\x82\xff\x00\x30\x00\x30\x00\x17\x0d";
        for der in [list, without_version, cut_off] {
            assert!(is_list(der));
            let file = section("CERTIFICATE", der);
            let error = check(file.as_bytes()).unwrap_err();
            assert!(matches!(error, TlsFileError::CrlLabel { line: 2 }), "{error}");
            let error = check(file.replace('\n', "\r\n").as_bytes()).unwrap_err();
            assert!(matches!(error, TlsFileError::CrlLabel { line: 2 }), "{error}");
            assert!(check(section("X509 CRL", der).as_bytes()).is_ok());
            let unfinished = file.split("-----END").next().unwrap();
            assert!(check(unfinished.as_bytes()).is_err());
            for text in ["", "-----BEGIN X509 CRL-----\n", "-----BEGIN X-----\n", "\n2: text\n"] {
                assert!(check(format!("{unfinished}{text}").as_bytes()).is_err(), "{text}");
            }
        }
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let version_1: &[u8] = b"\x30\x0b\x30\x09\x02\x01\x01\x30\x00\x30\x00\x30\x00";
        for der in [certificate.der().as_ref(), &key.serialize_der(), version_1, b"", b"\x30\x80"] {
            assert!(check(section("CERTIFICATE", der).as_bytes()).is_ok());
        }
    }
}
