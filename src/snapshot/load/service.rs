//! One service: its configuration and the last good state of its certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::{info, warn};

use super::super::ServiceReport;
use super::super::report::ReloadReport;
use super::material::{ServiceCredentials, see};
use super::secret::ExposedKeyFile;
use super::{
    Change, CurrentGuard, FileState, LoadError, Policy, Service, ServiceConfig, tls, unix_seconds,
};
use crate::config::ExpiredCrl;
use crate::guard::{Depth, Guard, Verdict};
use crate::metrics::ReloadResult;
use crate::spki;
use crate::tls::{CertificateRole, CertificateSummary};

#[derive(Debug)]
pub(super) struct ServiceSource {
    index: usize,
    config: Arc<ServiceConfig>,
    material: ServiceCredentials,
    seen: Vec<FileState>,
    /// Whether it is known that a revocation list is out of date.
    has_outdated_crl: bool,
    last_reload: ReloadReport,
}

impl ServiceSource {
    pub(super) fn load(
        index: usize,
        config: ServiceConfig,
        before: Option<&Self>,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let seen = see(&config);
        let mut material = ServiceCredentials::read(&config)?;
        if let Some(before) = before {
            material.ensure_crls_not_older_than(&config, &before.material)?;
            material.reuse_unchanged(&config, &before.material, &before.config);
        }
        warn_of(&material);
        Ok(Self {
            index,
            config: Arc::new(config),
            material,
            seen,
            has_outdated_crl: false,
            last_reload: ReloadReport::done(ReloadResult::Loaded, unix_seconds(now)),
        })
    }

    pub(super) fn refresh(&mut self, now: SystemTime) -> Change {
        let seen = see(&self.config);
        if seen == self.seen {
            return self.look_at_crls(now);
        }
        if !seen.iter().all(|seen| seen.is_settled(now)) {
            return Change::Pending;
        }
        let material = ServiceCredentials::read(&self.config).and_then(|material| {
            material.ensure_crls_not_older_than(&self.config, &self.material)?;
            Ok(material)
        });
        if see(&self.config) != seen {
            return Change::Pending; // changed while it was read: whatever was found, it is over
        }
        self.seen = seen;
        match material {
            Ok(mut material) => {
                material.reuse_unchanged(&self.config, &self.material, &self.config);
                warn_of(&material);
                self.material = material;
                self.has_outdated_crl = false;
                self.last_reload = ReloadReport::done(ReloadResult::Loaded, unix_seconds(now));
                info!(service = %self.config.name, "certificates loaded");
                Change::Replaced
            }
            Err(error) => {
                warn!(%error, "certificate update rejected, keeping those in use");
                self.last_reload =
                    ReloadReport::refused(None, error.to_string(), unix_seconds(now));
                Change::Same
            }
        }
    }

    /// A revocation list that is out of date from now on refuses clients whom it let in before: their
    /// sessions must not resume, and their open connections are looked at.
    fn look_at_crls(&mut self, now: SystemTime) -> Change {
        let is_outdated = self.crl_end(now).is_some_and(|left| left.is_zero());
        if !is_outdated || std::mem::replace(&mut self.has_outdated_crl, true) {
            return Change::Same;
        }
        match self.material.verifier(&self.config) {
            Ok(clients) => {
                warn!(service = %self.config.name, "certificate revocation list has expired");
                self.material.clients = clients;
                Change::Replaced
            }
            Err(error) => {
                warn!(%error, "cannot rebuild client verifier, keeping the old one");
                Change::Same
            }
        }
    }

    /// How long it is until clients are refused because a revocation list is out of date; no time if
    /// they are already.
    pub(super) fn crl_end(&self, now: SystemTime) -> Option<Duration> {
        let next = UNIX_EPOCH + self.material.crls.next_update?;
        let counts = self.config.expired_crl == ExpiredCrl::Reject;
        counts.then(|| next.duration_since(now).unwrap_or_default())
    }

