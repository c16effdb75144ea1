//! The signature of a certificate or of a revocation list (RFC 5280, 4.1.1 and 5.1.1).

use rustls::crypto::aws_lc_rs::default_provider;
use x509_cert::der::asn1::{AnyRef, BitStringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, ErrorKind, Reader, Result, SliceReader, Tag, Tagged};

/// A signed message with its signature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'a> {
    /// The element that is signed, header included.
    pub(super) message: &'a [u8],
    /// The content of the AlgorithmIdentifier.
    pub(super) algorithm: &'a [u8],
    signature: &'a [u8],
}

/// Why a signature is not valid for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignatureProblem {
    /// The signature was made by another key, or over another message.
    Invalid,
    /// No supported signature algorithm has this identifier.
    Unsupported,
}

impl<'a> Signed<'a> {
    /// Splits a certificate or a revocation list in DER.
    ///
    /// # Errors
    /// Returns an error if `der` is not a SEQUENCE of a message, an algorithm and a signature.
    pub(super) fn parse(der: &'a [u8]) -> Result<Self> {
        AnyRef::from_der(der)?.sequence(|reader| {
            let message = reader.tlv_bytes()?;
            let algorithm = content(reader, Tag::Sequence)?;
            let signature = bits(reader)?;
            Ok(Self { message, algorithm, signature })
        })
    }

    /// Checks the signature with the public key in `spki`.
    ///
    /// # Errors
    /// Returns an error if the signature is by another key, or the algorithm is not supported.
    pub(super) fn verify(&self, spki: &[u8]) -> std::result::Result<(), SignatureProblem> {
        let (key_algorithm, key) = public_key(spki).map_err(|_| SignatureProblem::Unsupported)?;
        let supported = default_provider().signature_verification_algorithms.all;
        let mut known = supported
            .iter()
            .filter(|known| known.signature_alg_id().as_ref() == self.algorithm)
            .peekable();
        if known.peek().is_none() {
            return Err(SignatureProblem::Unsupported);
        }
        let is_valid = known
            .filter(|known| known.public_key_alg_id().as_ref() == key_algorithm)
            .any(|known| known.verify_signature(key, self.message, self.signature).is_ok());
        if is_valid { Ok(()) } else { Err(SignatureProblem::Invalid) }
    }

    /// The signature algorithm; `None` if it is not valid DER.
    pub(super) fn algorithm_oid(&self) -> Option<ObjectIdentifier> {
        SliceReader::new(self.algorithm).ok()?.decode().ok()
    }
}

/// The content of the AlgorithmIdentifier of a public key, and the key itself.
fn public_key(spki: &[u8]) -> Result<(&[u8], &[u8])> {
    AnyRef::from_der(spki)?.sequence(|reader| Ok((content(reader, Tag::Sequence)?, bits(reader)?)))
}

/// The content of a BIT STRING without unused bits.
fn bits<'a>(reader: &mut SliceReader<'a>) -> Result<&'a [u8]> {
    let bits: BitStringRef<'a> = reader.decode()?;
    bits.as_bytes().ok_or_else(|| ErrorKind::Value { tag: Tag::BitString }.to_error())
}

/// The content of the next element, which has this tag.
///
/// # Errors
/// Returns an error if the element is not valid DER or has another tag.
pub(super) fn content<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> Result<&'a [u8]> {
    let element: AnyRef<'a> = reader.decode()?;
    element.tag().assert_eq(tag)?;
    Ok(element.value())
}
