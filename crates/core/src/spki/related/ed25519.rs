//! Ed25519 keys: the point, its negative, and both with a point of small order added.
//!
//! Verifiers check `[S]B = R + [k]A` without the cofactor (RFC 8032, section 5.1.7). A point T of
//! small order has `[8]T = 0`. The holder of the private key of A therefore has at least one valid
//! signature in eight for A + T, and chooses the nonce of each signature until it is valid.

use std::cell::OnceCell;

use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::traits::IsIdentity;
use curve25519_dalek::{EdwardsPoint, Scalar};
use smallvec::SmallVec;

use super::Encoding;
use crate::spki::KeyDigest;

/// The DER before the 32 bytes of an Ed25519 key (RFC 8410).
pub(in crate::spki) const PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// The bit of the last byte that holds the sign of x (RFC 8032, section 5.1.2).
const SIGN: u8 = 0x80;

/// An Ed25519 key.
pub(super) struct EdwardsKey {
    /// The key as it is encoded.
    encoded: [u8; 32],
    /// The point, which is computed when it is needed.
    point: OnceCell<Option<EdwardsPoint>>,
}

impl EdwardsKey {
    pub(super) fn parse(spki: &[u8]) -> Option<Self> {
        let encoded: [u8; 32] = spki.strip_prefix(PREFIX)?.try_into().ok()?;
        Some(Self { encoded, point: OnceCell::new() })
    }

    /// The point; `None` if the bytes are not on the curve.
    fn point(&self) -> Option<EdwardsPoint> {
        *self.point.get_or_init(|| CompressedEdwardsY(self.encoded).decompress())
    }

    /// Whether the order is at most eight, or the bytes are not on the curve.
    pub(super) fn has_small_order(&self) -> bool {
        self.point().is_none_or(|point| point.is_small_order())
    }

    /// Visits the negative of the point. If the point is not a multiple of the base point, as every
    /// generated key is, visits its sums with the points of small order as well.
    ///
    /// The sums are not visited for generated keys. They would make an honest client a false
    /// positive eight times as often.
    pub(super) fn for_each_related(&self, mut visit: impl FnMut(Encoding, &[u8])) {
        visit(Encoding::Ed25519Negated, &spki(&negated(self.encoded)));
        if self.point().is_some_and(|point| !is_torsion_free(&point)) {
            self.for_each_sum(visit);
        }
    }

    /// Visits the sums of the point, and of its negative, with the points of small order.
    pub(super) fn for_each_sum(&self, mut visit: impl FnMut(Encoding, &[u8])) {
        self.for_each_encoded_sum(|sum| visit(Encoding::Ed25519Torsion, &spki(&sum)));
    }

    /// Visits the digest of the number of each encoding, small-order sums included.
    pub(super) fn for_each_number(&self, mut visit: impl FnMut(Encoding, KeyDigest)) {
        visit(Encoding::Presented, KeyDigest::from_number(&self.encoded));
        visit(Encoding::Ed25519Negated, KeyDigest::from_number(&negated(self.encoded)));
        self.for_each_encoded_sum(|sum| {
            visit(Encoding::Ed25519Torsion, KeyDigest::from_number(&sum));
        });
    }

    fn for_each_encoded_sum(&self, mut visit: impl FnMut([u8; 32])) {
        let Some(point) = self.point() else { return };
        let sums = EIGHT_TORSION.map(|offset| point + offset);
        // The encodings share one inversion, which takes most of the time of an encoding.
        for (sum, offset) in EdwardsPoint::compress_batch(&sums).into_iter().zip(EIGHT_TORSION) {
            if !offset.is_identity() {
                visit(sum.0);
                visit(negated(sum.0));
            }
        }
    }
}

/// Whether a point is a multiple of the base point, whose order is `l`: `l·A = 0`, which is
/// `(l − 1)·A = −A`. The time depends on the key, which is public: 30 µs instead of the 40 µs of
/// [`EdwardsPoint::is_torsion_free`].
fn is_torsion_free(point: &EdwardsPoint) -> bool {
    let product =
        EdwardsPoint::vartime_double_scalar_mul_basepoint(&-Scalar::ONE, point, &Scalar::ZERO);
    product == -point
}

/// The encoding of the negative of a point. A point with x = 0 is its own negative; its encoding
/// with the other sign is not canonical.
fn negated(mut encoded: [u8; 32]) -> [u8; 32] {
    if let Some(last) = encoded.last_mut() {
        *last ^= SIGN;
    }
    encoded
}

