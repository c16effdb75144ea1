//! Envoy's HTTP filter with keygate as its authorizer, with the files of `deploy/authorizer/envoy`
//! and `deploy/authorizer/envoy-xfcc`.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use data_encoding::BASE64;
use rcgen::{CertificateParams, SanType};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config_of, config_with_chain};
use crate::support::envoy::{Envoy, GET};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party};
use crate::support::proxy::Configure;
use crate::support::{wait_for, write_revision};

/// A client's own copies of the status header.
const FORGED: &str = "Client-Key-Status: allowed\r\nclient_key_status: allowed\r\n\
                      client-key_status: allowed\r\nClient_Key-Status: allowed\r\n\
                      client.key.status: allowed\r\nClient~Key-Status: allowed\r\n";

fn unchanged(text: String) -> String {
    text
}

/// Replaces a line of Envoy's configuration, which must be there.
fn with(from: &str, to: &str) -> impl Fn(String) -> String {
    move |text| {
        assert!(text.contains(from), "Envoy's configuration has no {from}");
        text.replace(from, to)
    }
}

const FAIL_OPEN: [&str; 2] = ["failure_mode_allow: false", "failure_mode_allow: true"];

impl RunningAuthorizer {
    fn envoy(&self, host: &str, change: impl FnOnce(String) -> String) -> Option<Envoy> {
        Envoy::start(host, self.pki.directory(), self.origin.address(), change)
    }

    /// A configuration of `client` for each TLS version. Its sessions are resumed.
    fn configs(&self, client: &Party) -> [ClientConfig; 2] {
        [&TLS12, &TLS13].map(|version| config_of(&self.pki, &[version], Some(client)))
    }

    fn swap_filter(&self, keys: &[&[u8]], revision: u32) {
        write_revision(&self.pki.path("lost.pkbf"), keys, revision);
        self.keygate.wait_for_generation(revision.into());
    }

    fn asked(&self, result: &str) -> f64 {
        self.metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
    }
}

/// Requests that a client could make, hoping for a path or method that is not judged.
fn requests() -> Vec<String> {
    let close = format!("Host: localhost\r\n{FORGED}Connection: close\r\n");
    let mut requests: Vec<_> = ["GET /", "GET /healthz", "GET /metrics?a=1", "OPTIONS /readyz"]
        .iter()
        .map(|line| format!("{line} HTTP/1.1\r\n{close}\r\n"))
        .collect();
    requests.push(format!("POST /livez HTTP/1.1\r\n{close}Content-Length: 5\r\n\r\nhello"));
    requests.push(format!(
        "GET /ws HTTP/1.1\r\nHost: localhost\r\n{FORGED}Connection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\n\r\n"
    ));
    requests
}

#[test]
fn a_clean_client_is_served_and_the_origin_reads_one_status() {
    let authorizer = Authorizer::of("envoy").start();
    let Some(envoy) = authorizer.envoy("envoy", unchanged) else { return };
    for config in authorizer.configs(&authorizer.good) {
        for (index, request) in requests().iter().filter(|it| !it.contains("/ws")).enumerate() {
            let exchange = envoy.exchange(&config, request);
            assert_eq!(exchange.status(), "200", "{request}: {exchange:?}");
            assert_eq!(exchange.is_resumed, index > 0);
            let received = authorizer.origin.next();
            let is_status =
                |name: &&String| name.replace(['_', '.', '~'], "-") == "client-key-status";
            let names = received.names();
            assert_eq!(names.iter().filter(is_status).count(), 1, "{}", received.head);
            assert_eq!(received.fields("client-key-status"), ["clean"]);
        }
    }
    assert_eq!(authorizer.asked("allowed"), 10.0);
}

#[test]
fn a_client_in_the_filter_gets_403_and_the_origin_receives_nothing() {
    let authorizer = Authorizer::of("envoy").start();
    let Some(envoy) = authorizer.envoy("envoy", unchanged) else { return };
    for config in authorizer.configs(&authorizer.lost) {
        for (index, request) in requests().iter().enumerate() {
            let mut client = Client::with(config.clone(), envoy.address);
            client.send(request);
            let head = client.head();
            assert!(head.starts_with("HTTP/1.1 403 "), "{request}: {head}");
            assert!(head.contains("client-key-status: probable\r\n"), "{head}");
            assert!(head.contains("content-type: text/plain; charset=utf-8\r\n"), "{head}");
            assert_eq!(client.is_resumed(), index > 0);
        }
    }
    let [config, _] = authorizer.configs(&authorizer.lost);
    let accept = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n";
    let exchange = envoy.exchange(&config, accept);
    assert!(exchange.text.contains("\r\ncontent-type: application/json\r\n"), "{exchange:?}");
    assert!(exchange.text.contains("{\"status\":403,\"error\":\""), "{exchange:?}");
    assert_eq!(authorizer.origin.untaken(), 0);
}

