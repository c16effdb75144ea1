//! RSA keys: the same modulus with the usual public exponents.

use std::fmt;

use x509_cert::der::Decode;
use x509_cert::der::asn1::UintRef;

use super::{Encoding, SpkiBuffer};
use crate::spki::{Element, INTEGER, SEQUENCE};

/// SEQUENCE { rsaEncryption, NULL }: the only algorithm identifier that the verifier accepts.
const RSA_ALGORITHM: &[u8] = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";

const BIT_STRING: u8 = 0x03;

/// The exponents with which a modulus is encoded, as INTEGERs (DER), in the order of lookups. A bit
/// of [`RsaExponents`] is the position here.
static EXPONENTS: [(u32, &[u8], Encoding); 7] = [
    (65537, b"\x02\x03\x01\x00\x01", Encoding::RsaExponent65537),
    (3, b"\x02\x01\x03", Encoding::RsaExponent3),
    (5, b"\x02\x01\x05", Encoding::RsaExponent5),
    (17, b"\x02\x01\x11", Encoding::RsaExponent17),
    (35, b"\x02\x01\x23", Encoding::RsaExponent35),
    (37, b"\x02\x01\x25", Encoding::RsaExponent37),
    (257, b"\x02\x02\x01\x01", Encoding::RsaExponent257),
];

/// A set of public exponents with which the modulus of an RSA key is looked up, after the
/// presented one. Default: 3 and 65537.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RsaExponents(u8);

impl RsaExponents {
    /// Every known exponent: 3, 5, 17, 35, 37, 257 and 65537.
    pub const ALL: Self = Self(0x7f);
    /// No exponent: only the presented encoding of an RSA key is looked up.
    pub const NONE: Self = Self(0);

    /// The set of the given exponents; the first one that is not known, if there is one.
    ///
    /// # Errors
    /// Returns the first number that is none of 3, 5, 17, 35, 37, 257 and 65537.
    pub fn from_numbers(numbers: &[u32]) -> Result<Self, u32> {
        numbers.iter().try_fold(Self::NONE, |set, number| {
            let position = EXPONENTS.iter().position(|(known, ..)| known == number);
            position.map(|position| Self(set.0 | 1 << position)).ok_or(*number)
        })
    }

    /// The exponents of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a lookup with these exponents includes `encoding`. Encodings that differ in other
    /// respects than the exponent are always included.
    #[must_use]
    pub fn include(self, encoding: Encoding) -> bool {
        let position = EXPONENTS.iter().position(|(.., known)| *known == encoding);
        position.is_none_or(|position| self.has(position))
    }

    fn has(self, position: usize) -> bool {
        self.0 >> position & 1 == 1
    }

    /// The exponents of the set, in the order of lookups.
    fn iter(self) -> impl Iterator<Item = &'static (u32, &'static [u8], Encoding)> {
        let all = EXPONENTS.iter().enumerate();
        all.filter(move |(position, _)| self.has(*position)).map(|(_, exponent)| exponent)
    }
}

impl Default for RsaExponents {
    fn default() -> Self {
        Self(0b11)
    }
}

impl fmt::Debug for RsaExponents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter().map(|(number, ..)| number)).finish()
    }
}

/// The two INTEGERs of an RSAPublicKey (RFC 8017, A.1.1), tag and length included.
pub(super) struct RsaKey<'a> {
    modulus: &'a [u8],
    exponent: &'a [u8],
    /// The modulus, big-endian without leading zeros.
    pub(super) modulus_value: &'a [u8],
}

