//! A service: its configuration, and the last good state of its certificates, keys, CAs and CRLs.

use std::sync::Arc;

use keygate_core::guard::CurrentGuard;
use keygate_core::tls::{self, CertificateRole, Deferral, Judging};

use super::credential_source::CredentialSource;
use crate::config::ServiceConfig;
use crate::snapshot::current::Service;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::report::{CrlReport, PolicyReport, ServiceReport};

/// A configured service and the last good state of its files.
pub(crate) type ServiceSource = CredentialSource<ServiceConfig>;

impl ServiceSource {
    /// Builds the service of the next snapshot, whose handshakes judge keys with `guard`.
    /// `deferral` selects the rejected clients that complete their handshakes.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build(
        &self,
        guard: &CurrentGuard,
        deferral: Option<&Arc<dyn Deferral>>,
    ) -> Result<Service, LoadError> {
        let credentials = &self.credentials;
        let (Some(server), Some(client_verifier)) =
            (credentials.key_pair(), &credentials.client_verifier)
        else {
            return Err(self.tls_error(rustls::Error::NoCertificatesPresented));
        };
        let tls = tls::server_config(
            self.config.tls.server_settings(),
            Arc::clone(server),
            Arc::clone(client_verifier),
            Judging {
                guard: guard.clone(),
                policy: self.config.policy.clone(),
                deferral: deferral.cloned(),
            },
        )
        .map_err(|source| self.tls_error(source))?;
        Ok(Service {
            id: self.id,
            config: Arc::clone(&self.config),
            client_verifier: Arc::clone(client_verifier),
            tls: Arc::new(tls),
            upstream_tls: credentials.upstream.get().as_ref().map(|it| Arc::clone(&it.tls)),
        })
    }

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
            upstream_certificate_not_after: self.expiry(CertificateRole::UpstreamClient),
            crl_next_update: crls.next_update(),
            crls: CrlReport::all(crls),
            last_reload: self.last_reload(),
            dry_run: self.gates.report(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::write;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
        KeyIdMethod, KeyPair, KeyUsagePurpose,
    };

    use super::ServiceSource;
    use crate::config::Config;
    use crate::metrics::ControlMetrics;
    use crate::snapshot::load::Loader;
    use crate::snapshot::load::ValueChange;
    use crate::snapshot::load::check::dry_run::{DryRun, Judges};
    use crate::snapshot::load::links::JudgementLinks;
    use keygate_core::guard::RecentKeys;
    use keygate_core::pkbf::{Filter, Parameters};

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
        Loader::start(&config, None, metrics, JudgementLinks::default()).unwrap().0
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_suppress_the_expiry_of_a_list() {
        const HOUR: Duration = Duration::from_secs(3600);
        let directory = tempfile::tempdir().unwrap();
        let mut loader = loader(directory.path(), HOUR);
        let source = &mut loader.sources.services[0];
        let now = SystemTime::now();
        let (recent, judges) = (RecentKeys::default(), Judges::default());
        let dry_run = DryRun::new(recent, judges, now, HashMap::new(), Vec::new());
        let is_replaced = |source: &mut ServiceSource, now| {
            source.refresh(now, &dry_run).contains(&ValueChange::Replaced)
        };
        assert!(is_replaced(source, now + 1000 * HOUR));
        assert!(!is_replaced(source, now));
        assert!(source.time_to_crl_check(now).is_some_and(|left| left <= HOUR));
        assert!(is_replaced(source, now + 2 * HOUR));
        assert!(!is_replaced(source, now + 2 * HOUR));
    }
}
