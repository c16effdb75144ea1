//! The other encodings under which one private key can be presented.
//!
//! A filter contains one encoding of a key. The holder of the private key can obtain a certificate
//! for any encoding that the verifier accepts: an elliptic-curve point Q compressed or not, its
//! negative −Q (the private key n − d follows from d), an Ed25519 point A, −A, or either with a
//! point of small order added, or an RSA modulus with another public exponent. A key is a hit if
//! any of its encodings is in a filter.

pub(super) mod ec;
mod ed25519;
mod ml_dsa;
mod rsa;

use smallvec::SmallVec;

use self::ec::Point;
pub(super) use self::ec::ec_spki;
use self::ed25519::EdwardsKey;
pub(crate) use self::ml_dsa::MlDsa;
pub use self::ml_dsa::key_problem;
use self::rsa::RsaKey;
pub use self::rsa::{RsaExponents, RsaNumbers};
pub(super) use self::rsa::{der_integer, rsa_spki};
use super::{Algorithm, Encoding, KeyDigest, other_key};

/// All encodings of the key with this SubjectPublicKeyInfo (DER), the presented one first.
#[must_use]
pub fn related(spki: &[u8]) -> Vec<(Encoding, Vec<u8>)> {
    let mut encodings = Vec::new();
    for_each_related(spki, |encoding, spki| encodings.push((encoding, spki.to_vec())));
    encodings
}

/// Calls `visit` with each encoding of a key, the presented one first, RSA keys with the default
/// exponents. Returns the algorithm of the key.
///
/// Allocates as little as [`PublicKey::for_each_related`].
pub fn for_each_related(spki: &[u8], visit: impl FnMut(Encoding, &[u8])) -> Algorithm {
    let key = PublicKey::parse(spki);
    key.for_each_related(RsaExponents::default(), visit);
    key.algorithm()
}

/// A public key whose related forms can be visited.
pub struct PublicKey<'a> {
    spki: &'a [u8],
    parsed: ParsedKey<'a>,
}

