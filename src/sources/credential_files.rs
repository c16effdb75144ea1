//! The certificate and key files of a service, an authorizer or the readers, and how they are used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{AllowRules, Policy};
use keygate_core::tls::CertificateRole;

use crate::config::{
    AuthorizerConfig, BoundCa, ClientAuthMode, Config, CredentialOwner, CrlConfig, ExpiredCrl,
    OpenAccess, PolicyConfig, Protocol, ReadersTls, RevocationDepth, ServiceConfig,
    SigningKeyConfig, TlsConfig, UpstreamTlsConfig, WebhookConfig,
};
use crate::sources::client_keys::{CAS, TRUST_ANCHORS};

/// The configuration key that names the files with the keys that sign assertions.
pub(super) const SIGNING_KEYS: &str = "policy.assertion.signing_keys";

/// The certificate and key files of a service or an authorizer, and how they are used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CredentialFiles<'a> {
    pub(super) name: &'a str,
    /// Certificate and private key for TLS; an authorizer may have none.
    pub(super) server: Option<(&'a Path, &'a Path)>,
    /// The alternative certificate and its private key.
    pub(super) alternative: Option<(&'a Path, &'a Path)>,
    /// The settings of a service towards its clients.
    pub(super) tls: Option<&'a TlsConfig>,
    /// The secrets of shared session tickets.
    pub(super) ticket_secret: Option<&'a Path>,
    /// Names that the certificate should have.
    pub(super) server_names: &'a [String],
    /// The CAs of the peers that ask an authorizer.
    pub(super) asker_ca: Option<&'a Path>,
    /// The webhooks of step-ca, each with the file of its secret.
    pub(super) webhooks: &'a [WebhookConfig],
    /// The keys that sign assertions.
    pub(super) signing_keys: &'a [SigningKeyConfig],
    /// The CAs of clients; an authorizer may trust the verification of the host instead.
    pub(super) trust_anchors: Option<&'a Path>,
    /// The CAs of clients that may vouch for some names only.
    pub(super) bound_cas: &'a [BoundCa],
    /// The decision for each verdict, and the rules by name.
    pub(super) policy: &'a Policy,
    /// Whether the process may run with a compromised key of the table.
    pub(crate) allow_compromised_own_key: bool,
    /// Whether peers may connect that no setting names. A service identifies each client itself.
    pub(super) open_access: Option<OpenAccess>,
    pub(super) intermediates: Option<&'a Path>,
    pub(super) crls: &'a [CrlConfig],
    pub(super) expired_crl: ExpiredCrl,
    pub(super) mode: ClientAuthMode,
    pub(super) revocation: RevocationDepth,
    pub(super) accept_server_auth_until: Option<SystemTime>,
    pub(super) max_new_hits: Option<usize>,
    pub(super) upstream: Option<(&'a UpstreamTlsConfig, Protocol)>,
    pub(super) is_authorizer: bool,
}

impl CredentialFiles<'_> {
    pub(super) fn owner(&self) -> CredentialOwner {
        let name = self.name.to_owned();
        if name == ReadersTls::NAME {
            CredentialOwner::Readers
        } else if self.is_authorizer {
            CredentialOwner::Authorizer(name)
        } else {
            CredentialOwner::Service(name)
        }
    }
}

impl<'a> CredentialFiles<'a> {
    /// The rules by name.
    pub(super) fn rules(&self) -> Option<&'a AllowRules> {
        self.policy.allow.as_deref()
    }

    /// The files with the CAs of clients, each with the configuration key that names it.
    pub(super) fn cas(&self) -> impl Iterator<Item = (&'static str, &'a Path)> + use<'a> {
        let unbound = self.trust_anchors.map(|path| (TRUST_ANCHORS, path));
        let bound = self.bound_cas.iter().map(|ca| (CAS, ca.file.as_path()));
        unbound.into_iter().chain(bound)
    }

    /// The files with the CAs and CRLs of clients.
    pub(super) fn of_clients(&self) -> Vec<PathBuf> {
        let cas = self.cas().map(|(_, path)| path).chain(self.intermediates);
        cas.map(Path::to_owned).chain(self.crls.iter().map(|crl| crl.path.clone())).collect()
    }

    /// The configuration key that names the file with the certificates of `role`.
    pub(super) fn key_of(&self, role: CertificateRole) -> &'static str {
        match role {
            CertificateRole::AlternativeServer => "tls.alternative.certificate",
            CertificateRole::Assertion => SIGNING_KEYS,
            CertificateRole::Intermediate => "client_auth.intermediates",
            CertificateRole::Server => "tls.certificate",
            CertificateRole::TrustAnchor => {
                self.cas().next().map_or("tls.client_ca", |(key, _)| key)
            }
            CertificateRole::UpstreamClient => "upstream.tls.certificate",
            CertificateRole::UpstreamTrustAnchor => "upstream.tls.trust_anchors",
        }
    }

    /// The file with the certificates of `role`; `None` if two files have some.
    pub(super) fn path_of(&self, role: CertificateRole) -> Option<&'a Path> {
        match role {
            CertificateRole::AlternativeServer => {
                self.alternative.map(|(certificate, _)| certificate)
            }
            CertificateRole::Assertion => None,
            CertificateRole::Intermediate => self.intermediates,
            CertificateRole::Server => self.server.map(|(certificate, _)| certificate),
            CertificateRole::TrustAnchor => {
                let mut paths = self.cas().map(|(_, path)| path).chain(self.asker_ca);
                paths.next().filter(|_| paths.next().is_none())
            }
            CertificateRole::UpstreamClient => {
                self.upstream.and_then(|(tls, _)| tls.certificate.as_deref())
            }
            CertificateRole::UpstreamTrustAnchor => {
                self.upstream.map(|(tls, _)| tls.trust_anchors.as_path())
            }
        }
    }
}

