//! Loads the certificates, keys, CAs and CRLs of one service or authorizer.

mod warnings;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keygate_core::guard::AllowRules;
use keygate_core::spki::Fingerprint;
use keygate_core::tls::{
    self, CertificateRole, ClientVerifier, Credentials, Crls, KeyExchange, TrustAnchors,
};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::assertion::SigningKeys;
use super::client_auth::{ClientAuth, KnownClients};
use super::client_gates::{ClientGates, load_clients};
use super::credential_files::CredentialFiles;
use crate::config::{AlpnProtocol, Protocol};
use crate::sources::context::LoadContext;
use crate::sources::credential_unit::CredentialUnit;
use crate::sources::last_good::LastGood;
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::{LoadErrors, both};
use crate::sources::private_key::ExposedKeyFile;
use crate::sources::service_file::{KeyPair, ServiceFile};
use crate::sources::ticket_secret::TicketSecretFile;
use crate::sources::webhook_keys::WebhookKeys;

/// The certificates, keys, CAs and CRLs of a service or an authorizer: units of files with a last
/// good value each, and what is built from them.
#[derive(Debug)]
pub(crate) struct ServiceCredentials {
    /// The own certificate chain and key; `None` for an authorizer without TLS.
    pub(super) server: LastGood<Option<KeyPair>>,
    /// The alternative certificate chain and key of a service.
    pub(super) alternative: LastGood<Option<KeyPair>>,
    /// The CAs of the peers that ask an authorizer.
    pub(crate) asker_ca: LastGood<Option<Arc<TrustAnchors>>>,
    /// The keys of the webhooks that ask an authorizer.
    pub(crate) webhooks: LastGood<WebhookKeys>,
    /// The CAs of clients, and their CRLs.
    pub(super) clients: LastGood<ClientAuth>,
    /// The secrets of shared session tickets.
    pub(super) ticket_secret: LastGood<Option<TicketSecretFile>>,
    /// The keys that sign assertions.
    pub(crate) signing_keys: LastGood<SigningKeys>,
    /// The credentials for the upstream; `None` if it does not use TLS.
    pub(crate) upstream: LastGood<Option<UpstreamCredentials>>,
    /// Verifies client certificates against the CAs and CRLs; `None` for an authorizer that trusts
    /// the verification of the host.
    pub(crate) client_verifier: Option<Arc<ClientVerifier>>,
}

/// The certificates and keys for TLS towards the upstream.
#[derive(Debug)]
pub(crate) struct UpstreamCredentials {
    client: Option<Credentials>,
    trust_anchors: TrustAnchors,
    /// The private key file, if its permissions are unsafe.
    exposed: Option<ExposedKeyFile>,
    /// Fingerprint of the content of all files.
    digest: Fingerprint,
    protocol: Protocol,
    key_exchange: Vec<KeyExchange>,
    /// The TLS client configuration.
    pub(crate) tls: Arc<ClientConfig>,
}

