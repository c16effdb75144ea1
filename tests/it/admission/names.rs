//! Rules by name: clients that no rule of the service names are rejected, in every way to connect.
//!
//! Guards: `with_names` in `crates/core/src/guard/judgement.rs`, `judge_handshake` in `crates/core/src/tls/verifier.rs`,
//! `identity.judge` in `src/proxy/connection/assessment.rs`, `judge_again` in
//! `src/proxy/open_connection.rs`, `is_allowed` in `crates/core/src/guard/unanswered.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use keygate_core::spki::Fingerprint;
use rcgen::{CertificateParams, CustomExtension, DnType, DnValue, SanType};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, HandshakeKind, StreamOwned,
    SupportedProtocolVersion,
};
use serde_json::{Value, json};

use super::open_connections::{OK, waiting_origin};
use crate::support::client::{Client, config_of};
use crate::support::http2::{Came, HEADERS, Http2};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, der};
use crate::support::proof_source::ProofSource;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::Server;
use crate::support::{TIMEOUT, output_text};

pub(super) const VERSIONS: [&SupportedProtocolVersion; 2] =
    [&rustls::version::TLS12, &rustls::version::TLS13];
const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const LAST_GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const ORDERS: &str = "allow = { uri = [\"spiffe://example.org/orders/*\"] }";
const BILLING: &str = "allow = { uri = [\"spiffe://example.org/billing/**\"] }";

pub(super) fn with(names: &[SanType]) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = names.to_vec();
    parameters
}

pub(super) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

pub(super) fn uri(id: &str) -> SanType {
    SanType::URI(id.try_into().unwrap())
}

pub(super) fn email(address: &str) -> SanType {
    SanType::Rfc822Name(address.try_into().unwrap())
}

/// Alternative names as DER.
fn raw(names: &[(u8, &[u8])]) -> CertificateParams {
    let names: Vec<u8> = names.iter().flat_map(|(tag, name)| der(*tag, name)).collect();
    let extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], der(0x30, &names));
    let mut parameters = CertificateParams::default();
    parameters.custom_extensions.push(extension);
    parameters
}

pub(super) fn in_unit(unit: DnValue) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    parameters
}

/// A client with the SPIFFE ID `spiffe://example.org/NAME/web`.
fn workload(pki: &Pki, name: &str) -> Party {
    let id = format!("spiffe://example.org/{name}/web");
    pki.client_with(name, Kind::P256, with(&[uri(&id)]))
}

/// A proxy with these rules, and the clients `orders` and `billing`, whose IDs are one segment
/// longer than a rule with one `*`.
struct Scene {
    running: Running,
    orders: Party,
    billing: Party,
}

fn scene(allow: &str, configure: impl FnOnce(Proxy) -> Proxy) -> Scene {
    scene_to(Origin::start(), allow, configure)
}

fn scene_to(origin: Origin, allow: &str, configure: impl FnOnce(Proxy) -> Proxy) -> Scene {
    let proxy = Proxy::to(origin).client_auth(allow).global("log = { repeat_after = \"0s\" }");
    let [orders, billing] = ["orders", "billing"].map(|name| workload(&proxy.pki, name));
    Scene { running: configure(proxy).start(), orders, billing }
}

impl Scene {
    fn config(&self, party: &Party, version: &'static SupportedProtocolVersion) -> ClientConfig {
        config_of(&self.running.pki, &[version], Some(party))
    }

    fn connect(&self, party: &Party) -> Client {
        Client::connect(&self.running.pki, self.running.address(), party)
    }

    /// Replaces the rules, and waits for the next snapshot.
    fn change(&self, allow: &str, generation: u64) {
        let text = self.running.configuration.clone().client_auth(allow).text();
        std::fs::write(self.running.pki.path("keygate.toml"), text).unwrap();
        self.running.wait_for_generation(generation);
    }

    fn count(&self, series: &str, labels: &str, count: f64) {
        self.running.wait_for_metric(&format!("keygate_{series}{{{labels}}}"), count);
    }

