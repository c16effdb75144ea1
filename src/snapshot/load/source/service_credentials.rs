//! Loads the certificates, keys, CAs and CRLs of one service or authorizer.

mod client_cas;
mod service_file;
mod warnings;

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use self::client_cas::ClientCas;
pub(super) use self::client_cas::{CRLS, KnownCrls};
use self::service_file::{KeyPair, ServiceFile};
use super::credential_files::CredentialFiles;
use crate::config::{AlpnProtocol, ClientAuthMode, Protocol, UpstreamTlsConfig};
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::load_errors::{LoadErrors, both};
use crate::snapshot::load::private_key::ExposedKeyFile;
use crate::spki::Fingerprint;
use crate::tls::{self, CertificateRole, ClientVerifier, Credentials, Crls, TrustAnchors};

/// The certificates, keys, CAs and CRLs of a service or an authorizer.
#[derive(Debug)]
pub(super) struct ServiceCredentials {
    /// The own certificate chain and key; `None` for an authorizer without TLS.
    pub(super) server: Option<Credentials>,
    /// The CAs of the peers that ask an authorizer.
    pub(super) asker_anchors: Option<Arc<TrustAnchors>>,
    /// The CAs of clients; `None` for an authorizer that trusts the verification of the host.
    pub(super) trust_anchors: Option<Arc<TrustAnchors>>,
    /// The CAs in `client_auth.intermediates`.
    intermediates: Vec<CertificateDer<'static>>,
    /// The CRLs of the `trust_anchors` and `intermediates`.
    pub(super) crls: Arc<Crls>,
    /// Private key files with unsafe permissions.
    exposed_key_files: Vec<ExposedKeyFile>,
    /// Verifies client certificates against the `trust_anchors` and `crls`.
    pub(super) client_verifier: Option<Arc<ClientVerifier>>,
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
    /// Reads all files.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used.
    pub(super) fn read(
        files: CredentialFiles<'_>,
        known: KnownCrls<'_>,
    ) -> Result<Self, LoadErrors> {
        let file = |key, path| ServiceFile { files, key, path };
        let server = files.server.map(|(certificate, private_key)| {
            let certificate = file("tls.certificate", certificate);
            KeyPair::read(certificate, file("tls.private_key", private_key))
        });
        let asker_ca = files.asker_ca.map(|path| file("tls.client_ca", path));
        let askers = asker_ca.map(|file| file.trust_anchors(&file.read()?)).transpose();
        let client = files.trust_anchors.map(|path| ClientCas::read(files, path, known));
        let upstream =
            files.upstream.map(|(tls, protocol)| UpstreamCredentials::read(files, tls, protocol));
        let (server, client) = (server.transpose(), client.transpose());
        let read = both(both(server, client), both(upstream.transpose(), askers));
        let ((server, client), (upstream, askers)) = read?;
        let (server, exposed_server) = server.map(|pair| (pair.credentials, pair.exposed)).unzip();
        let (upstream, exposed) = upstream.unzip();
        let exposed = exposed_server.into_iter().chain(exposed).flatten();
        let mut credentials = Self {
            server,
            asker_anchors: askers.map(Arc::new),
            trust_anchors: None,
            intermediates: Vec::new(),
            crls: Arc::default(),
            exposed_key_files: exposed.collect(),
            client_verifier: None,
            upstream,
        };
        if let Some(ClientCas { trust_anchors, intermediates, crls }) = client {
            credentials.trust_anchors = Some(trust_anchors);
            credentials.intermediates = intermediates;
            credentials.crls = crls;
            credentials.rebuild_client_verifier(files);
        }
        Ok(credentials)
    }

    /// Builds a new client verifier, so that open connections are verified again.
    pub(super) fn rebuild_client_verifier(&mut self, files: CredentialFiles<'_>) {
        let trust_anchors = self.trust_anchors.as_ref();
        self.client_verifier =
            trust_anchors.map(|anchors| self.new_client_verifier(files, anchors));
    }

    fn new_client_verifier(
        &self,
        files: CredentialFiles<'_>,
        trust_anchors: &Arc<TrustAnchors>,
    ) -> Arc<ClientVerifier> {
        let verifier = ClientVerifier::new(Arc::clone(trust_anchors));
        let verifier =
            verifier.with_crls(Arc::clone(&self.crls), files.expired_crl, files.revocation);
        let mut verifier = verifier.with_chain_cache();
        if files.is_authorizer {
            verifier = verifier.with_intermediates(self.intermediates.clone());
        }
        Arc::new(match files.mode {
            ClientAuthMode::Optional => verifier.allow_unauthenticated(),
            ClientAuthMode::Required => verifier,
        })
    }

    /// Reuses the previous client verifier and TLS client configuration if nothing that they are
    /// built from has changed. Open connections then need no new check.
    pub(super) fn reuse_unchanged(
        &mut self,
        files: CredentialFiles<'_>,
        before: &Self,
        files_before: CredentialFiles<'_>,
    ) {
        let settings =
            |files: CredentialFiles<'_>| (files.mode, files.expired_crl, files.revocation);
        let certificates = |it: &Self| it.trust_anchors.as_ref().map(|it| it.certificates.clone());
        if settings(files) == settings(files_before)
            && certificates(self) == certificates(before)
            && (!files.is_authorizer || self.intermediates == before.intermediates)
            && self.crls.has_same_lists(&before.crls)
        {
            self.client_verifier.clone_from(&before.client_verifier);
        }
        let protocol = |files: CredentialFiles<'_>| files.upstream.map(|(_, protocol)| protocol);
        if let (Some(upstream), Some(before)) = (&mut self.upstream, &before.upstream)
            && upstream.digest == before.digest
            && protocol(files) == protocol(files_before)
        {
            upstream.tls = Arc::clone(&before.tls);
        }
    }

    /// The leaf certificates of the service and the CAs that it trusts on either side.
    pub(super) fn certificates(
        &self,
    ) -> impl Iterator<Item = (CertificateRole, &CertificateDer<'static>)> {
        let upstream = self.upstream.as_ref();
        let server = self.server.as_ref().and_then(|server| server.cert.first());
        let client = upstream.and_then(|it| it.client.as_ref()?.cert.first());
        let anchors = self.trust_anchors.iter().chain(&self.asker_anchors);
        let client_cas = anchors.flat_map(|anchors| &anchors.certificates);
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
        owner: CredentialFiles<'_>,
        files: &UpstreamTlsConfig,
        protocol: Protocol,
    ) -> Result<(Self, Option<ExposedKeyFile>), LoadErrors> {
        let file = |key, path| ServiceFile { files: owner, key, path };
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
        let alpn: &[&[u8]] = match protocol {
            Protocol::Http => &[AlpnProtocol::H2.as_bytes(), AlpnProtocol::Http11.as_bytes()],
            Protocol::Tcp => &[],
        };
        let tls = tls::client_config(&trust_anchors, client.as_ref(), alpn).map_err(|source| {
            LoadError::Tls { owner: owner.owner(), key: "upstream.tls", source }
        })?;
        let digest = Fingerprint::of(&content);
        Ok((Self { client, trust_anchors, digest, tls: Arc::new(tls) }, exposed))
    }
}
