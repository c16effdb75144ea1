//! One service's certificate, key and trust anchors, and the last good state of the three.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::server::danger::ClientCertVerifier;
use tracing::{info, warn};

use super::super::ServiceReport;
use super::super::report::ReloadReport;
use super::{
    Change, CurrentGuard, LoadError, Policy, Seen, Service, ServiceConfig, read_bounded, tls,
    unix_seconds,
};
use crate::config::ExpiredCrl;
use crate::guard::{Depth, Guard, Verdict};
use crate::metrics::{Label, ReloadResult, Role};
use crate::spki;
use crate::tls::{
    CertificateSummary, ClientAuth, Credentials, MaterialError, RevocationLists, TrustAnchors,
};

/// The largest PEM file that is read, in bytes: some fifty times all public CAs together.
const MAX_PEM_SIZE: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct ServiceSource {
    config: Arc<ServiceConfig>,
    material: Material,
    seen: Vec<Seen>,
    /// Whether it is known that a revocation list is out of date.
    has_outdated_crl: bool,
    last_reload: ReloadReport,
}

#[derive(Debug)]
struct Material {
    credentials: Credentials,
    trust_anchors: TrustAnchors,
    revoked: RevocationLists,
    clients: Arc<dyn ClientCertVerifier>,
}

impl ServiceSource {
    pub(super) fn load(config: ServiceConfig, now: SystemTime) -> Result<Self, LoadError> {
        let seen = see(&config);
        let material = Material::read(&config)?;
        Ok(Self {
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
        let material = Material::read(&self.config).and_then(|material| {
            let followed = material.revoked.follow(&self.material.revoked);
            let file = self.config.crls.first().map_or(Path::new(""), PathBuf::as_path);
            followed.map_err(|source| broken(&self.config, (CRLS, file), source))?;
            Ok(material)
        });
        if see(&self.config) != seen {
            return Change::Pending; // changed while it was read: whatever was found, it is over
        }
        self.seen = seen;
        match material {
            Ok(mut material) => {
                if material.accepts_as(&self.material) {
                    // Open connections need not be looked at.
                    material.clients = Arc::clone(&self.material.clients);
                }
                self.material = material;
                self.has_outdated_crl = false;
                self.last_reload = ReloadReport::done(ReloadResult::Loaded, unix_seconds(now));
                info!(service = %self.config.name, "certificates loaded");
                Change::Replaced
            }
            Err(error) => {
                warn!(%error, "certificate update refused, those in use stay");
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
                warn!(service = %self.config.name, "a revocation list is out of date");
                self.material.clients = clients;
                Change::Replaced
            }
            Err(error) => {
                warn!(%error, "clients cannot be verified anew, those known stay");
                Change::Same
            }
        }
    }

    /// How long it is until clients are refused because a revocation list is out of date; no time if
    /// they are already.
    pub(super) fn crl_end(&self, now: SystemTime) -> Option<Duration> {
        let next = UNIX_EPOCH + self.material.revoked.next_update?;
        let counts = self.config.expired_crl == ExpiredCrl::Reject;
        counts.then(|| next.duration_since(now).unwrap_or_default())
    }

    pub(super) fn build(&self, index: usize, guard: &CurrentGuard) -> Result<Service, LoadError> {
        let tls = tls::server_config(
            &self.config.tls,
            Arc::clone(&self.material.credentials),
            Arc::clone(&self.material.clients),
            guard.clone(),
            self.config.policy,
        )
        .map_err(|source| LoadError::Tls { service: self.config.name.clone(), source })?;
        let (config, clients) = (Arc::clone(&self.config), Arc::clone(&self.material.clients));
        Ok(Service { index, config, clients, tls: Arc::new(tls) })
    }

    /// The keys of our own that a client would be refused with: the service's, and those of the CAs
    /// whose clients it accepts.
    pub(super) fn compromised_keys(&self, guard: &Guard, now: SystemTime) -> Vec<OwnKey> {
        let server = self.material.credentials.cert.iter().take(1).map(|cert| (Role::Server, cert));
        let anchors = self.material.trust_anchors.certificates.iter();
        let anchors = anchors.map(|cert| (Role::TrustAnchor, cert));
        let keys = server.chain(anchors).filter_map(|(role, cert)| {
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

    pub(super) fn tolerates_compromised_keys(&self) -> bool {
        self.config.allow_compromised_own_key
    }

    pub(super) fn policy(&self) -> Policy {
        self.config.policy
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        files(&self.config).map(|(_, path)| path.to_owned()).collect()
    }

    pub(super) fn report(&self) -> ServiceReport {
        ServiceReport::of(&self.config, self.not_after(), self.last_reload.clone())
    }

    /// When the first revocation list is no longer up to date, in seconds since the Unix epoch.
    pub(super) fn crl_next_update(&self) -> Option<u64> {
        self.material.revoked.next_update.map(|next| next.as_secs())
    }

    /// When the service's own certificate expires, in seconds since the Unix epoch; 0 if it does
    /// not say so where a certificate does.
    pub(super) fn not_after(&self) -> u64 {
        let leaf = self.material.credentials.cert.first();
        leaf.and_then(|leaf| spki::not_after(leaf).ok()).unwrap_or_default().as_secs()
    }
}

/// A key of our own that is in a filter or on a list.
#[derive(Debug, Clone)]
pub struct OwnKey {
    /// The service that it belongs to.
    pub service: String,
    /// What it is to the service.
    pub role: Role,
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

impl Material {
    fn read(config: &ServiceConfig) -> Result<Self, LoadError> {
        let [certificate, private_key, trust_anchors] = own_files(config);
        let broken = |file, source| broken(config, file, source);
        let chain = read(config, certificate)?;
        let key = read(config, private_key)?;
        let credentials = tls::credentials(&chain, &key).map_err(|source| match source {
            MaterialError::KeyMismatch | MaterialError::PrivateKey(_) => {
                broken(private_key, source)
            }
            MaterialError::Anchor { .. }
            | MaterialError::Crl { .. }
            | MaterialError::CrlRollback { .. }
            | MaterialError::NoCertificate
            | MaterialError::NoCrl
            | MaterialError::Pem(_) => broken(certificate, source),
        })?;
        let anchors = tls::trust_anchors(&read(config, trust_anchors)?)
            .map_err(|source| broken(trust_anchors, source))?;
        let mut revoked = RevocationLists::default();
        for path in &config.crls {
            let file = (CRLS, path.as_path());
            revoked.add(&read(config, file)?, &anchors).map_err(|source| broken(file, source))?;
        }
        let clients = accepting(config, &anchors, &revoked)?;
        Ok(Self { credentials, trust_anchors: anchors, revoked, clients })
    }

    /// The same verifier, made anew.
    fn verifier(&self, config: &ServiceConfig) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
        accepting(config, &self.trust_anchors, &self.revoked)
    }

    /// Whether the same certificates are accepted as with `other`.
    fn accepts_as(&self, other: &Self) -> bool {
        self.trust_anchors.certificates == other.trust_anchors.certificates
            && self.revoked.lists == other.revoked.lists
    }
}

fn broken(
    config: &ServiceConfig,
    (what, path): (&'static str, &Path),
    source: MaterialError,
) -> LoadError {
    LoadError::Material { service: config.name.clone(), what, path: path.to_owned(), source }
}

/// What accepts the clients of these CAs.
fn accepting(
    config: &ServiceConfig,
    trust_anchors: &TrustAnchors,
    revoked: &RevocationLists,
) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
    let client_auth = ClientAuth {
        trust_anchors,
        revoked,
        expired_crl: config.expired_crl,
        mode: config.client_auth_mode,
        depth: config.policy.judge,
    };
    let tls = |source| LoadError::Tls { service: config.name.clone(), source };
    client_auth.verifier().map_err(tls)
}

const CRLS: &str = "client_auth.crls";

/// Every file under the name of its configuration key.
fn files(config: &ServiceConfig) -> impl Iterator<Item = (&'static str, &Path)> {
    own_files(config).into_iter().chain(config.crls.iter().map(|path| (CRLS, path.as_path())))
}

/// Those that every service has.
fn own_files(config: &ServiceConfig) -> [(&'static str, &Path); 3] {
    [
        ("tls.certificate", &config.tls.certificate),
        ("tls.private_key", &config.tls.private_key),
        ("client_auth.trust_anchors", &config.trust_anchors),
    ]
}

fn see(config: &ServiceConfig) -> Vec<Seen> {
    files(config).map(|(_, path)| Seen::of(path)).collect()
}

fn read(config: &ServiceConfig, (what, path): (&'static str, &Path)) -> Result<Vec<u8>, LoadError> {
    read_bounded(path, MAX_PEM_SIZE).map_err(|source| LoadError::Read {
        service: config.name.clone(),
        what,
        path: path.to_owned(),
        source,
    })
}
