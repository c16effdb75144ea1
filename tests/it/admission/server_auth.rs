//! Clients whose certificates are for servers only (`client_auth.accept_server_auth_until`).
//!
//! Guards: `accepts_server_auth` and `purpose_expiry` in
//! `crates/core/src/tls/client_verifier/search.rs`, `is_for_servers` in `src/proxy/connection.rs`
//! and `src/ask/connection.rs`, `accept_server_auth_until` in `src/sources/service_credentials.rs`.

use std::fs::write;
use std::sync::Arc;
use std::time::Duration;

use keygate_core::unix_time::{rfc3339, seconds};
use rcgen::CertificateParams;
use rustls::version::{TLS12, TLS13};
use serde_json::Value;

use super::bound_cas::reconfigure;
use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::client::{Client, config_of};
use crate::support::origin::Origin;
use crate::support::pki::{Party, Pki};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{before, output_text, write_filter};

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const KEY: &str = "client_auth.accept_server_auth_until";
const LONG: &str = "accept_server_auth_until = 2199-12-31";

fn for_servers(pki: &Pki) -> Party {
    pki.server_with("outgoing", CertificateParams::default())
}

fn gets_a_response(client: &mut Client) {
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
}

fn proxy(protocol: &str) -> Proxy {
    let origin = Origin::start();
    let server = origin.address();
    let proxy = Proxy::to(origin).global("log = { repeat_after = \"0s\" }");
    let proxy = proxy.policy("evict_within = \"1s\"");
    match protocol {
        "http" => proxy,
        _ => proxy.service("protocol = \"tcp\"").servers(&[server]),
    }
}

fn names_the_key(running: &Running, message: &str) {
    running.wait_for("the line", |line| {
        let error = line["error"].as_str().unwrap_or_default();
        line["message"] == message && line["result"] == "unsuitable" && error.contains(KEY)
    });
}

#[test]
fn certificates_for_servers_are_accepted_with_the_key_only_and_each_client_is_named() {
    for protocol in ["http", "tcp"] {
        let running = proxy(protocol).start();
        let client = for_servers(&running.pki);
        running.rejection(&client);
        names_the_key(&running, "handshake failed");
        reconfigure(&running, &running.configuration.clone().client_auth(LONG), 2);
        for version in [&TLS12, &TLS13] {
            let config = Arc::new(config_of(&running.pki, &[version], Some(&client)));
            for is_resumed in [false, true] {
                let mut client = Client::with((*config).clone(), running.address());
                gets_a_response(&mut client);
                assert_eq!(client.is_resumed(), is_resumed);
            }
        }
        running.wait_for_metric("keygate_server_auth_clients_total{service=\"test\"}", 4.0);
        running.wait_for("the line", |line| {
            line["message"] == "client certificate is for servers only"
                && line["subject"] == "CN=outgoing"
                && line["result"] == "server_auth"
        });
        let report: Value = serde_json::from_str(&running.admin("/report").1).unwrap();
        let left = |result: &str| {
            let clients = report["clients"].as_array().unwrap().iter();
            clients.filter(|client| client["result"] == result).count()
        };
        assert!(left("server_auth") >= 1, "{report}");
        let page = running.admin("/").1;
        assert!(page.contains("test, clients since 20") && page.contains(" UTC: 1<"), "{page}");
        // Clients with clientAuth are not counted.
        running.admits(&running.good);
        running.wait_for_metric("keygate_server_auth_clients_total{service=\"test\"}", 4.0);
        reconfigure(&running, &running.configuration, 3);
        running.rejection(&client);
    }
}

#[test]
fn after_the_date_such_a_client_is_rejected_on_every_connection() {
    let (_, (scenes, edge)) = before(Duration::from_secs(8), |ends| {
        let until = rfc3339(seconds(ends));
        let until = format!("accept_server_auth_until = {until}");
        let scenes = [("http", &TLS13), ("tcp", &TLS12)].map(|(protocol, version)| {
            let running = proxy(protocol).client_auth(&until).start();
            let client = for_servers(&running.pki);
            let config = Arc::new(config_of(&running.pki, &[version], Some(&client)));
            let mut open = Client::with((*config).clone(), running.address());
            gets_a_response(&mut open);
            (running, config, client, open)
        });
        let checks = format!("{UNIX}client_auth = {{ trust_anchors = \"ca.pem\", {until} }}\n");
        let edge = AskedKeygate::start(&checks);
        let (client, mut host) = (for_servers(&edge.pki), edge.connect());
        assert_eq!(host.ask_about(&client).status, 200);
        (scenes, (edge, client, host))
    });
    for (running, config, client, mut open) in scenes {
        open.whatever_comes(); // until its end
        names_the_key(&running, "client certificate is no longer accepted, closing connection");
        let mut again = Client::with((*config).clone(), running.address());
        let _ = again.try_send(GET); // the connection may be closed
        assert!(!again.whatever_comes().starts_with("HTTP/1.1 200 "));
        running.rejection(&client);
        names_the_key(&running, "handshake failed");
        running.admits(&running.good);
        assert!(running.admin("/").1.contains("acceptance of certificates for servers"));
    }
    // The next question of a host that is still connected, about a chain that was cached.
    let (edge, client, mut host) = edge;
    let denied = host.ask_about(&client);
    assert!(denied.status == 403 && denied.body.contains(KEY), "{}", denied.body);
    assert_eq!(host.ask_about(&edge.good).status, 200);
}

#[test]
fn an_authorizer_accepts_certificates_for_servers_with_the_key_only() {
    for (key, is_accepted) in [(String::new(), false), (format!(", {LONG}"), true)] {
        let checks = format!("{UNIX}client_auth = {{ trust_anchors = \"ca.pem\"{key} }}\n");
        let scene = AskedKeygate::start(&checks);
        let answer = scene.connect().ask_about(&for_servers(&scene.pki));
        assert_eq!(answer.status == 200, is_accepted, "{}", answer.body);
        if is_accepted {
            let series = "keygate_server_auth_clients_total{service=\"edge\"}";
            scene.keygate.wait_for_metric(series, 1.0);
        } else {
            assert!(answer.body.contains(KEY), "{}", answer.body);
        }
    }
}

#[test]
fn validate_warns_of_a_date_that_is_past() {
    let proxy = proxy("http");
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    for (date, is_past) in [("2026-01-01", true), ("2199-12-31", false)] {
        let key = format!("accept_server_auth_until = {date}");
        let configuration = proxy.configuration.clone().client_auth(&key);
        write(proxy.pki.path("keygate.toml"), configuration.text()).unwrap();
        let output = output_text(&super::revocation::validate(&proxy.pki));
        assert_eq!(output.contains(&format!("{KEY} is in the past")), is_past, "{output}");
    }
}
