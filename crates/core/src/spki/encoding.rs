//! The relation between the encodings of one key.

/// The relation of an encoding to the presented one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The usual encoding of a key that is presented in another spelling.
    Canonical,
    /// The same point, compressed.
    Compressed,
    /// Every form of the point and of its negative, by the x coordinate.
    EcX,
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
    /// The same modulus with e = 5.
    RsaExponent5,
    /// The same modulus with e = 17.
    RsaExponent17,
    /// The same modulus with e = 35.
    RsaExponent35,
    /// The same modulus with e = 37.
    RsaExponent37,
    /// The same modulus with e = 257.
    RsaExponent257,
    /// The same modulus with e = 65537.
    RsaExponent65537,
    /// The same modulus with any exponent.
    RsaModulus,
    /// The same point, uncompressed.
    Uncompressed,
}

impl Encoding {
    /// The name of the encoding in logs and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Canonical => "canonical",
            Self::Compressed => "compressed",
            Self::EcX => "ec-x",
            Self::Ed25519Negated => "ed25519-negated",
            Self::Ed25519Torsion => "ed25519-torsion",
            Self::NegatedCompressed => "negated-compressed",
            Self::NegatedUncompressed => "negated-uncompressed",
            Self::Presented => "presented",
            Self::RsaExponent3 => "rsa-exponent-3",
            Self::RsaExponent5 => "rsa-exponent-5",
            Self::RsaExponent17 => "rsa-exponent-17",
            Self::RsaExponent35 => "rsa-exponent-35",
            Self::RsaExponent37 => "rsa-exponent-37",
            Self::RsaExponent257 => "rsa-exponent-257",
            Self::RsaExponent65537 => "rsa-exponent-65537",
            Self::RsaModulus => "rsa-modulus",
            Self::Uncompressed => "uncompressed",
        }
    }
}
