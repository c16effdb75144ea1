//! The conditions of the files of a service that an operator must mend.

use std::path::Path;
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

use super::ServiceCredentials;
use crate::config::ServiceConfig;
use crate::guard::Depth;
use crate::snapshot::warning::{CertificateFile, PeriodProblem, Warning};
use crate::spki;
use crate::tls::{self, CertificateSummary, Credentials};
use crate::unix_time;

impl ServiceCredentials {
    /// The conditions of the files that an operator must mend.
    pub(in crate::snapshot::load::source) fn warnings(
        &self,
        config: &ServiceConfig,
        now: SystemTime,
    ) -> Vec<Warning> {
        let crls = self.crls.warnings().iter().cloned();
        let crl = |problem| Warning::Crl { service: config.name.clone(), problem };
        let mut warnings: Vec<_> = crls.map(crl).collect();
        warnings.extend(self.missing_crls(config));
        let exposed = self.exposed_key_files.iter().cloned();
        warnings.extend(exposed.map(Warning::UnsafePermissions));
        let certificate = |key, path: &Path| CertificateFile {
            service: config.name.clone(),
            key,
            path: path.to_owned(),
        };
        let file = certificate("tls.certificate", &config.tls.certificate);
        warnings.extend(period_warnings(&self.server, &file, now));
        for name in tls::uncovered_names(&self.server, &config.server_names) {
            warnings.push(Warning::NameNotCovered { file: file.clone(), name: name.to_owned() });
        }
        let client = self.upstream.as_ref().and_then(|it| it.client.as_ref());
        let files = config.upstream.tls.as_ref().and_then(|it| it.identity.as_ref());
        if let (Some(client), Some(files)) = (client, files) {
            let file = certificate("upstream.tls.certificate", &files.certificate);
            warnings.extend(period_warnings(client, &file, now));
        }
        let file = certificate("client_auth.trust_anchors", &config.trust_anchors);
        for (ca, period) in self.trust_anchors.with_validity() {
            if let Some(problem) = PeriodProblem::of(period, unix_time::seconds(now)) {
                let subject = CertificateSummary::of(ca).subject;
                warnings.push(Warning::TrustAnchorPeriod { file: file.clone(), subject, problem });
            }
        }
        warnings
    }

    /// The CAs that have no CRL, if there are CRLs.
    ///
    /// With `judge = "leaf"` a root that issues intermediates only needs no CRL. There is no
    /// warning for a trust anchor that issued one of the `intermediates`.
    fn missing_crls(&self, config: &ServiceConfig) -> Vec<Warning> {
        let file = |key, path: &Path| CertificateFile {
            service: config.name.clone(),
            key,
            path: path.to_owned(),
        };
        let anchors = file("client_auth.trust_anchors", &config.trust_anchors);
        let intermediates =
            config.intermediates.as_ref().map(|path| file("client_auth.intermediates", path));
        if config.crls.is_empty() {
            let unused = intermediates.map(|file| Warning::IntermediatesUnused { file });
            return unused.into_iter().collect();
        }
        let is_root_of_others = config.policy.judge == Depth::Leaf && intermediates.is_some();
        let missing = |file: &CertificateFile, ca: &CertificateDer<'_>| {
            (!self.crls.cover(ca)).then(|| Warning::CrlMissing {
                file: file.clone(),
                subject: CertificateSummary::of(ca).subject,
            })
        };
        let roots = self
            .trust_anchors
            .certificates
            .iter()
            .filter(|ca| !(is_root_of_others && tls::issued_any(ca, &self.intermediates)));
        let roots = roots.filter_map(|ca| missing(&anchors, ca));
        let below = intermediates.iter().flat_map(|file| {
            let cas = self.intermediates.iter();
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
    problems.map(|(position, problem)| Warning::CertificatePeriod {
        file: file.clone(),
        position,
        problem,
    })
}
