//! `KeyVerifier` in a rustls server without the proxy: sessions and whole paths.
//!
//! Guards: `fn server_config`, `fn judge_connection` and `fn judge_handshake` in
//! `crates/core/src/tls/verifier.rs`.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "a test fails where it stands"
)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keygate_core::guard::{
    Answers, CurrentAnswers, CurrentGuard, Decision, Depth, FingerprintList, Guard, NamedFilter,
    Policy, Verdict,
};
use keygate_core::pkbf::{Filter, Parameters};
use keygate_core::spki::Fingerprint;
use keygate_core::tls::{ClientVerifier, Deferral, Handshake, KeyVerifier, TrustAnchors};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, HandshakeKind,
    RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

/// A root, an issuing CA below it, a server and a client.
struct Parties {
    root: CertificateDer<'static>,
    root_spki: Vec<u8>,
    issuing_spki: Vec<u8>,
    server: Arc<SingleCertAndKey>,
    /// Leaf and issuing CA.
    client: Vec<CertificateDer<'static>>,
    client_key: Vec<u8>,
    client_spki: Vec<u8>,
}

fn ca(name: &str) -> (CertificateParams, KeyPair) {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    (parameters, KeyPair::generate().unwrap())
}

fn parties() -> Parties {
    let (parameters, root_key) = ca("Root");
    let root = parameters.self_signed(&root_key).unwrap().der().clone();
    let root_spki = root_key.subject_public_key_info();
    let root_issuer = Issuer::new(parameters, root_key);
    let (parameters, issuing_key) = ca("Issuing CA");
    let issuing = parameters.signed_by(&issuing_key, &root_issuer).unwrap().der().clone();
    let issuing_spki = issuing_key.subject_public_key_info();
    let issuing_issuer = Issuer::new(parameters, issuing_key);
    let leaf = |name: &str, issuer: &Issuer<'static, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (parameters.signed_by(&key, issuer).unwrap().der().clone(), key)
    };
    let (certificate, key) = leaf("localhost", &root_issuer);
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let server = CertifiedKey::from_der(vec![certificate], key, &default_provider()).unwrap();
    let (certificate, key) = leaf("client", &issuing_issuer);
    Parties {
        root,
        root_spki,
        issuing_spki,
        server: Arc::new(SingleCertAndKey::from(server)),
        client: vec![certificate, issuing],
        client_key: key.serialize_der(),
        client_spki: key.subject_public_key_info(),
    }
}

impl Parties {
    fn verifier(&self, guard: &CurrentGuard, judge: Depth) -> KeyVerifier {
        let anchors = Arc::new(TrustAnchors::new(vec![self.root.clone()]).unwrap());
        let clients = Arc::new(ClientVerifier::new(anchors));
        KeyVerifier::new(clients, guard.clone(), Policy { judge, ..Policy::default() })
    }

    /// A client that keeps its sessions for the next connection.
    fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        let mut anchors = RootCertStore::empty();
        anchors.add(self.root.clone()).unwrap();
        let key = PrivateKeyDer::try_from(self.client_key.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(anchors)
            .with_client_auth_cert(self.client.clone(), key);
        Arc::new(config.unwrap())
    }
}

/// A guard whose filter is empty and whose list holds these keys.
fn guard(listed: &[&[u8]]) -> Guard {
    let filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
    let filter = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
    let lines: Vec<_> = listed.iter().map(|spki| Fingerprint::of(spki).to_string()).collect();
    let list = FingerprintList::parse("march", &lines.join("\n")).unwrap();
    Guard::new(vec![Arc::new(filter)]).with_lists(vec![Arc::new(list)])
}

/// Completes a handshake, with `step` around each step of the server.
fn connect_with(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    mut step: impl FnMut(&mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error>,
) -> (Result<ServerConnection, Error>, ClientConnection) {
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let mut result = Ok(());
    while client.wants_write() || server.wants_write() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while result.is_ok() && !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            result = step(&mut || server.process_new_packets().map(|_| ()));
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            let _ = client.process_new_packets(); // an alert is expected in some tests
        }
    }
    (result.map(|()| server), client)
}

fn connect(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> (Result<ServerConnection, Error>, ClientConnection) {
    connect_with(server, client, |step| step())
}

const REJECTED: Error = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

#[test]
fn a_client_of_the_safe_configuration_cannot_resume_past_a_replaced_guard() {
    for version in VERSIONS {
        let parties = parties();
        let current = CurrentGuard::from(guard(&[]));
        let verifier = parties.verifier(&current, Depth::Leaf);
        let server = Arc::new(verifier.server_config(parties.server.clone()).unwrap());
        let client = parties.client(version);
        for _ in 0..2 {
            let (accepted, _) = connect(&server, &client);
            let kind = accepted.unwrap().handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
        }
        current.replace(Arc::new(guard(&[&parties.client_spki])));
        let (rejected, mut connection) = connect(&server, &client);
        assert_eq!(rejected.unwrap_err(), REJECTED, "{version:?}");
        let alert = connection.process_new_packets().unwrap_err();
        assert_eq!(alert, Error::AlertReceived(AlertDescription::AccessDenied), "{version:?}");
    }
}

#[test]
fn a_resumed_session_is_judged_by_judge_connection() {
    for (version, has_tickets) in
        [(VERSIONS[0], false), (VERSIONS[0], true), (VERSIONS[1], false), (VERSIONS[1], true)]
    {
        let parties = parties();
        let current = CurrentGuard::from(guard(&[]));
        let verifier = parties.verifier(&current, Depth::Leaf);
        let mut server = verifier.server_config(parties.server.clone()).unwrap();
        server.session_storage = ServerSessionMemoryCache::new(256);
        server.send_tls13_tickets = 2;
        if has_tickets {
            server.ticketer = Ticketer::new().unwrap();
        }
        let (server, client) = (Arc::new(server), parties.client(version));
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let accepted = connect(&server, &client).0.unwrap();
            assert_eq!(accepted.handshake_kind(), Some(kind), "{version:?}");
            let judgement = verifier.judge_connection(&accepted).unwrap();
            assert_eq!(judgement.decision, Decision::Admit);
        }
        let open = connect(&server, &client).0.unwrap();
        current.replace(Arc::new(guard(&[&parties.client_spki])));
        assert_eq!(verifier.judge_connection(&open).unwrap_err(), REJECTED, "open");
        // rustls alone would serve this client.
        let resumed = connect(&server, &client).0.unwrap();
        assert_eq!(resumed.handshake_kind(), Some(HandshakeKind::Resumed), "{version:?}");
        assert_eq!(verifier.judge_connection(&resumed).unwrap_err(), REJECTED, "{version:?}");
        let fresh = ServerConnection::new(Arc::clone(&server)).unwrap();
        let error = verifier.judge_connection(&fresh).unwrap_err();
        assert_eq!(error, Error::HandshakeNotComplete);
    }
}

