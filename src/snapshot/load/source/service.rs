//! A service: its configuration, and the last good state of its certificates, keys, CAs and CRLs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use super::service_credentials::{CRLS, KnownCrls, ServiceCredentials};
use crate::config::{ExpiredCrl, ServiceConfig};
use crate::guard::{CurrentGuard, Depth, Guard, Policy};
use crate::metrics::{ControlMetrics, Label};
use crate::snapshot::crl_rejection_reason::CrlRejectionReason;
use crate::snapshot::current::Service;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::load::load_errors::LoadErrors;
use crate::snapshot::load::own_key::OwnKey;
use crate::snapshot::load::source::LoadContext;
use crate::snapshot::report::{CertificateExpiry, ServiceReport};
use crate::snapshot::warning::Warning;
use crate::spki;
use crate::tls::{
    self, CertificateRole, CertificateSummary, CrlError, CrlMarks, Deferral, Judging, TlsFileError,
};
use crate::unix_time::{self, rfc3339};

/// A configured service and the last good state of its files.
#[derive(Debug)]
pub(crate) struct ServiceSource {
    id: usize,
    config: Arc<ServiceConfig>,
    credentials: LastGood<ServiceCredentials>,
    metrics: ControlMetrics,
    /// The newest CRLs that were in use.
    crl_marks: CrlMarks,
    /// The expiries of CRLs up to this time were logged and applied, in seconds since the Unix
    /// epoch.
    crls_checked_at: u64,
    /// When files with a CRL that is dated in the future are read again, in seconds since the Unix
    /// epoch.
    retry_at: Option<u64>,
    /// Whether a CRL was rejected at the last check.
    is_crl_rejected: bool,
}

impl ServiceSource {
    /// Reads the files of a service for the first time. `before` is the same service in the
    /// previous configuration.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used. One of them is a CRL that is older than
    /// one that was in use.
    pub(super) fn load(
        id: usize,
        config: ServiceConfig,
        before: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadErrors> {
        let now = unix_time::seconds(context.now);
        let paths = config.files().into_iter().map(Path::to_owned).collect();
        let own = before.map(|before| &before.crl_marks);
        let mut crl_marks = context.crl_state.marks(&config.name, own, context.services);
        let credentials = LastGood::load(paths, context.now, context.max_wait, || {
            let in_use = before.map(|before| before.credentials.get().crls.as_ref());
            // A new configuration may name fewer CRLs.
            let known = KnownCrls { in_use, keep_issuers: false, marks: &crl_marks, now };
            let mut credentials = ServiceCredentials::read(&config, known)?;
            if let Some(before) = before {
                credentials.reuse_unchanged(&config, before.credentials.get(), &before.config);
            }
            Ok::<_, LoadErrors>(credentials)
        })?;
        log_warnings(credentials.get(), &config, context.now);
        credentials.get().crls.raise(&mut crl_marks);
        Ok(Self {
            id,
            config: Arc::new(config),
            credentials,
            metrics: context.metrics.clone(),
            crl_marks,
            // A CRL may have expired since the last check, and the verifier may be the same.
            crls_checked_at: before.map_or(now, |before| before.crls_checked_at),
            retry_at: None,
            is_crl_rejected: false,
        })
    }

    /// Reads the files again if one has changed, and applies the expiry of a CRL.
    pub(crate) fn refresh(&mut self, now: SystemTime) -> ValueChange {
        let seconds = unix_time::seconds(now);
        let is_due = self.retry_at.is_some_and(|due| due <= seconds);
        let read_if = if is_due { ReadIf::Always } else { ReadIf::Changed };
        let read = |before: &ServiceCredentials| {
            let (in_use, marks) = (Some(before.crls.as_ref()), &self.crl_marks);
            let known = KnownCrls { in_use, keep_issuers: true, marks, now: seconds };
            ServiceCredentials::read(&self.config, known)
        };
        match self.credentials.reread(read_if, now, read) {
            // The writer of a file must not delay the expiry of a CRL.
            Reread::Pending => match self.apply_crl_expiry(now) {
                ValueChange::Replaced => ValueChange::Replaced,
                ValueChange::Pending | ValueChange::Same => ValueChange::Pending,
            },
            Reread::Read(Ok(credentials)) => self.activate(credentials, now),
            Reread::Read(Err(errors)) => self.reject(&errors, now),
            Reread::Unchanged => self.apply_crl_expiry(now),
        }
    }

    fn activate(&mut self, mut credentials: ServiceCredentials, now: SystemTime) -> ValueChange {
        credentials.reuse_unchanged(&self.config, self.credentials.get(), &self.config);
        log_warnings(&credentials, &self.config, now);
        credentials.crls.raise(&mut self.crl_marks);
        self.credentials.replace(credentials, now);
        self.retry_at = None;
        self.is_crl_rejected = false;
        info!(service = %self.config.name, "certificates loaded");
        // A list that is still in use may have expired meanwhile.
        self.apply_crl_expiry(now);
        ValueChange::Replaced
    }

    fn reject(&mut self, errors: &LoadErrors, now: SystemTime) -> ValueChange {
        let reason = crl_rejection_reason(errors);
        self.retry_at = retry_at(errors);
        self.is_crl_rejected |= reason.is_some();
        if self.credentials.record_rejection(reason.map(Label::as_str), errors, now) {
            if let Some(reason) = reason {
                self.metrics.record_crl_rejected(&self.config.name, reason);
            }
            let reason = reason.map(Label::as_str);
            warn!(reason, error = %errors, "certificate update rejected, keeping those in use");
        }
        self.apply_crl_expiry(now)
    }

    /// Rebuilds the client verifier when a CRL expires, because it rejects clients that were
    /// admitted before. Their sessions must not resume, and their open connections are verified
    /// again.
    fn apply_crl_expiry(&mut self, now: SystemTime) -> ValueChange {
        let now = unix_time::seconds(now);
        let next = self.next_crl_expiry();
        // Not the latest time: a clock that was ahead must not suppress later expiries.
        self.crls_checked_at = now;
        if next.is_none_or(|next| next > now) {
            return ValueChange::Same;
        }
        self.credentials.get_mut().rebuild_client_verifier(&self.config);
        for (list, path) in self.credentials.get().crls.lists() {
            if next.is_some_and(|next| (next..=now).contains(&list.next_update)) {
                let next_update = rfc3339(list.next_update);
                let (issuer, path) = (&list.issuer, path.display());
                warn!(service = %self.config.name, %issuer, %path, %next_update, "certificate revocation list has expired");
            }
        }
        ValueChange::Replaced
    }

    /// When clients are next rejected because a CRL expires, in seconds since the Unix epoch. `None`
    /// if expired CRLs are accepted or no CRL is left that expires.
    fn next_crl_expiry(&self) -> Option<u64> {
        match self.config.expired_crl {
            ExpiredCrl::Accept => None,
            ExpiredCrl::Reject => {
                self.credentials.get().crls.next_update_after(self.crls_checked_at)
            }
        }
    }

    /// Time until clients are rejected because a CRL expires, or until a rejected CRL is due. `None`
    /// if neither happens.
    pub(crate) fn time_to_crl_check(&self, now: SystemTime) -> Option<Duration> {
        let next = self.next_crl_expiry().into_iter().chain(self.retry_at).min()?;
        let next = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(next))?;
        Some(next.duration_since(now).unwrap_or_default())
    }