/// The SPKI of an Ed25519 key: 44 bytes.
type EdwardsSpki = SmallVec<[u8; 48]>;

fn spki(key: &[u8; 32]) -> EdwardsSpki {
    let mut spki = EdwardsSpki::from_slice(PREFIX);
    spki.extend_from_slice(key);
    spki
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rcgen::PublicKeyData;

    use super::*;
    use crate::spki::related::ParsedKey;
    use crate::spki::{Algorithm, PublicKey, related};

    fn generated() -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        key.subject_public_key_info()
    }

    fn point(spki: &[u8]) -> EdwardsPoint {
        EdwardsKey::parse(spki).unwrap().point().unwrap()
    }

    fn encoded(point: &EdwardsPoint) -> EdwardsSpki {
        spki(&point.compress().0)
    }

    fn as_set(spki: &[u8]) -> BTreeSet<Vec<u8>> {
        related(spki).into_iter().map(|(_, spki)| spki).collect()
    }

    /// Each connection needs the algorithm, and a decompression takes some microseconds.
    #[test]
    fn the_algorithm_of_a_key_needs_no_point() {
        let spki = generated();
        let key = PublicKey::parse(&spki);
        assert_eq!(key.algorithm(), Algorithm::Ed25519);
        let ParsedKey::Ed25519(key) = key.parsed else { panic!("another algorithm") };
        assert!(key.point.get().is_none());
        assert!(key.point().is_some() && key.point.get().is_some());
    }

    #[test]
    fn a_generated_key_has_its_negative_as_the_only_other_encoding() {
        let spki = generated();
        let encodings = related(&spki);
        let names: Vec<_> = encodings.iter().map(|(encoding, _)| *encoding).collect();
        assert_eq!(names, [Encoding::Presented, Encoding::Ed25519Negated]);
        assert_eq!(point(&encodings[1].1), -point(&spki));
        assert_eq!(as_set(&encodings[1].1), as_set(&spki));
    }

    #[test]
    fn a_key_with_a_point_of_small_order_added_is_related_to_the_generated_key() {
        let generated = generated();
        for offset in EIGHT_TORSION.iter().skip(1) {
            for sum in [point(&generated) + offset, -(point(&generated) + offset)] {
                let encodings = as_set(&encoded(&sum));
                assert_eq!(encodings.len(), 16);
                assert!(encodings.is_superset(&as_set(&generated)));
            }
        }
    }

    #[test]
    fn a_key_and_its_sums_with_points_of_small_order_have_the_same_forms_on_exact_lists() {
        let forms = |spki: &[u8]| {
            let key = PublicKey::parse(spki);
            let mut forms = as_set(spki);
            key.for_each_small_order_sum(|_, spki| {
                forms.insert(spki.to_vec());
            });
            let mut numbers = BTreeSet::new();
            key.for_each_number(|_, digest| {
                numbers.insert(digest.sha256());
            });
            (forms, numbers)
        };
        let generated = generated();
        let expected = forms(&generated);
        assert_eq!((expected.0.len(), expected.1.len()), (16, 16));
        for offset in &EIGHT_TORSION {
            for sum in [point(&generated) + offset, -(point(&generated) + offset)] {
                assert_eq!(forms(&encoded(&sum)), expected);
            }
        }
    }

    #[test]
    fn generated_points_are_free_of_torsion_and_their_sums_are_not() {
        let generated = point(&generated());
        for offset in &EIGHT_TORSION {
            for sum in [generated + offset, -generated + offset, *offset] {
                assert_eq!(is_torsion_free(&sum), offset.is_identity());
                assert_eq!(is_torsion_free(&sum), sum.is_torsion_free());
            }
        }
    }

    #[test]
    fn a_point_off_the_curve_has_only_its_negative() {
        let mut spki = generated();
        let off_curve = (0..=u8::MAX).any(|byte| {
            spki[PREFIX.len()] = byte;
            EdwardsKey::parse(&spki).unwrap().point().is_none()
        });
        assert!(off_curve, "half of all y have no x");
        assert_eq!(related(&spki).len(), 2);
    }

    #[test]
    fn a_point_of_small_order_causes_no_panic() {
        for offset in &EIGHT_TORSION {
            assert!(related(&encoded(offset)).len() >= 2);
        }
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            assert!(related(&spki(&[byte; 32])).len() >= 2);
        }
    }
}
