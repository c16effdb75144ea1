//! The certificates that revocation lists revoke because their keys are compromised.
//!
//! A list in use has no reasons, because the proxy rejects every revoked certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::list::{RevocationList, serials_with_reason};
use super::scope::ScopedCertificate;
use super::serials::Serials;
use super::{CrlIssuers, framing};
use crate::tls::TlsFileError;
use crate::tls::signature::Signed;

/// `keyCompromise` (RFC 5280, 5.3.1).
const KEY_COMPROMISE: u8 = 1;

/// A revocation list whose signature was verified, with its compromised keys.
#[derive(Debug)]
pub struct CompromisedKeys {
    /// The list.
    pub list: RevocationList,
    serials: Serials,
}

/// The entry of a list for a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revocation {
    /// Not revoked by this list, which may be of another CA.
    None,
    /// Revoked with another reason than `keyCompromise`, or without one.
    OtherReason,
    /// Revoked with the reason `keyCompromise`.
    KeyCompromise,
}

impl CompromisedKeys {
    /// The lists in a file, PEM or DER, each signed by one of `issuers`.
    ///
    /// # Errors
    /// Returns an error if the file has no list, or one that is not valid, of a kind that is not
    /// supported, or not signed by one of `issuers`.
    pub fn read(file: &[u8], issuers: &CrlIssuers) -> Result<Vec<Self>, TlsFileError> {
        let mut lists = Vec::new();
        for (position, der) in (1..).zip(framing::ders(file)) {
            let der = der?;
            let list = RevocationList::verify(&der, issuers).and_then(|list| {
                Ok(Self { list, serials: serials_with_reason(&der, KEY_COMPROMISE)? })
            });
            lists.push(list.map_err(|source| TlsFileError::Crl { position, source })?);
        }
        framing::check_rest(file, lists.len())?;
        if lists.is_empty() { Err(TlsFileError::NoCrl) } else { Ok(lists) }
    }

    /// Number of certificates that the list revokes with the reason `keyCompromise`.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.serials.len()
    }

    /// The entry for `certificate`, which is of the CA if it has the name of the CA as its issuer,
    /// and the signature of the key that signed the list.
    #[must_use]
    pub fn entry(&self, certificate: &CertificateDer<'_>) -> Revocation {
        let (parsed, signed) = (EndEntityCert::try_from(certificate), Signed::parse(certificate));
        let (Ok(parsed), Ok(signed)) = (parsed, signed) else { return Revocation::None };
        let scoped = ScopedCertificate::parse(certificate);
        let is_revoked = *self.list.issuer_name == *parsed.issuer()
            && self.list.contains(parsed.serial())
            && self.list.covers(|| scoped.as_ref())
            && signed.verify(&self.list.spki).is_ok();
        match is_revoked {
            true if self.serials.contains(parsed.serial()) => Revocation::KeyCompromise,
            true => Revocation::OtherReason,
            false => Revocation::None,
        }
    }
}
