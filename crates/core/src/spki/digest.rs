//! Digests by which exact lists name keys.
//!
//! The digest of a number covers each encoding of the key. The modulus covers every exponent of an
//! RSA key. The x coordinate covers a point and its negative, compressed or not.

use std::fmt;

use super::{Fingerprint, sha256, write_hex};

/// The SHA-256 of one form of a public key. Numbers are big-endian, without leading zero bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyDigest {
    /// The digest of the x coordinate of a point; in text `ec-x:` and lower-case hex.
    EcX([u8; 32]),
    /// The digest of the number of another key; only a badkeys blocklist has such digests.
    Number([u8; 32]),
    /// The digest of the modulus of an RSA key; in text `rsa-modulus:` and lower-case hex.
    RsaModulus([u8; 32]),
    /// The digest of the SubjectPublicKeyInfo, its fingerprint; in text lower-case hex.
    Spki(Fingerprint),
}

/// Start of the text of [`KeyDigest::EcX`].
const EC_X: &str = "ec-x:";
/// Start of the text of [`KeyDigest::RsaModulus`].
const RSA_MODULUS: &str = "rsa-modulus:";

impl KeyDigest {
    /// The digest of the x coordinate of a point, which may have leading zeros.
    pub(super) fn from_ec_x(x: &[u8]) -> Self {
        Self::EcX(sha256(without_zeros(x)))
    }

    /// The digest of a modulus.
    pub(super) fn from_rsa_modulus(modulus: &[u8]) -> Self {
        Self::RsaModulus(sha256(without_zeros(modulus)))
    }

    /// The digest of another number, which may have leading zeros.
    pub(super) fn from_number(number: &[u8]) -> Self {
        Self::Number(sha256(without_zeros(number)))
    }

    /// The digest of a key that is a string of bytes; leading zeros count.
    pub(super) fn from_bytes(key: &[u8]) -> Self {
        Self::Number(sha256(key))
    }

    /// Parses the form of a list: `ec-x:` or `rsa-modulus:` and a digest, or a fingerprint. The
    /// digest has the forms of a [`Fingerprint`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digest = |text: &str| Fingerprint::parse(text.trim_start()).map(|digest| digest.0);
        if let Some(text) = text.strip_prefix(EC_X) {
            return digest(text).map(Self::EcX);
        }
        if let Some(text) = text.strip_prefix(RSA_MODULUS) {
            return digest(text).map(Self::RsaModulus);
        }
        Fingerprint::parse(text).map(Self::Spki)
    }

    /// The 32 bytes of the digest.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        match self {
            Self::EcX(sha256) | Self::Number(sha256) | Self::RsaModulus(sha256) => *sha256,
            Self::Spki(fingerprint) => fingerprint.0,
        }
    }

    /// Whether this is the digest of a number of the key, and not of its SubjectPublicKeyInfo.
    #[must_use]
    pub fn is_of_number(&self) -> bool {
        match self {
            Self::EcX(_) | Self::Number(_) | Self::RsaModulus(_) => true,
            Self::Spki(_) => false,
        }
    }
}

impl From<Fingerprint> for KeyDigest {
    fn from(fingerprint: Fingerprint) -> Self {
        Self::Spki(fingerprint)
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::EcX(_) => EC_X,
            Self::Number(_) => "number:",
            Self::RsaModulus(_) => RSA_MODULUS,
            Self::Spki(_) => "",
        })?;
        write_hex(&self.sha256(), formatter)
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_parsed_as_it_is_printed() {
        for digest in [
            KeyDigest::from_ec_x(b"x"),
            KeyDigest::from_rsa_modulus(b"n"),
            Fingerprint::of(b"spki").into(),
        ] {
            assert_eq!(KeyDigest::parse(&digest.to_string()), Some(digest));
            assert_eq!(digest.is_of_number(), !matches!(digest, KeyDigest::Spki(_)));
        }
        let hex = Fingerprint::of(b"x").to_string();
        let expected = Some(KeyDigest::from_ec_x(b"x"));
        assert_eq!(KeyDigest::parse(&format!("ec-x: {}", hex.to_uppercase())), expected);
        for text in ["ec-x:", "ec-x:9e03", &format!("rsa:{hex}"), &format!("number:{hex}")] {
            assert_eq!(KeyDigest::parse(text), None, "{text}");
        }
    }

    #[test]
    fn leading_zeros_of_a_number_do_not_count_and_those_of_a_key_do() {
        assert_eq!(KeyDigest::from_ec_x(b"\0\0x"), KeyDigest::from_ec_x(b"x"));
        assert_eq!(KeyDigest::from_number(b"\0x"), KeyDigest::from_number(b"x"));
        assert_eq!(KeyDigest::from_rsa_modulus(b"\0"), KeyDigest::from_rsa_modulus(b""));
        assert_ne!(KeyDigest::from_bytes(b"\0x"), KeyDigest::from_bytes(b"x"));
    }
}
