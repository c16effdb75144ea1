//! PEM in percent encoding: nginx's `$ssl_client_escaped_cert`, Envoy's `source.certificate` and
//! `%DOWNSTREAM_PEER_CERT%`, `Cert` and `Chain` of `X-Forwarded-Client-Cert`.
//!
//! Hosts escape different sets of bytes: nginx all but the unreserved ones, Envoy only line ends,
//! spaces, `+`, `/` and `=`, AWS none of `+`, `/` and `=`. A `+` is a plus sign and never a space.

use std::fmt::Write;

use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;

use super::{Chain, ChainLength, MalformedValue, decode_base64};

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
const END: &[u8] = b"-----END CERTIFICATE-----";

/// PEM in percent encoding, except letters, digits and `-._~`.
pub(crate) fn write(certificate: &CertificateDer<'_>) -> String {
    let base64 = BASE64.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for (index, character) in base64.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    pem.push_str("\n-----END CERTIFICATE-----\n");
    let mut encoded = String::with_capacity(pem.len() * 2);
    for byte in pem.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // a String never fails
        }
    }
    encoded
}

/// The certificates in `value`, one PEM block after the other. Line ends are optional.
///
/// # Errors
/// Returns an error if `value` has anything but certificates in PEM, or if there are too many.
pub fn read(value: &[u8], length: ChainLength) -> Result<Chain, MalformedValue> {
    let pem = unescape(value)?;
    let (mut chain, mut rest) = (Chain::new(), pem.as_slice());
    while !rest.is_empty() || chain.is_empty() {
        let block = rest.strip_prefix(BEGIN).ok_or(MalformedValue::PEM)?;
        // No dash is in base64, so the next one begins the end of the block.
        let dash = block.iter().position(|&byte| byte == b'-').ok_or(MalformedValue::PEM)?;
        let (base64, end) = block.split_at_checked(dash).ok_or(MalformedValue::PEM)?;
        rest = end.strip_prefix(END).ok_or(MalformedValue::PEM)?;
        length.push(&mut chain, decode_base64(base64)?)?;
    }
    Ok(chain)
}

/// The bytes that `value` stands for, without line ends.
fn unescape(value: &[u8]) -> Result<Vec<u8>, MalformedValue> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut pieces = value.split(|&byte| byte == b'%');
    bytes.extend_from_slice(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (digits, rest) = piece.split_first_chunk().ok_or(MalformedValue::PERCENT_ENCODING)?;
        let byte = from_hex(*digits).ok_or(MalformedValue::PERCENT_ENCODING)?;
        if !matches!(byte, b'\r' | b'\n') {
            bytes.push(byte);
        }
        bytes.extend_from_slice(rest);
    }
    Ok(bytes)
}

/// The byte of two hex digits of either case.
fn from_hex([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |byte| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::super::tests::certificates;
    use super::*;
    use keygate_core::tls::MAX_CERTIFICATES;

    fn one(value: &str) -> Result<Chain, MalformedValue> {
        read(value.as_bytes(), ChainLength::One)
    }

    /// PEM with these line ends, where `escaped` bytes are in percent encoding.
    fn pem(certificate: &[u8], line_end: &str, escaped: &str) -> String {
        let base64 = BASE64.encode(certificate);
        let lines: Vec<_> =
            base64.as_bytes().chunks(64).map(|it| str::from_utf8(it).unwrap()).collect();
        let lines = lines.join(line_end);
        format!(
            "-----BEGIN CERTIFICATE-----{line_end}{lines}{line_end}-----END CERTIFICATE-----{line_end}"
        )
        .chars()
        .map(|it| if escaped.contains(it) { format!("%{:02x}", u32::from(it)) } else { it.into() })
        .collect()
    }

    #[test]
    fn a_certificate_is_read_as_it_was_written() {
        for certificate in certificates::<3>() {
            assert_eq!(one(&write(&certificate)).unwrap().as_slice(), [certificate]);
        }
    }

    #[test]
    fn the_alphabets_and_line_ends_of_all_hosts_are_read() {
        for certificate in certificates::<3>() {
            for line_end in ["", "\n", "\r\n"] {
                for escaped in ["\r\n +/=", "\r\n +/=-", "\r\n ", "\r\n"] {
                    let value = pem(&certificate, line_end, escaped);
                    assert_eq!(
                        one(&value).unwrap().as_slice(),
                        std::slice::from_ref(&certificate),
                        "{value}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_plus_sign_stays_a_plus_sign() {
        let with_plus = certificates::<8>().into_iter().find(|it| pem(it, "\n", "").contains('+'));
        let certificate = with_plus.unwrap();
        let read = one(&pem(&certificate, "\n", "\n ")).unwrap();
        assert_eq!(read.as_slice(), std::slice::from_ref(&certificate));
        let spaces = pem(&certificate, "\n", "\n").replace('+', " ");
        assert_eq!(one(&spaces), Err(MalformedValue::BASE64));
    }

    #[test]
    fn a_second_certificate_is_read_only_as_part_of_a_chain() {
        let chain = certificates::<2>();
        let value = chain.each_ref().map(write).concat();
        assert_eq!(one(&value), Err(MalformedValue::TWO_CERTIFICATES));
        assert_eq!(read(value.as_bytes(), ChainLength::Any).unwrap().as_slice(), chain);
        let eleven = write(&chain[0]).repeat(MAX_CERTIFICATES + 1);
        assert_eq!(read(eleven.as_bytes(), ChainLength::Any), Err(MalformedValue::TOO_MANY));
    }

    #[test]
    fn a_value_with_anything_else_is_malformed() {
        let [leaf] = certificates::<1>();
        let good = write(&leaf);
        let raw = pem(&leaf, "\n", "\n");
        for (value, expected) in [
            (String::new(), MalformedValue::PEM),
            (format!("a{good}"), MalformedValue::PEM),
            (format!("{good}a"), MalformedValue::PEM),
            (format!("%20{good}"), MalformedValue::PEM),
            (format!("{good}%"), MalformedValue::PERCENT_ENCODING),
            (format!("{good}%0"), MalformedValue::PERCENT_ENCODING),
            (format!("{good}%+1"), MalformedValue::PERCENT_ENCODING),
            (good.replace('%', "%25"), MalformedValue::PEM),
            (raw.replace("%0a", "\t"), MalformedValue::BASE64),
            (raw.replace(" CERT", " TRUSTED CERT"), MalformedValue::PEM),
            (raw.replace("END CERT", "END X509 CERT"), MalformedValue::PEM),
            (raw.replace("-----END", "====-----END"), MalformedValue::BASE64),
            ("-----BEGIN CERTIFICATE-----".to_owned(), MalformedValue::PEM),
            (pem(b"", "", ""), MalformedValue::CERTIFICATE),
            (pem(&[&leaf[..], &[0]].concat(), "", ""), MalformedValue::CERTIFICATE),
        ] {
            assert_eq!(one(&value), Err(expected), "{value}");
        }
    }
}
