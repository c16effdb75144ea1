//! The other encodings under which one private key can be presented.
//!
//! A filter contains one encoding of a key. The holder of the private key can obtain a certificate
//! for any encoding that the verifier accepts: an elliptic-curve point Q compressed or not, its
//! negative −Q (the private key n − d follows from d), an Ed25519 point A, −A, or either with a point
//! of small order added, or an RSA modulus with another public exponent. A key is a hit if any of
//! its encodings is in a filter.

mod ec;
mod ed25519;
mod rsa;

use smallvec::SmallVec;

use self::ec::Point;
pub(super) use self::ec::ec_spki;
use self::ed25519::EdwardsKey;
use self::rsa::RsaKey;
pub(super) use self::rsa::{der_integer, rsa_spki};
use super::Algorithm;

/// The relation of an encoding to the presented one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The same point, compressed.
    Compressed,
    /// The negative of an Ed25519 point.
    Ed25519Negated,
    /// An Ed25519 point or its negative, with a point of small order added.
    Ed25519Torsion,
    /// The negative of the point, compressed.
    NegatedCompressed,
    /// The negative of the point, uncompressed.
    NegatedUncompressed,
    /// The presented encoding.
    Presented,
    /// The same modulus with e = 3.
    RsaExponent3,
    /// The same modulus with e = 65537.
    RsaExponent65537,
    /// The same point, uncompressed.
    Uncompressed,
}

impl Encoding {
    /// The name of the encoding in logs and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compressed => "compressed",
            Self::Ed25519Negated => "ed25519-negated",
            Self::Ed25519Torsion => "ed25519-torsion",
            Self::NegatedCompressed => "negated-compressed",
            Self::NegatedUncompressed => "negated-uncompressed",
            Self::Presented => "presented",
            Self::RsaExponent3 => "rsa-exponent-3",
            Self::RsaExponent65537 => "rsa-exponent-65537",
            Self::Uncompressed => "uncompressed",
        }
    }
}

/// All encodings of the key with this SubjectPublicKeyInfo (DER), the presented one first.
#[must_use]
pub fn related(spki: &[u8]) -> Vec<(Encoding, Vec<u8>)> {
    let mut encodings = Vec::new();
    for_each_related(spki, |encoding, spki| encodings.push((encoding, spki.to_vec())));
    encodings
}

/// Calls `visit` with each encoding of a key, the presented one first. Returns the algorithm of the
/// key.
///
/// Does not allocate for RSA up to 8192 bits, for Ed25519, nor for an uncompressed point. A
/// compressed point is decompressed. If the point is not on its curve, only the compressed encodings
/// are visited. No verifier accepts such a key.
pub fn for_each_related(spki: &[u8], mut visit: impl FnMut(Encoding, &[u8])) -> Algorithm {
    visit(Encoding::Presented, spki);
    if let Some(point) = Point::parse(spki) {
        point.for_each_related(visit);
        return Algorithm::Ec(point.curve.name);
    }
    if let Some(key) = EdwardsKey::parse(spki) {
        key.for_each_related(visit);
        return Algorithm::Ed25519;
    }
    if let Some(key) = RsaKey::parse(spki) {
        key.for_each_related(visit);
        return Algorithm::Rsa(key.modulus_bits);
    }
    Algorithm::Other
}

/// The SubjectPublicKeyInfo (DER) of an Ed25519 key of 32 bytes.
pub(super) fn ed25519_spki(key: &[u8]) -> Vec<u8> {
    [ed25519::PREFIX, key].concat()
}

/// The algorithm of a SubjectPublicKeyInfo (DER).
pub(super) fn algorithm_of(spki: &[u8]) -> Algorithm {
    if let Some(point) = Point::parse(spki) {
        return Algorithm::Ec(point.curve.name);
    }
    if let Some(key) = RsaKey::parse(spki) {
        return Algorithm::Rsa(key.modulus_bits);
    }
    if EdwardsKey::parse(spki).is_some() { Algorithm::Ed25519 } else { Algorithm::Other }
}

/// Holds the SPKI of an 8192-bit RSA key, the largest that the verifier accepts, without
/// allocation.
type SpkiBuffer = SmallVec<[u8; 1104]>;

/// Calls `visit` with the encodings that published filters contain: the presented one and, for an
/// elliptic curve, the same point in its other form. Programs other than keygate look up only one
/// of the two.
pub fn for_each_point_form(spki: &[u8], mut visit: impl FnMut(&[u8])) {
    visit(spki);
    let Some(point) = Point::parse(spki) else { return };
    point.for_each_related(|encoding, spki| match encoding {
        Encoding::Compressed | Encoding::Presented | Encoding::Uncompressed => visit(spki),
        Encoding::Ed25519Negated
        | Encoding::Ed25519Torsion
        | Encoding::NegatedCompressed
        | Encoding::NegatedUncompressed
        | Encoding::RsaExponent3
        | Encoding::RsaExponent65537 => {}
    });
}
