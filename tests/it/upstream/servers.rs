//! Several servers behind one service: which one gets a request, and how failures are handled.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::client::Client;
use crate::support::origin::{Origin, Received};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{output_text, skip, system, wait_until};

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

fn ejections(scene: &Running) -> usize {
    scene.keygate.lines("upstream server ejected").len()
}

/// A server that closes each connection before the TLS handshake, and the number of connections.
fn closing_server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(tcp);
        }
    });
    (address, count)
}

#[test]
fn with_all_servers_ejected_each_request_tries_one_of_them() {
    let servers: [_; 3] = std::array::from_fn(|_| closing_server());
    let urls = servers.each_ref().map(|(address, _)| format!("https://{address}"));
    let settings = "tls = { trust_anchors = \"ca.pem\", server_name = \"localhost\" }, \
                    max_failures = 1, retry_after = \"1h\"";
    let scene = Proxy::new().servers(&urls).upstream(settings).workers(1).start();
    let attempts = || servers.iter().map(|(_, count)| count.load(Ordering::SeqCst)).sum::<usize>();
    assert_eq!(scene.code(&[]), "502");
    assert_eq!(attempts(), 3, "all of them were tried");
    for request in 1..=4 {
        assert_eq!(scene.code(&[]), "502");
        assert_eq!(attempts(), 3 + request, "one was tried");
    }
    let failures = "keygate_upstream_failures_total{reason=\"connect\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(failures), 5.0);
    let ejected = |line: &serde_json::Value| line["message"] == "upstream server ejected";
    scene.keygate.wait_for_lines("the ejections", 3, ejected);
    assert_eq!(ejections(&scene), 3, "a line when an ejection begins, and no other");
}

#[test]
fn a_server_that_is_back_serves_at_once_although_all_were_ejected() {
    let down = [reserved_address(), reserved_address()];
    let scene = scene(&down, "max_failures = 1, retry_after = \"1h\", ");
    assert_eq!(scene.code(&[]), "502", "both were tried, and are ejected");
    let back = TcpListener::bind(down[0]).unwrap();
    std::thread::spawn(move || {
        for tcp in back.incoming() {
            let mut tcp = tcp.unwrap();
            let mut request = [0; 4096];
            let _ = tcp.read(&mut request); // the whole request, because it is short
            let _ =
                tcp.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        }
    });
    wait_until("a request to the server", || scene.code(&[]) == "200");
    for _ in 0..5 {
        assert_eq!(scene.code(&[]), "200", "its ejection has ended");
    }
}

/// Requests for a page that ends the connection, which any client can send.
#[test]
fn a_client_cannot_eject_more_than_half_of_the_servers_from_the_others() {
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
    let settings = "balance = \"round-robin\", max_failures = 1, retry_after = \"1h\", ";
    let scene = scene(&addresses, settings);
    for _ in 0..12 {
        assert_eq!(scene.code(&["--request-target", "/crash"]), "502");
    }
    for _ in 0..4 {
        assert_eq!(scene.code(&[]), "200");
    }
    let is_used = |server: &&Origin| server.taken(|it| it.head.starts_with("GET / ")) == 2;
    assert_eq!(servers.iter().filter(is_used).count(), 2, "two servers of three");
    assert_eq!(ejections(&scene), 1);
}

/// Any client can choose a slow page.
#[test]
fn a_late_response_ejects_no_server() {
    let servers: [_; 2] = std::array::from_fn(|_| {
        Origin::responding(|request, tcp| match request.head.starts_with("GET /slow") {
            true => Ok(()), // reads the next request, which does not come
            false => tcp.write_all(OK),
        })
    });
    let settings = "balance = \"round-robin\", max_failures = 1, retry_after = \"1h\", response_timeout = \"2s\"";
    let scene = scene(&servers.each_ref().map(Origin::address), settings);
    for _ in 0..2 {
        assert_eq!(scene.code(&["--request-target", "/slow"]), "504");
    }
    for _ in 0..4 {
        assert_eq!(scene.code(&[]), "200");
    }
    for server in &servers {
        assert_eq!(server.taken(|request| request.head.starts_with("GET / ")), 2);
    }
    assert_eq!(ejections(&scene), 0);
}