impl ServiceCredentials {
    /// Reads all files for the first time, or under other settings than `before`. `gates` are the
    /// gates of the service with this id. The second value has the errors of files in whose place
    /// others are used: copies at a start, and those before an update that waits.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used.
    pub(super) fn load(
        files: CredentialFiles<'_>,
        before: Option<(&Self, CredentialFiles<'_>)>,
        known: KnownClients<'_>,
        gates: (usize, &mut ClientGates),
        context: LoadContext<'_>,
    ) -> Result<(Self, Option<LoadErrors>), LoadErrors> {
        let [of_server, of_alternative] = files.of_servers();
        let server = load(of_server, context, || read_pair(files, files.server, SERVER));
        let alternative =
            load(of_alternative, context, || read_pair(files, files.alternative, ALTERNATIVE));
        let server = both(server, alternative);
        let has_same_files =
            before.is_some_and(|(_, known)| known.of_clients() == files.of_clients());
        let clients = load_clients(files, known, has_same_files, gates, context);
        let upstream_before = before.map_or(&None, |(before, _)| before.upstream.get());
        let upstream = || UpstreamCredentials::read(files, upstream_before);
        let upstream = load(files.of_upstream(), context, upstream);
        let asker_ca = files.asker_ca.into_iter().map(ToOwned::to_owned).collect();
        let asker_ca = load(asker_ca, context, || read_asker_ca(files));
        let secrets = files.webhooks.iter().map(|webhook| webhook.secret.clone()).collect();
        let webhooks = load(secrets, context, || WebhookKeys::read(files));
        let askers = both(asker_ca, webhooks);
        let secret = files.ticket_secret.into_iter().map(ToOwned::to_owned).collect();
        let secret = load(secret, context, || TicketSecretFile::read(files));
        let nothing = SigningKeys::default();
        let known_keys = before.map_or(&nothing, |(before, _)| before.signing_keys.get());
        let read = || SigningKeys::read(files, known_keys, context.now);
        let paths = files.signing_keys.iter().map(|key| key.file.clone()).collect();
        let signing_keys = load(paths, context, read);
        let own = both(server, both(secret, signing_keys));
        let loaded = both(both(own, clients), both(upstream, askers))?;
        let ((own, (clients, rejection)), (upstream, askers)) = loaded;
        let ((server, alternative), (ticket_secret, signing_keys)) = own;
        let (asker_ca, webhooks) = askers;
        let client_verifier = None;
        let mut credentials = Self {
            server,
            alternative,
            asker_ca,
            webhooks,
            clients,
            ticket_secret,
            signing_keys,
            upstream,
            client_verifier,
        };
        fn settings<'a>(files: CredentialFiles<'a>) -> impl PartialEq + use<'a> {
            let cas = (files.trust_anchors, files.bound_cas, files.accept_server_auth_until);
            let rules = files.rules().map(AllowRules::kinds);
            (files.mode, files.expired_crl, files.revocation, rules, cas)
        }
        match before {
            Some((before, files_before))
                if settings(files) == settings(files_before)
                    && credentials.clients.get().changed_since(before.clients.get()).is_empty() =>
            {
                credentials.client_verifier.clone_from(&before.client_verifier);
            }
            Some(_) | None => credentials.rebuild_client_verifier(files),
        }
        Ok((credentials, rejection))
    }

    /// Puts `clients` in use, which [`LastGood::reread`] has read. Open connections then need a
    /// new check only if the CAs or the CRLs have changed. Returns which have, and their names.
    pub(super) fn replace_clients(
        &mut self,
        clients: ClientAuth,
        files: CredentialFiles<'_>,
    ) -> (Vec<CredentialUnit>, String) {
        let before = self.clients.get();
        let (changed, names) = (clients.changed_since(before), clients.names_since(before));
        *self.clients.get_mut() = clients;
        if !changed.is_empty() {
            self.rebuild_client_verifier(files);
        }
        (changed, names)
    }

    /// The CRLs of the CAs of clients.
    pub(super) fn crls(&self) -> &Crls {
        &self.clients.get().crls
    }

    /// The certificate chain and key of the service.
    pub(crate) fn key_pair(&self) -> Option<&Credentials> {
        self.key_pairs().next()
    }

    /// The certificate chains and keys of the service, preferred first.
    pub(crate) fn key_pairs(&self) -> impl Iterator<Item = &Credentials> {
        let pairs = [&self.server, &self.alternative].into_iter();
        pairs.filter_map(|pair| pair.get().as_ref()).map(|pair| &pair.credentials)
    }

    /// Builds a new client verifier, so that open connections are verified again.
    pub(super) fn rebuild_client_verifier(&mut self, files: CredentialFiles<'_>) {
        let verifier = self.clients.get().verifier(files);
        self.client_verifier = verifier.map(|verifier| Arc::new(verifier.with_chain_cache()));
    }

    /// The leaf certificates of the service and the CAs that it trusts on either side.
    pub(super) fn certificates(
        &self,
    ) -> impl Iterator<Item = (CertificateRole, &CertificateDer<'static>)> {
        let (upstream, cas) = (self.upstream.get().as_ref(), &self.clients.get().cas);
        let pairs = [
            (CertificateRole::Server, &self.server),
            (CertificateRole::AlternativeServer, &self.alternative),
        ];
        let own = pairs.into_iter().filter_map(|(role, pair)| {
            Some((role, pair.get().as_ref()?.credentials.cert.first()?))
        });
        let client = upstream.and_then(|it| it.client.as_ref()?.cert.first());
        let anchors = cas.trust_anchors.iter().chain(self.asker_ca.get());
        let client_cas = anchors.flat_map(|anchors| &anchors.certificates);
        let upstream_cas = upstream.into_iter().flat_map(|it| &it.trust_anchors.certificates);
        own.chain(client.map(|cert| (CertificateRole::UpstreamClient, cert)))
            .chain(client_cas.map(|cert| (CertificateRole::TrustAnchor, cert)))
            .chain(cas.intermediates.iter().map(|cert| (CertificateRole::Intermediate, cert)))
            .chain(upstream_cas.map(|cert| (CertificateRole::UpstreamTrustAnchor, cert)))
    }
}