impl<'a> RsaKey<'a> {
    pub(super) fn parse(spki: &'a [u8]) -> Option<Self> {
        let mut fields = Element::only(spki).filter(|it| it.tag == SEQUENCE)?.content;
        if Element::next(&mut fields, SEQUENCE)?.whole != RSA_ALGORITHM {
            return None;
        }
        let bits = Element::only(fields).filter(|it| it.tag == BIT_STRING)?;
        let (unused_bits, key) = bits.content.split_first()?;
        let key = Element::only(key).filter(|it| it.tag == SEQUENCE && *unused_bits == 0)?;
        let mut integers = key.content;
        let modulus = Element::next(&mut integers, INTEGER)?;
        // Only the canonical encoding counts: minimal INTEGERs and nothing after them.
        let exponent = Element::only(integers).filter(|it| it.tag == INTEGER)?;
        unsigned(exponent.content)?;
        let modulus_value = unsigned(modulus.content)?;
        Some(Self { modulus: modulus.whole, exponent: exponent.whole, modulus_value })
    }

    /// Length of the modulus, in bits.
    pub(super) fn modulus_bits(&self) -> usize {
        let leading = self.modulus_value.first().map_or(0, |first| first.leading_zeros());
        (self.modulus_value.len() * 8).saturating_sub(usize::try_from(leading).unwrap_or_default())
    }

    pub(super) fn for_each_related(
        &self,
        exponents: RsaExponents,
        mut visit: impl FnMut(Encoding, &[u8]),
    ) {
        for (_, exponent, encoding) in exponents.iter() {
            if *exponent != self.exponent {
                visit(*encoding, &spki_of(self.modulus, exponent));
            }
        }
    }

    /// The numbers of the key.
    pub(super) fn numbers(&self) -> Option<RsaNumbers<'a>> {
        let exponent = unsigned(Element::only(self.exponent)?.content)?;
        Some(RsaNumbers { modulus: self.modulus_value, exponent })
    }
}

/// The numbers of an RSA public key, big-endian without leading zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RsaNumbers<'a> {
    /// The modulus.
    pub modulus: &'a [u8],
    /// The public exponent.
    pub exponent: &'a [u8],
}

impl<'a> RsaNumbers<'a> {
    /// The numbers in an RSAPublicKey (DER; RFC 8017, A.1.1). They may have leading zeros, and none
    /// where a sign is due: OpenSSL reads both as positive. Further elements are ignored, as by Go.
    pub(in crate::spki) fn from_public_key(key: &'a [u8]) -> Option<Self> {
        let mut integers = Element::only(key).filter(|it| it.tag == SEQUENCE)?.content;
        let mut number = || {
            let content = Element::next(&mut integers, INTEGER)?.content;
            let zeros = content.iter().take_while(|byte| **byte == 0).count();
            content.get(zeros..)
        };
        Some(Self { modulus: number()?, exponent: number()? })
    }

    /// The SubjectPublicKeyInfo (DER) of the key in its usual encoding; `None` if a number is 0.
    pub(in crate::spki) fn to_spki(self) -> Option<Vec<u8>> {
        rsa_spki(&der_integer(self.modulus), &der_integer(self.exponent))
    }
}

/// The SubjectPublicKeyInfo (DER) of the RSA key with these INTEGERs (DER, tag included). `None` if
/// one of them is not positive.
pub(in crate::spki) fn rsa_spki(modulus: &[u8], exponent: &[u8]) -> Option<Vec<u8>> {
    let is_positive =
        |integer: &[u8]| UintRef::from_der(integer).is_ok_and(|value| value.as_bytes() != [0]);
    if !is_positive(modulus) || !is_positive(exponent) {
        return None;
    }
    Some(spki_of(modulus, exponent).to_vec())
}

/// The SubjectPublicKeyInfo (DER) of the RSA key with these INTEGERs (DER, tag included).
fn spki_of(modulus: &[u8], exponent: &[u8]) -> SpkiBuffer {
    let key = element(SEQUENCE, &[modulus, exponent]);
    let bits = element(BIT_STRING, &[&[0], &key]); // no unused bits
    element(SEQUENCE, &[RSA_ALGORITHM, &bits])
}

