//! The relation between the encodings of one key.

use crate::named::named;

named! {
    /// The relation of an encoding to the presented one.
    pub enum Encoding {
        /// The usual encoding of a key that is presented in another spelling.
        Canonical = "canonical",
        /// The same point, compressed.
        Compressed = "compressed",
        /// Every form of the point and of its negative, by the x coordinate.
        EcX = "ec-x",
        /// The negative of an Ed25519 point.
        Ed25519Negated = "ed25519-negated",
        /// An Ed25519 point or its negative, with a point of small order added.
        Ed25519Torsion = "ed25519-torsion",
        /// The negative of the point, compressed.
        NegatedCompressed = "negated-compressed",
        /// The negative of the point, uncompressed.
        NegatedUncompressed = "negated-uncompressed",
        /// The presented encoding.
        Presented = "presented",
        /// The same modulus with e = 3.
        RsaExponent3 = "rsa-exponent-3",
        /// The same modulus with e = 5.
        RsaExponent5 = "rsa-exponent-5",
        /// The same modulus with e = 17.
        RsaExponent17 = "rsa-exponent-17",
        /// The same modulus with e = 35.
        RsaExponent35 = "rsa-exponent-35",
        /// The same modulus with e = 37.
        RsaExponent37 = "rsa-exponent-37",
        /// The same modulus with e = 257.
        RsaExponent257 = "rsa-exponent-257",
        /// The same modulus with e = 65537.
        RsaExponent65537 = "rsa-exponent-65537",
        /// The same modulus with any exponent.
        RsaModulus = "rsa-modulus",
        /// The same point, uncompressed.
        Uncompressed = "uncompressed",
    }
}
