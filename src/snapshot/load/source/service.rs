//! A service: its configuration, and the last good state of its certificates, keys, CAs and CRLs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::{info, warn};

use super::service_credentials::ServiceCredentials;
use crate::config::{ExpiredCrl, ServiceConfig};
use crate::guard::{CurrentGuard, Depth, Guard, Policy};
use crate::snapshot::current::Service;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::last_good::{Change, LastGood, ReadIf, Reread};
use crate::snapshot::load::own_key::OwnKey;
use crate::snapshot::report::{CertificateExpiry, ServiceReport};
use crate::snapshot::warning::Warning;
use crate::spki;
use crate::tls::{self, CertificateRole, CertificateSummary};

/// A configured service and the last good state of its files.
#[derive(Debug)]
pub(crate) struct ServiceSource {
    id: usize,
    config: Arc<ServiceConfig>,
    credentials: LastGood<ServiceCredentials>,
    /// Whether the expiry of a CRL was logged and applied.
    has_expired_crl: bool,
}

impl ServiceSource {
    /// Reads the files of a service for the first time. `before` is the same service in the
    /// previous configuration.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used, or a CRL is older than the one in `before`.
    pub(crate) fn load(
        id: usize,
        config: ServiceConfig,
        before: Option<&Self>,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let paths = config.files().into_iter().map(Path::to_owned).collect();
        let credentials = LastGood::load(paths, now, || {
            let mut credentials = ServiceCredentials::read(&config)?;
            if let Some(before) = before {
                let (previous, config_before) = (before.credentials.get(), &before.config);
                credentials.ensure_crls_not_older_than(previous, &config)?;
                credentials.reuse_unchanged(&config, previous, config_before);
            }
            Ok(credentials)
        })?;
        log_warnings(credentials.get(), &config, now);
        Ok(Self { id, config: Arc::new(config), credentials, has_expired_crl: false })
    }

    /// Reads the files again if one has changed, and applies the expiry of a CRL.
    pub(crate) fn refresh(&mut self, now: SystemTime) -> Change {
        let read = |before: &ServiceCredentials| {
            Ok(ServiceCredentials::read(&self.config).and_then(|credentials| {
                credentials.ensure_crls_not_older_than(before, &self.config)?;
                Ok(credentials)
            }))
        };
        match self.credentials.reread(ReadIf::Changed, now, read) {
            Reread::Pending => Change::Pending,
            Reread::Read(Ok(credentials)) => self.activate(credentials, now),
            Reread::Read(Err(error)) => self.reject(&error, now),
            Reread::Unchanged => self.apply_crl_expiry(now),
        }
    }

    fn activate(&mut self, mut credentials: ServiceCredentials, now: SystemTime) -> Change {
        credentials.reuse_unchanged(&self.config, self.credentials.get(), &self.config);
        log_warnings(&credentials, &self.config, now);
        self.credentials.replace(credentials, now);
        self.has_expired_crl = false;
        info!(service = %self.config.name, "certificates loaded");
        Change::Replaced
    }

    fn reject(&mut self, error: &LoadError, now: SystemTime) -> Change {
        warn!(%error, "certificate update rejected, keeping those in use");
        self.credentials.record_rejection(None, error, now);
        Change::Same
    }

    /// Rebuilds the client verifier once when a CRL expires, because it rejects clients that were
    /// admitted before. Their sessions must not resume, and their open connections are verified
    /// again.
    fn apply_crl_expiry(&mut self, now: SystemTime) -> Change {
        let has_expired = self.time_to_crl_expiry(now).is_some_and(|left| left.is_zero());
        if !has_expired || std::mem::replace(&mut self.has_expired_crl, true) {
            return Change::Same;
        }
        self.credentials.get_mut().rebuild_client_verifier(&self.config);
        warn!(service = %self.config.name, "certificate revocation list has expired");
        Change::Replaced
    }

    /// Time until clients are rejected because a CRL expires, zero if it has expired. `None` if
    /// expired CRLs are accepted or no CRL expires.
    pub(crate) fn time_to_crl_expiry(&self, now: SystemTime) -> Option<Duration> {
        let expiry = UNIX_EPOCH + self.credentials.get().crls.next_update?;
        let is_rejected = self.config.expired_crl == ExpiredCrl::Reject;
        is_rejected.then(|| expiry.duration_since(now).unwrap_or_default())
    }

    /// Builds the service of the next snapshot, whose handshakes judge keys with `guard`.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build(&self, guard: &CurrentGuard) -> Result<Service, LoadError> {
        let credentials = self.credentials.get();
        let tls = tls::server_config(
            &self.config.tls,
            Arc::clone(&credentials.server),
            Arc::clone(&credentials.client_verifier),
            guard.clone(),
            self.config.policy,
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
        let expiry = CertificateExpiry {
            server: expiry_of(CertificateRole::Server).unwrap_or_default(),
            trust_anchor: expiry_of(CertificateRole::TrustAnchor),
            upstream_client: expiry_of(CertificateRole::UpstreamClient),
            crl: self.crl_next_update(),
        };
        ServiceReport::new(&self.config, expiry, self.credentials.last_reload())
    }

    /// Expiry of the first CRL that expires, in seconds since the Unix epoch.
    pub(crate) fn crl_next_update(&self) -> Option<u64> {
        self.credentials.get().crls.next_update.map(|next| next.as_secs())
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

fn log_warnings(credentials: &ServiceCredentials, config: &ServiceConfig, now: SystemTime) {
    for warning in credentials.warnings(config, now) {
        warning.log();
    }
}