/// Guard: `CertificateSource` in `src/ask/grpc/check_request.rs`: one place is read.
#[test]
fn a_certificate_in_a_header_of_the_client_is_not_read() {
    for host in ["envoy", "envoy-xfcc"] {
        let authorizer = Authorizer::of(host).start();
        let Some(envoy) = authorizer.envoy(host, unchanged) else { return };
        for (client, other, status) in [
            (&authorizer.good, &authorizer.lost, "200"),
            (&authorizer.lost, &authorizer.good, "403"),
        ] {
            let pem = std::fs::read_to_string(&other.certificate).unwrap();
            let pem: String = pem.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let base64 = BASE64.encode(&other.der);
            let fields = format!(
                "Client-Cert: :{base64}:\r\nX-Forwarded-Client-Cert: Cert=\"{pem}\"\r\n\
                 x_forwarded_client_cert: Chain=\"{pem}\"\r\n\
                 X-Forwarded-Tls-Client-Cert: {base64}\r\nssl-client-cert: {pem}\r\n\
                 ssl-client-verify: SUCCESS\r\nX-SSL-Cert: {pem}\r\n"
            );
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
            for config in authorizer.configs(client) {
                let exchange = envoy.exchange(&config, &request);
                assert_eq!(exchange.status(), status, "{host}, {}: {exchange:?}", client.name);
            }
        }
    }
}

#[test]
fn a_filter_update_counts_from_the_next_request() {
    let authorizer = Authorizer::of("envoy").start();
    let Some(envoy) = authorizer.envoy("envoy", unchanged) else { return };
    let (good, lost) = (&authorizer.good, &authorizer.lost);
    let configs = authorizer.configs(good);
    let mut open: Vec<_> = configs
        .iter()
        .map(|config| {
            assert_eq!(envoy.get(config), "200");
            let mut client = Client::with(config.clone(), envoy.address);
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert!(client.head().starts_with("HTTP/1.1 200 "));
            assert_eq!(client.exactly(6), b"hello\n");
            client
        })
        .collect();
    authorizer.swap_filter(&[&good.spki, &lost.spki], 2);
    for client in &mut open {
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 403 "));
    }
    for config in &configs {
        let exchange = envoy.exchange(config, GET);
        assert!(exchange.is_resumed, "{exchange:?}");
        assert_eq!(exchange.status(), "403");
    }
}

#[test]
fn clients_are_rejected_while_keygate_hangs_or_is_stopped() {
    let mut authorizer = Authorizer::of("envoy").start();
    // The documented timeout of an answer.
    let change = with(
        " timeout: 30s\n                envoy_grpc",
        " timeout: 0.5s\n                envoy_grpc",
    );
    let Some(envoy) = authorizer.envoy("envoy", change) else { return };
    let [config, _] = authorizer.configs(&authorizer.good);
    let served = |envoy: &Envoy| {
        wait_for("a served request", || match envoy.get(&config).as_str() {
            "200" => Ok(()),
            other => Err(other.to_owned()),
        });
    };
    served(&envoy);
    authorizer.signal("STOP");
    assert_eq!(envoy.get(&config), "403");
    authorizer.signal("CONT");
    served(&envoy);
    authorizer.signal("KILL");
    authorizer.keygate.ended();
    assert_eq!(envoy.get(&config), "403");
    authorizer.restart();
    served(&envoy);
}

