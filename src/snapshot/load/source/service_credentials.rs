//! Loads the certificates, keys, CAs and CRLs of one service.

mod client_cas;
mod service_file;
mod warnings;

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use self::client_cas::ClientCas;
pub(super) use self::client_cas::{CRLS, KnownCrls};
use self::service_file::{KeyPair, ServiceFile};
use crate::config::{AlpnProtocol, ClientAuthMode, Protocol, ServiceConfig, UpstreamTlsConfig};
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::load_errors::{LoadErrors, both};
use crate::snapshot::load::private_key::ExposedKeyFile;
use crate::spki::Fingerprint;
use crate::tls::{self, CertificateRole, ClientVerifier, Credentials, Crls, TrustAnchors};

/// The certificates, keys, CAs and CRLs of a service.
#[derive(Debug)]
pub(super) struct ServiceCredentials {
    /// The service's own certificate chain and key.
    pub(super) server: Credentials,
    pub(super) trust_anchors: Arc<TrustAnchors>,
    /// The CAs in `client_auth.intermediates`.
    intermediates: Vec<CertificateDer<'static>>,
    /// The CRLs of the `trust_anchors` and `intermediates`.
    pub(super) crls: Arc<Crls>,
    /// Private key files with unsafe permissions.
    exposed_key_files: Vec<ExposedKeyFile>,
    /// Verifies client certificates against the `trust_anchors` and `crls`.
    pub(super) client_verifier: Arc<ClientVerifier>,
    /// The credentials for the upstream; `None` if it does not use TLS.
    pub(super) upstream: Option<UpstreamCredentials>,
}

/// The certificates and keys for TLS towards the upstream.
#[derive(Debug)]
pub(super) struct UpstreamCredentials {
    client: Option<Credentials>,
    trust_anchors: TrustAnchors,
    /// Fingerprint of the content of all files.
    digest: Fingerprint,
    /// The TLS client configuration.
    pub(super) tls: Arc<ClientConfig>,
}

impl ServiceCredentials {
    /// Reads all files of the service.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used.
    pub(super) fn read(config: &ServiceConfig, known: KnownCrls<'_>) -> Result<Self, LoadErrors> {
        let file = |key, path| ServiceFile { service: &config.name, key, path };
        let server = KeyPair::read(
            file("tls.certificate", &config.tls.certificate),
            file("tls.private_key", &config.tls.private_key),
        );
        let client = ClientCas::read(config, known);
        let upstream = config.upstream.tls.as_ref();
        let upstream = upstream.map(|files| UpstreamCredentials::read(config, files)).transpose();
        let ((server, client), upstream) = both(both(server, client), upstream)?;
        let client_verifier = client_verifier(config, &client.trust_anchors, &client.crls);
        let (upstream, exposed) = upstream.unzip();
        Ok(Self {
            server: server.credentials,
            trust_anchors: client.trust_anchors,
            intermediates: client.intermediates,
            crls: client.crls,
            exposed_key_files: server.exposed.into_iter().chain(exposed.flatten()).collect(),
            client_verifier,
            upstream,
        })
    }

    /// Builds a new client verifier, so that open connections are verified again.
    pub(super) fn rebuild_client_verifier(&mut self, config: &ServiceConfig) {
        self.client_verifier = client_verifier(config, &self.trust_anchors, &self.crls);
    }

    /// Reuses the previous client verifier and TLS client configuration if nothing that they are
    /// built from has changed. Open connections then need no new check.
    pub(super) fn reuse_unchanged(
        &mut self,
        config: &ServiceConfig,
        before: &Self,
        config_before: &ServiceConfig,
    ) {
        let settings = |config: &ServiceConfig| {
            (config.client_auth_mode, config.expired_crl, config.policy.judge)
        };
        if settings(config) == settings(config_before)
            && self.trust_anchors.certificates == before.trust_anchors.certificates
            && self.crls.has_same_lists(&before.crls)
        {
            self.client_verifier = Arc::clone(&before.client_verifier);
        }
        if let (Some(upstream), Some(before)) = (&mut self.upstream, &before.upstream)
            && upstream.digest == before.digest
            && config.protocol == config_before.protocol
        {
            upstream.tls = Arc::clone(&before.tls);
        }
    }

    /// The leaf certificates of the service and the CAs that it trusts on either side.
    pub(super) fn certificates(
        &self,
    ) -> impl Iterator<Item = (CertificateRole, &CertificateDer<'static>)> {
        let upstream = self.upstream.as_ref();
        let server = self.server.cert.first();
        let client = upstream.and_then(|it| it.client.as_ref()?.cert.first());
        let client_cas = self.trust_anchors.certificates.iter();
        let upstream_cas = upstream.into_iter().flat_map(|it| &it.trust_anchors.certificates);
        server
            .map(|cert| (CertificateRole::Server, cert))
            .into_iter()
            .chain(client.map(|cert| (CertificateRole::UpstreamClient, cert)))
            .chain(client_cas.map(|cert| (CertificateRole::TrustAnchor, cert)))
            .chain(self.intermediates.iter().map(|cert| (CertificateRole::Intermediate, cert)))
            .chain(upstream_cas.map(|cert| (CertificateRole::UpstreamTrustAnchor, cert)))
    }
}

impl UpstreamCredentials {
    /// Reads all files for the upstream. Returns the private key file too if its permissions are
    /// unsafe.
    fn read(
        config: &ServiceConfig,
        files: &UpstreamTlsConfig,
    ) -> Result<(Self, Option<ExposedKeyFile>), LoadErrors> {
        let file = |key, path| ServiceFile { service: &config.name, key, path };
        let anchors = file("upstream.tls.trust_anchors", &files.trust_anchors);
        let trusted = anchors.read().and_then(|content| {
            let trust_anchors = anchors.trust_anchors(&content)?;
            Ok((content, trust_anchors))
        });
        let pair = files.identity.as_ref().map(|identity| {
            KeyPair::read(
                file("upstream.tls.certificate", &identity.certificate),
                file("upstream.tls.private_key", &identity.private_key),
            )
        });
        let ((mut content, trust_anchors), pair) = both(trusted, pair.transpose())?;
        let (client, exposed) = match pair {
            None => (None, None),
            Some(KeyPair { credentials, digests, exposed }) => {
                content.extend(digests);
                (Some(credentials), exposed)
            }
        };
        let alpn: &[&[u8]] = match config.protocol {
            Protocol::Http => &[AlpnProtocol::H2.as_bytes(), AlpnProtocol::Http11.as_bytes()],
            Protocol::Tcp => &[],
        };
        let tls = tls::client_config(&trust_anchors, client.as_ref(), alpn)
            .map_err(|source| LoadError::Tls { service: config.name.clone(), source })?;
        let digest = Fingerprint::of(&content);
        Ok((Self { client, trust_anchors, digest, tls: Arc::new(tls) }, exposed))
    }
}

fn client_verifier(
    config: &ServiceConfig,
    trust_anchors: &Arc<TrustAnchors>,
    crls: &Arc<Crls>,
) -> Arc<ClientVerifier> {
    let verifier = ClientVerifier::new(Arc::clone(trust_anchors));
    let verifier = verifier.with_crls(Arc::clone(crls), config.expired_crl, config.policy.judge);
    let verifier = verifier.with_chain_cache();
    Arc::new(match config.client_auth_mode {
        ClientAuthMode::Optional => verifier.allow_unauthenticated(),
        ClientAuthMode::Required => verifier,
    })
}
