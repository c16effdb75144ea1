//! A service: its configuration, and the last good state of its certificates, keys, CAs and CRLs.

use keygate_core::tls::CertificateRole;

use super::credential_source::CredentialSource;
use crate::config::ServiceConfig;
use crate::sources::report::{CrlReport, PolicyReport, ServiceReport};

/// A configured service and the last good state of its files.
pub(crate) type ServiceSource = CredentialSource<ServiceConfig>;

impl ServiceSource {
    /// The service and the result of the last attempt to read its files.
    pub(crate) fn report(&self) -> ServiceReport {
        let (config, crls) = (&self.config, self.credentials.crls());
        ServiceReport {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            server_names: config.server_names.clone(),
            upstream: config.upstream.servers.iter().map(ToString::to_string).collect(),
            max_connections: config.limits.max_connections,
            policy: PolicyReport::new(&config.policy),
            certificate_not_after: self.expiry(CertificateRole::Server).unwrap_or_default(),
            trust_anchor_not_after: self.expiry(CertificateRole::TrustAnchor),
            trust_anchors: self.anchor_counts(),
            intermediates: self.credentials.intermediates().len(),
            upstream_certificate_not_after: self.expiry(CertificateRole::UpstreamClient),
            crl_next_update: crls.next_update(),
            crls: CrlReport::all(crls),
            last_reload: self.last_reload(),
            dry_run: self.gates.report(),
        }
    }
}