#[test]
fn a_whole_path_is_judged_in_a_handshake_and_rejected_outside_one() {
    for version in VERSIONS {
        let parties = parties();
        let current = CurrentGuard::from(guard(&[]));
        let verifier = parties.verifier(&current, Depth::Chain);
        let server = Arc::new(verifier.server_config(parties.server.clone()).unwrap());
        let client = parties.client(version);
        let in_handshake = || {
            let mut handshake = Handshake::default();
            let (result, _) = connect_with(&server, &client, |step| handshake.step(step));
            (result, handshake)
        };
        let (accepted, handshake) = in_handshake();
        let accepted = accepted.unwrap();
        assert!(handshake.rejected.is_none());
        assert_eq!(verifier.judge_connection(&accepted).unwrap().verdict, Verdict::Clean);
        // The path is not known: fails closed, although every key is clean.
        let error = connect(&server, &client).0.unwrap_err().to_string();
        assert!(error.contains("the policy judges the whole path"), "{error}");

        for (position, spki) in [(1, &parties.issuing_spki), (2, &parties.root_spki)] {
            current.replace(Arc::new(guard(&[spki])));
            assert_eq!(verifier.judge_connection(&accepted).unwrap_err(), REJECTED);
            let (rejected, handshake) = in_handshake();
            assert_eq!(rejected.unwrap_err(), REJECTED, "{version:?}");
            let rejected = handshake.rejected.unwrap();
            assert_eq!(rejected.chain.len(), 3, "with the trust anchor");
            assert_eq!(rejected.judgement.unwrap().verdict.position(), Some(position));
        }
    }
}

#[test]
fn a_verifier_without_paths_cannot_judge_them() {
    let parties = parties();
    let current = CurrentGuard::from(guard(&[]));
    let mut anchors = RootCertStore::empty();
    anchors.add(parties.root.clone()).unwrap();
    let provider = Arc::new(default_provider());
    let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), provider);
    let policy = Policy { judge: Depth::Chain, ..Policy::default() };
    let verifier = KeyVerifier::new(inner.build().unwrap(), current, policy);
    let server = Arc::new(verifier.server_config(parties.server.clone()).unwrap());
    let client = parties.client(VERSIONS[1]);
    let mut handshake = Handshake::default();
    let (rejected, _) = connect_with(&server, &client, |step| handshake.step(step));
    let error = rejected.unwrap_err().to_string();
    assert!(error.contains("the policy judges the whole path"), "{error}");
}

/// A source whose answer comes between the judgement and the question.
#[derive(Debug)]
struct AnswersMeanwhile {
    answers: CurrentAnswers,
    answer: Answers,
}

impl Deferral for AnswersMeanwhile {
    fn defers(&self, guard: &Guard, policy: &Policy, path: &[&CertificateDer<'_>]) -> bool {
        self.answers.replace(Arc::new(self.answer.clone()));
        guard.open_questions(policy, path, SystemTime::now()).is_decisive
    }
}

#[test]
fn an_answer_that_comes_while_a_client_is_judged_decides_in_its_handshake() {
    let parties = parties();
    let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
    filter.insert(&parties.client_spki);
    let filter = Arc::new(NamedFilter { name: "lost".into(), filter, sha256: [0; 32] });
    let (mut cleared, mut confirmed) =
        (Answers::new(["lost".into()]), Answers::new(["lost".into()]));
    let fingerprint = Fingerprint::of(&parties.client_spki);
    cleared.clear(fingerprint, SystemTime::now() + Duration::from_secs(3600));
    confirmed.confirm(&parties.client_spki);
    let revoked = Error::InvalidCertificate(CertificateError::Revoked);
    for (answer, expected) in [(cleared, Ok(())), (confirmed, Err(revoked))] {
        for version in VERSIONS {
            let answers = CurrentAnswers::from(Answers::new(["lost".into()]));
            let guard = Guard::new(vec![Arc::clone(&filter)]).with_answers(answers.clone());
            let deferral = AnswersMeanwhile { answers, answer: answer.clone() };
            let verifier = parties.verifier(&CurrentGuard::from(guard), Depth::Leaf);
            let verifier = verifier.with_deferral(Some(Arc::new(deferral)));
            let server = Arc::new(verifier.server_config(parties.server.clone()).unwrap());
            let (accepted, _) = connect(&server, &parties.client(version));
            assert_eq!(accepted.map(drop), expected, "{version:?}");
        }
    }
}
