//! HAProxy 2.6 with the configurations of `deploy/authorizer/haproxy` and `haproxy-tcp`.
//!
//! A test that shows a hole changes one line of the deployed configuration. The client is admitted
//! then.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, CustomExtension};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SupportedProtocolVersion};

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config_of, config_with_chain};
use crate::support::haproxy::{Haproxy, HaproxyFiles};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::Configure;
use crate::support::spop::{
    AGENT_HELLO, FINAL, FRAME_SIZE, HAPROXY_HELLO, NOTIFY, SpopPeer, Value, frame, items,
};
use crate::support::{TIMEOUT, spellings, wait_for, write_filter, write_revision};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// The spellings of our header that a client may try.
const SPELLINGS: [&str; 6] = [
    "Client-Key-Status",
    "client_key_status",
    "Client-Key_Status",
    "CLIENT_KEY-STATUS",
    "client.key.status",
    "Client~Key-Status",
];

/// keygate and HAProxy in front of the origin.
struct Edge {
    keygate: RunningAuthorizer,
    haproxy: Haproxy,
}

impl Edge {
    fn start(
        name: &str,
        keygate: Authorizer,
        change: impl FnOnce(HaproxyFiles) -> HaproxyFiles,
    ) -> Option<Self> {
        let files = HaproxyFiles::of(name, &keygate.pki, keygate.origin.address())?;
        let keygate = keygate.start();
        let haproxy = change(files).start(&keygate.pki);
        Some(Self { keygate, haproxy })
    }

    /// Starts with the documented timeouts. Questions may have no answer on a loaded machine.
    fn start_with_documented_timeouts(name: &str) -> Option<Self> {
        let keygate = Authorizer::of(name);
        let files = HaproxyFiles::documented(name, &keygate.pki, keygate.origin.address())?;
        let keygate = keygate.start();
        let haproxy = files.start(&keygate.pki);
        Some(Self { keygate, haproxy })
    }

    /// The deployed configuration for requests.
    fn deployed() -> Option<Self> {
        Self::start("haproxy", Authorizer::of("haproxy"), |files| files)
    }

    fn connect(&self, config: &ClientConfig) -> Client {
        Client::with(config.clone(), self.haproxy.address)
    }

    /// The response to one request on a connection of its own, empty if the connection is closed
    /// without one; and whether the session was resumed.
    fn send(&self, config: &ClientConfig, request: &str) -> (String, bool) {
        let mut client = self.connect(config);
        client.send(request);
        let response = client.whatever_comes();
        (response, client.is_resumed())
    }

    /// The status code of a GET, 0 without a response.
    fn code(&self, config: &ClientConfig) -> u16 {
        let (response, _) = self.send(config, GET);
        code_of(&response)
    }

    /// The status code of a GET on a resumed session.
    fn resumed_code(&self, config: &ClientConfig) -> u16 {
        let (response, is_resumed) = self.send(config, GET);
        assert!(is_resumed, "{response}");
        code_of(&response)
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn code_of(response: &str) -> u16 {
    response.get(9..12).map_or(0, |code| code.parse().unwrap())
}

fn client(edge: &Edge, version: &'static SupportedProtocolVersion, party: &Party) -> ClientConfig {
    config_of(&edge.keygate.pki, &[version], Some(party))
}

/// A client whose certificate has this many bytes more than usual.
fn large_client(pki: &Pki, name: &str, bytes: usize) -> Party {
    let mut parameters = CertificateParams::default();
    let padding = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 32473, 1], vec![5; bytes]);
    parameters.custom_extensions = vec![padding];
    pki.client_with(name, Kind::P256, parameters)
}

#[test]
fn the_origin_gets_one_status_whatever_the_client_sends() {
    let Some(edge) = Edge::deployed() else { return };
    let forged: String = SPELLINGS.map(|name| format!("{name}: clean;forged\r\n")).concat();
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{forged}Connection: close\r\n\r\n");
    for version in VERSIONS {
        let config = client(&edge, version, &edge.keygate.good);
        for is_resumed in [false, true] {
            let (response, resumed) = edge.send(&config, &request);
            assert_eq!((code_of(&response), resumed), (200, is_resumed), "{version:?}: {response}");
            let received = edge.keygate.origin.next();
            let ours: Vec<_> = received
                .names()
                .into_iter()
                .filter(|name| name.replace(['_', '.', '~'], "-") == "client-key-status")
                .collect();
            assert_eq!(ours, ["client-key-status"], "{}", received.head);
            assert_eq!(received.fields("client-key-status"), ["clean"]);
        }
    }
}

