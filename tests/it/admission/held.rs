//! Clients that are held after the handshake while the source of proofs is asked about their keys.
//!
//! Guards: `holds` and `answered` in `src/proxy/connection/assessment.rs`, `client_gone` and
//! `decision` in `src/proxy/connection/held.rs`, `judge_handshake` in `crates/core/src/tls/verifier.rs`,
//! `defers` in `src/confirm/inquiry.rs`, `judge_again` in `src/workers/event_loop.rs`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::scope;

use keygate_core::spki::Fingerprint;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, SupportedProtocolVersion};
use socket2::{Domain, Socket, Type};

use crate::support::client::{Client, config, config_of};
use crate::support::http2::{HEADERS, Http2};
use crate::support::pki::{Kind, Party};
use crate::support::proof_source::{ProofSource, canary, not_found, respond};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{TIMEOUT, output_text, wait_for, write_filter};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
pub(super) const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// Longer than any test takes.
pub(super) const LONG: &str = "1h";
pub(super) const REJECT: &str = "on_probable = \"reject\"";
/// Serves clients that are probably compromised, until the compromise is proved.
pub(super) const FLAG: &str = "on_probable = \"flag\"";

/// A proxy whose filter has the key of `lost`, about which `source` is silent.
pub(super) fn silent(policy: &str, wait: &str) -> (Running, ProofSource) {
    configured(ProofSource::silent(), wait, |proxy| proxy.policy(policy))
}

pub(super) fn configured(
    source: ProofSource,
    wait: &str,
    configure: impl FnOnce(Proxy) -> Proxy,
) -> (Running, ProofSource) {
    let proxy = Proxy::new();
    let settings = source.settings(&proxy.pki, wait);
    let scene =
        configure(proxy.global(&settings).global("log = { repeat_after = \"0s\" }")).start();
    source.wait_for_canary(&scene.keygate);
    (scene, source)
}

fn client_of(scene: &Running, version: &'static SupportedProtocolVersion) -> Client {
    let config = config_of(&scene.pki, &[version], Some(&scene.lost));
    Client::with(config, scene.keygate.address())
}

/// Waits until `count` connections were held and the wait ended in this way.
pub(super) fn wait_for_outcome(scene: &Running, outcome: &str, count: f64) {
    let series = format!("keygate_confirmation_waits_total{{outcome=\"{outcome}\"}}");
    scene.keygate.wait_for_metric(&series, count);
}

/// Waits until the client `lost` is held. The question is asked in the handshake already.
pub(super) fn wait_until_held(scene: &Running, source: &ProofSource) {
    source.wait_for_question(&scene.lost);
    scene.keygate.wait_for_metric("keygate_confirmation_waits_active", 1.0);
}

pub(super) fn wait_for_verdict(scene: &Running, stage: &str, verdict: &str, count: f64) {
    let labels = format!("service=\"test\",stage=\"{stage}\",verdict=\"{verdict}\"");
    scene.keygate.wait_for_metric(&format!("keygate_key_checks_total{{{labels}}}"), count);
}

#[test]
fn a_held_client_is_served_once_it_is_cleared_and_at_once_from_then_on() {
    for policy in [REJECT, FLAG] {
        for version in VERSIONS {
            let (scene, source) = silent(policy, LONG);
            let mut held = client_of(&scene, version);
            held.send(GET);
            wait_until_held(&scene, &source);
            let active = "keygate_connections_active{service=\"test\"}";
            scene.keygate.wait_for_metric(active, 1.0); // it counts as open
            assert_eq!(scene.origin.untaken(), 0, "a held client is not served");
            source.clear(&scene.lost);
            assert!(held.head().starts_with("HTTP/1.1 200 "), "{policy}");
            scene.origin.next();
            wait_for_outcome(&scene, "answered", 1.0);
            wait_for_verdict(&scene, "handshake", "cleared", 1.0);
            let mut next = client_of(&scene, version);
            next.send(GET);
            assert!(next.head().starts_with("HTTP/1.1 200 "), "{policy}");
            wait_for_outcome(&scene, "answered", 1.0);
            wait_for_verdict(&scene, "handshake", "cleared", 2.0);
            assert_eq!(source.questions(&scene.lost), 1);
        }
    }
}