    /// The newest CRLs that were in use.
    pub(crate) fn crl_marks(&self) -> &CrlMarks {
        &self.crl_marks
    }

    /// Sets the metrics of the CRLs, if there are any.
    pub(crate) fn show_crls(&self) {
        let crls = &self.credentials.get().crls;
        let Some(next_update) = crls.next_update() else { return };
        let entries = crls.lists().iter().map(|(list, _)| list.entries()).sum();
        self.metrics.show_crls::<CrlRejectionReason>(self.name(), next_update, entries);
        self.metrics.set_crl_last_reload_successful(self.name(), !self.is_crl_rejected);
    }

    /// Builds the service of the next snapshot, whose handshakes judge keys with `guard`. `deferral`
    /// selects the rejected clients that complete their handshakes.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build(
        &self,
        guard: &CurrentGuard,
        deferral: Option<&Arc<dyn Deferral>>,
    ) -> Result<Service, LoadError> {
        let credentials = self.credentials.get();
        let tls = tls::server_config(
            &self.config.tls,
            Arc::clone(&credentials.server),
            Arc::clone(&credentials.client_verifier),
            Judging {
                guard: guard.clone(),
                policy: self.config.policy,
                deferral: deferral.cloned(),
            },
        )
        .map_err(|source| LoadError::Tls { service: self.config.name.clone(), source })?;
        Ok(Service {
            id: self.id,
            config: Arc::clone(&self.config),
            client_verifier: Arc::clone(&credentials.client_verifier),
            tls: Arc::new(tls),
            upstream_tls: credentials.upstream.as_ref().map(|it| Arc::clone(&it.tls)),
        })
    }

    /// The keys in a filter or on a list: of the service's own certificates, and of the CAs that it
    /// trusts on either side.
    pub(crate) fn compromised_keys(&self, guard: &Guard, now: SystemTime) -> Vec<OwnKey> {
        let keys = self.credentials.get().certificates().filter_map(|(role, cert)| {
            let verdict = guard.judge(std::slice::from_ref(cert), Depth::Leaf, now);
            let is_hit = verdict.hit().is_some() || verdict.listing().is_some();
            is_hit.then(|| OwnKey {
                service: self.config.name.clone(),
                role,
                certificate: CertificateSummary::of(cert),
                verdict,
            })
        });
        keys.collect()
    }

    /// The conditions of the files that an operator must mend.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<Warning> {
        self.credentials.get().warnings(&self.config, now)
    }

    /// Whether the service may run with compromised keys of its own.
    pub(crate) fn tolerates_compromised_keys(&self) -> bool {
        self.config.allow_compromised_own_key
    }

    /// Id of the service.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    /// The configuration of the service.
    pub(crate) fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// The policy of the service.
    pub(crate) fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Name of the service.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Paths of all files of the service.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.credentials.paths()
    }

    /// The service and the result of the last attempt to read its files.
    pub(crate) fn report(&self) -> ServiceReport {
        let expiry_of = |wanted| {
            self.certificate_expiries()
                .find_map(|(role, expiry)| (role == wanted).then_some(expiry))
        };
        let crls = &self.credentials.get().crls;
        let expiry = CertificateExpiry {
            server: expiry_of(CertificateRole::Server).unwrap_or_default(),
            trust_anchor: expiry_of(CertificateRole::TrustAnchor),
            upstream_client: expiry_of(CertificateRole::UpstreamClient),
            crl: crls.next_update(),
        };
        ServiceReport::new(&self.config, expiry, crls, self.credentials.last_reload())
    }

    /// Expiry of the service's own leaf certificates, and of the client CA that expires first, in
    /// seconds since the Unix epoch; 0 if it cannot be parsed.
    pub(crate) fn certificate_expiries(&self) -> impl Iterator<Item = (CertificateRole, u64)> {
        let expiry = |wanted| {
            let certificates = self.credentials.get().certificates();
            let of_role = certificates.filter(|(role, _)| *role == wanted);
            let expiries =
                of_role.map(|(_, cert)| spki::not_after(cert).unwrap_or_default().as_secs());
            expiries.min().map(|expiry| (wanted, expiry))
        };
        let roles = [
            CertificateRole::Server,
            CertificateRole::UpstreamClient,
            CertificateRole::TrustAnchor,
        ];
        roles.into_iter().filter_map(expiry)
    }
}

