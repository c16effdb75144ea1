//! Loads the certificates, keys, CAs and CRLs of one service or authorizer.

mod warnings;

use std::sync::Arc;

use keygate_core::guard::AllowRules;
use keygate_core::tls::{CertificateRole, ClientVerifier, Credentials, Crls, TrustAnchors};
use rustls::pki_types::CertificateDer;

use super::assertion::SigningKeys;
use super::client_auth::ClientAuth;
use super::context::LoadContext;
use super::credential_files::CredentialFiles;
use super::credential_unit::CredentialUnit;
use super::key_pair::OwnPair;
use super::last_good::LastGood;
use super::load_errors::{LoadErrors, both};
use super::ticket_secret::TicketSecretFile;
use super::unit_files::{LoadedUnit, UnitState, load};
use super::upstream_credentials::UpstreamCredentials;
use super::webhook_keys::WebhookKeys;

/// The certificates, keys, CAs and CRLs of a service or an authorizer: units of files with a last
/// good value each, and what is built from them.
#[derive(Debug)]
pub(crate) struct ServiceCredentials {
    /// The own certificate chain and key; `None` for an authorizer without TLS.
    pub(super) server: LastGood<OwnPair<false>>,
    /// The alternative certificate chain and key of a service.
    pub(super) alternative: LastGood<OwnPair<true>>,
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

impl ServiceCredentials {
    /// Reads all files for the first time, or under other settings than `before`. `clients` reads
    /// the CAs and CRLs of clients.
    pub(super) fn load<R>(
        files: CredentialFiles<'_>,
        before: Option<(&Self, CredentialFiles<'_>)>,
        clients: impl FnOnce() -> Result<(LastGood<ClientAuth>, R), LoadErrors>,
        context: LoadContext<'_>,
    ) -> Result<(Self, R), LoadErrors> {
        let known = before.map(|(known, _)| known);
        let server = load(files, known.map(|it| &it.server), context);
        let alternative = load(files, known.map(|it| &it.alternative), context);
        let clients = clients(); // after the own pairs, because CRLs may take all of the time to wait
        let ticket_secret = load(files, known.map(|it| &it.ticket_secret), context);
        let signing_keys = load(files, known.map(|it| &it.signing_keys), context);
        let upstream = load(files, known.map(|it| &it.upstream), context);
        let asker_ca = load(files, known.map(|it| &it.asker_ca), context);
        let webhooks = load(files, known.map(|it| &it.webhooks), context);
        let own = both(both(server, alternative), both(ticket_secret, signing_keys));
        let peers = both(upstream, both(asker_ca, webhooks));
        let ((own, (clients, rejection)), peers) = both(both(own, clients), peers)?;
        let ((server, alternative), (ticket_secret, signing_keys)) = own;
        let (upstream, (asker_ca, webhooks)) = peers;
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
            let (rules, it) = (files.rules().map(AllowRules::kinds), files.clients);
            let cas = (&it.trust_anchors, &it.cas, it.accept_server_auth_until);
            (it.mode, it.expired_crl, it.revocation, rules, cas)
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

    /// The kinds of files, apart from the CAs and CRLs of clients.
    pub(super) fn units(&self) -> impl Iterator<Item = UnitState<'_>> {
        let units: [&dyn LoadedUnit; _] = [
            &self.server,
            &self.alternative,
            &self.asker_ca,
            &self.signing_keys,
            &self.ticket_secret,
            &self.upstream,
            &self.webhooks,
        ];
        units.into_iter().map(LoadedUnit::state)
    }

    /// [`Self::units`], to read them again.
    pub(super) fn units_mut(&mut self) -> [&mut dyn LoadedUnit; 7] {
        [
            &mut self.server,
            &mut self.alternative,
            &mut self.asker_ca,
            &mut self.signing_keys,
            &mut self.ticket_secret,
            &mut self.upstream,
            &mut self.webhooks,
        ]
    }

    /// The units of which the service names files.
    pub(super) fn configured(&self, files: CredentialFiles<'_>) -> Vec<CredentialUnit> {
        let clients = [
            (CredentialUnit::ClientCa, files.cas().next().is_some()),
            (CredentialUnit::Crls, !files.clients.crls.is_empty()),
        ];
        let others = self.units().map(|it| (it.unit, !it.paths.is_empty()));
        let all = clients.into_iter().chain(others);
        all.filter_map(|(unit, is_configured)| is_configured.then_some(unit)).collect()
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
        let pairs = [&self.server.get().0, &self.alternative.get().0];
        pairs.into_iter().flatten().map(|pair| &pair.credentials)
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
            (CertificateRole::Server, &self.server.get().0),
            (CertificateRole::AlternativeServer, &self.alternative.get().0),
        ];
        let own = pairs
            .into_iter()
            .filter_map(|(role, pair)| Some((role, pair.as_ref()?.credentials.cert.first()?)));
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
