//! The search for the path of a client, and the checks that rustls-webpki leaves out.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use smallvec::{SmallVec, smallvec};
use webpki::Error::MaximumSignatureChecksExceeded;
use webpki::{EndEntityCert, KeyPurposeIdIter, KeyUsage};

use super::ClientVerifier;
use super::signature_budget::{Counted, SignatureBudget};
use crate::spki::{self, ValidityPeriod};
use crate::tls::VerifiedPath;
use crate::tls::bound_cas::Vouchers;
use crate::tls::path::PathRoute;
use crate::tls::path_rules::{PathProblem, PathRule, PathRules, is_for_servers};
use crate::tls::trust_anchors::{AnchorFacts, Roots};
use crate::tls::verification_error::certificate_error;

/// Maximum number of certificates that the search for a path visits. A path has eight certificates
/// at most. Without this limit, nine intermediates whose names refer to each other in a circle cost
/// 79,000 visits, before any proof of possession.
const MAX_VISITS: u32 = 24;

impl ClientVerifier {
    /// [`ClientVerifier::verify`] without the maximum of certificates.
    pub(super) fn find_path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedPath, rustls::Error> {
        let parsed = EndEntityCert::try_from(leaf).map_err(certificate_error)?;
        let completed: SmallVec<[_; 16]>;
        let vouchers = self.bound_cas.as_ref().map(|cas| cas.vouchers(leaf));
        if let Some(pin) = self.anchors.pin(leaf) {
            if let Some(revocation) = &self.revocation {
                revocation.check_pin(&parsed, now).map_err(certificate_error)?;
            }
            let path = self.verify_pin(pin, now)?;
            vouchers.map_or(Ok(()), |vouchers| vouchers.check(leaf))?;
            return Ok(path);
        }
        let candidates = match self.anchors.has_no_intermediates() {
            true => intermediates,
            false => {
                completed = self.anchors.complete(leaf, intermediates);
                &completed
            }
        };
        let budget = SignatureBudget::new(self.same_name);
        let search = Search {
            verifier: self,
            leaf,
            candidates,
            intermediates,
            now,
            vouchers,
            budget,
            purpose: ClientPurpose {
                accepts_server_auth: self.accepts_server_auth(now),
                ..ClientPurpose::default()
            },
        };
        let all = self.anchors.roots();
        if let Some(vouchers) = &search.vouchers {
            let chosen = self.anchors.choose_roots(|root| vouchers.include(root));
            if chosen.anchors.len() < all.anchors.len()
                && !chosen.anchors.is_empty()
                && let Ok(path) = search.run(&parsed, &chosen)
            {
                return Ok(path);
            }
        }
        // The other roots, if there are any, lead to no valid path. They give the reason.
        Ok(search.run(&parsed, all)?)
    }

    /// The path of a client with a pinned certificate, if it is valid now.
    fn verify_pin(&self, index: usize, now: UnixTime) -> Result<VerifiedPath, CertificateError> {
        let unknown = || certificate_error(webpki::Error::UnknownIssuer);
        let (_, facts) = self.anchors.get(index).ok_or_else(unknown)?;
        check_dates(facts.validity, now).map_err(certificate_error)?;
        if let Some(problem) = self.problem_of(facts, now) {
            return Err(problem.clone().into());
        }
        let route = PathRoute { places: smallvec![0] };
        let not_after =
            facts.validity.not_after.min(self.purpose_expiry(facts.rules.is_for_servers));
        Ok(VerifiedPath::new(route, Arc::clone(&self.anchors), not_after))
    }

    /// Why no path may end at a certificate of the file now.
    fn problem_of<'a>(&self, facts: &'a AnchorFacts, now: UnixTime) -> Option<&'a PathProblem> {
        let problem = facts.problem.as_ref()?;
        (!(problem.is_server_purpose() && self.accepts_server_auth(now))).then_some(problem)
    }

    /// When the purposes of a certificate on a path are no longer accepted, since the Unix epoch.
    fn purpose_expiry(&self, is_for_servers: bool) -> Duration {
        self.server_auth_until.filter(|_| is_for_servers).unwrap_or(Duration::MAX)
    }
}

