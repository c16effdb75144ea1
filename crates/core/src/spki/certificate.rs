//! The fields of an X.509 certificate that every connection needs.

use std::time::Duration;

use x509_cert::der::Decode;
use x509_cert::time::Validity;

/// The bytes are not the DER of an X.509 certificate with a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an X.509 certificate")]
pub struct CertificateError;

/// The SubjectPublicKeyInfo of a certificate: DER, outer SEQUENCE included.
///
/// # Errors
/// Returns an error if `certificate` is not the DER of an X.509 certificate.
pub fn of_certificate(certificate: &[u8]) -> Result<&[u8], CertificateError> {
    Ok(CertificateFields::new(certificate)?.spki)
}

/// The end of a certificate's validity, since the Unix epoch.
///
/// # Errors
/// Returns an error if `certificate` is not the DER of an X.509 certificate.
pub fn not_after(certificate: &[u8]) -> Result<Duration, CertificateError> {
    Ok(validity(certificate)?.not_after)
}

/// The time in which a certificate is valid, first and last second included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidityPeriod {
    /// The first second, since the Unix epoch.
    pub not_before: Duration,
    /// The last second, since the Unix epoch.
    pub not_after: Duration,
}

impl ValidityPeriod {
    /// Whether `now`, since the Unix epoch, is within the validity.
    #[must_use]
    pub fn contains(&self, now: Duration) -> bool {
        (self.not_before.as_secs()..=self.not_after.as_secs()).contains(&now.as_secs())
    }
}

/// The validity of a certificate.
///
/// # Errors
/// Returns an error if `certificate` is not the DER of an X.509 certificate.
pub fn validity(certificate: &[u8]) -> Result<ValidityPeriod, CertificateError> {
    let validity = Validity::from_der(CertificateFields::new(certificate)?.validity);
    let validity: Validity = validity.map_err(|_| CertificateError)?;
    let [not_before, not_after] =
        [validity.not_before, validity.not_after].map(|time| time.to_unix_duration());
    Ok(ValidityPeriod { not_before, not_after })
}

/// The parts of a certificate that every connection needs, borrowed from it. Decoding the whole
/// certificate would allocate for each name and extension. The general decoder takes 4,000
/// instructions for these fields, half of a judgement; hence a reader of its own.
pub(crate) struct CertificateFields<'a> {
    /// The content octets of the serial number.
    pub(crate) serial: &'a [u8],
    /// The issuer: DER of a Name.
    pub(crate) issuer: &'a [u8],
    validity: &'a [u8],
    /// The subject: DER of a Name.
    pub(crate) subject: &'a [u8],
    pub(crate) spki: &'a [u8],
    /// The fields after the SubjectPublicKeyInfo: unique identifiers and extensions.
    rest: &'a [u8],
}

/// An extension of a certificate.
pub(crate) struct CertificateExtension<'a> {
    /// The content octets of the identifier.
    pub(crate) oid: &'a [u8],
    pub(crate) is_critical: bool,
    /// The content of `extnValue`, in DER.
    pub(crate) value: &'a [u8],
}

impl<'a> CertificateFields<'a> {
    pub(crate) fn new(certificate: &'a [u8]) -> Result<Self, CertificateError> {
        let whole = Element::only(certificate).filter(|it| it.tag == SEQUENCE);
        whole.and_then(|whole| Self::in_certificate(whole.content)).ok_or(CertificateError)
    }

    /// The fields of a TBSCertificate (RFC 5280, section 4.1).
    fn in_certificate(mut certificate: &'a [u8]) -> Option<Self> {
        let mut fields = Element::next(&mut certificate, SEQUENCE)?.content;
        if fields.first() == Some(&VERSION) {
            Element::next(&mut fields, VERSION)?;
        }
        let serial = Element::next(&mut fields, INTEGER)?.content;
        Element::next(&mut fields, SEQUENCE)?; // signature algorithm
        let issuer = Element::next(&mut fields, SEQUENCE)?.whole;
        let validity = Element::next(&mut fields, SEQUENCE)?.whole;
        let subject = Element::next(&mut fields, SEQUENCE)?.whole;
        let spki = Element::next(&mut fields, SEQUENCE)?.whole;
        Some(Self { serial, issuer, validity, subject, spki, rest: fields })
    }

    /// Calls `visit` with each extension. Returns `None` if the extensions are not DER, or as soon
    /// as `visit` does.
    pub(crate) fn for_each_extension(
        &self,
        mut visit: impl FnMut(CertificateExtension<'a>) -> Option<()>,
    ) -> Option<()> {
        let mut fields = self.rest;
        while !fields.is_empty() {
            let field = Element::take(&mut fields)?;
            match field.tag {
                ISSUER_UNIQUE_ID | SUBJECT_UNIQUE_ID => {}
                EXTENSIONS if fields.is_empty() => {
                    let extensions = Element::only(field.content)?;
                    let mut extensions =
                        (extensions.tag == SEQUENCE).then_some(extensions.content)?;
                    while !extensions.is_empty() {
                        visit(CertificateExtension::next(&mut extensions)?)?;
                    }
                }
                _ => return None,
            }
        }
        Some(())
    }
}

impl<'a> CertificateExtension<'a> {
    fn next(extensions: &mut &'a [u8]) -> Option<Self> {
        let mut extension = Element::next(extensions, SEQUENCE)?.content;
        let oid = Element::next(&mut extension, OID)?.content;
        let is_critical = extension.first() == Some(&BOOLEAN)
            && Element::next(&mut extension, BOOLEAN)?.content != [0];
        let value = Element::only(extension).filter(|it| it.tag == OCTET_STRING)?.content;
        Some(Self { oid, is_critical, value })
    }
}

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
pub(crate) const OID: u8 = 0x06;
pub(crate) const SEQUENCE: u8 = 0x30;
/// The context-specific tag of a certificate's version.
const VERSION: u8 = 0xa0;
/// Further context-specific tags of a TBSCertificate (RFC 5280, section 4.1).
const ISSUER_UNIQUE_ID: u8 = 0x81;
const SUBJECT_UNIQUE_ID: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;

/// An element of DER (X.690, section 8.1) with a tag of one byte.
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    pub(crate) content: &'a [u8],
    /// Tag, length and content.
    pub(super) whole: &'a [u8],
}

