//! The other encodings under which one private key can be presented.
//!
//! A filter knows the bytes that somebody added. Who holds the private key can have a certificate
//! made for any encoding that the verifier accepts: an elliptic-curve point Q compressed or not,
//! its negative −Q (who knows d knows n − d), an RSA modulus with another public exponent. A key is
//! a hit if any of them is in a filter.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256K1_SHA256_ASN1, ECDSA_P384_SHA384_ASN1,
    ECDSA_P521_SHA512_ASN1, EcdsaVerificationAlgorithm, ParsedPublicKey,
};
use smallvec::SmallVec;
use x509_cert::der::Reader;

use super::sequence;

/// How an encoding relates to the one that was presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The same point, compressed.
    Compressed,
    /// The negative of the point, compressed.
    NegatedCompressed,
    /// The negative of the point, uncompressed.
    NegatedUncompressed,
    /// As presented.
    Presented,
    /// The same modulus with e = 3.
    RsaExponent3,
    /// The same modulus with e = 65537.
    RsaExponent65537,
    /// The same point, uncompressed.
    Uncompressed,
}

impl Encoding {
    /// The word for it in logs and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compressed => "compressed",
            Self::NegatedCompressed => "negated-compressed",
            Self::NegatedUncompressed => "negated-uncompressed",
            Self::Presented => "presented",
            Self::RsaExponent3 => "rsa-exponent-3",
            Self::RsaExponent65537 => "rsa-exponent-65537",
            Self::Uncompressed => "uncompressed",
        }
    }
}

/// Every encoding of the key with this SubjectPublicKeyInfo (DER), the presented one first.
#[must_use]
pub fn related(spki: &[u8]) -> Vec<(Encoding, Vec<u8>)> {
    let mut encodings = Vec::new();
    for_each_related(spki, |encoding, spki| encodings.push((encoding, spki.to_vec())));
    encodings
}

/// Shows `visit` every encoding of a key, the presented one first.
///
/// Does not allocate for RSA up to 8192 bits nor for an uncompressed point. A compressed one is
/// decompressed; if it is not on its curve (the verifier refuses it) only the compressed forms are
/// shown.
pub fn for_each_related(spki: &[u8], mut visit: impl FnMut(Encoding, &[u8])) {
    visit(Encoding::Presented, spki);
    if let Some(point) = Point::parse(spki) {
        point.for_each_related(visit);
    } else if let Some(key) = RsaKey::parse(spki) {
        key.for_each_related(visit);
    }
}

/// The usual name of the curve of an elliptic-curve key.
pub(super) fn curve_of(spki: &[u8]) -> Option<&'static str> {
    Point::parse(spki).map(|point| point.curve.name)
}

/// The length of the modulus of an RSA key in bits.
pub(super) fn rsa_modulus_bits(spki: &[u8]) -> Option<usize> {
    RsaKey::parse(spki).map(|key| key.modulus_bits)
}

/// Room for the SPKI of an 8192-bit RSA key, the largest that the verifier accepts.
type SpkiBuffer = SmallVec<[u8; 1104]>;

struct Curve {
    name: &'static str,
    /// Everything before the point's first byte, which tells its form.
    uncompressed_prefix: &'static [u8],
    compressed_prefix: &'static [u8],
    /// The prime of the field, big-endian. Source: SEC 2, version 2.0, section 2.
    prime: &'static [u8],
    verification: &'static EcdsaVerificationAlgorithm,
}

/// DER of a SubjectPublicKeyInfo is fixed up to the point (RFC 5480, section 2): SEQUENCE,
/// SEQUENCE { id-ecPublicKey, curve }, BIT STRING with no unused bits.
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

/// A point as it stands in a SubjectPublicKeyInfo (SEC 1, section 2.3.3).
struct Point<'a> {
    curve: &'static Curve,
    x: &'a [u8],
    y: Ordinate<'a>,
}

enum Ordinate<'a> {
    /// 0x02 or 0x03: the parity of y.
    Parity(u8),
    Whole(&'a [u8]),
}

const EVEN: u8 = 0x02;
const UNCOMPRESSED: u8 = 0x04;

