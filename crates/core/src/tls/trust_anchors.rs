//! The certificates that clients are verified with, told apart once when they are loaded.
//!
//! A file has roots, the intermediates below them, and pinned client certificates. A verifier that
//! is built from them cannot fail. `docs/decisions/client-cas.md` has the reasons.

mod kinds;

use std::collections::HashMap;

use rustls::DistinguishedName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, Der, TrustAnchor};
use smallvec::SmallVec;
use webpki::EndEntityCert;

use super::key_ids::KeyIds;
use super::path_rules::{PathProblem, PathRule, PathRules};
use super::{CertificateSummary, Crls};
use super::{FileContent, TlsFileError};
use crate::spki::{self, CertificateFields, ValidityPeriod};

/// The certificates that may be at the end of a client's path, and the intermediates below them.
#[derive(Debug)]
pub struct TrustAnchors {
    /// The certificates as they were in the file.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The facts about `certificates`, in the same order.
    facts: Vec<AnchorFacts>,
    /// The certificates at which a path may end.
    roots: Roots<'static>,
    /// The indexes of the intermediates in `certificates`.
    intermediates: Vec<usize>,
    /// The indexes of the pins that no CA of the file issued, in the order of their bytes.
    pins: Vec<usize>,
}

/// Roots in the form that rustls-webpki verifies with.
#[derive(Debug)]
pub(super) struct Roots<'a> {
    pub(super) anchors: SmallVec<[TrustAnchor<'a>; 1]>,
    /// The index of each of `anchors` in the certificates of the file.
    indexes: SmallVec<[usize; 1]>,
}

impl Roots<'_> {
    /// The index of one of these.
    pub(super) fn index_of(&self, root: &TrustAnchor<'_>) -> Option<usize> {
        let address = std::ptr::from_ref(root).addr();
        let mut addresses = self.anchors.iter().map(|it| std::ptr::from_ref(it).addr());
        let position = addresses.position(|it| it == address)?;
        self.indexes.get(position).copied()
    }
}

/// The same root without a copy of its bytes.
fn borrowed<'a>(root: &'a TrustAnchor<'_>) -> TrustAnchor<'a> {
    TrustAnchor {
        subject: Der::from_slice(&root.subject),
        subject_public_key_info: Der::from_slice(&root.subject_public_key_info),
        name_constraints: root.name_constraints.as_deref().map(Der::from_slice),
    }
}

/// Maximum number of intermediates of the file that the search for a path gets. It visits 24.
const MAX_CANDIDATES: usize = 48;

/// The use of a certificate among trust anchors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnchorKind {
    /// A CA that another CA of the file, or an unbound one, issued. It completes paths, and ends
    /// none.
    Intermediate,
    /// A certificate that is no CA. It admits the client that has it, and issues nothing.
    Pin,
    /// Any other CA: the end of a path.
    Root,
}

/// The numbers of the certificates of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct AnchorCounts {
    /// CAs at which a path may end.
    pub roots: usize,
    /// CAs below them.
    pub intermediates: usize,
    /// Certificates that are no CAs.
    pub pins: usize,
}

/// Facts read from a certificate when it was loaded.
#[derive(Debug)]
pub(super) struct AnchorFacts {
    pub(super) kind: AnchorKind,
    pub(super) validity: ValidityPeriod,
    /// The names in DER.
    pub(super) subject: Box<[u8]>,
    pub(super) issuer: Box<[u8]>,
    /// The rules, as far as they are the same in each handshake.
    pub(super) rules: PathRules,
    /// Why no path may end at this certificate. On a path, an intermediate is checked again.
    pub(super) problem: Option<PathProblem>,
}

/// The certificates in a PEM file.
///
/// # Errors
/// Returns an error if the PEM is broken, holds no certificate, or holds one that cannot be a trust
/// anchor.
pub fn trust_anchors(pem: &[u8]) -> Result<TrustAnchors, TlsFileError> {
    TrustAnchors::new(certificates(pem)?)
}

