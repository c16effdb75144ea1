//! Metrics, reports and warnings about the files in use of a service or an authorizer.

use std::collections::BTreeMap;
use std::time::SystemTime;

use keygate_core::guard::Guard;
use keygate_core::spki;
use keygate_core::tls::{AnchorCounts, CertificateRole, CertificateSummary, TrustAnchors};

use super::CredentialSource;
use crate::metrics::Label;
use crate::sources::credential_files::CredentialTable;
use crate::sources::credential_unit::{CredentialUnit, RejectedUnit};
use crate::sources::expiry::Expiry;
use crate::sources::own_key::OwnKey;
use crate::sources::rejection_reason::RejectionReason;
use crate::sources::report::{
    AuthorizerReport, CrlReport, PolicyReport, ReloadReport, ServiceReport,
};
use crate::sources::source_set::FileSource;
use crate::sources::warning::{COPY_IN_USE, Warning};

impl CredentialSource {
    /// The report of a service; `None` for an authorizer.
    pub(crate) fn service_report(&self) -> Option<ServiceReport> {
        let CredentialTable::Service(config) = &self.config else { return None };
        let crls = self.credentials.crls();
        Some(ServiceReport {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            server_names: config.server_names.clone(),
            upstream: config.upstream.servers.iter().map(ToString::to_string).collect(),
            max_connections: config.limits.max_connections,
            policy: PolicyReport::new(&config.policy.decisions),
            certificate_not_after: self.expiry(CertificateRole::Server).unwrap_or_default(),
            trust_anchor_not_after: self.expiry(CertificateRole::TrustAnchor),
            trust_anchors: self.anchor_counts(),
            intermediates: self.credentials.clients.get().cas.intermediates.len(),
            upstream_certificate_not_after: self.expiry(CertificateRole::UpstreamClient),
            crl_next_update: crls.next_update(),
            crls: CrlReport::all(crls),
            last_reload: self.last_reload(),
            dry_run: self.gates.report(),
        })
    }

    /// The report of an authorizer; `None` for a service.
    pub(crate) fn authorizer_report(&self) -> Option<AuthorizerReport> {
        let CredentialTable::Authorizer(config) = &self.config else { return None };
        let crls = self.credentials.crls();
        Some(AuthorizerReport {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            protocol: config.protocol.as_str(),
            certificate_from: config.certificate_from.to_string(),
            verifies: config.client_auth.has_cas(),
            policy: PolicyReport::new(&config.policy.decisions),
            last_question: self.last_question.clone(),
            certificate_not_after: self.expiry(CertificateRole::Server),
            trust_anchor_not_after: self.expiry(CertificateRole::TrustAnchor),
            trust_anchors: self.anchor_counts(),
            intermediates: self.credentials.clients.get().cas.intermediates.len(),
            crl_next_update: crls.next_update(),
            crls: CrlReport::all(crls),
            last_reload: self.last_reload(),
            dry_run: self.gates.report(),
        })
    }

    /// The last attempt to read the files of the address for readers; `None` for others.
    pub(crate) fn readers_report(&self) -> Option<ReloadReport> {
        matches!(self.config, CredentialTable::Readers(_)).then(|| self.last_reload())
    }

    /// Sets the metrics of all units, and those that show when certificates and CRLs expire.
    pub(crate) fn set_metrics(&self) {
        use CertificateRole::{AlternativeServer, Server, TrustAnchor, UpstreamClient};
        for role in [Server, AlternativeServer, UpstreamClient, TrustAnchor] {
            if let Some(expiry) = self.expiry(role) {
                let labels = [self.name(), role.as_str()];
                self.metrics.certificate_not_after.with_label_values(&labels).set(expiry as f64);
            }
        }
        for unit in self.credentials.configured(self.config.files()) {
            let is_usable = !self.rejected.iter().any(|rejected| rejected.unit == unit);
            if unit == CredentialUnit::Crls {
                let crls = self.credentials.crls();
                let entries = crls.lists().iter().map(|(list, _)| list.entries()).sum();
                let next_update = crls.next_update();
                self.metrics.show_crls(self.name(), next_update, entries, RejectionReason::OF_CRLS);
                self.metrics.set_crl_last_reload_successful(self.name(), is_usable);
            } else {
                let reasons = RejectionReason::OF_CREDENTIALS;
                self.metrics.show_credentials(self.name(), unit, is_usable, reasons);
            }
        }
    }

