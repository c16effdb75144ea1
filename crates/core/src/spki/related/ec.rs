//! Elliptic-curve keys: the point and its negative, compressed or not.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256K1_SHA256_ASN1, ECDSA_P384_SHA384_ASN1,
    ECDSA_P521_SHA512_ASN1, EcdsaVerificationAlgorithm, ParsedPublicKey,
};

use smallvec::SmallVec;

use super::Encoding;

pub(super) struct Curve {
    pub(super) name: &'static str,
    /// The DER before the point's first byte, which is its form.
    uncompressed_prefix: &'static [u8],
    compressed_prefix: &'static [u8],
    /// The prime of the field, big-endian. Source: SEC 2, version 2.0, section 2.
    prime: &'static [u8],
    verification: &'static EcdsaVerificationAlgorithm,
}

/// The supported curves. The DER of a SubjectPublicKeyInfo is fixed up to the point (RFC 5480,
/// section 2): SEQUENCE, SEQUENCE { id-ecPublicKey, curve }, BIT STRING with no unused bits.
static CURVES: [Curve; 4] = [
    Curve {
        name: "p256",
        uncompressed_prefix: b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00",
        compressed_prefix: b"\x30\x39\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x22\x00",
        prime: &[
            0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff,
        ],
        verification: &ECDSA_P256_SHA256_ASN1,
    },
    Curve {
        name: "p384",
        uncompressed_prefix: b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00",
        compressed_prefix: b"\x30\x46\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x32\x00",
        prime: &[
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0xff, 0xff, 0xff, 0xff,
        ],
        verification: &ECDSA_P384_SHA384_ASN1,
    },
    Curve {
        name: "p521",
        uncompressed_prefix: b"\x30\x81\x9b\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x23\x03\x81\x86\x00",
        compressed_prefix: b"\x30\x58\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x23\x03\x44\x00",
        prime: &[
            0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
        verification: &ECDSA_P521_SHA512_ASN1,
    },
    Curve {
        name: "secp256k1",
        uncompressed_prefix: b"\x30\x56\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x0a\x03\x42\x00",
        compressed_prefix: b"\x30\x36\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x0a\x03\x22\x00",
        prime: &[
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe,
            0xff, 0xff, 0xfc, 0x2f,
        ],
        verification: &ECDSA_P256K1_SHA256_ASN1,
    },
];

/// The SubjectPublicKeyInfo (DER) of an uncompressed point on the curve with this name. `None` if
/// the length or the form of `point` is wrong.
pub(in crate::spki) fn ec_spki(curve: &str, point: &[u8]) -> Option<Vec<u8>> {
    let curve = CURVES.iter().find(|known| known.name == curve)?;
    let is_whole = point.len() == 1 + 2 * curve.prime.len() && point.first() == Some(&UNCOMPRESSED);
    is_whole.then(|| [curve.uncompressed_prefix, point].concat())
}

/// The SubjectPublicKeyInfo (DER) of an uncompressed point whose hybrid form (X9.62, section 4.3.6)
/// `spki` has. `None` if `spki` has no such point.
pub(in crate::spki) fn of_hybrid_point(spki: &[u8]) -> Option<Vec<u8>> {
    CURVES.iter().find_map(|curve| {
        let (form, coordinates) = spki.strip_prefix(curve.uncompressed_prefix)?.split_first()?;
        let parity = coordinates.last()? & 1;
        let point = [&[UNCOMPRESSED], coordinates].concat();
        (*form == HYBRID | parity).then(|| ec_spki(curve.name, &point)).flatten()
    })
}

/// A point in a SubjectPublicKeyInfo (SEC 1, section 2.3.3).
pub(super) struct Point<'a> {
    pub(super) curve: &'static Curve,
    pub(super) x: &'a [u8],
    y: Ordinate<'a>,
}

enum Ordinate<'a> {
    /// The parity of y: 0x02 is even, 0x03 is odd.
    Parity(u8),
    Whole(&'a [u8]),
}

const EVEN: u8 = 0x02;
const UNCOMPRESSED: u8 = 0x04;
/// The hybrid form of a point with an even y. The form of an odd one begins with 0x07.
const HYBRID: u8 = 0x06;

impl<'a> Point<'a> {
    pub(super) fn parse(spki: &'a [u8]) -> Option<Self> {
        CURVES.iter().find_map(|curve| Self::parse_on(curve, spki))
    }

    fn parse_on(curve: &'static Curve, spki: &'a [u8]) -> Option<Self> {
        let size = curve.prime.len();
        if let Some(point) = spki.strip_prefix(curve.uncompressed_prefix) {
            let (x, y) = point.strip_prefix(&[UNCOMPRESSED])?.split_at_checked(size)?;
            return (y.len() == size).then_some(Self { curve, x, y: Ordinate::Whole(y) });
        }
        let (form, x) = spki.strip_prefix(curve.compressed_prefix)?.split_first()?;
        let parity = (form & !1 == EVEN).then_some(*form)?;
        (x.len() == size).then_some(Self { curve, x, y: Ordinate::Parity(parity) })
    }

    pub(super) fn for_each_related(&self, mut visit: impl FnMut(Encoding, &[u8])) {
        match self.y {
            Ordinate::Whole(y) => {
                let form = EVEN | (y.last().copied().unwrap_or_default() & 1);
                visit(Encoding::Compressed, &self.compressed(form));
                visit(Encoding::NegatedUncompressed, &self.negated(y));
                visit(Encoding::NegatedCompressed, &self.compressed(form ^ 1));
            }
            Ordinate::Parity(form) => {
                visit(Encoding::NegatedCompressed, &self.compressed(form ^ 1));
                let Some(whole) = self.decompress(form) else { return };
                visit(Encoding::Uncompressed, &whole);
                if let Some((_, y)) =
                    whole.split_at_checked(whole.len().saturating_sub(self.x.len()))
                {
                    visit(Encoding::NegatedUncompressed, &self.negated(y));
                }
            }
        }
    }