enum ParsedKey<'a> {
    Ec(Point<'a>),
    Ed25519(EdwardsKey),
    MlDsa(&'static MlDsa, &'a [u8]),
    /// Another algorithm, or bytes that cannot be read.
    Other,
    /// Another spelling of the key with this SubjectPublicKeyInfo.
    OtherSpelling(Vec<u8>),
    Rsa(RsaKey<'a>),
}

impl<'a> PublicKey<'a> {
    /// The key with this SubjectPublicKeyInfo (DER). Bytes that are none have one form only.
    #[must_use]
    pub fn parse(spki: &'a [u8]) -> Self {
        let ec = || Point::parse(spki).map(ParsedKey::Ec);
        let ed25519 = || EdwardsKey::parse(spki).map(ParsedKey::Ed25519);
        let rsa = || RsaKey::parse(spki).map(ParsedKey::Rsa);
        let ml_dsa = || MlDsa::parse(spki).map(|(set, key)| ParsedKey::MlDsa(set, key));
        let other = || other_key::canonical(spki).map(ParsedKey::OtherSpelling);
        let parsed = ec().or_else(ed25519).or_else(rsa).or_else(ml_dsa).or_else(other);
        let parsed = parsed.unwrap_or(ParsedKey::Other);
        Self { spki, parsed }
    }

    /// The algorithm of the key.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match &self.parsed {
            ParsedKey::Ec(point) => Algorithm::Ec(point.curve.name),
            ParsedKey::Ed25519(_) => Algorithm::Ed25519,
            ParsedKey::MlDsa(set, _) => Algorithm::MlDsa(set.name),
            ParsedKey::Other => Algorithm::Other,
            ParsedKey::OtherSpelling(spki) => Algorithm::of(spki),
            ParsedKey::Rsa(key) => Algorithm::Rsa(key.modulus_bits()),
        }
    }

    /// Modulus and public exponent of an RSA key, in any encoding and with the identifier of RSA or
    /// of RSA-PSS.
    #[must_use]
    pub fn rsa_numbers(&self) -> Option<RsaNumbers<'a>> {
        match &self.parsed {
            ParsedKey::Ec(_) | ParsedKey::Ed25519(_) | ParsedKey::MlDsa(..) => None,
            ParsedKey::Other | ParsedKey::OtherSpelling(_) => other_key::rsa_numbers(self.spki),
            ParsedKey::Rsa(key) => key.numbers(),
        }
    }

    /// Calls `visit` with the encodings that are looked up in filters, the presented one first. An
    /// RSA key has one for each of `exponents`.
    ///
    /// Does not allocate for RSA up to 8192 bits, for Ed25519, nor for an uncompressed point. A
    /// compressed point is decompressed. If the point is not on its curve, only the compressed
    /// encodings are visited. No verifier accepts such a key. A key in another spelling than the
    /// usual one, which OpenSSL accepts, is also visited with all encodings of the usual one.
    pub fn for_each_related(
        &self,
        exponents: RsaExponents,
        mut visit: impl FnMut(Encoding, &[u8]),
    ) {
        visit(Encoding::Presented, self.spki);
        match &self.parsed {
            ParsedKey::Ec(point) => point.for_each_related(visit),
            ParsedKey::Ed25519(key) => key.for_each_related(visit),
            ParsedKey::MlDsa(..) | ParsedKey::Other => {}
            ParsedKey::OtherSpelling(spki) => {
                // One type of visitor, because this function calls itself.
                let visit: &mut dyn FnMut(Encoding, &[u8]) = &mut |encoding, spki| {
                    let is_first = encoding == Encoding::Presented;
                    visit(if is_first { Encoding::Canonical } else { encoding }, spki);
                };
                PublicKey::parse(spki).for_each_related(exponents, visit);
            }
            ParsedKey::Rsa(key) => key.for_each_related(exponents, visit),
        }
    }

    /// Calls `visit` with the sums of an Ed25519 point, or of its negative, and a point of small
    /// order. [`PublicKey::for_each_related`] visits them only if the key is such a sum itself,
    /// because of the false positives of filters. An exact list has none.
    pub fn for_each_small_order_sum(&self, visit: impl FnMut(Encoding, &[u8])) {
        match &self.parsed {
            ParsedKey::Ed25519(key) => key.for_each_sum(visit),
            ParsedKey::Ec(_)
            | ParsedKey::MlDsa(..)
            | ParsedKey::Other
            | ParsedKey::OtherSpelling(_)
            | ParsedKey::Rsa(_) => {}
        }
    }

    /// Whether the key is a point of an elliptic curve.
    pub(crate) fn has_point(&self) -> bool {
        match &self.parsed {
            ParsedKey::Ec(_) | ParsedKey::Ed25519(_) => true,
            ParsedKey::MlDsa(..) | ParsedKey::Other | ParsedKey::Rsa(_) => false,
            ParsedKey::OtherSpelling(spki) => PublicKey::parse(spki).has_point(),
        }
    }

    /// Whether the key is a point that is not on its curve, or an Ed25519 point of small order.
    /// Anybody can sign for the eight points of small order, because k·A takes one of at most eight
    /// values.
    pub(crate) fn is_invalid_point(&self) -> bool {
        match &self.parsed {
            ParsedKey::Ec(point) => !point.is_on_curve(),
            ParsedKey::Ed25519(key) => key.has_small_order(),
            ParsedKey::MlDsa(..) | ParsedKey::Other | ParsedKey::Rsa(_) => false,
            ParsedKey::OtherSpelling(spki) => PublicKey::parse(spki).is_invalid_point(),
        }
    }

    /// Calls `visit` with the digest of each number that identifies the key: one for most
    /// algorithms, one for each encoding of an Ed25519 key, none if the algorithm is unknown.
    /// Never allocates.
    pub fn for_each_number(&self, mut visit: impl FnMut(Encoding, KeyDigest)) {
        match &self.parsed {
            ParsedKey::Ec(point) => visit(Encoding::EcX, KeyDigest::from_ec_x(point.x)),
            ParsedKey::Ed25519(key) => key.for_each_number(visit),
            ParsedKey::MlDsa(_, key) => visit(Encoding::Presented, KeyDigest::from_bytes(key)),
            ParsedKey::Other => {
                if let Some((encoding, digest)) = other_key::number(self.spki) {
                    visit(encoding, digest);
                }
            }
            ParsedKey::OtherSpelling(spki) => {
                let visit: &mut dyn FnMut(Encoding, KeyDigest) = &mut visit;
                PublicKey::parse(spki).for_each_number(visit);
            }
            ParsedKey::Rsa(key) => {
                visit(Encoding::RsaModulus, KeyDigest::from_rsa_modulus(key.modulus_value));
            }
        }
    }
}

/// The SubjectPublicKeyInfo (DER) of an Ed25519 key of 32 bytes.
pub(super) fn ed25519_spki(key: &[u8]) -> Vec<u8> {
    [ed25519::PREFIX, key].concat()
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
    point.for_each_related(|encoding, spki| {
        if matches!(encoding, Encoding::Compressed | Encoding::Uncompressed) {
            visit(spki);
        }
    });
}