/// A table of the configuration that names certificates, keys, CAs and CRLs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CredentialTable {
    Authorizer(Arc<AuthorizerConfig>),
    /// TLS towards readers, and the global policy for its own key.
    Readers(Arc<(ReadersTls, PolicyConfig)>),
    Service(Arc<ServiceConfig>),
}

impl CredentialTable {
    /// The services of a configuration, then its authorizers, then the address for readers.
    pub(crate) fn all(config: &Config) -> Vec<Self> {
        let services = config.services.iter().map(|it| Self::Service(Arc::new(it.clone())));
        let authorizers =
            config.authorizers.iter().map(|it| Self::Authorizer(Arc::new(it.clone())));
        let readers = config.admin.readers.iter().flat_map(|it| &it.tls);
        let readers =
            readers.map(|it| Self::Readers(Arc::new((it.clone(), config.policy.clone()))));
        services.chain(authorizers).chain(readers).collect()
    }

    pub(crate) fn files(&self) -> CredentialFiles<'_> {
        match self {
            Self::Authorizer(config) => files_of_authorizer(config),
            Self::Readers(config) => files_of_readers(config),
            Self::Service(config) => files_of_service(config),
        }
    }
}

fn files_of_service(config: &ServiceConfig) -> CredentialFiles<'_> {
    let clients = &config.client_auth;
    CredentialFiles {
        name: &config.name,
        server: Some((&config.tls.certificate, &config.tls.private_key)),
        alternative: config.tls.alternative.as_ref().map(|it| (&*it.certificate, &*it.private_key)),
        tls: Some(&config.tls),
        ticket_secret: config.tls.ticket_secret.as_deref(),
        server_names: &config.server_names,
        asker_ca: None,
        webhooks: &[],
        signing_keys: config.policy.signing_keys(),
        trust_anchors: clients.trust_anchors.as_deref(),
        bound_cas: &clients.cas,
        policy: &config.policy.decisions,
        allow_compromised_own_key: config.policy.allow_compromised_own_key,
        open_access: None,
        intermediates: clients.intermediates.as_deref(),
        crls: &clients.crls,
        expired_crl: clients.expired_crl,
        mode: clients.mode,
        revocation: clients.revocation,
        accept_server_auth_until: clients.accept_server_auth_until,
        max_new_hits: clients.max_new_hits,
        upstream: config.upstream.tls.as_ref().map(|tls| (tls, config.protocol)),
        is_authorizer: false,
    }
}

fn files_of_authorizer(config: &AuthorizerConfig) -> CredentialFiles<'_> {
    let (tls, clients) = (config.tls.as_ref(), &config.client_auth);
    CredentialFiles {
        name: &config.name,
        server: tls.map(|tls| (tls.certificate.as_path(), tls.private_key.as_path())),
        alternative: None,
        tls: None,
        ticket_secret: None,
        server_names: &[],
        asker_ca: tls.and_then(|tls| tls.client_ca.as_deref()),
        webhooks: &config.webhooks,
        signing_keys: config.policy.signing_keys(),
        trust_anchors: clients.trust_anchors.as_deref(),
        bound_cas: &clients.cas,
        policy: &config.policy.decisions,
        allow_compromised_own_key: config.policy.allow_compromised_own_key,
        open_access: config.open_access(),
        intermediates: clients.intermediates.as_deref(),
        crls: &clients.crls,
        expired_crl: clients.expired_crl,
        mode: clients.mode,
        revocation: clients.revocation,
        accept_server_auth_until: clients.accept_server_auth_until,
        max_new_hits: clients.max_new_hits,
        upstream: None,
        is_authorizer: true,
    }
}

/// Readers are verified and judged like the askers of an authorizer.
fn files_of_readers((tls, policy): &(ReadersTls, PolicyConfig)) -> CredentialFiles<'_> {
    CredentialFiles {
        name: ReadersTls::NAME,
        server: Some((&tls.certificate, &tls.private_key)),
        alternative: None,
        tls: None,
        ticket_secret: None,
        server_names: &[],
        asker_ca: Some(&tls.client_ca),
        webhooks: &[],
        signing_keys: &[],
        trust_anchors: None,
        bound_cas: &[],
        policy: &policy.decisions,
        allow_compromised_own_key: policy.allow_compromised_own_key,
        open_access: None,
        intermediates: None,
        crls: &[],
        expired_crl: ExpiredCrl::Reject,
        mode: ClientAuthMode::Required,
        revocation: RevocationDepth::Path,
        accept_server_auth_until: None,
        max_new_hits: None,
        upstream: None,
        is_authorizer: true,
    }
}