/// Rule 4: `failure_mode_allow` admits on errors, and no client can cause one.
#[test]
fn an_envoy_that_fails_open_still_rejects_what_a_client_can_spoil() {
    let mut authorizer = Authorizer::of("envoy")
        .set("authorizers.limits.max_question_size", "8KiB")
        .add("authorizers.client_auth", "mode = \"optional\"")
        .asked_policy("on_unchecked = \"flag\"")
        .start();
    let large = authorizer.pki.large_client("large");
    let open = |text: String| {
        let text = with(FAIL_OPEN[0], FAIL_OPEN[1])(text);
        // Every header of the client is part of the question, which is Envoy's default.
        with("allowed_headers: { patterns: [{ exact: accept }] }", "")(text)
    };
    let Some(envoy) = authorizer.envoy("envoy", open) else { return };
    let long = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n",
        (0..50).map(|field| format!("x-{field}: {}\r\n", "a".repeat(1000))).collect::<String>()
    );
    let invalid =
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-text: \u{80}\u{ff}\r\n\r\n";
    for config in authorizer.configs(&large) {
        assert_eq!(envoy.get(&config), "403");
    }
    for config in authorizer.configs(&authorizer.good) {
        assert_eq!(envoy.get(&config), "200");
        assert_eq!(envoy.exchange(&config, &long).status(), "403");
        assert_eq!(envoy.exchange(&config, invalid).status(), "200", "bytes that are not UTF-8");
    }
    for config in authorizer.configs(&authorizer.lost) {
        assert_eq!(envoy.exchange(&config, invalid).status(), "403");
    }
    assert_eq!(authorizer.asked("oversize"), 4.0);
    authorizer.signal("KILL");
    authorizer.keygate.ended();
    for config in authorizer.configs(&authorizer.lost) {
        assert_eq!(envoy.get(&config), "200", "as docs/authorizers.md says");
    }
}

#[test]
fn a_client_without_a_certificate_is_treated_by_mode_and_policy() {
    let change = |host: &'static str| {
        move |text: String| {
            let required = "require_client_certificate: true";
            let text = with(required, "require_client_certificate: false")(text);
            if host == "envoy-xfcc" {
                return text;
            }
            // All fields of the client are in the question, its X-Forwarded-Client-Cert included.
            let text = with("allowed_headers: { patterns: [{ exact: accept }] }", "")(text);
            let forward = "forward_client_cert_details: ALWAYS_FORWARD_ONLY";
            with("stat_prefix: edge", &format!("stat_prefix: edge\n          {forward}"))(text)
        }
    };
    for host in ["envoy", "envoy-xfcc"] {
        for (is_optional, status) in [(true, "200"), (false, "403")] {
            let mut authorizer = Authorizer::of(host);
            if is_optional {
                let settings = "mode = \"optional\"";
                authorizer = authorizer
                    .add("authorizers.client_auth", settings)
                    .asked_policy("on_unchecked = \"header\"");
            }
            let authorizer = authorizer.start();
            let Some(envoy) = authorizer.envoy(host, change(host)) else { return };
            // The certificate of another client in the header is not read.
            let pem = std::fs::read_to_string(&authorizer.good.certificate).unwrap();
            let pem: String = pem.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let forged = format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert: Chain=\"{pem}\"\r\nConnection: close\r\n\r\n"
            );
            for version in [&TLS12, &TLS13] {
                let config = config_of(&authorizer.pki, &[version], None);
                for (request, is_resumed) in [(GET, false), (GET, true), (&forged, true)] {
                    let exchange = envoy.exchange(&config, request);
                    assert_eq!(exchange.status(), status, "{host}: {exchange:?}");
                    assert_eq!(exchange.is_resumed, is_resumed, "{host}: {exchange:?}");
                    if is_optional {
                        let received = authorizer.origin.next();
                        assert_eq!(received.fields("client-key-status"), ["unchecked"], "{host}");
                    }
                }
                let config = config_of(&authorizer.pki, &[version], Some(&authorizer.lost));
                assert_eq!(envoy.get(&config), "403", "{host}");
            }
        }
    }
}

/// Without `include_peer_certificate` Envoy sends a name from the certificate, and no certificate.
#[test]
fn an_envoy_without_include_peer_certificate_serves_no_client() {
    let authorizer = Authorizer::of("envoy")
        .add("authorizers.client_auth", "mode = \"optional\"")
        .asked_policy("on_unchecked = \"flag\"")
        .start();
    let change = with("include_peer_certificate: true", "include_peer_certificate: false");
    let Some(envoy) = authorizer.envoy("envoy", change) else { return };
    for config in authorizer.configs(&authorizer.good) {
        assert_eq!(envoy.get(&config), "403");
    }
    let line = authorizer.wait_for("the reason", |line| line["result"] == "malformed");
    assert!(line["reason"].as_str().unwrap().contains("include_peer_certificate"), "{line}");
}

#[test]
fn the_access_log_of_envoy_has_the_verdict() {
    let authorizer = Authorizer::of("envoy").start();
    let Some(envoy) = authorizer.envoy("envoy", unchanged) else { return };
    let [config, _] = authorizer.configs(&authorizer.lost);
    assert_eq!(envoy.get(&config), "403");
    let line = wait_for("a line of the access log", || {
        let text = std::fs::read_to_string(&envoy.log).unwrap_or_default();
        text.lines().next().map(str::to_owned).ok_or(text)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["status"], &line["verdict"]), (&403.into(), &"probable".into()));
    assert_eq!((&line["action"], &line["filter"]), (&"reject".into(), &"lost".into()));
    assert_eq!(line["revision"], 1);
    let logged = authorizer.wait_for("the client", |line| line["message"] == "client key rejected");
    assert_eq!(line["fingerprint"], logged["fingerprint"]);
    assert_eq!((&logged["sni"], &logged["client"]), (&"localhost".into(), &"127.0.0.1".into()));
}

