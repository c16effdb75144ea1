//! The kind of a public key, for statistics of connections.

use super::{CertificateFields, Element, SEQUENCE};

/// The algorithm that a certificate names for its key. Reads nothing of the key itself, because
/// every connection needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Ed25519.
    Ed25519,
    /// ML-DSA-44.
    MlDsa44,
    /// ML-DSA-65.
    MlDsa65,
    /// ML-DSA-87.
    MlDsa87,
    /// Any other algorithm.
    Other,
    /// The curve P-256.
    P256,
    /// The curve P-384.
    P384,
    /// The curve P-521.
    P521,
    /// RSA of any size.
    Rsa,
}

/// The content of AlgorithmIdentifiers without parameters, or with a named curve.
const IDENTIFIERS: [(&[u8], KeyKind); 7] = [
    (b"\x06\x03\x2b\x65\x70", KeyKind::Ed25519),
    (b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x11", KeyKind::MlDsa44),
    (b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x12", KeyKind::MlDsa65),
    (b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x13", KeyKind::MlDsa87),
    (
        b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07",
        KeyKind::P256,
    ),
    (b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22", KeyKind::P384),
    (b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x23", KeyKind::P521),
];
/// `rsaEncryption`, before its parameters.
const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";

impl KeyKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 9] = [
        Self::Ed25519,
        Self::MlDsa44,
        Self::MlDsa65,
        Self::MlDsa87,
        Self::Other,
        Self::P256,
        Self::P384,
        Self::P521,
        Self::Rsa,
    ];

    /// The kind of the key in a certificate (DER).
    #[must_use]
    pub fn of_certificate(certificate: &[u8]) -> Self {
        Self::read(certificate).unwrap_or(Self::Other)
    }

    fn read(certificate: &[u8]) -> Option<Self> {
        let mut spki = CertificateFields::new(certificate).ok()?.spki;
        let mut fields = Element::next(&mut spki, SEQUENCE)?.content;
        let identifier = Element::next(&mut fields, SEQUENCE)?.content;
        let exact = IDENTIFIERS.iter().find(|(known, _)| *known == identifier);
        exact.map(|(_, kind)| *kind).or_else(|| identifier.starts_with(RSA).then_some(Self::Rsa))
    }

    /// The label value in metrics, and the name in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::MlDsa44 => "ml-dsa-44",
            Self::MlDsa65 => "ml-dsa-65",
            Self::MlDsa87 => "ml-dsa-87",
            Self::Other => "other",
            Self::P256 => "p256",
            Self::P384 => "p384",
            Self::P521 => "p521",
            Self::Rsa => "rsa",
        }
    }

    /// Whether a quantum computer cannot derive the private key.
    #[must_use]
    pub fn is_post_quantum(self) -> bool {
        match self {
            Self::MlDsa44 | Self::MlDsa65 | Self::MlDsa87 => true,
            Self::Ed25519 | Self::Other | Self::P256 | Self::P384 | Self::P521 | Self::Rsa => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_the_algorithm_of_the_key() {
        for (algorithm, kind) in [
            (&rcgen::PKCS_ED25519, KeyKind::Ed25519),
            (&rcgen::PKCS_ML_DSA_44, KeyKind::MlDsa44),
            (&rcgen::PKCS_ML_DSA_65, KeyKind::MlDsa65),
            (&rcgen::PKCS_ML_DSA_87, KeyKind::MlDsa87),
            (&rcgen::PKCS_ECDSA_P256_SHA256, KeyKind::P256),
            (&rcgen::PKCS_ECDSA_P384_SHA384, KeyKind::P384),
            (&rcgen::PKCS_ECDSA_P521_SHA512, KeyKind::P521),
            (&rcgen::PKCS_RSA_SHA256, KeyKind::Rsa),
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
            let der = certificate.der();
            assert_eq!(KeyKind::of_certificate(der), kind);
            assert_eq!(KeyKind::of_certificate(&der[..der.len() / 2]), KeyKind::Other);
        }
    }
}
