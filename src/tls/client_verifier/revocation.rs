//! Revocation of the certificates on a path.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::config::ExpiredCrl;
use crate::guard::Depth;
use crate::spki;
use crate::tls::Crls;
use crate::tls::crls::IssuerKey;

/// The revocation lists of a verifier.
#[derive(Debug)]
pub(super) struct Revocation {
    pub(super) crls: Arc<Crls>,
    pub(super) expired: ExpiredCrl,
    /// The certificates whose revocation is checked.
    pub(super) depth: Depth,
}

impl Revocation {
    /// Checks each certificate of the path with the key that signed it.
    pub(super) fn check(
        &self,
        path: &webpki::VerifiedPath<'_>,
        anchor_certificate: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let anchor_key = IssuerKey {
            name: &path.anchor().subject,
            spki: spki::of_certificate(anchor_certificate).map_err(|_| webpki::Error::BadDer)?,
        };
        let mut certificate: &webpki::Cert<'_> = path.end_entity();
        for issuer in path.intermediate_certificates() {
            let der = issuer.der();
            let spki = spki::of_certificate(&der).map_err(|_| webpki::Error::BadDer)?;
            self.check_one(IssuerKey { name: issuer.subject(), spki }, certificate, now)?;
            if self.depth == Depth::Leaf {
                return Ok(());
            }
            certificate = issuer;
        }
        self.check_one(anchor_key, certificate, now)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "an unexpected error is an unknown status")]
    fn check_one(
        &self,
        issuer: IssuerKey<'_>,
        certificate: &webpki::Cert<'_>,
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        use rustls::CertificateError;
        self.crls.check(issuer, certificate, self.expired, now).map_err(|error| match error {
            CertificateError::Revoked => webpki::Error::CertRevoked,
            CertificateError::ExpiredRevocationList => {
                webpki::Error::CrlExpired { time: now, next_update: now }
            }
            CertificateError::ExpiredRevocationListContext { time, next_update } => {
                webpki::Error::CrlExpired { time, next_update }
            }
            _ => webpki::Error::UnknownRevocationStatus,
        })
    }
}
