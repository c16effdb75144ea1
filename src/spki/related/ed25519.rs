//! Ed25519 keys: the point, its negative, and both with a point of small order added.
//!
//! Verifiers check `[S]B = R + [k]A` without the cofactor (RFC 8032, section 5.1.7). A point T of
//! small order has `[8]T = 0`. The holder of the private key of A therefore has at least one valid
//! signature in eight for A + T, and chooses the nonce of each signature until it is valid.

use curve25519_dalek::EdwardsPoint;
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::traits::IsIdentity;

use smallvec::SmallVec;

use super::Encoding;

/// The DER before the 32 bytes of an Ed25519 key (RFC 8410).
pub(in crate::spki) const PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// The bit of the last byte that holds the sign of x (RFC 8032, section 5.1.2).
const SIGN: u8 = 0x80;

/// The point of an Ed25519 key, as it is encoded.
pub(super) struct EdwardsKey([u8; 32]);

impl EdwardsKey {
    pub(super) fn parse(spki: &[u8]) -> Option<Self> {
        spki.strip_prefix(PREFIX)?.try_into().ok().map(Self)
    }

    /// Visits the negative of the point. If the point is not a multiple of the base point, as every
    /// generated key is, visits its sums with the points of small order as well.
    ///
    /// The sums are not visited for generated keys. They would make an honest client a false
    /// positive eight times as often. The test for generated keys takes about 40 µs.
    pub(super) fn for_each_related(&self, mut visit: impl FnMut(Encoding, &[u8])) {
        let mut negated = self.0;
        if let Some(last) = negated.last_mut() {
            *last ^= SIGN;
        }
        visit(Encoding::Ed25519Negated, &spki(&negated));
        let Some(point) = CompressedEdwardsY(self.0).decompress() else { return };
        if point.is_torsion_free() {
            return;
        }
        let sums = EIGHT_TORSION.iter().filter(|it| !it.is_identity()).map(|it| point + it);
        for sum in sums {
            visit(Encoding::Ed25519Torsion, &encoded(&sum));
            visit(Encoding::Ed25519Torsion, &encoded(&-sum));
        }
    }
}

/// The SPKI of an Ed25519 key: 44 bytes.
type EdwardsSpki = SmallVec<[u8; 48]>;

fn encoded(point: &EdwardsPoint) -> EdwardsSpki {
    spki(&point.compress().0)
}

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
    use crate::spki::related;

    fn generated() -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        key.subject_public_key_info()
    }

    fn point(spki: &[u8]) -> EdwardsPoint {
        CompressedEdwardsY(EdwardsKey::parse(spki).unwrap().0).decompress().unwrap()
    }

    fn as_set(spki: &[u8]) -> BTreeSet<Vec<u8>> {
        related(spki).into_iter().map(|(_, spki)| spki).collect()
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
    fn a_point_off_the_curve_has_only_its_negative() {
        let mut spki = generated();
        let off_curve = (0..=u8::MAX).any(|byte| {
            spki[PREFIX.len()] = byte;
            CompressedEdwardsY(EdwardsKey::parse(&spki).unwrap().0).decompress().is_none()
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
