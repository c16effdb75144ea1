//! `Upgrade` and `Connection` of clients, through every host that asks about requests.

use std::net::SocketAddr;

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config};
use crate::support::envoy::Envoy;
use crate::support::haproxy::HaproxyFiles;
use crate::support::http_host::HttpHost;
use crate::support::http2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, frame};
use crate::support::origin::{Origin, Received};
use crate::support::write_revision;

macro_rules! upgrades_through {
    ($($host:ident),+) => {$(
        mod $host {
            #[test]
            fn no_upgrade_but_websocket_reaches_the_origin() {
                super::passes_no_other_upgrade(stringify!($host));
            }

            #[test]
            fn an_open_websocket_outlives_an_update() {
                super::passes_websocket(stringify!($host));
            }

            #[test]
            fn a_client_cannot_have_its_status_removed_by_connection() {
                super::names_no_status_in_connection(stringify!($host));
            }
        }
    )+};
}

/// HAProxy turns an extended CONNECT (RFC 8441) of any protocol into an upgrade.
#[test]
fn no_extended_connect_but_websocket_is_an_upgrade_for_the_origin() {
    with_host("haproxy", |authorizer, address| {
        let mut client = Http2::connect(&authorizer.pki, address, &authorizer.lost);
        let head = http2::request("CONNECT", &[(":protocol", "h2c")]);
        client.send(&frame(HEADERS, END_HEADERS, 1, &head));
        client.send(&frame(DATA, END_STREAM, 1, b""));
        let request = authorizer.origin.next();
        assert!(request.fields("upgrade").is_empty(), "{}", request.head);
        assert!(request.fields("client-key-status").concat().starts_with("probable"));
    });
}

upgrades_through!(caddy, envoy, envoy_http, envoy_xfcc, haproxy, nginx, traefik);

/// Switches to each protocol that a request asks for, and reads further requests in the tunnel.
fn origin() -> Origin {
    Origin::responding(|request, tcp| {
        let response = match request.fields("upgrade").first() {
            Some(protocol) => format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\
                 sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            ),
            None => "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n".to_owned(),
        };
        std::io::Write::write_all(tcp, response.as_bytes())
    })
}

/// Starts the host in front of [`origin`]. The policy admits listed clients with a status.
fn with_host(name: &str, check: impl FnOnce(&RunningAuthorizer, SocketAddr)) {
    let name = name.replace('_', "-");
    let ready = |mut authorizer: Authorizer| {
        authorizer.origin = origin();
        authorizer.asked_policy("on_probable = \"header\"")
    };
    match name.as_str() {
        "envoy" | "envoy-xfcc" => {
            let authorizer = ready(Authorizer::of(&name)).start();
            let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
            let envoy = Envoy::start(&name, directory, origin, |text| text);
            let Some(envoy) = envoy else { return };
            check(&authorizer, envoy.address);
        }
        "haproxy" => {
            let authorizer = ready(Authorizer::of(&name));
            let origin = authorizer.origin.address();
            let Some(files) = HaproxyFiles::of(&name, &authorizer.pki, origin) else { return };
            let authorizer = authorizer.start();
            let haproxy = files.start(&authorizer.pki);
            check(&authorizer, haproxy.address);
        }
        _ => {
            let hosts = [HttpHost::Caddy, HttpHost::EnvoyHttp, HttpHost::Nginx, HttpHost::Traefik];
            let host = hosts.into_iter().find(|host| host.name() == name).unwrap();
            let scene = host.start_with(ready(host.authorizer()), |text| text);
            let Some(scene) = scene else { return };
            scene.origin.taken(|_| true);
            check(&scene, scene.address);
        }
    }
}

/// All requests that the origin has received.
fn received(authorizer: &RunningAuthorizer) -> Vec<Received> {
    let all = std::cell::RefCell::new(Vec::new());
    authorizer.origin.taken(|request| {
        all.borrow_mut().push(request.clone());
        true
    });
    all.into_inner()
}

