//! `Client-Cert` and `Client-Cert-Chain` (RFC 9440, sections 2.2 and 2.3).

use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;

use super::{Chain, ChainLength, MalformedValue, decode_base64};

/// A certificate as a byte sequence (RFC 9651, section 3.3.5).
pub(crate) fn write(certificate: &CertificateDer<'_>) -> String {
    let mut value = String::with_capacity(certificate.len() * 4 / 3 + 6);
    value.push(':');
    BASE64.encode_append(certificate, &mut value);
    value.push(':');
    value
}

/// The value of `Client-Cert-Chain`; `None` if there are no certificates after the leaf.
pub(crate) fn write_chain(intermediates: &[&CertificateDer<'_>]) -> Option<String> {
    let members: Vec<_> = intermediates.iter().map(|certificate| write(certificate)).collect();
    (!members.is_empty()).then(|| members.join(", "))
}

/// The certificate in a value of `Client-Cert`; `None` for the empty byte sequence `::`,
/// which Caddy sends for a client without a certificate.
///
/// # Errors
/// Returns an error if `value` is not one byte sequence with a certificate. Parameters are an
/// error, because RFC 9440 defines none.
pub fn read(value: &[u8]) -> Result<Option<CertificateDer<'static>>, MalformedValue> {
    match byte_sequence(value)? {
        b"" => Ok(None),
        base64 => decode_base64(base64).map(Some),
    }
}

/// Adds the certificates in a value of `Client-Cert-Chain` to `chain`, which begins with the leaf.
///
/// # Errors
/// Returns an error if a member is not a byte sequence with a certificate, or if there are too
/// many.
pub fn read_chain(value: &[u8], chain: &mut Chain) -> Result<(), MalformedValue> {
    for member in value.split(|&byte| byte == b',') {
        // Spaces and tabs may surround a comma (RFC 9651, section 4.2.1).
        let base64 = byte_sequence(member.trim_ascii())?;
        if base64.is_empty() {
            return Err(MalformedValue::NO_MEMBER);
        }
        ChainLength::Any.push(chain, decode_base64(base64)?)?;
    }
    Ok(())
}

/// The base64 between the colons.
fn byte_sequence(value: &[u8]) -> Result<&[u8], MalformedValue> {
    let inner = value.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b":"));
    inner.ok_or(MalformedValue::BYTE_SEQUENCE)
}

#[cfg(test)]
mod tests {
    use super::super::tests::certificates;
    use super::*;

    #[test]
    fn a_certificate_is_read_as_it_was_written() {
        for certificate in certificates::<3>() {
            let value = write(&certificate);
            assert_eq!(read(value.as_bytes()), Ok(Some(certificate)));
        }
    }

    #[test]
    fn the_empty_byte_sequence_is_no_certificate() {
        assert_eq!(read(b"::"), Ok(None));
    }

    #[test]
    fn a_chain_is_read_as_it_was_written() {
        let [leaf, first, second] = certificates::<3>();
        let value = write_chain(&[&first, &second]).unwrap();
        let mut chain = Chain::from_iter([leaf.clone()]);
        read_chain(value.as_bytes(), &mut chain).unwrap();
        assert_eq!(chain.as_slice(), [leaf, first, second]);
        assert_eq!(write_chain(&[]), None);
    }

    #[test]
    fn a_chain_may_have_spaces_and_tabs_around_its_commas() {
        let [leaf, first, second] = certificates::<3>();
        let mut chain = Chain::from_iter([leaf]);
        let value = format!("{}\t , {}", write(&first), write(&second));
        read_chain(value.as_bytes(), &mut chain).unwrap();
        assert_eq!(chain.len(), 3);
    }

    #[test]
    fn a_chain_has_at_most_ten_certificates_with_its_leaf() {
        let [leaf] = certificates::<1>();
        for (count, expected) in [(9, Ok(())), (10, Err(MalformedValue::TOO_MANY))] {
            let mut chain = Chain::from_iter([leaf.clone()]);
            let value = write_chain(&vec![&leaf; count]).unwrap();
            assert_eq!(read_chain(value.as_bytes(), &mut chain), expected);
        }
    }

    #[test]
    fn a_value_with_anything_else_is_malformed() {
        let [leaf] = certificates::<1>();
        let good = write(&leaf);
        for (value, expected) in [
            (String::new(), MalformedValue::BYTE_SEQUENCE),
            (":".to_owned(), MalformedValue::BYTE_SEQUENCE),
            (good.trim_start_matches(':').to_owned(), MalformedValue::BYTE_SEQUENCE),
            (format!("{good};a=1"), MalformedValue::BYTE_SEQUENCE),
            (format!(" {good}"), MalformedValue::BYTE_SEQUENCE),
            (format!("{good}, {good}"), MalformedValue::BASE64),
            (":AA==:".to_owned(), MalformedValue::CERTIFICATE),
            (":A:".to_owned(), MalformedValue::BASE64),
        ] {
            assert_eq!(read(value.as_bytes()), Err(expected), "{value}");
        }
        for (value, expected) in [
            (String::new(), MalformedValue::BYTE_SEQUENCE),
            ("::".to_owned(), MalformedValue::NO_MEMBER),
            (format!("{good},"), MalformedValue::BYTE_SEQUENCE),
            (format!("{good};{good}"), MalformedValue::BASE64),
        ] {
            let mut chain = Chain::from_iter([leaf.clone()]);
            assert_eq!(read_chain(value.as_bytes(), &mut chain), Err(expected), "{value}");
        }
    }
}