/// A search for the path of a client.
struct Search<'a> {
    verifier: &'a ClientVerifier,
    leaf: &'a CertificateDer<'a>,
    /// The certificates that the client presented.
    intermediates: &'a [CertificateDer<'a>],
    /// These, and intermediates of the file.
    candidates: &'a [CertificateDer<'a>],
    now: UnixTime,
    /// The CAs that may vouch for the client; `None` if all may.
    vouchers: Option<Vouchers<'a>>,
    budget: SignatureBudget,
    purpose: ClientPurpose,
}

impl Search<'_> {
    /// The path from `leaf`, the certificate of this search, to one of `roots`.
    fn run(
        &self,
        leaf: &EndEntityCert<'_>,
        roots: &Roots<'_>,
    ) -> Result<VerifiedPath, CertificateError> {
        let counted = self.budget.limit(self.verifier.algorithms.all);
        let algorithms =
            counted.iter().map(|it: &Counted<'_>| -> &dyn SignatureVerificationAlgorithm { it });
        let problem = Cell::new(None);
        let found = leaf.verify_for_usage(
            &algorithms.collect::<SmallVec<[_; 16]>>(),
            &roots.anchors,
            self.candidates,
            self.now,
            &self.purpose,
            None,
            Some(&|path| self.check(path, roots, &problem)),
        );
        let path = found.map_err(|error| {
            let problem = if error == BROKEN_RULE {
                problem.take()
            } else if error == webpki::Error::NameConstraintViolation {
                self.unsupported_constraints().map(CertificateError::from)
            } else {
                None
            };
            let is_spent =
                error == webpki::Error::InvalidSignatureForPublicKey && self.budget.is_spent();
            problem.unwrap_or_else(|| match is_spent {
                true => certificate_error(MaximumSignatureChecksExceeded),
                false => certificate_error(error),
            })
        })?;
        let path = self.verified_path(&path, roots);
        path.ok_or_else(|| certificate_error(webpki::Error::UnknownIssuer))
    }

    /// Checks the parts of a candidate path that rustls-webpki does not check: its anchor, key
    /// usages, and revocation. After an error the search goes on.
    fn check(
        &self,
        path: &webpki::VerifiedPath<'_>,
        roots: &Roots<'_>,
        problem: &Cell<Option<CertificateError>>,
    ) -> Result<(), webpki::Error> {
        let Self { verifier: ClientVerifier { anchors, revocation, .. }, leaf, now, .. } = *self;
        let index = roots.index_of(path.anchor());
        let (anchor, facts) =
            index.and_then(|it| anchors.get(it)).ok_or(webpki::Error::UnknownIssuer)?;
        check_dates(facts.validity, now)?;
        let broken = |error: CertificateError| {
            problem.set(Some(error));
            BROKEN_RULE
        };
        if let Some(problem) = self.verifier.problem_of(facts, now) {
            return Err(broken(problem.clone().into()));
        }
        let broken_rule =
            |rule, certificate: &[u8]| broken(PathProblem::new(rule, certificate).into());
        let rules = PathRules::new(leaf).ok_or(webpki::Error::BadDer)?;
        if let Some(rule) = rules.client_problem() {
            return Err(broken_rule(rule, leaf));
        }
        let mut below = 0_usize;
        for issuer in path.intermediate_certificates() {
            let rules = PathRules::new(&issuer.der()).ok_or(webpki::Error::BadDer)?;
            if let Some(rule) = rules.issuer_problem() {
                return Err(broken_rule(rule, &issuer.der()));
            }
            // RFC 5280, 4.2.1.9: a CA that names itself as its issuer does not count.
            below = below.saturating_add(usize::from(issuer.issuer() != issuer.subject()));
        }
        if facts.rules.path_length.is_some_and(|longest| below > longest) {
            return Err(broken_rule(PathRule::PathLength, anchor));
        }
        if let Some(revocation) = revocation {
            revocation.check(path, (anchor, facts), now)?;
        }
        if let Some(vouchers) = &self.vouchers {
            for issuer in path.intermediate_certificates() {
                vouchers.check(&issuer.der()).map_err(broken)?;
            }
            vouchers.check(anchor).map_err(broken)?;
        }
        Ok(())
    }

    /// The CA that constrains a kind of names of the client that rustls-webpki does not check.
    fn unsupported_constraints(&self) -> Option<PathProblem> {
        let client = PathRules::new(self.leaf)?;
        let ca = self.candidates.iter().chain(&self.verifier.anchors.certificates).find(|ca| {
            PathRules::new(ca).is_some_and(|ca| ca.has_unsupported_constraint_for(&client))
        })?;
        Some(PathProblem::new(PathRule::NameConstraints, ca))
    }

    fn verified_path(
        &self,
        path: &webpki::VerifiedPath<'_>,
        roots: &Roots<'_>,
    ) -> Option<VerifiedPath> {
        let Self { verifier, leaf, intermediates, .. } = *self;
        let anchors = &verifier.anchors;
        let anchor = roots.index_of(path.anchor())?;
        let facts = anchors.get(anchor)?.1;
        let purpose_expiry = |certificate: &CertificateDer<'_>| {
            let has_expiry = verifier.server_auth_until.is_some();
            verifier.purpose_expiry(has_expiry && is_for_servers(certificate))
        };
        let mut not_after = facts.validity.not_after.min(spki::not_after(leaf).ok()?);
        not_after = not_after.min(verifier.purpose_expiry(facts.rules.is_for_servers));
        not_after = not_after.min(purpose_expiry(leaf));
        let mut places: SmallVec<[u32; 4]> = smallvec![0];
        for certificate in path.intermediate_certificates() {
            let certificate = certificate.der();
            let index = intermediates.iter().position(|presented| *presented == certificate);
            places.push(match index {
                Some(index) => u32::from(u16::try_from(index.checked_add(1)?).ok()?),
                None => PathRoute::in_file(anchors.position(&certificate)?)?,
            });
            not_after = not_after.min(spki::not_after(&certificate).ok()?);
            not_after = not_after.min(purpose_expiry(&certificate));
        }
        places.push(PathRoute::in_file(anchor)?);
        Some(VerifiedPath::new(PathRoute { places }, Arc::clone(anchors), not_after))
    }
}

