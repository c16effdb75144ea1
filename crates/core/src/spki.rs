//! SubjectPublicKeyInfo: its place in a certificate, its fingerprint, and its related encodings.
//!
//! Works on bytes and never does I/O. Formats: RFC 5280, section 4.1, RFC 5480 (elliptic curves),
//! RFC 8017 (RSA), RFC 9881 (ML-DSA).

mod certificate;
mod digest;
mod encoding;
mod input;
mod other_key;
mod related;

use std::fmt;

use aws_lc_rs::digest as sha2;
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{self, Decode, SliceReader, Tag, Tagged};

pub(crate) use certificate::{BOOLEAN, CertificateFields, Element, INTEGER, OID, SEQUENCE};
pub use certificate::{CertificateError, ValidityPeriod, not_after, of_certificate, validity};
pub use digest::KeyDigest;
pub use encoding::Encoding;
#[cfg(feature = "key-stores")]
pub use input::EncryptedStore;
pub use input::{Damage, Finding, InputError, KeyScanner, keys_in, ssh_key};
pub(crate) use related::MlDsa;
pub use related::{
    PublicKey, RsaExponents, RsaNumbers, for_each_point_form, for_each_related, key_problem,
    related,
};

/// SHA-256 of a SubjectPublicKeyInfo; in text, lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        Self(sha256(spki))
    }

    /// Parses 64 hex digits of either case, with or without colons between the bytes, or base64 as
    /// in the pins of RFC 7469. `sha256:` or `sha256//` may come first, as in the pins of Ghostunnel
    /// and curl.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut forms = ["sha256//", "sha256:"].iter();
        let text = forms.find_map(|form| text.strip_prefix(form)).unwrap_or(text);
        let digits = text.replace(':', "");
        let hex = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
        let bytes = hex.or_else(|| BASE64.decode(text.as_bytes()).ok())?;
        bytes.try_into().ok().map(Self)
    }
}

/// SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = sha2::digest(&sha2::SHA256, bytes);
    digest.as_ref().first_chunk().copied().unwrap_or_default()
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, formatter)
    }
}

/// Writes a digest as lower-case hex.
fn write_hex(digest: &[u8; 32], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut digits = [0; 64];
    HEXLOWER.encode_mut(digest, &mut digits);
    formatter.write_str(str::from_utf8(&digits).map_err(|_| fmt::Error)?)
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint({self})")
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
    /// ML-DSA (RFC 9881), with the lower-case name of its parameter set.
    MlDsa(&'static str),
    /// Any other algorithm.
    Other,
    /// RSA, with the length of the modulus in bits.
    Rsa(usize),
}

impl Algorithm {
    /// The algorithm of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        PublicKey::parse(spki).algorithm()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ec(name) | Self::MlDsa(name) => formatter.write_str(name),
            Self::Ed25519 => formatter.write_str("ed25519"),
            Self::Other => formatter.write_str("other"),
            Self::Rsa(bits) => write!(formatter, "rsa-{bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_parsed_from_hex_with_and_without_colons_and_from_base64() {
        let fingerprint = Fingerprint::of(b"key");
        let hex = fingerprint.to_string();
        let colons: Vec<_> = hex.as_bytes().chunks(2).map(String::from_utf8_lossy).collect();
        for text in [&hex, &hex.to_uppercase(), &colons.join(":"), &BASE64.encode(&fingerprint.0)] {
            for form in ["", "sha256:", "sha256//"] {
                let text = format!("{form}{text}");
                assert_eq!(Fingerprint::parse(&text), Some(fingerprint), "{text}");
            }
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