/// After an upgrade the client would write its own status to the origin.
fn passes_no_other_upgrade(host: &str) {
    with_host(host, |authorizer, address| {
        let lost = config(&authorizer.pki, &authorizer.lost);
        for protocol in [
            "h2c",
            "H2C",
            "h2c-14",
            "HTTP/2.0",
            "TLS/1.0",
            "other",
            "h2c, websocket",
            "websocket, h2c",
            "h2c-14\r\nUpgrade: websocket",
            "websocket\r\nUpgrade: h2c",
        ] {
            let mut client = Client::with(lost.clone(), address);
            client.send(format!(
                "GET /first HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                 Upgrade: {protocol}\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
            ));
            let head = client.head_or_end().unwrap_or_default();
            let is_tunnel = head.starts_with("HTTP/1.1 101 ");
            assert!(!is_tunnel || protocol.contains("websocket"), "{host}: {protocol}: {head}");
            let _ = client.try_send(
                "GET /second HTTP/1.1\r\nHost: localhost\r\nClient-Key-Status: forged\r\n\
                 Connection: close\r\n\r\n",
            );
            if is_tunnel {
                client.head();
            } else {
                client.whatever_comes();
            }
            for request in received(authorizer) {
                let upgrade = request.fields("upgrade");
                assert!(
                    upgrade.is_empty() || upgrade == ["websocket"],
                    "{host}: {protocol}: {}",
                    request.head
                );
                let connection = request.fields("connection").concat().to_ascii_lowercase();
                assert!(!connection.contains("http2-settings"), "{host}: {}", request.head);
                let status = request.fields("client-key-status").concat();
                assert!(is_tunnel || status.starts_with("probable"), "{host}: {}", request.head);
            }
        }
    });
}

/// A WebSocket is judged at its start only. The tunnel stays open after an update.
fn passes_websocket(host: &str) {
    with_host(host, |authorizer, address| {
        let good = config(&authorizer.pki, &authorizer.good);
        let get = "GET /tunnel HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for (protocol, connection) in
            [("websocket", "Upgrade"), ("WebSocket", "keep-alive, Upgrade")]
        {
            let mut client = Client::with(good.clone(), address);
            client.send(format!(
                "GET /socket HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\
                 Upgrade: {protocol}\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ));
            let head = client.head().to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 101 "), "{host}: {head}");
            for field in ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: s3pp"]
            {
                assert!(head.contains(&format!("\r\n{field}")), "{host}: {head}");
            }
            let request = authorizer.origin.next();
            let head = request.head.to_ascii_lowercase();
            assert!(head.contains("\r\nupgrade: websocket\r\n"), "{host}: {head}");
            let connection = request.fields("connection").concat().to_ascii_lowercase();
            assert!(connection.contains("upgrade"), "{host}: {head}");
            assert_eq!(request.fields("client-key-status"), ["clean"], "{host}");
            client.send(get);
            assert!(client.head().starts_with("HTTP/1.1 200 "), "{host}");
            client.exactly(6);
            assert!(authorizer.origin.next().head.starts_with("GET /tunnel "), "{host}");
            if protocol == "WebSocket" {
                let filter = authorizer.pki.path("lost.pkbf");
                write_revision(&filter, &[&authorizer.good.spki], 2);
                authorizer.wait_for_generation(2);
                client.send(get);
                assert!(client.head().starts_with("HTTP/1.1 200 "), "{host}");
            }
        }
    });
}

/// A field that `Connection` names is removed by the next proxy (RFC 9110, section 7.6.1).
fn names_no_status_in_connection(host: &str) {
    with_host(host, |authorizer, address| {
        let lost = config(&authorizer.pki, &authorizer.lost);
        for (version, connection) in [
            ("1.1", "close, Client-Key-Status"),
            ("1.1", "client-key-status, close"),
            ("1.1", "close\r\nConnection: Client-Key-Status"),
            ("1.1", "close\r\nProxy-Connection: Client-Key-Status"),
            (
                "1.1",
                "close, Upgrade, Client-Key-Status\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            ),
            ("1.0", "Client-Key-Status"),
        ] {
            let mut client = Client::with(lost.clone(), address);
            client.send(format!(
                "GET / HTTP/{version}\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n"
            ));
            let head = client.head();
            if head.get(9..12) == Some("426") {
                continue; // Envoy accepts no HTTP/1.0.
            }
            let is_served = matches!(head.get(9..12), Some("101" | "200"));
            assert!(is_served, "{host}: {connection}: {head}");
            let request = authorizer.origin.next();
            let [status] = request.fields("client-key-status")[..] else {
                panic!("{host}: {connection}: {}", request.head)
            };
            assert!(status.starts_with("probable"), "{host}: {connection}: {status}");
            let named = request.fields("connection").join(",").to_ascii_lowercase();
            assert!(!named.contains("client-key-status"), "{host}: {}", request.head);
        }
    });
}