    pub(super) fn build(&self, guard: &CurrentGuard) -> Result<Service, LoadError> {
        let tls = tls::server_config(
            &self.config.tls,
            Arc::clone(&self.material.credentials),
            Arc::clone(&self.material.clients),
            guard.clone(),
            self.config.policy,
        )
        .map_err(|source| LoadError::Tls { service: self.config.name.clone(), source })?;
        Ok(Service {
            index: self.index,
            config: Arc::clone(&self.config),
            clients: Arc::clone(&self.material.clients),
            tls: Arc::new(tls),
            upstream_tls: self.material.upstream.as_ref().map(|side| Arc::clone(&side.tls)),
        })
    }

    /// The keys of our own that a client would be refused with: the service's, that which it has as
    /// a client of its upstream, and those of the CAs that it trusts on either side.
    pub(super) fn compromised_keys(&self, guard: &Guard, now: SystemTime) -> Vec<OwnKey> {
        let keys = self.material.certificates().filter_map(|(role, cert)| {
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

    pub(super) fn exposed_key_files(&self) -> &[ExposedKeyFile] {
        &self.material.loose
    }

    pub(super) fn tolerates_compromised_keys(&self) -> bool {
        self.config.allow_compromised_own_key
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn config(&self) -> &ServiceConfig {
        &self.config
    }

    pub(super) fn policy(&self) -> Policy {
        self.config.policy
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.config.files().into_iter().map(Path::to_owned).collect()
    }

    pub(super) fn report(&self) -> ServiceReport {
        let end_of = |wanted| {
            self.certificate_ends().find_map(|(role, end)| (role == wanted).then_some(end))
        };
        let ends = (
            end_of(CertificateRole::Server).unwrap_or_default(),
            end_of(CertificateRole::UpstreamClient),
        );
        ServiceReport::of(&self.config, ends, self.crl_next_update(), self.last_reload.clone())
    }

    /// When the first revocation list is no longer up to date, in seconds since the Unix epoch.
    pub(super) fn crl_next_update(&self) -> Option<u64> {
        self.material.crls.next_update.map(|next| next.as_secs())
    }

    /// When the service's own certificates expire, in seconds since the Unix epoch; 0 if one does not
    /// say so where a certificate does.
    pub(super) fn certificate_ends(&self) -> impl Iterator<Item = (CertificateRole, u64)> {
        let own = self.material.certificates();
        let own = own.filter(|(role, _)| {
            matches!(role, CertificateRole::Server | CertificateRole::UpstreamClient)
        });
        own.map(|(role, leaf)| (role, spki::not_after(leaf).unwrap_or_default().as_secs()))
    }
}

fn warn_of(material: &ServiceCredentials) {
    for problem in &material.loose {
        warn!(%problem, "private key file has unsafe permissions");
    }
}

/// A key of our own that is in a filter or on a list.
#[derive(Debug, Clone)]
pub struct OwnKey {
    /// The service that it belongs to.
    pub service: String,
    /// What it is to the service.
    pub role: CertificateRole,
    /// The certificate with the key.
    pub certificate: CertificateSummary,
    /// What is known of it.
    pub verdict: Verdict,
}

impl std::fmt::Display for OwnKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { service, role, certificate, verdict } = self;
        let CertificateSummary { subject, fingerprint, .. } = certificate;
        let role = role.as_str();
        write!(
            formatter,
            "service {service:?}: the key of its {role} ({subject}, {fingerprint}) "
        )?;
        match (verdict.hit(), verdict.listing()) {
            (Some(hit), _) => {
                write!(formatter, "is in filter {:?}, revision {}", hit.filter, hit.revision)
            }
            (None, Some(listing)) => write!(formatter, "is on list {:?}", listing.list),
            (None, None) => write!(formatter, "is {}", verdict.as_str()),
        }
    }
}