impl<'a> Element<'a> {
    /// Takes the first element of `input`, which must have this tag.
    pub(crate) fn next(input: &mut &'a [u8], tag: u8) -> Option<Self> {
        Self::take(input).filter(|element| element.tag == tag)
    }

    /// Takes the first element of `input`.
    pub(crate) fn take(input: &mut &'a [u8]) -> Option<Self> {
        let (element, rest) = Self::split(input)?;
        *input = rest;
        Some(element)
    }

    /// The element that `input` consists of.
    pub(crate) fn only(input: &'a [u8]) -> Option<Self> {
        let (element, rest) = Self::split(input)?;
        rest.is_empty().then_some(element)
    }

    /// The first element and the bytes after it. A length must have its shortest form, of at most
    /// three bytes after the first.
    fn split(input: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (length, header) = match *input {
            [_, length @ ..=0x7f, ..] => (usize::from(length), 2),
            [_, 0x81, length @ 0x80..=0xff, ..] => (usize::from(length), 3),
            [_, 0x82, high @ 1..=0xff, low, ..] => {
                (usize::from(u16::from_be_bytes([high, low])), 4)
            }
            [_, 0x83, high @ 1..=0xff, middle, low, ..] => {
                let length = u32::from_be_bytes([0, high, middle, low]);
                (usize::try_from(length).ok()?, 5)
            }
            _ => return None,
        };
        let (whole, rest) = input.split_at_checked(length.checked_add(header)?)?;
        let (tag, content) = (*whole.first()?, whole.get(header..)?);
        Some((Self { tag, content, whole }, rest))
    }
}

#[cfg(test)]
mod tests {
    use x509_cert::der::{Reader, Tag};

    use super::*;
    use crate::spki::{Algorithm, related, sequence};

    fn certificate() -> (Vec<u8>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.der().to_vec(), rcgen::PublicKeyData::subject_public_key_info(&key))
    }

    #[test]
    fn the_spki_of_a_certificate_is_its_public_key() {
        let (certificate, spki) = certificate();
        assert_eq!(of_certificate(&certificate).unwrap(), spki);
    }

    #[test]
    fn every_truncation_of_a_certificate_is_an_error() {
        let (certificate, _) = certificate();
        for length in 0..certificate.len() {
            assert!(of_certificate(&certificate[..length]).is_err(), "{length} bytes");
        }
    }

    /// The fields by the general decoder.
    fn decoded(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
        let mut certificate = sequence(certificate).ok()?;
        let mut fields = sequence(certificate.tlv_bytes().ok()?).ok()?;
        if Tag::peek(&fields).ok()?.is_context_specific() {
            fields.tlv_bytes().ok()?;
        }
        let mut next = || fields.tlv_bytes().ok();
        let [_, _, _, validity, _, spki] = [next()?, next()?, next()?, next()?, next()?, next()?];
        sequence(spki).ok()?;
        Some((validity, spki))
    }

    #[test]
    fn the_fields_are_those_of_the_general_decoder_whatever_byte_changes() {
        let (mut certificate, _) = certificate();
        let header = certificate.len().min(300);
        let mut read = 0;
        for position in 0..header {
            let original = certificate[position];
            for byte in 0..=u8::MAX {
                certificate[position] = byte;
                // The tags of skipped fields are checked here and not there.
                let Ok(fields) = CertificateFields::new(&certificate) else { continue };
                assert_eq!(decoded(&certificate), Some((fields.validity, fields.spki)));
                read += 1;
            }
            certificate[position] = original;
        }
        assert!(read > 10_000, "most bytes are values: {read}");
    }

    #[test]
    fn lengths_must_be_minimal_der() {
        let element = |header: &[u8], length: usize| {
            let input = [header, &vec![7; length]].concat();
            Element::only(&input).map(|element| element.content.len())
        };
        assert_eq!(element(&[0x30, 0x7f], 0x7f), Some(0x7f));
        assert_eq!(element(&[0x30, 0x81, 0x80], 0x80), Some(0x80));
        assert_eq!(element(&[0x30, 0x82, 1, 0], 0x100), Some(0x100));
        assert_eq!(element(&[0x30, 0x83, 1, 0, 0], 0x1_0000), Some(0x1_0000));
        for (header, length) in [
            (&[0x30, 0x80][..], 0),
            (&[0x30, 0x81, 0x7f], 0x7f),
            (&[0x30, 0x82, 0, 0x80], 0x80),
            (&[0x30, 0x83, 0, 1, 0], 0x100),
            (&[0x30, 0x84, 0, 0, 0, 1], 1),
            (&[0x30, 2], 1),
            (&[0x30, 1], 2),
        ] {
            assert_eq!(element(header, length), None, "{header:?}");
        }
    }

    #[test]
    fn a_certificate_with_a_changed_byte_causes_no_panic() {
        let (mut certificate, _) = certificate();
        for position in 0..certificate.len() {
            certificate[position] ^= 0xff;
            if let Ok(spki) = of_certificate(&certificate) {
                let _ = (Algorithm::of(spki), related(spki));
            }
            certificate[position] ^= 0xff;
        }
    }
}