/// Answers come at every moment of a handshake and of the judgements after it.
#[test]
fn every_client_of_a_quick_source_is_decided_by_the_answer() {
    const CLIENTS: usize = 200;
    let (proxy, source) = (Proxy::new(), ProofSource::start());
    let parties: Vec<Party> =
        (0..CLIENTS).map(|number| proxy.pki.client(&format!("{number}"), Kind::P256)).collect();
    let keys: Vec<&[u8]> = parties.iter().map(|party| &party.spki[..]).collect();
    write_filter(&proxy.pki.path("lost.pkbf"), &keys);
    let settings = source.settings(&proxy.pki, LONG);
    let scene = proxy.global(&settings).start();
    source.wait_for_canary(&scene.keygate);
    for party in &parties {
        let (_, response) = request(&scene, &Arc::new(config(&scene.pki, party)));
        assert_eq!(response, "HTTP/1.1 200 OK", "{}", party.name);
    }
}

#[test]
fn a_held_client_whose_compromise_is_proved_is_closed_in_order_and_then_gets_an_alert() {
    for policy in [REJECT, FLAG] {
        for version in VERSIONS {
            let (scene, source) = silent(policy, LONG);
            let mut held = client_of(&scene, version);
            held.send(GET);
            wait_until_held(&scene, &source);
            source.prove(&scene.lost);
            assert_eq!(held.rest(), "", "{policy}");
            wait_for_outcome(&scene, "answered", 1.0);
            wait_for_verdict(&scene, "handshake", "confirmed", 1.0);
            let line = scene.keygate.wait_for("the line", |line| line["verdict"] == "confirmed");
            assert_eq!(line["message"], "client key rejected");
            assert_eq!(line["proof"], Fingerprint::of(&scene.lost.spki).to_string());
            let output = scene.keygate.curl(&scene.lost, &[]);
            assert!(output_text(&output).contains("revoked"), "{}", output_text(&output));
            assert_eq!(scene.origin.untaken(), 0);
        }
    }
}

#[test]
fn a_held_client_of_http_403_learns_the_reason() {
    let (scene, source) = silent("reject_with = \"http-403\"", LONG);
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send(GET);
    wait_until_held(&scene, &source);
    source.prove(&scene.lost);
    let response = held.rest();
    assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    assert!(response.contains("is compromised: replace key"), "{response}");
}

#[test]
fn a_held_client_of_http2_is_served_once_it_is_cleared() {
    let (scene, source) = silent(REJECT, LONG);
    scope(|scope| {
        let response = scope.spawn(|| {
            let mut held = Http2::connect(&scene.pki, scene.keygate.address(), &scene.lost);
            held.send_get(1);
            while let Some((kind, _, stream, payload)) = held.frame() {
                if (kind, stream) == (HEADERS, 1) {
                    return payload;
                }
            }
            panic!("no response");
        });
        wait_until_held(&scene, &source);
        source.clear(&scene.lost);
        assert_eq!(response.join().unwrap()[0], 0x88, ":status 200 of the static table");
    });
}

#[test]
fn what_a_held_client_of_a_tcp_service_sends_reaches_the_server_later() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let server = listener.local_addr().unwrap();
    let (scene, source) = configured(ProofSource::silent(), LONG, |proxy| {
        proxy.servers(&[server]).service("protocol = \"tcp\"")
    });
    let (sender, received) = channel();
    std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut bytes = String::new();
        tcp.read_to_string(&mut bytes).unwrap();
        sender.send(bytes).unwrap();
        tcp.write_all(b"and back").unwrap();
        tcp.shutdown(Shutdown::Both).unwrap();
    });
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send("early");
    held.finish(); // a client of a TCP service may read on
    wait_until_held(&scene, &source);
    source.clear(&scene.lost);
    assert_eq!(received.recv_timeout(TIMEOUT).unwrap(), "early");
    assert_eq!(held.rest(), "and back");
}

#[test]
fn a_wait_that_ends_without_an_answer_does_not_count_as_answered() {
    let (scene, source) = silent(REJECT, LONG);
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send(GET);
    wait_until_held(&scene, &source);
    let pause = respond("429 Too Many Requests", "retry-after: 3600\r\n", "");
    source.reply(&scene.lost, pause);
    assert_eq!(held.rest(), "");
    wait_for_outcome(&scene, "expired", 1.0);
    let is_named = |error: &str| error.contains("Z http://127.0.0.1:") && error.contains(": 429");
    scene.keygate.wait_for_status("the error", |status| {
        status["confirm"]["last_error"].as_str().is_some_and(is_named)
    });
}