/// Guard: `http-request del-header` in `deploy/authorizer/haproxy/haproxy.cfg`.
#[test]
fn without_del_header_a_forged_status_with_underscores_reaches_the_origin() {
    let keygate = Authorizer::of("haproxy");
    let line = "    http-request del-header ^client.key.status$ -m reg\n";
    let edge = Edge::start("haproxy", keygate, |files| files.replace(line, ""));
    let Some(edge) = edge else { return };
    let config = client(&edge, &TLS13, &edge.keygate.good);
    let forged = "GET / HTTP/1.1\r\nHost: localhost\r\nclient_key_status: forged\r\nConnection: close\r\n\r\n";
    assert_eq!(code_of(&edge.send(&config, forged).0), 200);
    assert_eq!(edge.keygate.origin.next().fields("client_key_status"), ["forged"]);
}

#[test]
fn a_listed_client_gets_403_and_the_origin_no_request() {
    let Some(edge) = Edge::deployed() else { return };
    for version in VERSIONS {
        let config = client(&edge, version, &edge.keygate.lost);
        assert_eq!(edge.code(&config), 403);
        assert_eq!(edge.resumed_code(&config), 403);
    }
    assert_eq!(edge.keygate.origin.untaken(), 0);
    let line = edge.keygate.wait_for("the rejected client", |line| line["verdict"] == "probable");
    assert_eq!((&line["client"], &line["sni"]), (&"127.0.0.1".into(), &"localhost".into()));
}

#[test]
fn certificates_in_headers_of_the_client_are_not_read() {
    let Some(edge) = Edge::deployed() else { return };
    let keygate = &edge.keygate;
    let encode = |der: &CertificateDer<'_>| data_encoding::BASE64.encode(der);
    for (client_of, other, code) in
        [(&keygate.lost, &keygate.good, 403), (&keygate.good, &keygate.lost, 200)]
    {
        let base64 = encode(&other.der);
        let forged = format!(
            "Client-Cert: :{base64}:\r\nX-Forwarded-Client-Cert: Cert=\"{base64}\"\r\nX-SSL-Cert: {base64}\r\n\
             ssl-client-cert: {base64}\r\nX-Forwarded-Tls-Client-Cert: {base64}\r\ncert: {base64}\r\n"
        );
        let request =
            format!("GET / HTTP/1.1\r\nHost: localhost\r\n{forged}Connection: close\r\n\r\n");
        for version in VERSIONS {
            let config = client(&edge, version, client_of);
            for _ in 0..2 {
                assert_eq!(code_of(&edge.send(&config, &request).0), code);
            }
        }
    }
}

#[test]
fn a_filter_update_counts_from_the_next_request_and_on_resumed_sessions() {
    for version in VERSIONS {
        let Some(edge) = Edge::deployed() else { return };
        let keygate = &edge.keygate;
        let config = client(&edge, version, &keygate.good);
        let mut kept = edge.connect(&config);
        let keep = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        kept.send(keep);
        assert!(kept.head().starts_with("HTTP/1.1 200 "));
        kept.exactly(6);
        let keys = [keygate.lost.spki.as_slice(), &keygate.good.spki];
        write_revision(&keygate.pki.path("lost.pkbf"), &keys, 2);
        keygate.wait_for_generation(2);
        kept.send(keep);
        assert!(kept.head().starts_with("HTTP/1.1 403 "));
        assert_eq!(edge.resumed_code(&config), 403);
        assert_eq!(keygate.origin.untaken(), 1);
    }
}

