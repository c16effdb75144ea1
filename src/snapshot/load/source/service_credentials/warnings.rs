//! The conditions of the files of a service that an operator must mend.

use std::path::Path;
use std::time::SystemTime;

use keygate_core::spki;
use keygate_core::tls::{self, AnchorKind, CertificateSummary, Credentials};
use keygate_core::unix_time;
use rustls::pki_types::CertificateDer;

use super::ServiceCredentials;
use crate::config::RevocationDepth;
use crate::snapshot::load::source::credential_files::CredentialFiles;
use crate::snapshot::warning::{CertificateFile, PeriodProblem, Warning};

impl ServiceCredentials {
    /// The conditions of the files that an operator must mend.
    pub(in crate::snapshot::load::source) fn warnings(
        &self,
        files: CredentialFiles<'_>,
        now: SystemTime,
    ) -> Vec<Warning> {
        let owner = files.owner();
        let crls = self.crls().warnings().iter();
        let mut warnings: Vec<_> = crls.map(|problem| Warning::crl(&owner, problem)).collect();
        warnings.extend(self.missing_crls(files));
        let upstream = self.upstream.get().as_ref();
        let exposed = self.server.get().iter().filter_map(|pair| pair.exposed.as_ref());
        let exposed = exposed.chain(upstream.and_then(|it| it.exposed.as_ref()));
        warnings.extend(exposed.map(Warning::unsafe_permissions));
        let certificate =
            |key, path: &Path| CertificateFile { owner: files.owner(), key, path: path.to_owned() };
        if let (Some(server), Some((path, _))) = (self.key_pair(), files.server) {
            let file = certificate("tls.certificate", path);
            warnings.extend(period_warnings(server, &file, now));
            for name in tls::uncovered_names(server, files.server_names) {
                warnings.push(Warning::name_not_covered(&file, name));
            }
        }
        let client = upstream.and_then(|it| it.client.as_ref());
        let identity = files.upstream.and_then(|(tls, _)| tls.identity.as_ref());
        if let (Some(client), Some(identity)) = (client, identity) {
            let file = certificate("upstream.tls.certificate", &identity.certificate);
            warnings.extend(period_warnings(client, &file, now));
        }
        let clients = files.trust_anchors.map(|path| ("client_auth.trust_anchors", path));
        let clients = clients.zip(self.clients.get().cas.trust_anchors.as_ref());
        let askers = files.asker_ca.map(|path| ("tls.client_ca", path));
        let askers = askers.zip(self.asker_ca.get().as_ref());
        for ((key, path), anchors) in clients.into_iter().chain(askers) {
            let file = certificate(key, path);
            let own = self.key_pair().and_then(|server| server.cert.first());
            for problem in anchors.problems(own, self.crls()) {
                warnings.push(Warning::trust_anchor_unusable(&file, &problem));
            }
            for (ca, period) in anchors.with_validity() {
                if let Some(problem) = PeriodProblem::of(period, unix_time::seconds(now)) {
                    let subject = CertificateSummary::of(ca).subject;
                    warnings.push(Warning::trust_anchor_period(&file, &subject, problem));
                }
            }
        }
        warnings
    }

    /// The CAs that have no CRL, if there are CRLs. A pin issues nothing.
    ///
    /// With `revocation = "leaf"` a root that issues intermediates only needs no CRL. There is no
    /// warning for a trust anchor that issued one of the `intermediates`.
    fn missing_crls(&self, files: CredentialFiles<'_>) -> Vec<Warning> {
        let file =
            |key, path: &Path| CertificateFile { owner: files.owner(), key, path: path.to_owned() };
        let cas = &self.clients.get().cas;
        let (Some(anchors), Some(trust_anchors)) = (files.trust_anchors, &cas.trust_anchors) else {
            return Vec::new();
        };
        let anchors = file("client_auth.trust_anchors", anchors);
        let intermediates = files.intermediates.map(|path| file("client_auth.intermediates", path));
        if files.crls.is_empty() {
            // An authorizer completes the paths of its clients with them.
            let unused = intermediates.filter(|_| !files.is_authorizer);
            return unused.iter().map(Warning::intermediates_unused).collect();
        }
        let is_root_of_others =
            files.revocation == RevocationDepth::Leaf && intermediates.is_some();
        let missing = |file: &CertificateFile, ca: &CertificateDer<'_>| {
            (!self.crls().cover(ca))
                .then(|| Warning::crl_missing(file, &CertificateSummary::of(ca).subject))
        };
        let issuers = trust_anchors.with_kind().filter(|(_, kind)| *kind != AnchorKind::Pin);
        let roots = issuers
            .map(|(ca, _)| ca)
            .filter(|ca| !(is_root_of_others && tls::issued_any(ca, &cas.intermediates)));
        let roots = roots.filter_map(|ca| missing(&anchors, ca));
        let below = intermediates.iter().flat_map(|file| {
            let cas = cas.intermediates.iter();
            cas.filter_map(|ca| missing(file, ca))
        });
        roots.chain(below).collect()
    }
}

/// The certificates of a chain whose validity period is a problem.
fn period_warnings(
    credentials: &Credentials,
    file: &CertificateFile,
    now: SystemTime,
) -> impl Iterator<Item = Warning> {
    let now = unix_time::seconds(now);
    let problems = (1..).zip(&credentials.cert).filter_map(move |(position, certificate)| {
        let problem = match spki::validity(certificate) {
            Ok(period) => PeriodProblem::of(period, now)?,
            Err(_) => PeriodProblem::Unreadable,
        };
        Some((position, problem))
    });
    problems.map(|(position, problem)| Warning::certificate_period(file, position, problem))
}