#[test]
fn a_resumed_client_is_held_too() {
    for version in VERSIONS {
        let (scene, source) = silent(FLAG, "200ms");
        let config = Arc::new(config_of(&scene.pki, &[version], Some(&scene.lost)));
        let served = request(&scene, &config);
        assert_eq!(served, (HandshakeKind::Full, "HTTP/1.1 200 OK".to_owned()));
        wait_for_outcome(&scene, "expired", 1.0);
        assert_eq!(request(&scene, &config).0, HandshakeKind::Resumed);
        wait_for_outcome(&scene, "expired", 2.0);
        source.prove(&scene.lost);
        wait_for("a rejection", || {
            let (kind, response) = request(&scene, &config);
            if response.is_empty() { Ok(()) } else { Err(format!("{kind:?} {response}")) }
        });
        wait_for_verdict(&scene, "resumed", "confirmed", 1.0);
    }
}

/// The kind of handshake, and all that the server sends after `request`.
fn exchange(
    scene: &Running,
    config: &Arc<ClientConfig>,
    request: &str,
) -> (HandshakeKind, std::io::Result<String>) {
    let connection = ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap());
    let mut connection = connection.unwrap();
    let mut tcp = std::net::TcpStream::connect(scene.keygate.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = rustls::Stream::new(&mut connection, &mut tcp);
    let mut text = String::new();
    let sent = tls.write_all(request.as_bytes());
    let read = sent.and_then(|()| tls.read_to_string(&mut text));
    (connection.handshake_kind().unwrap_or(HandshakeKind::Full), read.map(|_| text))
}

/// The kind of handshake and the first line of the response to a request; empty without one.
pub(super) fn request(scene: &Running, config: &Arc<ClientConfig>) -> (HandshakeKind, String) {
    let (kind, response) = exchange(scene, config, GET);
    (kind, response.unwrap().lines().next().unwrap_or_default().to_owned())
}

#[test]
fn no_client_is_held_if_no_answer_changes_whether_it_is_served() {
    for (policy, action) in [
        ("on_probable = \"flag\"\non_confirmed = \"flag\"", "flag"),
        ("on_probable = \"header\"\non_confirmed = \"header\"", "header"),
    ] {
        let (scene, source) = silent(policy, LONG);
        let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
        client.send("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "), "{action}");
        client.exactly(6);
        source.wait_for_question(&scene.lost);
        let status = scene.origin.next().fields("client-key-status").join("");
        source.prove(&scene.lost);
        // The answer is applied to the open connection.
        wait_for_verdict(&scene, "live", "confirmed", 1.0);
        let line = scene.keygate.wait_for("the line", |line| line["stage"] == "live");
        assert_eq!((&line["action"], &line["verdict"]), (&action.into(), &"confirmed".into()));
        client.send(GET);
        assert!(client.rest().starts_with("HTTP/1.1 200 "), "{action}");
        let later = scene.origin.next().fields("client-key-status").join("");
        let expected = match action {
            "header" => {
                ["probable", "confirmed"].map(|it| format!("{it};filter=\"lost\";revision=1"))
            }
            _ => Default::default(),
        };
        assert_eq!([status, later], expected);
        let waits = scene.keygate.metrics();
        let waits = waits.iter().filter(|(name, _)| name.contains("confirmation_waits_total"));
        assert_eq!(waits.map(|(_, count)| count).sum::<f64>(), 0.0, "nothing waited");
    }
}

