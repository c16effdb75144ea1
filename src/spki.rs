//! SubjectPublicKeyInfo: its place in a certificate, its fingerprint, and its related encodings.
//!
//! Works on bytes and never does I/O. Formats: RFC 5280, section 4.1, RFC 5480 (elliptic curves),
//! RFC 8017 (RSA).

mod input;
mod related;

use std::fmt;
use std::time::Duration;

use aws_lc_rs::digest;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{self, Decode, Reader, SliceReader, Tag, Tagged};
use x509_cert::time::Validity;

pub use input::{Damage, Finding, InputError, KeyScanner, keys_in};
pub use related::{Encoding, for_each_point_form, for_each_related, related};

/// SHA-256 of a SubjectPublicKeyInfo; in text, lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, spki);
        Self(digest.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// Parses 64 hex digits of either case, with or without colons between the bytes, or base64 as
    /// in the pins of RFC 7469.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.replace(':', "");
        let hex = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
        let bytes = hex.or_else(|| BASE64.decode(text.as_bytes()).ok())?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint({self})")
    }
}

/// The bytes are not the DER of an X.509 certificate with a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an X.509 certificate: {0}")]
pub struct CertificateError(#[from] der::Error);

/// The SubjectPublicKeyInfo of a certificate: DER, outer SEQUENCE included.
///
/// # Errors
/// Returns an error if `certificate` is not the DER of an X.509 certificate.
pub fn of_certificate(certificate: &[u8]) -> Result<&[u8], CertificateError> {
    Ok(CertificateFields::of(certificate)?.spki)
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
    let validity: Validity = Validity::from_der(CertificateFields::of(certificate)?.validity)?;
    let [not_before, not_after] =
        [validity.not_before, validity.not_after].map(|time| time.to_unix_duration());
    Ok(ValidityPeriod { not_before, not_after })
}

/// The parts of a certificate that every connection needs, borrowed from it. Decoding the whole
/// certificate would allocate for each name and extension.
struct CertificateFields<'a> {
    validity: &'a [u8],
    spki: &'a [u8],
}

impl<'a> CertificateFields<'a> {
    fn of(certificate: &'a [u8]) -> Result<Self, der::Error> {
        let mut certificate = sequence(certificate)?;
        let mut to_be_signed = sequence(certificate.tlv_bytes()?)?;
        if Tag::peek(&to_be_signed)?.is_context_specific() {
            to_be_signed.tlv_bytes()?; // version
        }
        to_be_signed.tlv_bytes()?; // serial number
        to_be_signed.tlv_bytes()?; // signature algorithm
        to_be_signed.tlv_bytes()?; // issuer
        let validity = to_be_signed.tlv_bytes()?;
        to_be_signed.tlv_bytes()?; // subject
        let spki = to_be_signed.tlv_bytes()?;
        sequence(spki)?;
        Ok(Self { validity, spki })
    }
}

/// A reader over the content of `der`, which must be one DER SEQUENCE.
fn sequence(der: &[u8]) -> Result<SliceReader<'_>, der::Error> {
    let whole = AnyRef::from_der(der)?;
    whole.tag().assert_eq(Tag::Sequence)?;
    SliceReader::new(whole.value())
}

/// The algorithm of a public key, as far as keygate distinguishes algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// An elliptic curve, with its usual name.
    Ec(&'static str),
    /// Ed25519 (RFC 8410).
    Ed25519,
    /// Any other algorithm.
    Other,
    /// RSA, with the length of the modulus in bits.
    Rsa(usize),
}

impl Algorithm {
    /// The algorithm of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        related::algorithm_of(spki)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ec(curve) => formatter.write_str(curve),
            Self::Ed25519 => formatter.write_str("ed25519"),
            Self::Other => formatter.write_str("other"),
            Self::Rsa(bits) => write!(formatter, "rsa-{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_fingerprint_is_parsed_from_hex_with_and_without_colons_and_from_base64() {
        let fingerprint = Fingerprint::of(b"key");
        let hex = fingerprint.to_string();
        let colons: Vec<_> = hex.as_bytes().chunks(2).map(String::from_utf8_lossy).collect();
        for text in [&hex, &hex.to_uppercase(), &colons.join(":"), &BASE64.encode(&fingerprint.0)] {
            assert_eq!(Fingerprint::parse(text), Some(fingerprint), "{text}");
        }
        for text in ["", "9e03", "not a fingerprint", &format!("{hex}0"), &format!("{hex} ")] {
            assert_eq!(Fingerprint::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_fingerprint_is_printed_as_lower_case_hex() {
        // SHA-256 of nothing: FIPS 180-4 example values.
        assert_eq!(
            Fingerprint::of(b"").to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