#[test]
fn no_path_and_no_method_is_special() {
    let Some(edge) = Edge::deployed() else { return };
    let requests = [
        ("GET", "/healthz", ""),
        ("GET", "/metrics?a=1", ""),
        ("GET", "/readyz", ""),
        ("HEAD", "/", ""),
        ("OPTIONS", "*", ""),
        ("POST", "/", "Content-Length: 5\r\n"),
        (
            "GET",
            "/",
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        ),
    ];
    for (client_of, code) in [(&edge.keygate.lost, 403), (&edge.keygate.good, 200)] {
        let config = client(&edge, &TLS13, client_of);
        for (method, path, fields) in requests {
            let connection = if fields.starts_with("Upgrade") { "Upgrade" } else { "close" };
            let body = if method == "POST" { "hello" } else { "" };
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: {connection}\r\n\r\n{body}"
            );
            let mut client = edge.connect(&config);
            client.send(&request);
            let head = client.head();
            assert_eq!(code_of(&head), code, "{method} {path}: {head}");
        }
    }
}

#[test]
fn clients_are_rejected_while_keygate_does_not_answer() {
    let Some(mut edge) = Edge::start_with_documented_timeouts("haproxy") else { return };
    let config = client(&edge, &TLS13, &edge.keygate.good);
    wait_for("an answer", || served(&edge, &config));
    // Hung: "timeout processing" of both questions.
    edge.keygate.signal("STOP");
    assert_eq!(edge.code(&config), 403);
    edge.keygate.signal("CONT");
    wait_for("an answer", || served(&edge, &config));
    // Ended.
    edge.keygate.signal("KILL");
    edge.keygate.keygate.ended();
    assert_eq!(edge.code(&config), 403);
    edge.keygate.restart();
    wait_for("the health check", || served(&edge, &config));
    assert_eq!(edge.code(&client(&edge, &TLS13, &edge.keygate.lost)), 403);
}

fn served(edge: &Edge, config: &ClientConfig) -> Result<(), String> {
    match edge.code(config) {
        200 => Ok(()),
        code => Err(code.to_string()),
    }
}

/// Guard: the rule `deny ... unless` in `deploy/authorizer/haproxy/haproxy.cfg`, which demands a
/// good answer.
#[test]
fn a_rule_that_rejects_bad_answers_alone_admits_every_client_while_keygate_does_not_answer() {
    let reversed = |files: HaproxyFiles| {
        files.replace(
            "unless { var(txn.keygate.action) -m str admit flag header }",
            "if { var(txn.keygate.action) -m str reject }",
        )
    };
    let edge = Edge::start("haproxy", Authorizer::of("haproxy"), reversed);
    let Some(mut edge) = edge else { return };
    let lost = client(&edge, &TLS13, &edge.keygate.lost);
    let large = large_client(&edge.keygate.pki, "large", 20_000);
    let large = client(&edge, &TLS13, &large);
    assert_eq!(edge.code(&lost), 403);
    assert_eq!(edge.code(&large), 403, "a denial, which such a rule reads");
    // With the documented timeouts.
    let (pki, origin) = (&edge.keygate.pki, edge.keygate.origin.address());
    edge.haproxy = reversed(HaproxyFiles::documented("haproxy", pki, origin).unwrap()).start(pki);
    edge.keygate.signal("STOP");
    assert_eq!(edge.code(&lost), 200, "the hole of that rule");
    edge.keygate.signal("CONT");
}

/// Guards: `LOST_CERTIFICATE` and `NO_STATEMENT` in `src/ask/spop/arguments.rs`, and `used` in
/// `keygate.spoe`.
#[test]
fn a_certificate_above_the_buffer_of_haproxy_is_not_taken_for_none() {
    let keygate = || {
        let keygate = Authorizer::of("haproxy")
            .asked_policy("on_unchecked = \"flag\"")
            .add("authorizers.client_auth", "mode = \"optional\"");
        let large = large_client(&keygate.pki, "large", 20_000);
        write_filter(&keygate.pki.path("lost.pkbf"), &[&large.spki]);
        (keygate, large)
    };
    for used in ["used=ssl_c_used ", ""] {
        let (keygate, large) = keygate();
        let edge = Edge::start("haproxy", keygate, |files| {
            files
                .replace("verify required", "verify optional")
                .replace_in_engine("used=ssl_c_used ", used)
        });
        let Some(edge) = edge else { return };
        for version in VERSIONS {
            let config = client(&edge, version, &large);
            assert_eq!(edge.code(&config), 403, "{used:?}");
            assert_eq!(edge.resumed_code(&config), 403, "{used:?}");
        }
        // With `used` a client without a certificate is treated by the policy.
        let anonymous = config_of(&edge.keygate.pki, &[&TLS13], None);
        assert_eq!(edge.code(&anonymous), if used.is_empty() { 403 } else { 200 });
    }
}