    fn compressed(&self, form: u8) -> PointSpki {
        let mut spki = PointSpki::from_slice(self.curve.compressed_prefix);
        spki.push(form);
        spki.extend_from_slice(self.x);
        spki
    }

    /// The SPKI of the negative of the point, uncompressed. Its y is `prime − y`, which wraps if y
    /// is not in the field; no verifier accepts such a point.
    fn negated(&self, y: &[u8]) -> PointSpki {
        let mut spki = PointSpki::from_slice(self.curve.uncompressed_prefix);
        spki.push(UNCOMPRESSED);
        spki.extend_from_slice(self.x);
        let start = spki.len();
        spki.extend_from_slice(self.curve.prime);
        if let Some(difference) = spki.get_mut(start..) {
            subtract(difference, y);
        }
        spki
    }

    pub(super) fn is_on_curve(&self) -> bool {
        match self.y {
            Ordinate::Parity(form) => self.verifier(form, &[]).is_some(),
            Ordinate::Whole(y) => self.verifier(UNCOMPRESSED, y).is_some(),
        }
    }

    /// The key with this form of the point; `None` if it is not on the curve.
    fn verifier(&self, form: u8, y: &[u8]) -> Option<ParsedPublicKey> {
        ParsedPublicKey::new(self.curve.verification, [&[form], self.x, y].concat()).ok()
    }

    /// The SPKI with the uncompressed point; `None` if x is not on the curve.
    fn decompress(&self, form: u8) -> Option<Vec<u8>> {
        let key = self.verifier(form, &[])?;
        let spki: PublicKeyX509Der<'_> = key.as_der().ok()?;
        Some(spki.as_ref().to_vec())
    }
}

/// Holds the SPKI of any point on the supported curves without allocation: 158 bytes for P-521.
type PointSpki = SmallVec<[u8; 160]>;

/// Subtracts `subtrahend` from `number`. Both are big-endian and of the same length.
fn subtract(number: &mut [u8], subtrahend: &[u8]) {
    let (head, words) = number.as_rchunks_mut::<8>();
    let (subtrahend_head, subtrahend_words) = subtrahend.as_rchunks::<8>();
    let mut borrow = false;
    for (word, subtrahend) in words.iter_mut().zip(subtrahend_words).rev() {
        let (partial, first) =
            u64::from_be_bytes(*word).overflowing_sub(u64::from_be_bytes(*subtrahend));
        let (result, second) = partial.overflowing_sub(borrow.into());
        *word = result.to_be_bytes();
        borrow = first | second;
    }
    for (digit, subtrahend) in head.iter_mut().zip(subtrahend_head).rev() {
        let (partial, first) = digit.overflowing_sub(*subtrahend);
        let (result, second) = partial.overflowing_sub(borrow.into());
        *digit = result;
        borrow = first | second;
    }
}

#[cfg(test)]
mod tests {
    use rcgen::PublicKeyData;

    use super::*;
    use crate::spki::related;

    fn ec_key(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        rcgen::KeyPair::generate_for(algorithm).unwrap().subject_public_key_info()
    }

    fn encoding(spki: &[u8], wanted: Encoding) -> Vec<u8> {
        let found = related(spki).into_iter().find(|(encoding, _)| *encoding == wanted);
        found.unwrap_or_else(|| panic!("no {wanted:?} among the related encodings")).1
    }

    fn as_set(spki: &[u8]) -> Vec<Vec<u8>> {
        let mut encodings: Vec<_> = related(spki).into_iter().map(|(_, spki)| spki).collect();
        encodings.sort();
        encodings
    }

    #[test]
    fn all_encodings_of_a_point_have_the_same_related_encodings() {
        for algorithm in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ECDSA_P521_SHA512,
        ] {
            let spki = ec_key(algorithm);
            let encodings = as_set(&spki);
            assert_eq!(encodings.len(), 4);
            for encoding in &encodings {
                assert_eq!(as_set(encoding), encodings, "{algorithm:?}");
            }
        }
    }

    #[test]
    fn the_negative_of_a_point_is_on_the_curve() {
        let spki = ec_key(&rcgen::PKCS_ECDSA_P384_SHA384);
        let negated = encoding(&spki, Encoding::NegatedCompressed);
        let point = Point::parse(&negated).unwrap();
        let Ordinate::Parity(form) = point.y else { panic!("not compressed") };
        // The cryptographic library decompresses it to the result of our subtraction.
        assert_eq!(point.decompress(form).unwrap(), encoding(&spki, Encoding::NegatedUncompressed));
    }

    #[test]
    fn a_point_off_the_curve_has_no_uncompressed_encoding() {
        let spki = ec_key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let mut compressed = encoding(&spki, Encoding::Compressed);
        let x = CURVES[0].compressed_prefix.len() + 1;
        let off_curve = (0..=u8::MAX).find(|byte| {
            compressed[x] = *byte;
            Point::parse(&compressed).unwrap().decompress(EVEN).is_none()
        });
        assert!(off_curve.is_some(), "half of all x have no y");
        let forms: Vec<_> = related(&compressed).into_iter().map(|(form, _)| form).collect();
        assert_eq!(forms, [Encoding::Presented, Encoding::NegatedCompressed]);
    }
}
