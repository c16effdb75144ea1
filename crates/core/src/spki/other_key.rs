//! The number of a key that has no related encodings here: of another algorithm or curve, or in
//! another encoding than the canonical one. A badkeys blocklist may have it.
//!
//! Source: <https://github.com/badkeys/badkeys/blob/main/docs/BLOCKLISTFORMAT.md>, "BKHASH".

use x509_cert::der::asn1::{BitStringRef, ObjectIdentifier, UintRef};
use x509_cert::der::{Decode, Reader};

use super::related::ec::of_hybrid_point;
use super::{Encoding, KeyDigest, RsaNumbers, sequence};

const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
/// `rsa` of X.509, annex D, which OpenSSL reads as an alias.
const RSA_OF_X509: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.8.1.1");
const DSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10040.4.1");
/// Diffie-Hellman by PKCS #3 and by X9.42.
const DH: [ObjectIdentifier; 2] = [
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.3.1"),
    ObjectIdentifier::new_unwrap("1.2.840.10046.2.1"),
];
/// X25519, X448, Ed25519 and Ed448 (RFC 8410).
const MONTGOMERY_AND_EDWARDS: [ObjectIdentifier; 4] = [
    ObjectIdentifier::new_unwrap("1.3.101.110"),
    ObjectIdentifier::new_unwrap("1.3.101.111"),
    ObjectIdentifier::new_unwrap("1.3.101.112"),
    ObjectIdentifier::new_unwrap("1.3.101.113"),
];
/// Start of the identifiers of ML-DSA (RFC 9881) and ML-KEM.
const ML_DSA: &str = "2.16.840.1.101.3.4.3.";
const ML_KEM: &str = "2.16.840.1.101.3.4.4.";

/// The algorithm and the key in a SubjectPublicKeyInfo (DER).
fn parts(spki: &[u8]) -> Option<(ObjectIdentifier, &[u8])> {
    let mut fields = sequence(spki).ok()?;
    let algorithm = sequence(fields.tlv_bytes().ok()?).ok()?.decode().ok()?;
    let bits: BitStringRef<'_> = fields.decode().ok()?;
    Some((algorithm, bits.as_bytes()?))
}

/// The numbers of the RSA key with this SubjectPublicKeyInfo (DER); `None` if it is none.
pub(super) fn rsa_numbers(spki: &[u8]) -> Option<RsaNumbers<'_>> {
    let (algorithm, key) = parts(spki)?;
    [RSA, RSA_PSS, RSA_OF_X509]
        .contains(&algorithm)
        .then(|| RsaNumbers::from_public_key(key))
        .flatten()
}

/// The usual encoding of a key in another spelling that OpenSSL or Go accept in certificates: the
/// hybrid form of a point; an RSA key with other parameters, another identifier, or leading zeros.
/// Nothing but the two numbers decides which key it is.
pub(super) fn canonical(spki: &[u8]) -> Option<Vec<u8>> {
    of_hybrid_point(spki).or_else(|| rsa_numbers(spki)?.to_spki())
}

/// The digest of the number of the key with this SubjectPublicKeyInfo (DER); `None` if it has none.
pub(super) fn number(spki: &[u8]) -> Option<(Encoding, KeyDigest)> {
    let (algorithm, key) = parts(spki)?;
    match algorithm {
        EC => Some((Encoding::EcX, KeyDigest::from_ec_x(x_of(key)?))),
        RSA | RSA_PSS | RSA_OF_X509 => {
            let modulus = sequence(key).ok()?.tlv_bytes().ok()?;
            let modulus = UintRef::from_der(modulus).ok()?;
            Some((Encoding::RsaModulus, KeyDigest::from_rsa_modulus(modulus.as_bytes())))
        }
        other => {
            let digest = if other == DSA || DH.contains(&other) {
                KeyDigest::from_number(UintRef::from_der(key).ok()?.as_bytes())
            } else if MONTGOMERY_AND_EDWARDS.contains(&other) {
                KeyDigest::from_number(key)
            } else {
                let name = other.to_string();
                let is_lattice = name.starts_with(ML_DSA) || name.starts_with(ML_KEM);
                is_lattice.then(|| KeyDigest::from_bytes(key))?
            };
            Some((Encoding::Presented, digest))
        }
    }
}

/// The x coordinate of a point in any form (SEC 1, section 2.3.3; hybrid forms as in X9.62).
fn x_of(point: &[u8]) -> Option<&[u8]> {
    let (form, coordinates) = point.split_first()?;
    match form {
        0x02 | 0x03 => Some(coordinates),
        0x04 | 0x06 | 0x07 => coordinates.get(..coordinates.len() / 2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::spki::{PublicKey, sha256};

    /// The SPKI of a key of the algorithm with this identifier (DER).
    fn spki(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
        let der = |tag: u8, content: &[u8]| {
            let length = u8::try_from(content.len()).unwrap();
            let mut der = vec![tag];
            der.extend(if length < 0x80 { vec![length] } else { vec![0x81, length] });
            [der, content.to_vec()].concat()
        };
        let bits = der(0x03, &[&[0], key].concat());
        der(0x30, &[der(0x30, algorithm), bits].concat())
    }

    fn number_of(spki: &[u8]) -> Option<[u8; 32]> {
        let mut found = None;
        PublicKey::parse(spki).for_each_number(|_, digest| found = Some(digest.sha256()));
        found
    }

    #[test]
    fn a_key_of_another_algorithm_has_the_number_of_the_blocklist_format() {
        const BRAINPOOL: &[u8] =
            b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x09\x2b\x24\x03\x03\x02\x08\x01\x01\x07";
        const DSA: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x38\x04\x01";
        const ED448: &[u8] = b"\x06\x03\x2b\x65\x71";
        const ML_DSA_44: &[u8] = b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x11";
        const PSS: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a";
        for (algorithm, key, number) in [
            (BRAINPOOL, &b"\x04\x00\xab\xcd\xef"[..], Some(&b"\xab"[..])),
            (BRAINPOOL, b"\x03\x00\xab\xcd", Some(b"\xab\xcd")),
            (BRAINPOOL, b"\x07\xab\xcd", Some(b"\xab")),
            (BRAINPOOL, b"\x05\xab\xcd", None),
            (BRAINPOOL, b"", None),
            (DSA, b"\x02\x02\x00\x81", Some(b"\x81")),
            (DSA, b"\x02\x02\x00", None),
            (ED448, b"\x00\x01", Some(b"\x01")),
            (ML_DSA_44, b"\x00\x01", Some(b"\x00\x01")),
            (PSS, b"\x30\x06\x02\x01\x23\x02\x01\x03", Some(b"\x23")),
            (b"\x06\x04\x55\x08\x01\x01", b"\x30\x06\x02\x01\x23\x02\x01\x03", Some(b"\x23")),
            (PSS, b"\x02\x01\x23", None),
            (b"\x06\x03\x2a\x03\x04", b"\x01", None),
        ] {
            let found = number_of(&spki(algorithm, key));
            assert_eq!(found, number.map(sha256), "{algorithm:?} {key:?}");
        }
        assert_eq!(number_of(b"none"), None);
    }
}