/// Guard: `NOT_VERIFIED` in `src/ask/spop/arguments.rs`, and `verify` in `keygate.spoe`.
#[test]
fn a_certificate_of_a_foreign_ca_is_rejected_although_haproxy_accepts_it() {
    for (verify, code) in [("verify=ssl_c_verify ", 403), ("", 200)] {
        let keygate = Authorizer::of("haproxy")
            .asked_policy("on_unchecked = \"flag\"")
            .add("authorizers.client_auth", "mode = \"optional\"");
        let foreign = Pki::named("Foreign CA").client("foreign", Kind::P256);
        let edge = Edge::start("haproxy", keygate, |files| {
            files
                .replace("verify required", "verify optional ca-ignore-err all crt-ignore-err all")
                .replace_in_engine("verify=ssl_c_verify ", verify)
        });
        let Some(edge) = edge else { return };
        for version in VERSIONS {
            let config = client(&edge, version, &foreign);
            assert_eq!(edge.code(&config), code, "{verify:?}");
            assert_eq!(edge.resumed_code(&config), code, "{verify:?}");
        }
        assert_eq!(edge.code(&client(&edge, &TLS13, &edge.keygate.good)), 200);
    }
}

#[test]
fn a_client_without_a_certificate_is_treated_by_mode_and_policy() {
    for (mode, unchecked, code) in
        [("required", "reject", 403), ("optional", "flag", 200), ("optional", "header", 200)]
    {
        let keygate = Authorizer::of("haproxy")
            .asked_policy(&format!("on_unchecked = \"{unchecked}\""))
            .add("authorizers.client_auth", &format!("mode = \"{mode}\""));
        let edge = Edge::start("haproxy", keygate, |files| {
            files.replace("verify required", "verify optional")
        });
        let Some(edge) = edge else { return };
        for version in VERSIONS {
            assert_eq!(edge.code(&config_of(&edge.keygate.pki, &[version], None)), code, "{mode}");
        }
        if code == 200 {
            assert_eq!(edge.keygate.origin.next().fields("client-key-status"), ["unchecked"]);
        }
    }
}

/// HAProxy 2.6 resumes a session without verifying the certificate again.
/// Guard: `verify_presented` in `src/ask/connection.rs`.
#[test]
fn an_expired_client_that_resumes_its_session_is_rejected_if_keygate_verifies() {
    let verifying =
        Authorizer::of("haproxy").add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
    let edges = [Authorizer::of("haproxy"), verifying]
        .map(|keygate| Edge::start("haproxy", keygate, |files| files));
    let [Some(believing), Some(verifying)] = edges else { return };
    let edges = [(believing, 200), (verifying, 403)];
    let clients = edges.each_ref().map(|(edge, _)| {
        let ((configs, codes), brief) = edge.keygate.pki.with_brief_client(|brief| {
            let configs = VERSIONS.map(|version| client(edge, version, brief));
            let codes = configs.each_ref().map(|config| edge.code(config));
            (configs, codes)
        });
        assert_eq!(codes, [200, 200]);
        (configs, brief)
    });
    for ((edge, code), (configs, brief)) in edges.iter().zip(&clients) {
        brief.wait_for_expiry();
        for config in configs {
            assert_eq!(edge.resumed_code(config), *code);
        }
    }
}

#[test]
fn a_revoked_client_is_rejected_if_keygate_has_the_list() {
    let keygate = Authorizer::of("haproxy")
        .add("authorizers.client_auth", "trust_anchors = \"ca.pem\", crls = [\"clients.crl.pem\"]");
    let revoked = keygate.pki.client("revoked", Kind::P256);
    keygate.pki.crl("clients.crl.pem", &[&revoked], Duration::from_secs(3600));
    let Some(edge) = Edge::start("haproxy", keygate, |files| files) else { return };
    for version in VERSIONS {
        let config = client(&edge, version, &revoked);
        assert_eq!(edge.code(&config), 403);
        assert_eq!(edge.resumed_code(&config), 403);
        assert_eq!(edge.code(&client(&edge, version, &edge.keygate.good)), 200);
    }
}

