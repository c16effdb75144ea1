//! The CAs whose revocation lists are accepted.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::BasicConstraints;

use super::error::{CrlError, IntermediateError};
use super::ids::ca_id;
use crate::spki::{CertificateFields, Element};
use crate::tls::path_rules::PathRules;
use crate::tls::signature::{SignatureProblem, Signed};
use crate::tls::{AnchorKind, TlsFileError, TrustAnchors};

/// The CAs whose revocation lists are accepted: the trust anchors of a service, and the
/// intermediates that were issued below them.
#[derive(Debug)]
pub struct CrlIssuers(Vec<CrlIssuer>);

/// A CA. Several CAs can have the same name.
#[derive(Debug)]
struct CrlIssuer {
    /// The content of the subject, without the outer SEQUENCE.
    name: Box<[u8]>,
    /// SubjectPublicKeyInfo in DER.
    spki: Box<[u8]>,
    /// SHA-256 of name and key, in hex.
    id: String,
    /// Whether the key usage, if there is one, has cRLSign (RFC 5280, 6.3.3 (f)).
    may_sign_lists: bool,
}

/// Whether `ca` is named as the issuer of one of `certificates`, other than itself.
#[must_use]
pub fn issued_any(ca: &CertificateDer<'_>, certificates: &[CertificateDer<'_>]) -> bool {
    let Ok(issuer) = EndEntityCert::try_from(ca) else { return false };
    certificates.iter().filter(|certificate| *certificate != ca).any(|certificate| {
        EndEntityCert::try_from(certificate).is_ok_and(|it| it.issuer() == issuer.subject())
    })
}

impl CrlIssuers {
    /// The CAs among the trust anchors.
    #[must_use]
    pub fn new(anchors: &TrustAnchors) -> Self {
        let cas = anchors.with_kind().filter(|(_, kind)| *kind != AnchorKind::Pin);
        Self(cas.filter_map(|(certificate, _)| CrlIssuer::new(certificate)).collect())
    }

    /// The CAs among `certificates`, which the operator vouches for.
    pub fn among<'a>(certificates: impl Iterator<Item = &'a CertificateDer<'static>>) -> Self {
        let is_ca = |it: &&CertificateDer<'_>| PathRules::new(it).is_some_and(|it| it.is_ca);
        Self(certificates.filter(is_ca).filter_map(|it| CrlIssuer::new(it)).collect())
    }

    /// Adds the `intermediates`, which may be in any order.
    ///
    /// # Errors
    /// Returns an error if one of the `intermediates` is no CA, or was not issued by a trust anchor
    /// or by another intermediate.
    pub fn with_intermediates(
        mut self,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<Self, TlsFileError> {
        let mut open = Vec::new();
        for (position, certificate) in (1..).zip(intermediates) {
            let problem = |source| TlsFileError::Intermediate { position, source };
            open.push((position, Intermediate::parse(certificate).map_err(problem)?));
        }
        // Each round accepts the certificates whose issuer was accepted before.
        loop {
            let before = open.len();
            open.retain(|(_, intermediate)| match self.issued(intermediate) {
                true => {
                    self.0.extend(CrlIssuer::new(intermediate.certificate));
                    false
                }
                false => true,
            });
            if open.len() == before {
                break;
            }
        }
        match open.first() {
            None => Ok(self),
            Some((position, intermediate)) => {
                let subject = intermediate.name.clone();
                let source = IntermediateError::UnknownIssuer { subject };
                Err(TlsFileError::Intermediate { position: *position, source })
            }
        }
    }

    fn issued(&self, intermediate: &Intermediate<'_>) -> bool {
        let mut issuers = self.with_name(&intermediate.issuer);
        issuers.any(|issuer| intermediate.signed.verify(&issuer.spki).is_ok())
    }

    fn with_name(&self, name: &[u8]) -> impl Iterator<Item = &CrlIssuer> {
        self.0.iter().filter(move |issuer| *issuer.name == *name)
    }

    /// The SubjectPublicKeyInfo of the CA that has this name and signed `list`. `issuer` is the
    /// name for messages.
    ///
    /// # Errors
    /// Returns an error if no CA has this name, if none of them signed `list`, or if the one that
    /// did must not sign lists.
    pub(super) fn signer(
        &self,
        name: &[u8],
        list: &Signed<'_>,
        issuer: &str,
    ) -> Result<&[u8], CrlError> {
        let issuer = || issuer.to_owned();
        let mut problem = CrlError::UnknownIssuer { issuer: issuer() };
        for known in self.with_name(name) {
            match list.verify(&known.spki) {
                Ok(()) if known.may_sign_lists => return Ok(&known.spki),
                Ok(()) => problem = CrlError::NotSigner { issuer: issuer() },
                Err(SignatureProblem::Invalid) => {
                    if let CrlError::UnknownIssuer { .. } = problem {
                        problem = CrlError::Signature { issuer: issuer() };
                    }
                }
                Err(SignatureProblem::Unsupported) => {
                    let oid = list.algorithm_oid();
                    let algorithm = oid.map_or("?".to_owned(), |oid| oid.to_string());
                    return Err(CrlError::SignatureAlgorithm { algorithm });
                }
            }
        }
        Err(problem)
    }

    /// Whether a CA with this name signed the list in DER.
    pub(super) fn signed(&self, name: &[u8], list: &[u8]) -> bool {
        Signed::parse(list)
            .is_ok_and(|list| self.with_name(name).any(|ca| list.verify(&ca.spki).is_ok()))
    }

    /// Name and key of the CA with this SHA-256 of both, in hex, if it may sign lists.
    pub(super) fn signer_with_id(&self, id: &str) -> Option<(&[u8], &[u8])> {
        let known = self.0.iter().find(|known| known.id == id && known.may_sign_lists)?;
        Some((&known.name, &known.spki))
    }

    /// Whether a CA with this name and key may sign lists.
    pub(super) fn contains_signer(&self, name: &[u8], spki: &[u8]) -> bool {
        self.with_name(name).any(|known| *known.spki == *spki && known.may_sign_lists)
    }
}

impl CrlIssuer {
    /// The CA with this certificate; `None` if the certificate is not valid DER.
    fn new(certificate: &[u8]) -> Option<Self> {
        let fields = CertificateFields::new(certificate).ok()?;
        let name = Element::only(fields.subject)?.content.into();
        let may_sign_lists = PathRules::new(certificate)?.may_sign_lists();
        let id = ca_id(fields.subject, fields.spki);
        Some(Self { name, spki: fields.spki.into(), id, may_sign_lists })
    }
}

/// The certificate of an intermediate CA whose issuer is not known yet.
struct Intermediate<'a> {
    certificate: &'a [u8],
    signed: Signed<'a>,
    issuer: Vec<u8>,
    /// Distinguished name of the subject, for messages.
    name: String,
}

impl<'a> Intermediate<'a> {
    fn parse(der: &'a CertificateDer<'_>) -> Result<Self, IntermediateError> {
        let usable = EndEntityCert::try_from(der).map_err(IntermediateError::Unusable)?;
        let issuer = usable.issuer().to_vec();
        let certificate: Certificate = Certificate::from_der(der)?;
        let fields = certificate.tbs_certificate();
        let name = super::bounded(fields.subject().to_string());
        let constraints = fields.get_extension::<BasicConstraints>()?;
        if !constraints.is_some_and(|(_, constraints)| constraints.ca) {
            return Err(IntermediateError::NotCa { subject: name });
        }
        Ok(Self { certificate: der, signed: Signed::parse(der)?, issuer, name })
    }
}
