//! Several servers behind one service: which one gets a request, and how failures are handled.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::client::Client;
use crate::support::origin::{Origin, Received};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::wait_until;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";

/// A proxy in front of `servers`, with more settings of its upstream.
fn scene(servers: &[SocketAddr], settings: &str) -> Running {
    let urls: Vec<_> = servers.iter().map(|server| format!("http://{server}")).collect();
    // One worker, because each worker ejects servers by itself.
    Proxy::new().servers(&urls).upstream(settings).workers(1).start()
}

#[test]
fn round_robin_uses_servers_in_turn() {
    let origins = [Origin::start(), Origin::start(), Origin::start()];
    let addresses = origins.each_ref().map(Origin::address);
    let scene = scene(&addresses, "balance = \"round-robin\"");
    for _ in 0..6 {
        assert_eq!(scene.code(&[]), "200");
    }
    assert_eq!(origins.each_ref().map(Origin::untaken), [2, 2, 2]);
}

#[test]
fn an_unreachable_server_is_skipped() {
    for balance in ["round-robin", "random", "least-requests"] {
        let origin = Origin::start();
        let scene =
            scene(&[reserved_address(), origin.address()], &format!("balance = \"{balance}\""));
        for _ in 0..10 {
            assert_eq!(scene.code(&[]), "200", "{balance}");
        }
        assert_eq!(origin.untaken(), 10);
    }
}

#[test]
fn a_failing_server_is_ejected_and_tried_again_later() {
    let origin = Origin::start();
    let down = reserved_address();
    let settings = "balance = \"round-robin\", max_failures = 2, retry_after = \"1s\", ";
    let scene = scene(&[down, origin.address()], settings);
    for _ in 0..6 {
        assert_eq!(scene.code(&[]), "200");
    }
    let line =
        scene.keygate.wait_for("a line", |line| line["message"] == "upstream server ejected");
    assert_eq!(line["server"], format!("http://{down}"));
    let failed = "keygate_upstream_connections_total{service=\"test\"}";
    assert!(scene.keygate.metric(failed) > 0.0);
    // The server is back, and gets a request after the ejection.
    let back = std::net::TcpListener::bind(down).unwrap();
    let (requested, is_requested) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = back.accept(); // no response
        let _ = requested.send(());
    });
    wait_until("a request to the server", || {
        scene.code(&[]);
        is_requested.try_recv().is_ok()
    });
}

#[test]
fn with_all_servers_ejected_all_are_tried_again() {
    let settings = "max_failures = 1, retry_after = \"1h\", ";
    let scene = scene(&[reserved_address(), reserved_address()], settings);
    assert_eq!(scene.code(&[]), "502", "both were tried");
    assert_eq!(scene.code(&[]), "502", "both are ejected, and were tried again");
    let failures = "keygate_upstream_failures_total{reason=\"connect\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(failures), 2.0);
}

/// Requests for a page that ends the connection, which any client can send, eject every server.
#[test]
fn a_client_cannot_eject_all_servers_from_the_others() {
    let servers: Vec<_> = (0..3)
        .map(|_| {
            Origin::responding(|request, tcp| {
                if request.head.starts_with("GET /crash") {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                tcp.write_all(OK)
            })
        })
        .collect();
    let addresses: Vec<_> = servers.iter().map(Origin::address).collect();
    let settings = "max_failures = 1, retry_after = \"1h\", ";
    let scene = scene(&addresses, settings);
    for _ in 0..12 {
        scene.code(&["--request-target", "/crash"]);
    }
    let ejected = |line: &serde_json::Value| line["message"] == "upstream server ejected";
    scene.keygate.wait_for_lines("all servers ejected", 3, ejected);
    for _ in 0..5 {
        assert_eq!(scene.code(&[]), "200");
    }
}

#[test]
fn a_server_that_fails_health_checks_gets_no_requests() {
    let is_healthy = Arc::new(AtomicBool::new(true));
    let responses = Arc::clone(&is_healthy);
    let unhealthy = Origin::responding(move |request, tcp| {
        let is_check = request.head.starts_with("GET /healthz ");
        if is_check && !responses.load(Ordering::Relaxed) {
            return tcp.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n");
        }
        tcp.write_all(OK)
    });
    let other = Origin::start();
    let settings = "balance = \"round-robin\", health_check = { path = \"/healthz\", interval = \"50ms\", healthy = 2, unhealthy = 2 }, ";
    let scene = scene(&[unhealthy.address(), other.address()], settings);
    let up = format!(
        "keygate_upstream_server_up{{server=\"http://{}\",service=\"test\"}}",
        unhealthy.address()
    );
    assert_eq!(scene.keygate.metric(&up), 1.0);
    is_healthy.store(false, Ordering::Relaxed);
    let message = |text: &'static str| move |line: &serde_json::Value| line["message"] == text;
    let line = scene.keygate.wait_for("a line", message("upstream server unhealthy"));
    assert!(line["error"].as_str().unwrap().contains("/healthz returned 500"), "{line}");
    scene.keygate.wait_for_metric(&up, 0.0);
    let is_request = |request: &Received| request.head.starts_with("GET / ");
    unhealthy.taken(is_request);
    for _ in 0..6 {
        assert_eq!(scene.code(&[]), "200");
    }
    assert_eq!(unhealthy.taken(is_request), 0);
    is_healthy.store(true, Ordering::Relaxed);
    scene.keygate.wait_for("a line", message("upstream server healthy"));
    scene.keygate.wait_for_metric(&up, 1.0);
    wait_until("requests to the healthy server", || {
        assert_eq!(scene.code(&[]), "200");
        unhealthy.taken(is_request) > 0
    });
}

/// An origin that closes every connection without a response to the second request. Counts the
/// requests.
fn closing_origin() -> (Origin, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let origin = Origin::responding(move |request, tcp| {
        counted.fetch_add(1, Ordering::Relaxed);
        // Odd ones come first on their connection.
        if request.head.contains("x-number: 2") && counted.load(Ordering::Relaxed) == 2 {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        tcp.write_all(OK)
    });
    (origin, count)
}

#[test]
fn an_idempotent_request_is_retried_when_a_kept_connection_closes() {
    for (method, body, code, sent) in [
        ("GET", "", "200", 3),
        ("HEAD", "", "200", 3),
        ("POST", "hi", "502", 2),
        ("PUT", "", "502", 2),
    ] {
        let (origin, count) = closing_origin();
        let scene = scene(&[origin.address()], "");
        let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\nX-Number: 1\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(6), b"hello\n");
        let length = body.len();
        client.send(format!(
            "{method} / HTTP/1.1\r\nHost: localhost\r\nX-Number: 2\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let head = client.head();
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{method}: {head}");
        assert_eq!(count.load(Ordering::Relaxed), sent, "{method}");
    }
}

#[test]
fn upstream_connections_are_limited_to_max_connections() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::responding(move |_, tcp| {
        let _ = wait.lock().unwrap().recv(); // the test may have ended
        tcp.write_all(OK)
    });
    let scene = scene(&[origin.address()], "max_connections = 1, ");
    let mut first = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    first.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    origin.next();
    assert_eq!(scene.code(&[]), "503");
    go.send(()).unwrap();
    assert!(first.head().starts_with("HTTP/1.1 200 "));
}