/// HAProxy sends `chain` for full handshakes only. A resumed session needs intermediates at
/// keygate.
#[test]
fn a_judged_chain_needs_issuers_from_haproxy_or_from_a_file() {
    for (intermediates, resumed_code) in [("", 403), ("intermediates = \"intermediates.pem\"", 200)]
    {
        let keygate = Authorizer::of("haproxy")
            .asked_policy("judge = \"chain\", allow_compromised_own_key = true")
            .add("authorizers.client_auth", "trust_anchors = \"ca.pem\"")
            .add("authorizers.client_auth", intermediates);
        let (party, _) = keygate.pki.client_of_intermediate("branch");
        let (burnt, spki) = keygate.pki.client_of_intermediate("burnt");
        write_filter(&keygate.pki.path("lost.pkbf"), &[&spki]);
        let chain_of = |party: &Party| -> Vec<CertificateDer<'static>> {
            let chain = CertificateDer::pem_file_iter(&party.certificate).unwrap();
            chain.map(|certificate| certificate.unwrap()).collect()
        };
        let issuers: Vec<_> = [&party, &burnt]
            .map(|party| {
                let pem = std::fs::read_to_string(&party.certificate).unwrap();
                let (_, issuer) = pem.split_once("-----END CERTIFICATE-----\n").unwrap();
                issuer.to_owned()
            })
            .into();
        std::fs::write(keygate.pki.path("intermediates.pem"), issuers.concat()).unwrap();
        let edge = Edge::start("haproxy", keygate, |files| {
            files.replace_in_engine("cert=ssl_c_der", "cert=ssl_c_der chain=ssl_c_chain_der")
        });
        let Some(edge) = edge else { return };
        for version in VERSIONS {
            let pki = &edge.keygate.pki;
            let config = config_with_chain(pki, version, chain_of(&party), &party);
            assert_eq!(edge.code(&config), 200);
            assert_eq!(edge.resumed_code(&config), resumed_code, "{version:?} {intermediates}");
            let config = config_with_chain(pki, version, chain_of(&burnt), &burnt);
            assert_eq!(edge.code(&config), 403);
            assert_eq!(edge.resumed_code(&config), 403);
        }
    }
}

/// HAProxy sends no frame above `tune.bufsize`, and drops an argument that does not fit a buffer.
#[test]
fn a_client_whose_chain_does_not_fit_a_frame_is_rejected() {
    let keygate = Authorizer::of("haproxy")
        .asked_policy("judge = \"chain\"")
        .add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
    let party = keygate.pki.client("party", Kind::P256);
    let large = large_client(&keygate.pki, "large", 10_000);
    let others: Vec<_> = ["x", "y"].map(|name| large_client(&keygate.pki, name, 9_000).der).into();
    let edge = Edge::start("haproxy", keygate, |files| {
        files.replace_in_engine("cert=ssl_c_der", "cert=ssl_c_der chain=ssl_c_chain_der")
    });
    let Some(edge) = edge else { return };
    let pki = &edge.keygate.pki;
    for version in VERSIONS {
        let whole = [vec![large.der.clone()], others.clone()].concat();
        assert_eq!(edge.code(&config_with_chain(pki, version, whole, &large)), 403);
        let own = config_with_chain(pki, version, vec![party.der.clone()], &party);
        assert_eq!(edge.code(&own), 200, "others are not concerned");
    }
}

/// An instance that ends whenever it gets a question: it closes the connection without an answer.
/// Returns the number of its questions.
fn failing_instance(listener: UnixListener) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let questions = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut peer = SpopPeer::over(stream.unwrap());
            while let Ok(Some(received)) = peer.frame_or_end() {
                match received.kind {
                    HAPROXY_HELLO => {
                        let hello = [
                            ("version", Value::text("2.0")),
                            ("max-frame-size", Value::Uint32(FRAME_SIZE)),
                            ("capabilities", Value::text("pipelining")),
                        ];
                        peer.try_send(frame(AGENT_HELLO, FINAL, 0, 0, &items(&hello)));
                    }
                    NOTIFY => {
                        count.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                    _ => {}
                }
            }
        }
    });
    questions
}