    /// The last attempt to read the files of each unit, as one.
    fn last_reload(&self) -> ReloadReport {
        let mut last = self.credentials.clients.last_reload();
        let is_copied = self.copied().next().is_some();
        for error in last.error.iter_mut().filter(|_| is_copied) {
            error.push_str(COPY_IN_USE);
        }
        self.credentials.units().for_each(|unit| last.join(unit.last_reload));
        let rejected = self.rejected.iter().min_by_key(|rejected| rejected.waits());
        last.reason = rejected.map(|unit| unit.reason.as_str()).filter(|_| last.error.is_some());
        last.files.clone_from(&self.updated);
        last
    }

    /// The keys that are weak, in a filter or on a list: of the service's own certificates, and of
    /// the CAs that it trusts on either side.
    pub(crate) fn compromised_keys(&self, guard: &Guard, now: SystemTime) -> Vec<OwnKey> {
        let signing: Vec<_> = self.credentials.signing_keys.get().certificates().collect();
        let signing = signing.iter().map(|key| (CertificateRole::Assertion, key));
        let keys = self.credentials.certificates().chain(signing).filter_map(|(role, cert)| {
            let verdict = guard.judge(cert, now);
            let is_listed = verdict.hit().is_some() || verdict.listing().is_some();
            let is_compromised = is_listed || verdict.weakness().is_some();
            is_compromised.then(|| OwnKey {
                owner: self.config.files().owner(),
                key: self.config.files().of_role(role).0,
                role,
                certificate: CertificateSummary::new(cert),
                verdict,
            })
        });
        keys.collect()
    }

    /// The rejected units in whose place copies are in use since the start.
    fn copied(&self) -> impl Iterator<Item = &RejectedUnit> {
        let is_copied = |unit: &CredentialUnit| CredentialUnit::OF_CLIENTS.contains(unit);
        self.rejected.iter().filter(move |rejected| self.has_copies && is_copied(&rejected.unit))
    }

    /// The conditions of the files that an operator must mend.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<Warning> {
        let files = self.config.files();
        let last_good = self.copied().map(|rejected| {
            let event = "files rejected at the start, using the last good ones";
            let text = format!("{}{COPY_IN_USE}", rejected.error);
            Warning::about_owner(&files.owner(), event, text).elsewhere(true)
        });
        last_good.chain(self.credentials.warnings(files, now)).collect()
    }

    /// Expiry of the certificate with this role that expires first, in seconds since the Unix
    /// epoch; 0 if it cannot be parsed.
    fn expiry(&self, role: CertificateRole) -> Option<u64> {
        let certificates = self.credentials.certificates().filter(|(it, _)| *it == role);
        certificates.map(|(_, it)| spki::not_after(it).unwrap_or_default().as_secs()).min()
    }

    /// The numbers of certificates among the trust anchors.
    fn anchor_counts(&self) -> AnchorCounts {
        let anchors = self.credentials.clients.get().cas.trust_anchors.as_deref();
        anchors.map(TrustAnchors::counts).unwrap_or_default()
    }

    /// The expiries of the service: in each role the certificate that expires first, and the CRL
    /// that expires first.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        let credentials = &self.credentials;
        let files = self.config.files();
        let mut expiries: BTreeMap<&str, Expiry> = BTreeMap::new();
        for (role, certificate) in credentials.certificates() {
            let (_, path) = files.of_role(role);
            let expiry = Expiry::from_certificate(self.name(), role, certificate, path);
            let first = expiries.entry(role.as_str()).or_insert_with(|| expiry.clone());
            if expiry.at < first.at {
                *first = expiry;
            }
        }
        let crls = credentials.crls().lists().into_iter();
        let crl = crls.min_by_key(|(list, _)| list.next_update);
        let crl = crl.map(|(list, path)| Expiry::from_crl(self.name(), list.next_update, path));
        let until = files.clients.accept_server_auth_until;
        let until = until.map(|until| Expiry::from_server_auth(self.name(), until));
        expiries.into_values().chain(crl).chain(until).collect()
    }
}
