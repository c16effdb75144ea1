//! Revocation of the certificates on a path.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::spki;
use crate::tls::Crls;
use crate::tls::crls::IssuerKey;
use crate::tls::trust_anchors::AnchorFacts;
use crate::tls::{ExpiredCrl, RevocationDepth};

/// The revocation lists of a verifier.
#[derive(Debug)]
pub(super) struct Revocation {
    pub(super) crls: Arc<Crls>,
    pub(super) expired: ExpiredCrl,
    /// The certificates whose revocation is checked.
    pub(super) depth: RevocationDepth,
}

impl Revocation {
    /// Checks each certificate of the path with the key that signed it. The issuer of the client
    /// needs a list; the certificate of another CA is checked if its issuer has a list for CAs. The
    /// key of the CA that issued a root is not known.
    pub(super) fn check(
        &self,
        path: &webpki::VerifiedPath<'_>,
        (anchor, facts): (&CertificateDer<'_>, &AnchorFacts),
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let mut certificate: &webpki::Cert<'_> = path.end_entity();
        let mut is_client = true;
        let mut check = |name: &[u8], spki: Option<&[u8]>, certificate: &webpki::Cert<'_>| {
            let ca = IssuerKey { name, spki };
            match self.crls.check(ca, certificate, self.expired, now) {
                Err(webpki::Error::UnknownRevocationStatus)
                    if !is_client && !self.crls.has_list_of_cas(ca) =>
                {
                    Ok(())
                }
                result => {
                    is_client = false;
                    result
                }
            }
        };
        for issuer in path.intermediate_certificates() {
            check(issuer.subject(), Some(key_of(&issuer.der())?), certificate)?;
            if self.depth == RevocationDepth::Leaf {
                return Ok(());
            }
            certificate = issuer;
        }
        check(&path.anchor().subject, Some(key_of(anchor)?), certificate)?;
        if self.depth == RevocationDepth::Leaf || facts.issuer == facts.subject {
            return Ok(());
        }
        let root = webpki::EndEntityCert::try_from(anchor)?;
        check(root.issuer(), None, &root)
    }

    /// Checks a pinned certificate. The key of its issuer is not known. It needs no list, because
    /// the operator trusts this certificate itself; but if a list names its issuer, one must cover
    /// it. A list that is not used may revoke it.
    /// A self-signed certificate has no issuer but the client itself, which revokes nothing.
    pub(super) fn check_pin(
        &self,
        pin: &webpki::Cert<'_>,
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let issuer = IssuerKey { name: pin.issuer(), spki: None };
        let needs_list = pin.issuer() != pin.subject() && self.crls.name(issuer);
        match self.crls.check(issuer, pin, self.expired, now) {
            Err(webpki::Error::UnknownRevocationStatus) if !needs_list => Ok(()),
            result => result,
        }
    }
}

fn key_of(ca: &[u8]) -> Result<&[u8], webpki::Error> {
    spki::of_certificate(ca).map_err(|_| webpki::Error::BadDer)
}