/// Guards: the second `send-spoe-group` in `haproxy.cfg`, and `continue-on-error` in
/// `keygate.spoe`.
#[test]
fn a_question_that_one_instance_leaves_unanswered_is_asked_of_the_other() {
    let keygate = Authorizer::of("haproxy");
    let socket = keygate.pki.path("ask.sock").display().to_string();
    let other = keygate.pki.path("other.sock");
    let questions = failing_instance(UnixListener::bind(&other).unwrap());
    let edge = Edge::start("haproxy", keygate, |files| {
        // The first server gets the first question.
        files.replace(&socket, &other.display().to_string()).replace(
            "#server keygate-2 unix@/run/keygate-2/ask.sock",
            &format!("server keygate-2 unix@{socket}"),
        )
    });
    let Some(edge) = edge else { return };
    assert_eq!(edge.code(&client(&edge, &TLS13, &edge.keygate.good)), 200);
    assert_eq!(questions.load(Ordering::SeqCst), 1);
    assert_eq!(edge.code(&client(&edge, &TLS13, &edge.keygate.lost)), 403);
}

/// State of the first server of `keygate`, from HAProxy's own socket.
fn server_state(edge: &Edge) -> Result<String, String> {
    // HAProxy gives its socket this name after it has begun to accept clients.
    let socket = UnixStream::connect(edge.keygate.pki.path("haproxy.sock"));
    let mut socket = socket.map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.write_all(b"show stat\n").unwrap();
    let mut table = String::new();
    socket.read_to_string(&mut table).unwrap();
    let line = table.lines().find(|line| line.starts_with("keygate,keygate,")).unwrap();
    Ok(line.split(',').nth(17).unwrap().to_owned())
}

#[test]
fn the_health_check_of_haproxy_follows_readiness_while_questions_are_answered() {
    let keygate = Authorizer::of("haproxy")
        .global("shutdown = { readiness_delay = \"1h\", drain_timeout = \"5s\" }");
    let socket = keygate.pki.path("haproxy.sock");
    let edge = Edge::start("haproxy", keygate, |files| {
        files.global(&format!("    stats socket {}", socket.display()))
    });
    let Some(edge) = edge else { return };
    let is = |state: &str| {
        let found = server_state(&edge)?;
        if found.starts_with(state) { Ok(()) } else { Err(found) }
    };
    wait_for("the server to be up", || is("UP"));
    let mut kept = edge.connect(&client(&edge, &TLS13, &edge.keygate.good));
    kept.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(kept.head().starts_with("HTTP/1.1 200 "));
    edge.keygate.signal("TERM");
    wait_for("the server to be down", || is("DOWN"));
}

#[test]
fn each_of_a_hundred_clients_of_two_threads_gets_its_own_answer() {
    let edge = Edge::start("haproxy", Authorizer::of("haproxy"), |files| {
        // One connection for many questions.
        files.global("    nbthread 2").replace("check inter 500ms", "check inter 500ms maxconn 2")
    });
    let Some(edge) = edge else { return };
    let configs =
        [&edge.keygate.good, &edge.keygate.lost].map(|party| client(&edge, &TLS13, party));
    std::thread::scope(|scope| {
        for number in 0..100 {
            let (edge, config) = (&edge, &configs[number % 2]);
            scope.spawn(move || {
                for _ in 0..3 {
                    let code = edge.code(config);
                    assert_eq!(code, if number % 2 == 0 { 200 } else { 403 }, "{number}");
                }
            });
        }
    });
    assert_eq!(edge.keygate.origin.taken(|_| true), 150);
}