    fn name_checks(&self, stage: &str, result: &str, count: f64) {
        let labels = format!("result=\"{result}\",service=\"test\",stage=\"{stage}\"");
        self.count("name_checks_total", &labels, count);
    }

    fn connections(&self, result: &str, count: f64) {
        let labels = format!("result=\"{result}\",service=\"test\"");
        self.count("connections_total", &labels, count);
    }
}

/// One GET on a new connection: the kind of the handshake, and the response.
pub(super) fn exchange(
    running: &Running,
    config: &Arc<ClientConfig>,
) -> (Option<HandshakeKind>, std::io::Result<String>) {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let tcp = TcpStream::connect(running.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    let mut response = String::new();
    let read = write!(tls, "{LAST_GET}").and_then(|()| tls.read_to_string(&mut response));
    (tls.conn.handshake_kind(), read.map(|_| response))
}

fn is_denied(response: std::io::Result<String>) -> bool {
    let Err(error) = response else { return false };
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    error == Some(&rustls::Error::AlertReceived(AlertDescription::AccessDenied))
}

#[test]
fn each_kind_of_rule_admits_the_clients_that_it_names_and_no_others() {
    let proxy = Proxy::new();
    let pki = &proxy.pki;
    let client = |name: &str, parameters| pki.client_with(name, Kind::P256, parameters);
    let two_ids = [uri("spiffe://example.org/orders/a"), uri("spiffe://example.org/orders/b")];
    let clients = [
        (true, client("dns", with(&[dns("other.example"), dns("A.Clients.Example")]))),
        (false, client("dns-parent", with(&[dns("clients.example")]))),
        (false, client("dns-deeper", with(&[dns("a.b.clients.example")]))),
        (false, client("dns-nul", raw(&[(0x82, b"a.clients.example\0.evil.example")]))),
        (false, client("dns-nul-first", raw(&[(0x82, b"a\0.clients.example")]))),
        (false, client("dns-utf-8", raw(&[(0x82, "\u{e4}.clients.example".as_bytes())]))),
        (false, client("dns-latin-1", raw(&[(0x82, b"\xe4.clients.example")]))),
        (false, client("email-latin-1", raw(&[(0x81, b"ops\xe4@example.com")]))),
        (false, client("a.clients.example", CertificateParams::default())),
        (true, client("uri", with(&[uri("SPIFFE://Example.org/orders/web")]))),
        (false, client("uri-case", with(&[uri("spiffe://example.org/Orders/web")]))),
        (false, client("uri-deeper", with(&[uri("spiffe://example.org/orders/web/2")]))),
        (false, client("uri-dots", with(&[uri("spiffe://example.org/orders/..")]))),
        (false, client("uri-escape", with(&[uri("spiffe://example.org/%6Frders/web")]))),
        (false, client("uri-two", with(&two_ids))),
        (false, client("uri-in-dns", raw(&[(0x82, b"spiffe://example.org/orders/web")]))),
        (true, client("email", with(&[email("ops@EXAMPLE.com")]))),
        (false, client("email-case", with(&[email("OPS@example.com")]))),
        (true, client("billing", CertificateParams::default())),
        (false, client("Billing", CertificateParams::default())),
        (true, client("unit", in_unit(DnValue::Utf8String("Payments".into())))),
        (true, client("unit-bmp", in_unit(DnValue::BmpString("Payments".try_into().unwrap())))),
        (
            false,
            client("unit-teletex", in_unit(DnValue::TeletexString("Payments".try_into().unwrap()))),
        ),
        (false, client("unit-nul", in_unit(DnValue::Utf8String("Payments\0".into())))),
        (true, pki.client("pinned", Kind::P256)),
        (false, pki.client("nobody", Kind::P256)),
        (false, client("broken", raw(&[(0x82, b"a.clients.example"), (0x89, b"")]))),
    ];
    let pin = Fingerprint::of(&clients[clients.len() - 3].1.spki);
    let allow = format!(
        r#"allow = {{ dns = ["*.clients.example"], uri = ["spiffe://example.org/orders/*"], email = ["ops@example.com"], common_names = ["billing"], organizational_units = ["Payments"], spki = ["{pin}"] }}"#
    );
    let running = proxy.client_auth(&allow).start();
    for (is_allowed, client) in &clients {
        let config = config_of(&running.pki, rustls::ALL_VERSIONS, Some(client));
        let (_, response) = exchange(&running, &Arc::new(config));
        match is_allowed {
            true => assert!(response.unwrap().ends_with("hello\n"), "{}", client.name),
            false => assert!(is_denied(response), "{}", client.name),
        }
    }
}

#[test]
fn a_client_that_no_rule_names_is_rejected_in_the_handshake_and_counted_logged_and_reported() {
    for version in VERSIONS {
        let scene = scene(ORDERS, |proxy| proxy);
        let served = exchange(&scene.running, &Arc::new(scene.config(&scene.orders, version)));
        assert!(served.1.unwrap().ends_with("hello\n"), "{version:?}");
        let config = Arc::new(scene.config(&scene.billing, version));
        assert!(is_denied(exchange(&scene.running, &config).1), "{version:?}");

        let line = scene.running.wait_for("the line", |it| it["message"] == "client not allowed");
        let expected = json!({
            "level": "WARN",
            "target": "keygate::client_key",
            "service": "test",
            "subject": "CN=billing",
            "uris": "spiffe://example.org/billing/web",
            "emails": "",
            "stage": "handshake",
            "result": "not_allowed",
            "verdict": "clean",
            "action": "reject",
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(line[field], *value, "{line}");
        }
        scene.name_checks("handshake", "allowed", 1.0);
        scene.name_checks("handshake", "not_allowed", 1.0);
        scene.connections("not_allowed", 1.0);
        scene.connections("refused", 0.0);
        let failed = "result=\"not_allowed\",resumed=\"false\",service=\"test\"";
        scene.count("handshakes_total", failed, 1.0);
        scene.count(
            "key_checks_total",
            "service=\"test\",stage=\"handshake\",verdict=\"clean\"",
            2.0,
        );
        scene.count("key_actions_total", "action=\"admit\",service=\"test\"", 1.0);
        scene.count("key_actions_total", "action=\"reject\",service=\"test\"", 0.0);

        let report: Value = serde_json::from_str(&scene.running.admin("/report").1).unwrap();
        let [client] = &report["clients"].as_array().unwrap()[..] else { panic!("{report}") };
        let found = ["result", "verdict", "action", "subject"].map(|field| &client[field]);
        assert_eq!(found, ["not_allowed", "clean", "reject", "CN=billing"]);
        let page = scene.running.admin("/").1;
        assert!(page.contains("<span class=\"state not_allowed\">not_allowed</span>"), "{page}");
        let configuration = scene.running.pki.path("keygate.toml");
        let admin = scene.running.admin_address().to_string();
        let text = std::fs::read_to_string(&configuration).unwrap();
        std::fs::write(&configuration, text.replacen("127.0.0.1:0", &admin, 1)).unwrap();
        let printed = crate::support::keygate::keygate(&[
            "report",
            "--config",
            configuration.to_str().unwrap(),
        ]);
        let printed = output_text(&printed);
        assert!(printed.contains("1 client rejected since"), "{printed}");
        assert!(
            printed.contains("service test, not_allowed, key clean, reject, once"),
            "{printed}"
        );
    }
}

#[test]
fn with_http_403_a_full_or_resumed_connection_gets_the_reason_over_both_protocols() {
    for version in VERSIONS {
        let scene = scene(ORDERS, |proxy| proxy.policy("reject_with = \"http-403\""));
        let config = Arc::new(scene.config(&scene.billing, version));
        for (kind, stage) in
            [(HandshakeKind::Full, "handshake"), (HandshakeKind::Resumed, "resumed")]
        {
            let (found, response) = exchange(&scene.running, &config);
            let response = response.unwrap();
            assert_eq!(found, Some(kind), "{version:?}");
            assert!(response.starts_with("HTTP/1.1 403 "), "{version:?}: {response}");
            let reason = "no name of the client certificate is allowed here";
            assert!(response.contains(reason), "{response}");
            scene.name_checks(stage, "not_allowed", 1.0);
            scene.running.wait_for("the line", |line| {
                line["message"] == "client not allowed" && line["stage"] == stage
            });
        }
        scene.connections("not_allowed", 2.0);
        let tls = if version == &rustls::version::TLS12 { "1.2" } else { "1.3" };
        let arguments = ["--http2", "--tls-max", tls, "-w", "%{http_code} %{http_version}"];
        let response = output_text(&scene.running.curl(&scene.billing, &arguments));
        assert!(response.contains("403 2"), "{response}");
        assert_eq!(scene.running.origin.untaken(), 0);
        let config = Arc::new(scene.config(&scene.orders, version));
        for stage in ["handshake", "resumed"] {
            assert!(exchange(&scene.running, &config).1.unwrap().ends_with("hello\n"));
            scene.name_checks(stage, "allowed", 1.0);
        }
    }
}

#[test]
fn the_verdict_on_the_key_goes_before_the_rules_by_name() {
    let rejecting = scene(ORDERS, |proxy| proxy);
    rejecting.running.rejects(&rejecting.running.lost);
    rejecting.running.wait_for("the line", |line| line["message"] == "client key rejected");
    rejecting.name_checks("handshake", "not_allowed", 0.0);
    rejecting.connections("refused", 1.0);

    let flagging = scene(ORDERS, |proxy| proxy.policy("on_probable = \"flag\""));
    flagging.running.rejects(&flagging.running.lost);
    let line = flagging.running.wait_for("the line", |it| it["message"] == "client not allowed");
    assert_eq!((&line["verdict"], &line["filter"]), (&json!("probable"), &json!("lost")));
    flagging.connections("not_allowed", 1.0);
}

#[test]
fn open_connections_are_closed_when_the_rules_no_longer_name_their_clients() {
    let scene = scene(ORDERS, |proxy| proxy);
    // A connection that hibernates, one that has not sent a request, and one of HTTP/2.
    let mut resting = scene.connect(&scene.orders);
    resting.send(GET);
    assert!(resting.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(resting.exactly(6), b"hello\n");
    scene.count("connections_hibernating", "service=\"test\"", 1.0);
    let mut silent = scene.connect(&scene.orders);
    silent.send(""); // completes the handshake
    let mut http2 = Http2::connect(&scene.running.pki, scene.running.address(), &scene.orders);
    http2.send_get(1);
    while http2.frame().expect("a response").0 != HEADERS {}
    scene.count("connections_active", "service=\"test\"", 3.0);
    scene.name_checks("handshake", "allowed", 3.0);

    // A change that names them still leaves them alone.
    scene.change("allow = { uri = [\"spiffe://example.org/**\"] }", 2);
    scene.name_checks("live", "allowed", 3.0);
    resting.send(GET);
    assert!(resting.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(resting.exactly(6), b"hello\n");

    scene.change(BILLING, 3);
    scene.name_checks("live", "not_allowed", 3.0);
    assert_eq!(resting.rest(), "", "closed in an orderly way");
    assert_eq!(silent.rest(), "");
    while http2.frame().is_some() {}
    let line = scene
        .running
        .wait_for("the line", |line| line["message"] == "client not allowed, closing connection");
    assert_eq!((&line["stage"], &line["result"]), (&json!("live"), &json!("not_allowed")));
    scene.count("connections_active", "service=\"test\"", 0.0);
    scene.count("key_actions_total", "action=\"evict\",service=\"test\"", 0.0);
    scene.running.rejects(&scene.orders);
    scene.running.admits(&scene.billing);

    // Without the table, every client of the CA is served again.
    let open = scene.running.configuration.clone().unset("services.client_auth.allow");
    std::fs::write(scene.running.pki.path("keygate.toml"), open.text()).unwrap();
    scene.running.wait_for_generation(4);
    scene.running.admits(&scene.running.good);
}

#[test]
fn requests_in_flight_are_the_last_ones_when_the_rules_no_longer_name_their_clients() {
    let (origin, go) = waiting_origin();
    let scene = scene_to(origin, ORDERS, |proxy| proxy);
    let mut http1 = scene.connect(&scene.orders);
    http1.send(GET);
    scene.running.origin.next();
    let mut http2 = Http2::connect(&scene.running.pki, scene.running.address(), &scene.orders);
    http2.send_get(1);
    scene.running.origin.next();
    scene.change(BILLING, 2);
    scene.name_checks("live", "not_allowed", 2.0);
    http2.send_get(3);
    assert_eq!(http2.next(), Came::GoAway(0));
    let Came::Response(status, 3) = http2.next() else { panic!("no response") };
    assert_ne!(status, OK);
    (0..2).for_each(|_| go.send(()).unwrap());
    assert_eq!(http2.next(), Came::Response(OK, 1), "the request was sent before GOAWAY");
    let head = http1.head();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("connection: close\r\n"), "{head}");
    assert_eq!(http1.rest(), "hello\n");
    assert_eq!(scene.running.origin.untaken(), 0);
}

/// Ten thousand rules cost a request nothing, because they are consulted in the handshake only.
#[test]
fn the_requests_of_an_open_connection_consult_no_rule() {
    let others = (0..10_000).map(|number| format!("\"spiffe://example.org/other/{number}\""));
    let others: Vec<_> = others.collect();
    let allow =
        format!("allow = {{ uri = [\"spiffe://example.org/orders/*\", {}] }}", others.join(", "));
    let scene = scene(&allow, |proxy| proxy.workers(1));
    let mut client = scene.connect(&scene.orders);
    for _ in 0..5 {
        client.send(GET);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(6), b"hello\n");
    }
    scene.name_checks("handshake", "allowed", 1.0);
    scene.count("requests_total", "code=\"2xx\",service=\"test\"", 5.0);
    let metrics = scene.running.admin("/metrics").1;
    let checks = metrics.lines().filter(|line| line.starts_with("keygate_name_checks_total{"));
    let checks = checks.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert_eq!(checks.sum::<f64>(), 1.0, "{metrics}");
    scene.running.rejects(&scene.billing);
}

#[test]
fn a_tunnel_of_a_tcp_service_is_closed_when_the_rules_no_longer_name_its_client() {
    let server = Server::start();
    let scene = scene(ORDERS, |proxy| {
        proxy
            .servers(&[server.address])
            .service("protocol = \"tcp\"")
            .policy("evict_within = \"1s\"")
    });
    let mut tunnel = scene.connect(&scene.orders);
    tunnel.send("hello");
    let mut upstream = server.connection();
    upstream.read_exact(&mut [0; 5]).unwrap();
    scene.running.rejects(&scene.billing);
    scene.change(BILLING, 2);
    scene.name_checks("live", "not_allowed", 1.0);
    assert_eq!(tunnel.whatever_comes(), "");
    scene.count("connections_active", "service=\"test\"", 0.0);
}

#[test]
fn a_connection_that_has_upgraded_is_closed_when_the_rules_no_longer_name_its_client() {
    let scene =
        scene_to(Origin::with_upgrades(), ORDERS, |proxy| proxy.policy("evict_within = \"1s\""));
    let mut client = scene.connect(&scene.orders);
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    client.send(format!("GET / HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n"));
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    scene.change(BILLING, 2);
    scene.name_checks("live", "not_allowed", 1.0);
    assert_eq!(client.whatever_comes(), "");
    scene.count("connections_active", "service=\"test\"", 0.0);
}

#[test]
fn a_session_or_handshake_from_before_the_change_admits_nobody() {
    for version in VERSIONS {
        let scene = scene(ORDERS, |proxy| proxy);
        let config = Arc::new(scene.config(&scene.orders, version));
        assert!(exchange(&scene.running, &config).1.is_ok());
        assert_eq!(exchange(&scene.running, &config).0, Some(HandshakeKind::Resumed));

        let mut tcp = TcpStream::connect(scene.running.address()).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let fresh = Arc::new(scene.config(&scene.orders, version));
        let mut begun = ClientConnection::new(fresh, "localhost".try_into().unwrap()).unwrap();
        begun.write_tls(&mut tcp).unwrap(); // the ClientHello
        assert_eq!(tcp.peek(&mut [0]).unwrap(), 1); // answered, by the old rules
        scene.change(BILLING, 2);

        assert!(is_denied(exchange(&scene.running, &config).1), "{version:?}");
        let mut begun = StreamOwned::new(begun, tcp);
        let mut response = String::new();
        // The connection is closed in an orderly way, or the write finds it closed.
        let _ = write!(begun, "{LAST_GET}").and_then(|()| begun.read_to_string(&mut response));
        assert_eq!(response, "", "{version:?}");
        scene.name_checks("handshake", "not_allowed", 2.0);
        scene.connections("not_allowed", 2.0);
    }
}

#[test]
fn the_names_of_a_copied_certificate_without_its_key_are_not_checked() {
    for version in VERSIONS {
        let scene = scene(ORDERS, |proxy| proxy);
        let thief = scene.running.pki.client("thief", Kind::P256);
        for copied in [&scene.billing, &scene.orders] {
            let copied = Party {
                name: copied.name.clone(),
                certificate: copied.certificate.clone(),
                private_key: copied.private_key.clone(),
                der: copied.der.clone(),
                spki: copied.spki.clone(),
                key: thief.key.clone(),
            };
            let config = Arc::new(scene.config(&copied, version));
            let response = exchange(&scene.running, &config).1;
            assert!(response.is_err() && !is_denied(response), "{version:?}");
        }
        let failed = "result=\"bad_signature\",resumed=\"false\",service=\"test\"";
        scene.count("handshakes_total", failed, 2.0);
        scene.name_checks("handshake", "not_allowed", 0.0);
        scene.name_checks("handshake", "allowed", 0.0);
    }
}

/// The answer could not admit the client, so that nothing waits for it, and nobody learns its key.
#[test]
fn a_client_that_no_rule_names_is_neither_held_nor_asked_about() {
    let source = ProofSource::silent();
    let scene = scene(ORDERS, |proxy| {
        let settings = source.settings(&proxy.pki, "1h");
        proxy.global(&settings)
    });
    source.wait_for_canary(&scene.running.keygate);
    scene.running.rejects(&scene.running.lost);
    scene.connections("refused", 1.0);
    assert_eq!(source.questions(&scene.running.lost), 0);
}

#[test]
fn a_held_client_is_closed_when_the_rules_no_longer_name_it() {
    let source = ProofSource::silent();
    let proxy = Proxy::new().client_auth("allow = { common_names = [\"lost\"] }");
    let settings = source.settings(&proxy.pki, "1h");
    let running = proxy.global(&settings).start();
    source.wait_for_canary(&running.keygate);
    let mut held = Client::connect(&running.pki, running.address(), &running.lost);
    held.send(LAST_GET);
    source.wait_for_question(&running.lost);
    running.wait_for_metric("keygate_confirmation_waits_active", 1.0);
    let text = running.configuration.clone().client_auth("allow = { common_names = [\"good\"] }");
    let text = text.global(&settings).text();
    std::fs::write(running.pki.path("keygate.toml"), text).unwrap();
    assert_eq!(held.rest(), "", "closed in an orderly way, and nothing is served");
    assert_eq!(running.origin.untaken(), 0);
}