#[test]
fn a_proof_ends_the_open_connections_of_its_key_and_no_others() {
    let (scene, source) = silent("on_probable = \"flag\"", "0s");
    let connect = |party: &Party| {
        let mut client = Client::connect(&scene.pki, scene.keygate.address(), party);
        client.send("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        client.exactly(6);
        client
    };
    let (mut lost, mut good) = (connect(&scene.lost), connect(&scene.good));
    source.wait_for_question(&scene.lost);
    source.prove(&scene.lost);
    // Comes first, because an idle connection is closed in order as well, after its timeout.
    wait_for_verdict(&scene, "live", "confirmed", 1.0);
    assert_eq!(lost.rest(), "");
    good.send(GET);
    assert!(good.rest().starts_with("HTTP/1.1 200 "));
    let evictions = "keygate_key_actions_total{action=\"evict\",service=\"test\"}";
    scene.keygate.wait_for_metric(evictions, 1.0);
}

#[test]
fn a_client_is_rejected_in_the_handshake_if_no_answer_comes_soon() {
    // The wait is shorter than the pause of the source.
    let source = ProofSource::start();
    source.reply_to_others(respond("429 Too Many Requests", "retry-after: 3600\r\n", ""));
    let (scene, source) = configured(source, "30m", |proxy| proxy);
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send(GET);
    assert_eq!(held.whatever_comes(), "", "held until the source requests a pause, then closed");
    wait_for_verdict(&scene, "handshake", "probable", 1.0);
    assert_eq!(source.questions(&scene.lost), 1);
    for _ in 0..3 {
        scene.rejects(&scene.lost); // with the alert access_denied
    }
    assert_eq!(source.questions(&scene.lost), 1);
    assert_eq!(scene.origin.untaken(), 0);
}

/// A proof alone cannot turn rejecting into serving. It can turn serving into rejecting.
#[test]
fn a_source_that_clears_no_key_holds_only_clients_that_a_proof_would_reject() {
    let off = |settings: String| settings.replace("\"canary.pem\"", "\"off\"");
    let unknown = |settings: String| settings;
    for (settings_of, state) in [(off as fn(String) -> String, "off"), (unknown, "failed")] {
        for policy in [REJECT, FLAG] {
            let (source, proxy) = (ProofSource::silent(), Proxy::new());
            let settings = settings_of(source.settings(&proxy.pki, LONG));
            source.clear(&canary(&proxy.pki)); // a new one
            let scene = proxy.global(&settings).policy(policy).start();
            scene.keygate.wait_for_status("the canary", |it| it["confirm"]["canary"] == state);
            if policy == REJECT {
                scene.rejects(&scene.lost); // in the handshake
                source.wait_for_question(&scene.lost);
                continue;
            }
            let mut held = client_of(&scene, VERSIONS[1]);
            held.send(GET);
            wait_until_held(&scene, &source);
            source.prove(&scene.lost);
            assert_eq!(held.rest(), "", "{state}");
            wait_for_outcome(&scene, "answered", 1.0);
        }
    }
}

#[test]
fn a_source_that_is_down_at_the_start_holds_no_client_that_is_rejected() {
    let proxy = Proxy::new();
    // Rejects connections until it listens.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap().as_socket().unwrap());
    let canary = canary(&proxy.pki);
    let table = format!("url = \"{url}\"\ncanary = \"canary.pem\"\nwait = \"1h\"");
    let scene = proxy.add("confirm", &table).start();
    scene.keygate.wait_for_status("the canary", |it| it["confirm"]["canary"] == "failed");
    scene.rejects(&scene.lost); // in the handshake
    socket.listen(16).unwrap();
    let source = ProofSource::on(socket.into());
    source.prove(&canary);
    scene.keygate.wait_for_status("the answer", |it| it["confirm"]["cleared"] == 1);
    scene.admits(&scene.lost);
}

#[test]
fn a_client_that_is_rejected_at_once_is_asked_about_and_admitted_once_it_is_cleared() {
    let source = ProofSource::silent();
    let proxy = Proxy::new();
    let (below, issuer) = proxy.pki.client_of_intermediate("below");
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &issuer]);
    let settings = source.settings(&proxy.pki, "0s");
    let scene = proxy.global(&settings).policy("judge = \"chain\"").start();
    source.wait_for_canary(&scene.keygate);
    scene.rejects(&scene.lost); // with an alert in the handshake
    source.wait_for_question(&scene.lost);
    source.clear(&scene.lost);
    scene.keygate.wait_for_status("the answer", |status| status["confirm"]["cleared"] == 1);
    scene.admits(&scene.lost);
    scene.rejects(&below);
    source.reply_about(&issuer, not_found());
    scene.keygate.wait_for_status("the answer", |status| status["confirm"]["cleared"] == 2);
    scene.admits(&below);
}