#[test]
fn a_chain_in_xfcc_is_judged_whole_with_raw_headers_and_without() {
    for is_raw in [false, true] {
        let authorizer = Authorizer::of("envoy-xfcc").start();
        let (client, issuer) = authorizer.pki.client_of_intermediate("far");
        let change = |text: String| {
            let raw = "transport_api_version: V3\n              encode_raw_headers: true";
            if is_raw { with("transport_api_version: V3", raw)(text) } else { text }
        };
        let Some(envoy) = authorizer.envoy("envoy-xfcc", change) else { return };
        let chain: Vec<_> = rustls::pki_types::pem::PemObject::pem_file_iter(&client.certificate)
            .unwrap()
            .map(|certificate| certificate.unwrap())
            .collect();
        assert_eq!(chain.len(), 2);
        let configs = [&TLS12, &TLS13]
            .map(|version| config_with_chain(&authorizer.pki, version, chain.clone(), &client));
        for (revision, status) in [(1, "200"), (2, "403")] {
            if revision > 1 {
                authorizer.swap_filter(&[&issuer], revision);
            }
            for config in &configs {
                for _ in 0..2 {
                    assert_eq!(envoy.get(config), status, "{is_raw} {revision}");
                }
            }
        }
    }
}

/// Rule 6. Envoy writes URI SANs without quotes, and a client may have selected its SANs.
#[test]
fn a_certificate_within_a_name_of_a_certificate_is_rejected() {
    let authorizer = Authorizer::of("envoy-xfcc")
        .add("authorizers.client_auth", "mode = \"optional\"")
        .asked_policy("on_unchecked = \"flag\"")
        .start();
    let pem = std::fs::read_to_string(&authorizer.good.certificate).unwrap();
    let pem: String = pem.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let uris = [
        format!("spiffe://x,Cert=\"{pem}\""),
        format!("spiffe://x;Cert=\"{pem}\""),
        format!("spiffe://x;Chain=\"{pem}\""),
    ];
    let change = |text: String| {
        let text = with("{ chain: true }", "{ cert: true, uri: true }")(text);
        with(FAIL_OPEN[0], FAIL_OPEN[1])(text)
    };
    let Some(envoy) = authorizer.envoy("envoy-xfcc", change) else { return };
    for (index, uri) in uris.iter().enumerate() {
        let mut parameters = CertificateParams::default();
        let name = uri.as_str().try_into().unwrap();
        parameters.subject_alt_names.push(SanType::URI(name));
        let client = authorizer.pki.client_with(&format!("injects{index}"), Kind::P256, parameters);
        for config in authorizer.configs(&client) {
            assert_eq!(envoy.get(&config), "403", "{uri}");
        }
    }
    let [config, _] = authorizer.configs(&authorizer.good);
    assert_eq!(envoy.get(&config), "200");
}

/// Envoy resumes sessions of clients whose certificate has expired. Guard: `trust_anchors`.
#[test]
fn an_expired_client_that_resumes_its_session_is_rejected_by_trust_anchors() {
    let believing = Authorizer::of("envoy");
    let verifying = Authorizer::of("envoy").set("authorizers.client_auth.trust_anchors", "ca.pem");
    let authorizers = [believing.start(), verifying.start()];
    let envoys = authorizers.each_ref().map(|authorizer| authorizer.envoy("envoy", unchanged));
    let [Some(believing), Some(verifying)] = envoys else { return };
    let envoys = [(believing, "200", 0.0), (verifying, "403", 2.0)];
    let edges: Vec<_> = authorizers.iter().zip(&envoys).collect();
    let clients = edges.iter().map(|(authorizer, (envoy, ..))| {
        let ((configs, statuses), brief) = authorizer.pki.with_brief_client(|brief| {
            let configs = authorizer.configs(brief);
            let statuses = configs.each_ref().map(|config| envoy.get(config));
            (configs, statuses)
        });
        assert_eq!(statuses, ["200", "200"]);
        (configs, brief)
    });
    let clients: Vec<_> = clients.collect();
    for ((authorizer, (envoy, status, rejected)), (configs, brief)) in edges.iter().zip(&clients) {
        brief.wait_for_expiry();
        let before = authorizer.asked("not_verified");
        for config in configs {
            let exchange = envoy.exchange(config, GET);
            assert!(exchange.is_resumed, "{exchange:?}");
            assert_eq!(exchange.status(), *status);
        }
        assert_eq!(authorizer.asked("not_verified") - before, *rejected);
    }
}