/// Stands for a [`PathProblem`] within rustls-webpki, which never returns it: it gets no revocation
/// lists. It reports the most specific one of several errors.
const BROKEN_RULE: webpki::Error = webpki::Error::IssuerNotCrlSigner;

fn check_dates(validity: ValidityPeriod, now: UnixTime) -> Result<(), webpki::Error> {
    let time = Duration::from_secs(now.as_secs());
    if time < validity.not_before {
        let not_before = UnixTime::since_unix_epoch(validity.not_before);
        return Err(webpki::Error::CertNotValidYet { time: now, not_before });
    }
    if !validity.contains(time) {
        let not_after = UnixTime::since_unix_epoch(validity.not_after);
        return Err(webpki::Error::CertExpired { time: now, not_after });
    }
    Ok(())
}

/// Requires the purpose "client authentication" of every certificate that the search for a path
/// visits, or accepts "server authentication" alone, and counts them. rustls-webpki has limits of its own, which are far higher.
#[derive(Debug, Default)]
struct ClientPurpose {
    visits: Cell<u32>,
    accepts_server_auth: bool,
}

impl webpki::ExtendedKeyUsageValidator for &ClientPurpose {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        self.visits.set(self.visits.get().saturating_add(1));
        if self.visits.get() > MAX_VISITS {
            return Err(webpki::Error::MaximumPathBuildCallsExceeded); // ends the search
        }
        match KeyUsage::client_auth().validate(purposes) {
            Err(webpki::Error::RequiredEkuNotFoundContext(context))
                if self.accepts_server_auth
                    && !context.present.is_empty()
                    && context.present.iter().all(|it| it == KeyUsage::SERVER_AUTH_REPR) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}