impl TrustAnchors {
    /// Tells the certificates of one file apart.
    ///
    /// # Errors
    /// Returns an error if there is no certificate, or one that cannot be a trust anchor.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsFileError> {
        Self::from_files(certificates, Vec::new())
    }

    /// Tells the certificates of several files apart. The CAs of `bound` files are bound to names:
    /// none makes an intermediate of a certificate of another file, which would then have its
    /// bounds.
    ///
    /// # Errors
    /// Returns an error if there is no certificate, or one that cannot be a trust anchor.
    pub fn from_files(
        unbound: Vec<CertificateDer<'static>>,
        bound: Vec<Vec<CertificateDer<'static>>>,
    ) -> Result<Self, TlsFileError> {
        let sizes = std::iter::once(unbound.len()).chain(bound.iter().map(Vec::len));
        let files: Vec<_> =
            sizes.enumerate().flat_map(|(file, size)| std::iter::repeat_n(file, size)).collect();
        let mut certificates = unbound;
        certificates.extend(bound.into_iter().flatten());
        if certificates.is_empty() {
            return Err(TlsFileError::NoCertificate(FileContent::Empty));
        }
        let facts = (1..).zip(&certificates).map(|(position, it)| AnchorFacts::new(it, position));
        let mut facts = facts.collect::<Result<Vec<_>, _>>()?;
        let issuers = kinds::issuers(&certificates, &facts, &files);
        kinds::tell_apart(&mut facts, &issuers);
        kinds::demote_cross_signed(&certificates, &mut facts, &issuers, &files);
        let of_kind = |kind| {
            let all = facts.iter().enumerate();
            all.filter(move |(_, it)| it.kind == kind).map(|(index, _)| index)
        };
        let root_indexes: SmallVec<_> = of_kind(AnchorKind::Root).collect();
        let roots = root_indexes.iter().filter_map(|index| certificates.get(*index));
        let roots = roots.filter_map(|root| webpki::anchor_from_trusted_cert(root).ok());
        let anchors = roots.map(|root| root.to_owned()).collect();
        let roots = Roots { anchors, indexes: root_indexes };
        // A path over its CA judges more than the pin.
        let is_alone = |index: &usize| issuers.get(*index).is_some_and(Vec::is_empty);
        let mut pins: Vec<_> = of_kind(AnchorKind::Pin).filter(is_alone).collect();
        pins.sort_by_key(|index| certificates.get(*index).map(AsRef::as_ref));
        let intermediates = of_kind(AnchorKind::Intermediate).collect();
        Ok(Self { roots, intermediates, pins, facts, certificates })
    }

    /// The certificates with their kinds.
    pub fn with_kind(&self) -> impl Iterator<Item = (&CertificateDer<'static>, AnchorKind)> {
        self.certificates.iter().zip(self.facts.iter().map(|facts| facts.kind))
    }

    /// The certificates with their validities.
    pub fn with_validity(
        &self,
    ) -> impl Iterator<Item = (&CertificateDer<'static>, ValidityPeriod)> {
        self.certificates.iter().zip(self.facts.iter().map(|facts| facts.validity))
    }

    /// Why certificates admit nobody: they break a rule, are the `own` certificate of the service,
    /// or are on a list of `crls`. If certificates for servers are accepted, they break no rule.
    pub fn problems(
        &self,
        own: Option<&CertificateDer<'_>>,
        crls: &Crls,
        accepts_server_auth: bool,
    ) -> impl Iterator<Item = (&CertificateDer<'static>, String)> {
        let all = self.certificates.iter().zip(&self.facts);
        all.filter_map(move |(certificate, facts)| {
            let subject = || CertificateSummary::new(certificate).name().to_owned();
            if crls.revoke(certificate) {
                let revoked = format!("{} is revoked by a list in use; remove it", subject());
                return Some((certificate, revoked));
            }
            if Some(certificate) == own && facts.kind == AnchorKind::Pin {
                let own = "is the service's own certificate, and no CA; give the CA of the clients";
                return Some((certificate, format!("{} {own}", subject())));
            }
            let problem = facts.problem.as_ref()?;
            if problem.is_server_purpose() && accepts_server_auth {
                return None;
            }
            Some((certificate, format!("{problem}; replace or remove it")))
        })
    }

    /// The numbers of the certificates of each kind.
    #[must_use]
    pub fn counts(&self) -> AnchorCounts {
        let count = |kind| self.facts.iter().filter(|facts| facts.kind == kind).count();
        AnchorCounts {
            roots: count(AnchorKind::Root),
            intermediates: count(AnchorKind::Intermediate),
            pins: count(AnchorKind::Pin),
        }
    }

    /// The names that clients select their certificates by: the names of CAs, and of the issuers of
    /// pins.
    pub(super) fn hints(&self) -> Vec<DistinguishedName> {
        let names = self.facts.iter().map(|facts| match facts.kind {
            AnchorKind::Intermediate | AnchorKind::Root => &facts.subject,
            AnchorKind::Pin => &facts.issuer,
        });
        names.map(|name| DistinguishedName::from(name.to_vec())).collect()
    }

    /// The certificate at `index`, with its facts.
    pub(super) fn get(&self, index: usize) -> Option<(&CertificateDer<'static>, &AnchorFacts)> {
        self.certificates.get(index).zip(self.facts.get(index))
    }

    /// The certificates at which a path may end.
    pub(super) fn roots(&self) -> &Roots<'static> {
        &self.roots
    }

    /// The roots that `is_chosen` returns `true` for.
    pub(super) fn choose_roots(
        &self,
        is_chosen: impl Fn(&CertificateDer<'_>) -> bool,
    ) -> Roots<'_> {
        let all = self.roots.anchors.iter().zip(&self.roots.indexes);
        let chosen =
            all.filter(|(_, index)| self.certificates.get(**index).is_some_and(&is_chosen));
        let (anchors, indexes) = chosen.map(|(root, index)| (borrowed(root), *index)).unzip();
        Roots { anchors, indexes }
    }

    /// The index of the pin with exactly these bytes.
    pub(super) fn pin(&self, leaf: &[u8]) -> Option<usize> {
        let bytes = |index: &usize| self.certificates.get(*index).map_or(&[][..], AsRef::as_ref);
        let place = self.pins.binary_search_by(|pin| bytes(pin).cmp(leaf)).ok()?;
        self.pins.get(place).copied()
    }

    /// Whether no certificate is an intermediate.
    pub(super) fn has_no_intermediates(&self) -> bool {
        self.intermediates.is_empty()
    }

    /// The certificates that may be on the path of `leaf`: those that the client presented, and the
    /// intermediates of the file that may lead from one of them to a root.
    pub(super) fn complete<'a>(
        &'a self,
        leaf: &CertificateDer<'_>,
        presented: &'a [CertificateDer<'_>],
    ) -> SmallVec<[CertificateDer<'a>; 16]> {
        let borrowed = |it: &'a CertificateDer<'_>| CertificateDer::from(it.as_ref());
        let mut found: SmallVec<_> = presented.iter().map(borrowed).collect();
        let limit = presented.len().saturating_add(MAX_CANDIDATES);
        for certificate in std::iter::once(leaf).chain(presented) {
            if let Ok(fields) = CertificateFields::new(certificate) {
                self.add_above(fields.issuer, KeyIds::new(&fields).issuer, &mut found, limit);
            }
        }
        found
    }

    /// Adds the intermediates that may lead from a certificate of `issuer` to a root. An
    /// intermediate with another key identifier than the issuer's is left out, as in OpenSSL: many
    /// CAs of one name would use up the signature checks.
    fn add_above<'a>(
        &'a self,
        issuer: &[u8],
        key_id: Option<&[u8]>,
        found: &mut SmallVec<[CertificateDer<'a>; 16]>,
        limit: usize,
    ) {
        let all = self.intermediates.iter().filter_map(|it| self.get(*it));
        for (certificate, facts) in all.filter(|(_, facts)| *facts.subject == *issuer) {
            let ids = CertificateFields::new(certificate).map(|fields| KeyIds::new(&fields));
            let ids = ids.unwrap_or_default();
            let is_other = key_id.zip(ids.own).is_some_and(|(wanted, own)| wanted != own);
            if !is_other && found.len() < limit && !found.contains(certificate) {
                found.push(CertificateDer::from(certificate.as_ref()));
                self.add_above(&facts.issuer, ids.issuer, found, limit);
            }
        }
    }

    /// The index of the intermediate with exactly these bytes.
    pub(super) fn position(&self, certificate: &CertificateDer<'_>) -> Option<usize> {
        self.intermediates
            .iter()
            .copied()
            .find(|index| self.certificates.get(*index) == Some(certificate))
    }

    /// The largest number of CAs with the same name.
    pub(super) fn same_name(&self) -> usize {
        let mut counts = HashMap::new();
        for ca in self.facts.iter().filter(|facts| facts.kind != AnchorKind::Pin) {
            let count = counts.entry(&ca.subject).or_insert(0_usize);
            *count = count.saturating_add(1);
        }
        counts.into_values().max().unwrap_or(0)
    }
}