#[test]
fn keygate_judges_a_client_before_the_origin_gets_a_connection() {
    let Some(edge) = Edge::start("haproxy-tcp", Authorizer::of("haproxy-tcp"), |files| files)
    else {
        return;
    };
    for version in VERSIONS {
        let config = client(&edge, version, &edge.keygate.good);
        assert_eq!(edge.tcp_code(&config), (200, false));
        assert_eq!(edge.tcp_code(&config), (200, true));
        // Under TLS 1.3 a client that is closed at once may have got no ticket.
        let config = client(&edge, version, &edge.keygate.lost);
        assert_eq!(edge.tcp_code(&config).0, 0);
        assert_eq!(edge.tcp_code(&config).0, 0);
    }
    assert_eq!(edge.keygate.origin.untaken(), 4);
    // A connection outlives an update of the filter; the next one is rejected.
    let keygate = &edge.keygate;
    let config = client(&edge, &TLS13, &keygate.good);
    let keep = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut kept = edge.connect(&config);
    kept.send(keep);
    assert!(kept.head().starts_with("HTTP/1.1 200 "));
    kept.exactly(6);
    let keys = [keygate.lost.spki.as_slice(), &keygate.good.spki];
    write_revision(&keygate.pki.path("lost.pkbf"), &keys, 2);
    keygate.wait_for_generation(2);
    kept.send(keep);
    assert!(kept.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(edge.tcp_code(&config).0, 0);
}

impl Edge {
    /// The status code of a response that passes through HAProxy in TCP mode, 0 for a closed
    /// connection; and whether the session was resumed.
    fn tcp_code(&self, config: &ClientConfig) -> (u16, bool) {
        let mut client = self.connect(config);
        client.send(GET);
        let code = client.head_or_end().map_or(0, |head| code_of(&head));
        (code, client.is_resumed())
    }
}

#[test]
fn connections_are_rejected_while_keygate_does_not_answer() {
    let Some(edge) = Edge::start_with_documented_timeouts("haproxy-tcp") else { return };
    let config = client(&edge, &TLS13, &edge.keygate.good);
    let served = || match edge.tcp_code(&config).0 {
        200 => Ok(()),
        code => Err(code.to_string()),
    };
    wait_for("an answer", served);
    edge.keygate.signal("STOP");
    assert_eq!(edge.tcp_code(&config).0, 0);
    edge.keygate.signal("CONT");
    wait_for("an answer", served);
}

/// The group for connections in HTTP mode: one question for all requests of a connection.
#[test]
fn the_answer_about_a_connection_holds_for_its_requests() {
    let edge = Edge::start("haproxy", Authorizer::of("haproxy"), |files| {
        files
            .replace(
                "http-request send-spoe-group keygate request\n",
                "http-request send-spoe-group keygate connection if !{ var(sess.keygate.action) -m found }\n",
            )
            .replace("send-spoe-group keygate request if", "send-spoe-group keygate connection if")
            .replace("txn.keygate.", "sess.keygate.")
            .replace_in_engine("groups request", "groups connection")
            .replace_in_engine("keygate-request", "keygate-connection")
            .replace_in_engine("spoe-group request", "spoe-group connection")
    });
    let Some(edge) = edge else { return };
    let mut kept = edge.connect(&client(&edge, &TLS13, &edge.keygate.good));
    for _ in 0..3 {
        kept.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(kept.head().starts_with("HTTP/1.1 200 "));
        kept.exactly(6);
        assert_eq!(edge.keygate.origin.next().fields("client-key-status"), ["clean"]);
    }
    edge.keygate
        .wait_for_metric(r#"keygate_questions_total{result="allowed",service="edge"}"#, 1.0);
    assert_eq!(edge.code(&client(&edge, &TLS13, &edge.keygate.lost)), 403);
}

/// A policy that admits clients without a certificate admits no key that cannot be checked.
#[test]
fn every_spelling_of_a_listed_key_is_rejected() {
    let optional = Authorizer::of("haproxy").asked_policy("on_unchecked = \"flag\"");
    let optional = optional.add("authorizers.client_auth", "mode = \"optional\"");
    let keys = spellings::keys(&optional.pki);
    let files = |files: HaproxyFiles| files.replace("verify required", "verify optional");
    let Some(edge) = Edge::start("haproxy", optional, files) else { return };
    spellings::check(&edge.keygate.pki, edge.haproxy.address, &keys, &spellings::OF_OPENSSL);
}