/// The value of `files` that `read` reads for the first time.
fn load<T>(
    paths: Vec<PathBuf>,
    context: LoadContext<'_>,
    read: impl FnMut() -> Result<T, LoadErrors>,
) -> Result<LastGood<T>, LoadErrors> {
    LastGood::load(paths, context.now, context.max_wait, read)
}

/// The keys of the configuration for the own certificate and its key.
pub(super) const SERVER: [&str; 2] = ["tls.certificate", "tls.private_key"];
/// The keys of the configuration for the alternative certificate and its key.
pub(super) const ALTERNATIVE: [&str; 2] =
    ["tls.alternative.certificate", "tls.alternative.private_key"];

/// The certificate and its key at `paths`, which these keys of the configuration name; `None`
/// without them.
///
/// # Errors
/// Returns the errors of both files, or one if they do not belong together.
pub(super) fn read_pair(
    files: CredentialFiles<'_>,
    paths: Option<(&Path, &Path)>,
    [certificate_key, private_key_key]: [&'static str; 2],
) -> Result<Option<KeyPair>, LoadErrors> {
    let Some((certificate, private_key)) = paths else { return Ok(None) };
    let file = |key, path| ServiceFile { files, key, path };
    KeyPair::read(file(certificate_key, certificate), file(private_key_key, private_key)).map(Some)
}

/// The CAs of the peers that ask an authorizer; `None` if there are none.
///
/// # Errors
/// Returns an error if the file cannot be used.
pub(super) fn read_asker_ca(
    files: CredentialFiles<'_>,
) -> Result<Option<Arc<TrustAnchors>>, LoadErrors> {
    let Some(path) = files.asker_ca else { return Ok(None) };
    let file = ServiceFile { files, key: "tls.client_ca", path };
    Ok(Some(Arc::new(file.trust_anchors(&file.read()?)?)))
}

impl UpstreamCredentials {
    /// Reads all files for the upstream. The TLS client configuration of `before` is reused if the
    /// files are the same.
    pub(super) fn read(
        owner: CredentialFiles<'_>,
        before: &Option<Self>,
    ) -> Result<Option<Self>, LoadErrors> {
        let Some((files, protocol)) = owner.upstream else { return Ok(None) };
        let file = |key, path| ServiceFile { files: owner, key, path };
        let anchors = file("upstream.tls.trust_anchors", &files.trust_anchors);
        let trusted = anchors.read().and_then(|content| {
            let trust_anchors = anchors.trust_anchors(&content)?;
            Ok((content, trust_anchors))
        });
        let pair = files.identity().map(|(certificate, private_key)| {
            KeyPair::read(
                file("upstream.tls.certificate", certificate),
                file("upstream.tls.private_key", private_key),
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
        let digest = Fingerprint::of(&content);
        let key_exchange = files.key_exchange.clone();
        let same = before.as_ref().filter(|it| {
            it.digest == digest && it.protocol == protocol && it.key_exchange == key_exchange
        });
        let tls = match same {
            Some(before) => Arc::clone(&before.tls),
            None => {
                let tls = tls::client_config(&trust_anchors, client.as_ref(), alpn, &key_exchange);
                Arc::new(tls.map_err(|source| LoadError::Tls {
                    owner: owner.owner(),
                    key: "upstream.tls",
                    source,
                })?)
            }
        };
        Ok(Some(Self { client, trust_anchors, exposed, digest, protocol, key_exchange, tls }))
    }
}