/// The INTEGER (DER) of a positive number, which is big-endian without leading zeros.
pub(in crate::spki) fn der_integer(value: &[u8]) -> Vec<u8> {
    let sign: &[u8] = if value.first().is_some_and(|byte| *byte >= 0x80) { &[0] } else { &[] };
    element(INTEGER, &[sign, value]).to_vec()
}

/// The value of an INTEGER that is not negative, big-endian without leading zeros. `None` if it is
/// negative or has more bytes than it needs (X.690, section 8.3.2).
fn unsigned(content: &[u8]) -> Option<&[u8]> {
    match content {
        [0] => Some(content),
        [0, value @ ..] => value.first().is_some_and(|it| *it >= 0x80).then_some(value),
        [..0x80, ..] => Some(content),
        _ => None,
    }
}

/// The element (DER) with this tag whose content is `parts` (X.690, 8.1.3).
fn element(tag: u8, parts: &[&[u8]]) -> SpkiBuffer {
    let length = parts.iter().map(|part| part.len()).sum::<usize>().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let mut der = SpkiBuffer::new();
    der.push(tag);
    match length.get(zeros..).unwrap_or_default() {
        [] => der.push(0),
        [short] if *short < 0x80 => der.push(*short),
        long => {
            der.push(0x80 | u8::try_from(long.len()).unwrap_or(0x7f)); // a usize has at most 8 bytes
            der.extend_from_slice(long);
        }
    }
    parts.iter().for_each(|part| der.extend_from_slice(part));
    der
}

#[cfg(test)]
mod tests {
    use x509_cert::der::Reader;
    use x509_cert::der::asn1::BitStringRef;

    use super::*;
    use crate::spki::{PublicKey, related, sequence};

    const EXPONENT_3: &[u8] = b"\x02\x01\x03";
    const EXPONENT_65537: &[u8] = b"\x02\x03\x01\x00\x01";

    fn encoding(spki: &[u8], wanted: Encoding) -> Vec<u8> {
        let found = related(spki).into_iter().find(|(encoding, _)| *encoding == wanted);
        found.unwrap_or_else(|| panic!("no {wanted:?} among the related encodings")).1
    }

    #[test]
    fn an_rsa_key_is_encoded_with_the_usual_exponents() {
        let modulus = {
            let mut integer = b"\x02\x82\x01\x01\x00".to_vec();
            integer.extend([0xc5; 256]);
            integer
        };
        let key = |exponent| spki_of(&modulus, exponent);
        let odd = key(b"\x02\x01\x11"); // e = 17
        assert_eq!(RsaKey::parse(&odd).map(|key| key.modulus_bits()), Some(2048));
        assert_eq!(encoding(&odd, Encoding::RsaExponent65537), *key(EXPONENT_65537));
        assert_eq!(encoding(&odd, Encoding::RsaExponent3), *key(EXPONENT_3));
        let usual = related(&key(EXPONENT_65537));
        assert_eq!(usual.len(), 2, "the presented exponent is not repeated");
    }