impl<'a> Point<'a> {
    fn parse(spki: &'a [u8]) -> Option<Self> {
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

    fn for_each_related(&self, mut visit: impl FnMut(Encoding, &[u8])) {
        match self.y {
            Ordinate::Whole(y) => {
                let form = EVEN | (y.last().copied().unwrap_or_default() & 1);
                visit(Encoding::Compressed, &self.compressed(form));
                visit(Encoding::NegatedUncompressed, &self.uncompressed(&self.negate(y)));
                visit(Encoding::NegatedCompressed, &self.compressed(form ^ 1));
            }
            Ordinate::Parity(form) => {
                visit(Encoding::NegatedCompressed, &self.compressed(form ^ 1));
                let Some(whole) = self.decompress(form) else { return };
                visit(Encoding::Uncompressed, &whole);
                if let Some((_, y)) =
                    whole.split_at_checked(whole.len().saturating_sub(self.x.len()))
                {
                    visit(Encoding::NegatedUncompressed, &self.uncompressed(&self.negate(y)));
                }
            }
        }
    }

    fn compressed(&self, form: u8) -> SpkiBuffer {
        let mut spki = SpkiBuffer::from_slice(self.curve.compressed_prefix);
        spki.push(form);
        spki.extend_from_slice(self.x);
        spki
    }

    fn uncompressed(&self, y: &[u8]) -> SpkiBuffer {
        let mut spki = SpkiBuffer::from_slice(self.curve.uncompressed_prefix);
        spki.push(UNCOMPRESSED);
        spki.extend_from_slice(self.x);
        spki.extend_from_slice(y);
        spki
    }

    /// `prime − y`. Wraps for a y that is not in the field, which no verifier accepts.
    fn negate(&self, y: &[u8]) -> SpkiBuffer {
        let mut difference = SpkiBuffer::from_slice(self.curve.prime);
        let mut borrow = false;
        for (digit, subtrahend) in difference.iter_mut().zip(y).rev() {
            let (partial, first) = digit.overflowing_sub(*subtrahend);
            let (result, second) = partial.overflowing_sub(borrow.into());
            *digit = result;
            borrow = first | second;
        }
        difference
    }

    /// The SPKI with the point uncompressed; `None` if there is no such point.
    fn decompress(&self, form: u8) -> Option<Vec<u8>> {
        let point: Vec<u8> = std::iter::once(form).chain(self.x.iter().copied()).collect();
        let key = ParsedPublicKey::new(self.curve.verification, point).ok()?;
        let spki: PublicKeyX509Der<'_> = key.as_der().ok()?;
        Some(spki.as_ref().to_vec())
    }
}

/// SEQUENCE { rsaEncryption, NULL }: the only form that the verifier accepts.
const RSA_ALGORITHM: &[u8] = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
const EXPONENT_3: &[u8] = b"\x02\x01\x03";
const EXPONENT_65537: &[u8] = b"\x02\x03\x01\x00\x01";

/// The two INTEGERs of an RSAPublicKey (RFC 8017, A.1.1), tag and length included.
struct RsaKey<'a> {
    modulus: &'a [u8],
    exponent: &'a [u8],
    modulus_bits: usize,
}

impl<'a> RsaKey<'a> {
    fn parse(spki: &'a [u8]) -> Option<Self> {
        let mut fields = sequence(spki).ok()?;
        if fields.tlv_bytes().ok()? != RSA_ALGORITHM {
            return None;
        }
        let bits: x509_cert::der::asn1::BitStringRef<'a> = fields.decode().ok()?;
        let mut key = sequence(bits.as_bytes()?).ok()?;
        let modulus = key.tlv_bytes().ok()?;
        let value =
            <x509_cert::der::asn1::UintRef<'_> as x509_cert::der::Decode>::from_der(modulus)
                .ok()?
                .as_bytes();
        let leading = usize::try_from(value.first()?.leading_zeros()).ok()?;
        let modulus_bits = (value.len() * 8).saturating_sub(leading);
        Some(Self { modulus, exponent: key.tlv_bytes().ok()?, modulus_bits })
    }