/// The class of the first rejected CRL, if there is one.
fn crl_rejection_reason(errors: &LoadErrors) -> Option<CrlRejectionReason> {
    errors.iter().find_map(|error| {
        if let LoadError::Credentials { key: CRLS, source, .. } = error {
            return Some(CrlRejectionReason::of(source));
        }
        let is_unreadable = matches!(error, LoadError::Read { key: CRLS, .. });
        is_unreadable.then_some(CrlRejectionReason::Io)
    })
}

/// When a CRL can be used without a change of its file, because its date has come.
fn retry_at(errors: &LoadErrors) -> Option<u64> {
    let due = errors.iter().filter_map(|error| {
        if let LoadError::Credentials { source: TlsFileError::Crl { source, .. }, .. } = error
            && let CrlError::Future { this_update, .. } = source
        {
            return Some(this_update.saturating_sub(tls::MAX_CLOCK_SKEW));
        }
        None
    });
    due.min()
}

fn log_warnings(credentials: &ServiceCredentials, config: &ServiceConfig, now: SystemTime) {
    for warning in credentials.warnings(config, now) {
        warning.log();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::write;

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
        KeyIdMethod, KeyPair, KeyUsagePurpose,
    };

    use super::*;
    use crate::config::Config;
    use crate::pkbf::{Filter, Parameters};
    use crate::snapshot::load::Loader;
    use crate::snapshot::load::links::JudgementLinks;

    const CONFIGURATION: &str = r#"
        filters = [{ name = "lost", path = "lost.pkbf" }]
        [[services]]
        name = "test"
        listen = "127.0.0.1:0"
        tls = { certificate = "server.pem", private_key = "server.key" }
        client_auth = { trust_anchors = "ca.pem", crls = ["clients.crl"] }
        upstream = { servers = ["http://127.0.0.1:1"] }
    "#;

    /// A loader of a service whose list expires in `lasts`.
    fn loader(directory: &Path, lasts: Duration) -> Loader {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = parameters.self_signed(&key).unwrap();
        write(directory.join("ca.pem"), ca.pem()).unwrap();
        write(directory.join("server.pem"), ca.pem()).unwrap();
        write(directory.join("server.key"), key.serialize_pem()).unwrap();
        let now = SystemTime::now();
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + lasts).into(),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&Issuer::new(parameters, key)).unwrap();
        write(directory.join("clients.crl"), list.pem().unwrap()).unwrap();
        let filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        let (header, bits) = filter.to_parts();
        write(directory.join("lost.pkbf"), [&header[..], bits].concat()).unwrap();
        let config = Config::parse(&directory.join("keygate.toml"), CONFIGURATION).unwrap();
        let metrics = ControlMetrics::new().unwrap();
        Loader::start(&config, metrics, JudgementLinks::default()).unwrap().0
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_suppress_the_expiry_of_a_list() {
        const HOUR: Duration = Duration::from_secs(3600);
        let directory = tempfile::tempdir().unwrap();
        let mut loader = loader(directory.path(), HOUR);
        let source = &mut loader.sources.services[0];
        let now = SystemTime::now();
        assert_eq!(source.refresh(now + 1000 * HOUR), ValueChange::Replaced);
        assert_eq!(source.refresh(now), ValueChange::Same);
        assert!(source.time_to_crl_check(now).is_some_and(|left| left <= HOUR));
        assert_eq!(source.refresh(now + 2 * HOUR), ValueChange::Replaced);
        assert_eq!(source.refresh(now + 2 * HOUR), ValueChange::Same);
    }
}