impl AnchorFacts {
    /// The facts that the certificate itself states.
    fn new(certificate: &CertificateDer<'_>, position: usize) -> Result<Self, TlsFileError> {
        let unusable = |source| TlsFileError::Anchor { position, source };
        if let Err(error) = webpki::anchor_from_trusted_cert(certificate) {
            return Err(unusable(super::verification_error::certificate_error(error).into()));
        }
        let unreadable = |_| TlsFileError::AnchorValidity { position };
        let validity = spki::validity(certificate).map_err(unreadable)?;
        let fields = CertificateFields::new(certificate).map_err(unreadable)?;
        let (subject, issuer) = (fields.subject.into(), fields.issuer.into());
        let parsed = EndEntityCert::try_from(certificate).map(drop);
        let mut rules = PathRules::new(certificate);
        if let (Some(rules), Err(webpki::Error::UnsupportedCertVersion)) = (&mut rules, &parsed) {
            // Before version 3, a CA was told by its own signature alone.
            rules.is_ca = fields.subject == fields.issuer;
        }
        let is_ca = rules.as_ref().is_some_and(|rules| rules.is_ca);
        let kind = if is_ca { AnchorKind::Root } else { AnchorKind::Pin };
        let rule = match (&rules, parsed) {
            (None, _) => Some(PathRule::Encoding),
            (Some(rules), Ok(())) => rules.anchor_problem(),
            (Some(rules), Err(_)) if rules.is_ca => rules.anchor_problem(),
            (Some(_), Err(webpki::Error::UnsupportedCertVersion)) => Some(PathRule::Version),
            (Some(_), Err(_)) => Some(PathRule::CriticalExtension),
        };
        let problem = rule.map(|rule| PathProblem::new(rule, certificate));
        let rules = rules.unwrap_or_default();
        Ok(Self { kind, validity, subject, issuer, rules, problem })
    }
}

/// The certificates in a PEM file, at least one.
///
/// # Errors
/// Returns an error if the PEM is broken or holds no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let pem = without_byte_order_mark(pem);
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(TlsFileError::Pem)?;
    if certificates.is_empty() {
        let mut content = FileContent::new(pem);
        if content == FileContent::EncryptedKey {
            content = FileContent::PrivateKey;
        }
        return Err(TlsFileError::NoCertificate(content));
    }
    Ok(certificates)
}

/// `text` without the byte order mark that editors on Windows write before UTF-8.
pub(super) fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_and_a_broken_certificate_are_errors() {
        assert!(matches!(
            trust_anchors(b"").unwrap_err(),
            TlsFileError::NoCertificate(FileContent::Empty)
        ));
        assert!(matches!(
            TrustAnchors::new(Vec::new()),
            Err(TlsFileError::NoCertificate(FileContent::Empty))
        ));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(trust_anchors(broken).unwrap_err(), TlsFileError::Anchor { .. }));
    }
}