#[test]
fn an_answer_clears_no_hit_in_another_filter() {
    let source = ProofSource::start();
    let proxy = Proxy::new();
    let both = proxy.pki.client("both", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &both.spki]);
    write_filter(&proxy.pki.path("own.pkbf"), &[&both.spki]);
    let settings = source.settings(&proxy.pki, LONG);
    let own = "[[filters]]\nname = \"own\"\npath = \"own.pkbf\"\n";
    let scene = proxy.global(&settings).global(own).start();
    source.wait_for_canary(&scene.keygate);
    scene.admits(&scene.lost);
    for _ in 0..2 {
        scene.rejects(&both); // in the handshake, because no answer can admit the client
    }
}

#[test]
fn issuers_are_asked_about_after_the_handshake_and_hold_the_client() {
    let source = ProofSource::silent();
    let proxy = Proxy::new();
    let (client, issuer) = proxy.pki.client_of_intermediate("below");
    write_filter(&proxy.pki.path("lost.pkbf"), &[&issuer]);
    let settings = source.settings(&proxy.pki, LONG);
    let scene = proxy.global(&settings).policy("judge = \"chain\"").start();
    source.wait_for_canary(&scene.keygate);
    let mut held = Client::with_chain(&scene.pki, scene.keygate.address(), &client);
    held.send(GET);
    source.reply_about(&issuer, not_found());
    assert!(held.head().starts_with("HTTP/1.1 200 "));
    wait_for_verdict(&scene, "handshake", "cleared", 1.0);
}

/// The response to the first byte of a client of a TCP service: the server's greeting, or an alert.
fn greeting(scene: &Running, config: &Arc<ClientConfig>) -> (HandshakeKind, String) {
    let (kind, text) = exchange(scene, config, "");
    (kind, text.unwrap_or_else(|error| error.to_string()))
}

#[test]
fn a_tcp_service_decides_by_the_answers_in_full_and_resumed_sessions() {
    for (word, version) in ["reject", "flag"].iter().flat_map(|word| VERSIONS.map(|it| (*word, it)))
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let server = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let _ = tcp.unwrap().write_all(b"hello"); // the client may have closed
            }
        });
        let source = ProofSource::silent();
        let proxy = Proxy::new().servers(&[server]);
        let [proved, innocent] = ["proved", "innocent"].map(|it| proxy.pki.client(it, Kind::P256));
        let keys = [&proxy.lost, &proved, &innocent].map(|party| &party.spki[..]);
        write_filter(&proxy.pki.path("lost.pkbf"), &keys);
        let settings = source.settings(&proxy.pki, "0s");
        let policy =
            format!("on_probable = \"{word}\"\non_confirmed = \"{word}\"\non_cleared = \"{word}\"");
        let proxy = proxy.global(&settings).policy(&policy).service("protocol = \"tcp\"");
        source.prove(&proved);
        source.clear(&innocent);
        let scene = proxy.start();
        source.wait_for_canary(&scene.keygate);
        for party in [&proved, &innocent] {
            let _ = greeting(&scene, &Arc::new(config_of(&scene.pki, &[version], Some(party))));
        }
        scene.keygate.wait_for_status("the answers", |status| {
            let confirm = &status["confirm"];
            confirm["confirmed"] == 1 && confirm["cleared"] == 1
        });
        let alerts = [
            (&proved, "confirmed", "CertificateRevoked"),
            (&innocent, "cleared", "AccessDenied"),
            (&scene.lost, "probable", "AccessDenied"),
        ];
        for (party, verdict, alert) in alerts {
            let config = Arc::new(config_of(&scene.pki, &[version], Some(party)));
            let full = greeting(&scene, &config).1;
            if word == "flag" {
                assert_eq!(full, "hello", "{verdict}");
                let resumed = (HandshakeKind::Resumed, "hello".to_owned());
                assert_eq!(greeting(&scene, &config), resumed, "{verdict}");
                wait_for_verdict(&scene, "resumed", verdict, 1.0);
            } else {
                assert!(full.contains(alert), "{verdict}: {full}");
            }
            let line = scene.keygate.wait_for("the line", |line| {
                line["verdict"] == verdict && line["stage"] == "handshake"
            });
            assert_eq!(line["action"], word);
        }
    }
}