#[test]
fn a_server_that_breaks_off_its_responses_is_counted_and_ejected() {
    let broken = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello\n")?;
        Err(ErrorKind::ConnectionAborted.into())
    });
    let whole = Origin::start();
    let settings = "balance = \"round-robin\", max_failures = 2, retry_after = \"1h\", ";
    let scene = scene(&[broken.address(), whole.address()], settings);
    for _ in 0..4 {
        scene.curl(&scene.good, &[]);
    }
    let line =
        scene.keygate.wait_for("an ejection", |line| line["message"] == "upstream server ejected");
    assert_eq!(line["server"], format!("http://{}", broken.address()));
    for _ in 0..4 {
        assert_eq!(scene.code(&[]), "200");
    }
    assert_eq!(broken.untaken(), 2);
    let incomplete = "keygate_upstream_failures_total{reason=\"incomplete\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(incomplete), 2.0);
}

/// Sets the limit of open files of a running process.
fn limit_files(pid: u32, limit: &str) {
    let set = system("prlimit", &["--pid", &pid.to_string(), &format!("--nofile={limit}")]);
    assert!(set.status.success(), "{}", output_text(&set));
}

#[test]
fn a_lack_of_descriptors_is_no_failure_of_the_servers() {
    if skip::without("prlimit") {
        return;
    }
    let origins = [Origin::start(), Origin::start()];
    let urls = origins.each_ref().map(|origin| format!("http://{}", origin.address()));
    let settings = "max_failures = 1, retry_after = \"1h\", \
                    health_check = { interval = \"50ms\", timeout = \"1m\", unhealthy = 1 }";
    let scene = Proxy::new()
        .servers(&urls)
        .upstream(settings)
        .global("log = { level = \"info,keygate::proxy::upstream=debug\" }")
        .workers(1)
        .start();
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send("GET / HTTP/1.1\r\n");
    scene.keygate.wait_for_metric("keygate_connections_active{service=\"test\"}", 1.0);
    limit_files(scene.keygate.pid(), "8:"); // fewer than are open
    client.send("Host: localhost\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    client.exactly(length.parse().unwrap());
    let checked = |line: &serde_json::Value| line["message"] == "health check without a result";
    scene.keygate.wait_for_lines("a check of each server", 2, checked);
    limit_files(scene.keygate.pid(), "1024:");
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(ejections(&scene), 0);
    assert!(scene.keygate.lines("upstream server unhealthy").is_empty());
}

#[test]
fn a_health_check_ends_at_endless_informational_responses() {
    let endless = Origin::responding(|_, tcp| {
        let early = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n".repeat(100);
        loop {
            tcp.write_all(early.as_bytes())?;
        }
    });
    let settings = "health_check = { path = \"/healthz\", interval = \"50ms\", timeout = \"5m\", unhealthy = 1 }, ";
    let scene = scene(&[endless.address()], settings);
    let line =
        scene.keygate.wait_for("a line", |line| line["message"] == "upstream server unhealthy");
    assert!(line["error"].as_str().unwrap().contains("health check request failed"), "{line}");
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
            "{method} /p?q HTTP/1.1\r\nHost: localhost\r\nX-Number: 2\r\nX-Twice: 1\r\nVia: 1.1 a\r\n\
             X-Twice: 2\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let head = client.head();
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{method}: {head}");
        assert_eq!(count.load(Ordering::Relaxed), sent, "{method}");
        if sent == 3 {
            let [_, lost, second] = [origin.next(), origin.next(), origin.next()];
            assert_eq!(second.head, lost.head);
            assert_eq!(second.fields("x-twice"), ["1", "2"]);
        }
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