    #[test]
    fn a_set_of_exponents_selects_the_encodings() {
        let spki = rsa_spki(&der_integer(&[0xc5; 256]), EXPONENTS[3].1).unwrap();
        let encodings = |exponents: RsaExponents| {
            let mut encodings = Vec::new();
            PublicKey::parse(&spki).for_each_related(exponents, |encoding, spki| {
                assert!(exponents.include(encoding), "{encoding:?}");
                assert_eq!(RsaKey::parse(spki).unwrap().modulus_bits(), 2048);
                encodings.push((encoding, spki.to_vec()));
            });
            encodings
        };
        assert_eq!(encodings(RsaExponents::NONE).len(), 1);
        assert_eq!(encodings(RsaExponents::default()), related(&spki));
        assert_eq!(encodings(RsaExponents::ALL).len(), 7, "17 is the presented one");
        let some = RsaExponents::from_numbers(&[257, 35, 257]).unwrap();
        let forms: Vec<_> = encodings(some).into_iter().map(|(encoding, _)| encoding).collect();
        let expected = [Encoding::Presented, Encoding::RsaExponent35, Encoding::RsaExponent257];
        assert_eq!(forms, expected);
        assert!(!some.include(Encoding::RsaExponent3) && some.include(Encoding::Uncompressed));
        assert_eq!(RsaExponents::from_numbers(&[3, 4, 6]), Err(4));
        assert_eq!(some.union(RsaExponents::default()).iter().count(), 4);
        assert_eq!(format!("{some:?}"), "{35, 257}");
        for (number, integer, encoding) in EXPONENTS {
            let value = UintRef::from_der(integer).unwrap();
            let bytes = value.as_bytes().iter();
            assert_eq!(bytes.fold(0, |sum, byte| sum << 8 | u32::from(*byte)), number);
            assert_eq!(encoding.as_str(), format!("rsa-exponent-{number}"));
            let one = RsaExponents::from_numbers(&[number]).unwrap();
            assert!(one.include(encoding), "{number}");
            assert_eq!(EXPONENTS.iter().filter(|(.., it)| one.include(*it)).count(), 1);
        }
    }

    /// Modulus and exponent by the general decoder, with their tags, and the value of the modulus.
    fn decoded(spki: &[u8]) -> Option<[&[u8]; 3]> {
        let mut fields = sequence(spki).ok()?;
        if fields.tlv_bytes().ok()? != RSA_ALGORITHM {
            return None;
        }
        let bits: BitStringRef<'_> = fields.decode().ok()?;
        let mut key = sequence(bits.as_bytes()?).ok()?;
        let (modulus, exponent) = (key.tlv_bytes().ok()?, key.tlv_bytes().ok()?);
        let is_whole = fields.is_finished() && key.is_finished();
        if !is_whole || UintRef::from_der(exponent).is_err() {
            return None;
        }
        Some([modulus, exponent, UintRef::from_der(modulus).ok()?.as_bytes()])
    }

    #[test]
    fn a_key_is_read_as_by_the_general_decoder_whatever_byte_changes() {
        let (mut read, mut rejected) = (0, 0);
        for modulus in [&[1][..], &[0x45; 20], &[0xc5; 256]] {
            for (_, exponent, _) in &EXPONENTS[..2] {
                let whole = rsa_spki(&der_integer(modulus), exponent).unwrap();
                for length in 0..=whole.len() {
                    assert_eq!(RsaKey::parse(&whole[..length]).is_some(), length == whole.len());
                }
                for position in 0..whole.len() {
                    for byte in 0..=u8::MAX {
                        let mut spki = whole.clone();
                        spki[position] = byte;
                        let key = RsaKey::parse(&spki);
                        let parts = key.map(|it| [it.modulus, it.exponent, it.modulus_value]);
                        assert_eq!(parts, decoded(&spki), "{spki:02x?}");
                        *(if parts.is_some() { &mut read } else { &mut rejected }) += 1;
                    }
                }
            }
        }
        assert!(read > 50_000 && rejected > 10_000, "{read} {rejected}");
    }

    #[test]
    fn lengths_are_minimal_der() {
        for (length, header) in [
            (0x7f, &b"\x30\x7f"[..]),
            (0x80, b"\x30\x81\x80"),
            (0x100, b"\x30\x82\x01\x00"),
            (0x1_0000, b"\x30\x83\x01\x00\x00"),
        ] {
            let der = element(0x30, &[&vec![0; length]]);
            assert_eq!(der.len(), header.len() + length);
            assert!(der.starts_with(header));
        }
    }

    #[test]
    fn an_8192_bit_key_fits_the_buffer() {
        let mut modulus = b"\x02\x82\x04\x01\x00".to_vec();
        modulus.extend([0xff; 1024]);
        assert!(!spki_of(&modulus, EXPONENT_65537).spilled());
    }
}