#[test]
fn a_revoked_client_is_rejected_by_crls_on_full_and_resumed_sessions() {
    let authorizer = Authorizer::of("envoy");
    let day = Duration::from_secs(86_400);
    authorizer.pki.crl("clients.crl.pem", &[], day);
    let authorizer = authorizer
        .set("authorizers.client_auth.trust_anchors", "ca.pem")
        .add("authorizers.client_auth", "crls = [\"clients.crl.pem\"]")
        .start();
    let Some(envoy) = authorizer.envoy("envoy", unchanged) else { return };
    let configs = authorizer.configs(&authorizer.good);
    for config in &configs {
        assert_eq!(envoy.get(config), "200");
    }
    authorizer.pki.crl("clients.crl.pem", &[&authorizer.good], day);
    authorizer.keygate.wait_for_generation(2);
    for config in &configs {
        let exchange = envoy.exchange(config, GET);
        assert!(exchange.is_resumed, "{exchange:?}");
        assert_eq!(exchange.status(), "403");
    }
    for config in authorizer.configs(&authorizer.good) {
        assert_eq!(envoy.get(&config), "403");
    }
}

/// Envoy's configuration with a second endpoint for the authorizer.
fn with_second(first: &RunningAuthorizer, second: &RunningAuthorizer, text: &str) -> String {
    let line = text.lines().find(|line| line.contains("pipe: {")).unwrap().to_owned();
    let [first, second] = [first, second].map(|it| it.socket().display().to_string());
    text.replace(&line, &format!("{line}\n{}", line.replace(&first, &second)))
}

/// Guards: `retry_policy` of `grpc_service`, and `max_interval`, which limits each attempt.
#[test]
fn a_second_instance_answers_if_the_first_one_is_killed_or_hangs() {
    for host in ["envoy", "envoy-network"] {
        let instance = || {
            let mut instance = Authorizer::of(host);
            // The network filter relays bytes, so that the origin ends each connection.
            instance.origin = Origin::responding(|_, tcp| {
                tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")?;
                Err(ErrorKind::ConnectionAborted.into())
            });
            instance.start()
        };
        let (mut first, second) = (instance(), instance());
        let change = |text: String| {
            let text = with_second(&first, &second, &text);
            with("max_interval: 30s", "max_interval: 1s")(text)
        };
        let Some(envoy) = first.envoy(host, change) else { return };
        let [config, _] = first.configs(&first.good);
        let served = |state| assert_eq!(envoy.get(&config), "200", "{host}: {state}");
        let both_answer = |first: &RunningAuthorizer| {
            let before = first.asked("allowed");
            wait_for("a question to the first instance", || {
                served("both answer");
                if first.asked("allowed") > before { Ok(()) } else { Err(String::new()) }
            });
        };
        both_answer(&first);
        first.signal("KILL");
        (0..50).for_each(|_| served("the first one was killed"));
        first.keygate.ended();
        first.restart();
        both_answer(&first);
        first.signal("STOP");
        (0..6).for_each(|_| served("the first one hangs"));
        first.signal("CONT");
    }
}

#[test]
fn an_instance_that_drains_is_ejected_without_a_failed_request_and_returns() {
    let mut first = Authorizer::of("envoy").set("shutdown.readiness_delay", "5m").start();
    let second = Authorizer::of("envoy").start();
    let change = |text: String| with_second(&first, &second, &text);
    let Some(envoy) = first.envoy("envoy", change) else { return };
    let [config, _] = first.configs(&first.good);
    // Requests go to both instances in turn.
    let round = || {
        for _ in 0..20 {
            assert_eq!(envoy.get(&config), "200");
        }
    };
    let until = |first: &RunningAuthorizer, is_asked: bool| {
        wait_for("another set of healthy instances", || {
            let before = first.asked("allowed");
            round();
            let now = first.asked("allowed");
            if (now > before) == is_asked { Ok(()) } else { Err(now.to_string()) }
        });
    };
    until(&first, true);
    first.signal("TERM");
    until(&first, false);
    first.signal("TERM"); // the second one ends the process
    first.keygate.ended();
    round();
    first.restart();
    until(&first, true);
}
