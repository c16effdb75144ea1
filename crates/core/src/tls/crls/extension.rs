//! Elements and extensions in DER, read in place.

use x509_cert::der::asn1::AnyRef;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Reader, Result, SliceReader, Tag};

pub(super) use crate::tls::signature::content;

/// `cRLNumber` (RFC 5280, 5.2.3).
pub(super) const CRL_NUMBER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.20");
/// `reasonCode` (RFC 5280, 5.3.1).
pub(super) const REASON_CODE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.21");
/// `invalidityDate` (RFC 5280, 5.3.2).
pub(super) const INVALIDITY_DATE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.24");
/// `deltaCRLIndicator` (RFC 5280, 5.2.4).
pub(super) const DELTA_CRL_INDICATOR: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.27");
/// `issuingDistributionPoint` (RFC 5280, 5.2.5).
pub(super) const ISSUING_DISTRIBUTION_POINT: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("2.5.29.28");
/// `certificateIssuer` (RFC 5280, 5.3.3).
pub(super) const CERTIFICATE_ISSUER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.29");
/// `authorityKeyIdentifier` (RFC 5280, 5.2.1).
pub(super) const AUTHORITY_KEY_IDENTIFIER: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("2.5.29.35");

/// An extension of a revocation list or of an entry.
pub(super) struct Extension<'a> {
    pub(super) oid: ObjectIdentifier,
    pub(super) is_critical: bool,
    /// The content of `extnValue`, in DER.
    pub(super) value: &'a [u8],
}

impl<'a> Extension<'a> {
    /// Reads the next extension.
    ///
    /// # Errors
    /// Returns an error if it is not valid DER.
    pub(super) fn decode(reader: &mut SliceReader<'a>) -> Result<Self> {
        reader.decode::<AnyRef<'_>>()?.sequence(|reader| {
            let oid = reader.decode()?;
            let has_flag = Tag::peek(reader)? == Tag::Boolean;
            let is_critical = has_flag && reader.decode()?;
            Ok(Self { oid, is_critical, value: content(reader, Tag::OctetString)? })
        })
    }
}