    fn for_each_related(&self, mut visit: impl FnMut(Encoding, &[u8])) {
        for (encoding, exponent) in
            [(Encoding::RsaExponent65537, EXPONENT_65537), (Encoding::RsaExponent3, EXPONENT_3)]
        {
            if exponent != self.exponent {
                visit(encoding, &self.with_exponent(exponent));
            }
        }
    }

    fn with_exponent(&self, exponent: &[u8]) -> SpkiBuffer {
        let key_length = self.modulus.len() + exponent.len();
        let bits_length = 1 + header_length(key_length) + key_length;
        let spki_length = RSA_ALGORITHM.len() + header_length(bits_length) + bits_length;
        let mut spki = SpkiBuffer::new();
        push_header(&mut spki, 0x30, spki_length);
        spki.extend_from_slice(RSA_ALGORITHM);
        push_header(&mut spki, 0x03, bits_length);
        spki.push(0); // unused bits
        push_header(&mut spki, 0x30, key_length);
        spki.extend_from_slice(self.modulus);
        spki.extend_from_slice(exponent);
        spki
    }
}

/// Length of a DER tag and length (X.690, 8.1.3) before `length` bytes of content.
fn header_length(length: usize) -> usize {
    if length < 0x80 { 2 } else { 2 + significant(length).len() }
}

fn push_header(der: &mut SpkiBuffer, tag: u8, length: usize) {
    der.push(tag);
    let bytes = significant(length);
    match *bytes.as_slice() {
        [short] if short < 0x80 => der.push(short),
        ref long => {
            der.push(0x80 | u8::try_from(long.len()).unwrap_or(0x7f)); // a usize has 8 bytes at most
            der.extend_from_slice(long);
        }
    }
}

/// The big-endian bytes of `length` without leading zeros, at least one.
fn significant(length: usize) -> SmallVec<[u8; 8]> {
    let bytes = length.to_be_bytes();
    let zeros = bytes.iter().take(bytes.len() - 1).take_while(|byte| **byte == 0).count();
    bytes.into_iter().skip(zeros).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::PublicKeyData;

    use super::*;

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
    fn all_four_encodings_of_a_point_lead_to_the_same_four() {
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
        // Decompressed by the cryptographic library, it is what our subtraction says.
        assert_eq!(point.decompress(form).unwrap(), encoding(&spki, Encoding::NegatedUncompressed));
    }

    #[test]
    fn a_point_off_the_curve_has_no_uncompressed_form() {
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

    #[test]
    fn an_rsa_key_is_rebuilt_with_the_usual_exponents() {
        let modulus = {
            let mut integer = b"\x02\x82\x01\x01\x00".to_vec();
            integer.extend([0xc5; 256]);
            integer
        };
        let key = |exponent| {
            RsaKey { modulus: &modulus, exponent: b"", modulus_bits: 0 }.with_exponent(exponent)
        };
        let odd = key(b"\x02\x01\x11"); // e = 17
        assert_eq!(rsa_modulus_bits(&odd), Some(2048));
        assert_eq!(encoding(&odd, Encoding::RsaExponent65537), *key(EXPONENT_65537));
        assert_eq!(encoding(&odd, Encoding::RsaExponent3), *key(EXPONENT_3));
        let usual = related(&key(EXPONENT_65537));
        assert_eq!(usual.len(), 2, "the presented exponent is not tried again");
    }

    #[test]
    fn lengths_are_minimal_der() {
        for (length, header) in [
            (0x7f, &b"\x30\x7f"[..]),
            (0x80, b"\x30\x81\x80"),
            (0x100, b"\x30\x82\x01\x00"),
            (0x1_0000, b"\x30\x83\x01\x00\x00"),
        ] {
            let mut der = SpkiBuffer::new();
            push_header(&mut der, 0x30, length);
            assert_eq!(&*der, header);
            assert_eq!(header_length(length), header.len());
        }
    }

    #[test]
    fn an_8192_bit_key_fits_the_buffer() {
        let mut modulus = b"\x02\x82\x04\x01\x00".to_vec();
        modulus.extend([0xff; 1024]);
        let key = RsaKey { modulus: &modulus, exponent: b"", modulus_bits: 0 };
        assert!(!key.with_exponent(EXPONENT_65537).spilled());
    }
}
