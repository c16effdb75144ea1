//! The certificate and key files of a service, an authorizer or the readers, and how they are used.

use std::path::Path;
use std::sync::Arc;

use keygate_core::guard::AllowRules;
use keygate_core::tls::CertificateRole;

use crate::config::{
    AuthorizerConfig, ClientAuthConfig, Config, CredentialOwner, OpenAccess, PolicyConfig,
    Protocol, ReadersTls, ServiceConfig, TlsConfig, UpstreamTlsConfig, WebhookConfig,
};

/// The configuration keys that name the files with the CAs of clients.
pub(super) const TRUST_ANCHORS: &str = "client_auth.trust_anchors";
pub(super) const CAS: &str = "client_auth.cas";
/// The configuration key that names the files with CRLs.
pub(super) const CRLS: &str = "client_auth.crls";
/// The configuration key that names the files with the keys that sign assertions.
pub(super) const SIGNING_KEYS: &str = "policy.assertion.signing_keys";

/// The certificate and key files of a service or an authorizer, and how they are used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CredentialFiles<'a> {
    pub(super) name: &'a str,
    pub(super) is_authorizer: bool,
    /// Certificate and private key for TLS; an authorizer may have none.
    pub(super) server: Option<(&'a Path, &'a Path)>,
    /// The settings of a service towards its clients.
    pub(super) tls: Option<&'a TlsConfig>,
    /// Names that the certificate should have.
    pub(super) server_names: &'a [String],
    /// The CAs of the peers that ask an authorizer.
    pub(super) asker_ca: Option<&'a Path>,
    /// The webhooks of step-ca, each with the file of its secret.
    pub(super) webhooks: &'a [WebhookConfig],
    /// The CAs and CRLs of clients; an authorizer may trust the verification of the host instead.
    pub(super) clients: &'a ClientAuthConfig,
    pub(crate) policy: &'a PolicyConfig,
    /// Whether peers may connect that no setting names. A service identifies each client itself.
    pub(super) open_access: Option<OpenAccess>,
    pub(super) upstream: Option<(&'a UpstreamTlsConfig, Protocol)>,
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
        self.policy.decisions.allow.as_deref()
    }

    /// The alternative certificate and its private key.
    pub(super) fn alternative(&self) -> Option<(&'a Path, &'a Path)> {
        let alternative = self.tls?.alternative.as_ref()?;
        Some((&alternative.certificate, &alternative.private_key))
    }

    /// The files with the CAs of clients, each with the configuration key that names it.
    pub(super) fn cas(&self) -> impl Iterator<Item = (&'static str, &'a Path)> + use<'a> {
        let unbound = self.clients.trust_anchors.iter().map(|path| (TRUST_ANCHORS, path.as_path()));
        let bound = self.clients.cas.iter().map(|ca| (CAS, ca.file.as_path()));
        unbound.chain(bound)
    }

    /// The configuration key that names the file with the certificates of `role`, and its path; no
    /// path if two files have some.
    pub(super) fn of_role(&self, role: CertificateRole) -> (&'static str, Option<&'a Path>) {
        let certificate =
            |pair: Option<(&'a Path, &'a Path)>| pair.map(|(certificate, _)| certificate);
        let upstream = self.upstream.map(|(tls, _)| tls);
        match role {
            CertificateRole::AlternativeServer => {
                ("tls.alternative.certificate", certificate(self.alternative()))
            }
            CertificateRole::Assertion => (SIGNING_KEYS, None),
            CertificateRole::Intermediate => {
                ("client_auth.intermediates", self.clients.intermediates.as_deref())
            }
            CertificateRole::Server => ("tls.certificate", certificate(self.server)),
            CertificateRole::TrustAnchor => {
                let key = self.cas().next().map_or("tls.client_ca", |(key, _)| key);
                let mut paths = self.cas().map(|(_, path)| path).chain(self.asker_ca);
                (key, paths.next().filter(|_| paths.next().is_none()))
            }
            CertificateRole::UpstreamClient => {
                ("upstream.tls.certificate", upstream.and_then(|tls| tls.certificate.as_deref()))
            }
            CertificateRole::UpstreamTrustAnchor => {
                ("upstream.tls.trust_anchors", upstream.map(|tls| tls.trust_anchors.as_path()))
            }
        }
    }
}

/// A table of the configuration that names certificates, keys, CAs and CRLs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CredentialTable {
    Authorizer(Arc<AuthorizerConfig>),
    Readers(Arc<ReadersTable>),
    Service(Arc<ServiceConfig>),
}

/// The address for readers, which are verified and judged like the askers of an authorizer.
#[derive(Debug, PartialEq)]
pub(crate) struct ReadersTable {
    tls: ReadersTls,
    /// The global policy without assertions, for its own key.
    policy: PolicyConfig,
    /// No CAs of clients.
    clients: ClientAuthConfig,
}

impl CredentialTable {
    /// The services of a configuration, then its authorizers, then the address for readers.
    pub(crate) fn all(config: &Config) -> Vec<Self> {
        let services = config.services.iter().map(|it| Self::Service(Arc::new(it.clone())));
        let authorizers =
            config.authorizers.iter().map(|it| Self::Authorizer(Arc::new(it.clone())));
        let readers = config.admin.readers.iter().flat_map(|it| &it.tls).map(|tls| {
            let policy = PolicyConfig { assertion: None, ..config.policy.clone() };
            let clients = ClientAuthConfig::default();
            Self::Readers(Arc::new(ReadersTable { tls: tls.clone(), policy, clients }))
        });
        services.chain(authorizers).chain(readers).collect()
    }

    pub(crate) fn files(&self) -> CredentialFiles<'_> {
        match self {
            Self::Authorizer(config) => CredentialFiles {
                name: &config.name,
                is_authorizer: true,
                server: config.tls.as_ref().map(|it| (&*it.certificate, &*it.private_key)),
                tls: None,
                server_names: &[],
                asker_ca: config.tls.as_ref().and_then(|it| it.client_ca.as_deref()),
                webhooks: &config.webhooks,
                clients: &config.client_auth,
                policy: &config.policy,
                open_access: config.open_access(),
                upstream: None,
            },
            Self::Readers(readers) => CredentialFiles {
                name: ReadersTls::NAME,
                is_authorizer: true,
                server: Some((&readers.tls.certificate, &readers.tls.private_key)),
                tls: None,
                server_names: &[],
                asker_ca: Some(&readers.tls.client_ca),
                webhooks: &[],
                clients: &readers.clients,
                policy: &readers.policy,
                open_access: None,
                upstream: None,
            },
            Self::Service(config) => CredentialFiles {
                name: &config.name,
                is_authorizer: false,
                server: Some((&config.tls.certificate, &config.tls.private_key)),
                tls: Some(&config.tls),
                server_names: &config.server_names,
                asker_ca: None,
                webhooks: &[],
                clients: &config.client_auth,
                policy: &config.policy,
                open_access: None,
                upstream: config.upstream.tls.as_ref().map(|tls| (tls, config.protocol)),
            },
        }
    }
}
