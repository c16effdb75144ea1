//! Limits of clients, and the response when a client exceeds one.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::client::Client;
use crate::support::http2::{Came, END_HEADERS, HEADERS, Http2, frame, request};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::Kind;
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{output_text, wait_for};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";

fn scene(origin: Origin, limits: &str) -> Running {
    Proxy::to(origin).limits(limits).start()
}

/// Failures that are counted against the upstream.
fn failures(keygate: &Keygate) -> f64 {
    let reasons = ["connect", "response", "timeout", "unavailable"];
    let series = reasons.map(|reason| {
        format!("keygate_upstream_failures_total{{reason=\"{reason}\",service=\"test\"}}")
    });
    series.iter().map(|series| keygate.metric(series)).sum()
}

#[test]
fn a_body_that_is_too_long_gets_413_with_and_without_content_length() {
    let scene = scene(Origin::start(), "max_body_size = \"1KiB\"");
    let output_text =
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\n\r\n{}", "x".repeat(1025));
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n401\r\n{}\r\n0\r\n\r\n",
        "x".repeat(1025)
    );
    for request in [output_text, chunked] {
        let mut client = scene.connect();
        client.send(request);
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    }
    assert_eq!(scene.origin.untaken(), 0);
    let mut client = scene.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1024\r\n\r\n{}",
        "x".repeat(1024)
    ));
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(failures(&scene), 0.0, "none of it is the upstream's");
}

#[test]
fn a_client_that_is_still_sending_reads_a_response_of_the_proxy() {
    let limited = scene(Origin::start(), "max_body_size = \"64KiB\"");
    let path = limited.pki.path("large");
    std::fs::write(&path, vec![b'x'; 20 << 20]).unwrap();
    let large = path.to_str().unwrap();
    let own = ["-w", "%{http_code}", "-o", "/dev/null", "-H", "Expect:", "-T", large];
    let is_seen = |scene: &Running, arguments: &[&str], code: &str| {
        for _ in 0..5 {
            let response = scene.keygate.curl(&scene.good, &[arguments, &own].concat());
            let text = output_text(&response);
            assert!(response.status.success() && text.contains(code), "{arguments:?}: {text}");
        }
    };
    is_seen(&limited, &["--http1.1"], "413");
    is_seen(&limited, &["--http1.1", "-H", "Transfer-Encoding: chunked"], "413");
    is_seen(&limited, &["--http2"], "413");
    let unused = reserved_address();
    let dead = Proxy::before(format!("http://{unused}")).start();
    is_seen(&dead, &["--http1.1"], "502");
    is_seen(&dead, &["--http2"], "502");
}

#[test]
fn a_client_that_stalls_inside_its_body_gets_408_and_the_upstream_is_not_blamed() {
    let scene = scene(Origin::start(), "body_timeout = \"500ms\"");
    let mut client = scene.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    assert_eq!(failures(&scene), 0.0);
    assert_eq!(scene.origin.untaken(), 0);
}

#[test]
fn a_client_that_does_not_read_its_response_is_closed_and_frees_the_upstream_connection() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; 100_000_000])
    });
    let scene = scene(origin, "body_timeout = \"700ms\"");
    let mut client = scene.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    scene.origin.next();
    scene.keygate.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
    scene.keygate.wait_for_metric("keygate_upstream_connections_active{service=\"test\"}", 0.0);
}

#[test]
fn an_upstream_that_stalls_inside_its_response_never_looks_complete() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")?;
        tcp.flush()?;
        std::thread::park(); // until the test ends
        Ok(())
    });
    let keygate = Proxy::to(origin).upstream("body_timeout = \"500ms\"").start();
    for version in ["--http1.1", "--http2"] {
        let response = keygate.curl(&keygate.good, &[version]);
        assert!(!response.status.success(), "{}", crate::support::output_text(&response));
    }
}

#[test]
fn the_request_timeout_runs_from_the_request_head_to_the_end_of_the_response() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        loop {
            tcp.write_all(b"1\r\nx\r\n")?;
            std::thread::sleep(Duration::from_millis(20)); // the pace of a slow upstream
        }
    });
    let scene = scene(origin, "request_timeout = \"6s\"");
    let mut client = scene.connect();
    let start = Instant::now();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let rest = client.whatever_comes();
    assert!(start.elapsed() >= Duration::from_secs(6) && !rest.ends_with("0\r\n\r\n"));
}

#[test]
fn an_old_connection_is_closed_after_the_response_in_flight() {
    let scene = scene(Origin::start(), "max_connection_age = \"1s\"");
    // While the machine pauses, a connection may grow old before its second response.
    wait_for("a connection with several responses", || {
        let mut client = scene.connect();
        let start = Instant::now();
        let mut responses = 0;
        loop {
            // The connection may grow old between a response and the next request.
            if client.try_send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_err() {
                break;
            }
            let Some(head) = client.head_or_end() else { break };
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            client.exactly(6);
            responses += 1;
            if head.contains("connection: close") || start.elapsed() > Duration::from_secs(1) {
                break;
            }
        }
        assert_eq!(client.whatever_comes(), "");
        assert!(start.elapsed() >= Duration::from_millis(900));
        if responses > 1 { Ok(()) } else { Err(format!("{responses} response")) }
    });
}

#[test]
fn an_address_with_too_many_connections_gets_429_and_is_closed() {
    let scene = scene(Origin::start(), "max_connections_per_ip = 2");
    let send_get = |client: &mut Client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.head().split(' ').nth(1).unwrap().to_owned()
    };
    let mut open: Vec<Client> = Vec::new();
    for expected in ["200", "200", "429"] {
        let mut client = scene.connect();
        assert_eq!(send_get(&mut client), expected);
        open.push(client);
    }
    let limited = "keygate_connections_total{result=\"limited\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(limited), 1.0);
    let line = |line: &Value| line["message"] == "too many connections from one address";
    assert_eq!(scene.keygate.wait_for("the limit", line)["level"], "WARN");
    // Connections with a 429 close after a while. Clients from other addresses are served
    // meanwhile.
    let elsewhere = scene.keygate.curl(&scene.good, &["--interface", "127.0.0.2"]);
    assert_eq!(elsewhere.stdout, b"hello\n");
    drop(open);
    scene.keygate.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
    assert_eq!(send_get(&mut scene.connect()), "200");
}

#[test]
fn an_http2_connection_is_limited_to_max_streams_requests() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::responding(move |_, tcp| {
        let _ = wait.lock().unwrap().recv(); // the test may have ended
        tcp.write_all(OK)
    });
    let scene = scene(origin, "max_streams = 2");
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    // The client has not read the limit yet. The stream above it is refused and may be retried.
    for stream in [1, 3, 5] {
        client.send(&frame(HEADERS, END_HEADERS | 1, stream, &request("GET", &[])));
    }
    const REFUSED_STREAM: u32 = 7;
    assert_eq!(client.next(), Came::Reset(5, REFUSED_STREAM));
    scene.origin.next();
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert!(matches!(client.next(), Came::Response(0x88, 1 | 3)));
}

#[test]
fn a_request_id_is_kept_if_its_sender_is_trusted() {
    for (from, is_kept) in [("[\"127.0.0.0/8\"]", true), ("[\"192.0.2.0/24\"]", false)] {
        let keygate = Proxy::new()
            .global("access_log = { requests = \"all\" }")
            .service(&format!("request_id_from = {from}"))
            .start();
        let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        keygate.curl(&keygate.good, &["-H", "X-Request-Id: mine-1", "-H", trace, "-d", "body"]);
        let request = keygate.origin.next();
        let id = request.fields("x-request-id").concat();
        assert_eq!(id == "mine-1", is_kept, "{id}");
        assert_eq!(request.fields("traceparent").concat(), trace.split(": ").nth(1).unwrap());
        let line = keygate.access_line();
        let expected = serde_json::json!({
            "service": "test", "method": "POST", "target": "/", "protocol": "HTTP/2",
            "status": 200, "complete": true, "request_bytes": 4, "response_bytes": 6,
            "verdict": "clean", "request_id": id,
            "upstream": format!("http://{}", keygate.origin.address()),
            "fingerprint": ::keygate_core::spki::Fingerprint::of(&keygate.good.spki).to_string(),
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&line[field], value, "{field} of {line}");
        }
        for field in ["time", "peer", "host", "duration_seconds", "upstream_seconds"] {
            assert!(!line[field].is_null(), "{field} of {line}");
        }
    }
}

#[test]
fn the_access_log_has_only_failed_requests_if_configured() {
    let keygate = Proxy::new().global("access_log = { requests = \"errors\" }").start();
    keygate.curl(&keygate.good, &["--http1.1"]);
    keygate.curl(&keygate.good, &["--http1.1", "-H", "Host: a b"]);
    let line = keygate.access_line();
    assert_eq!((&line["status"], &line["host"]), (&400.into(), &"a b".into()), "{line}");
}

/// Guards: `take_place` and the key of `ClientKey` in `src/proxy/connection.rs`.
#[test]
fn one_client_leaves_places_of_a_listener_to_others() {
    let scene = Proxy::new().workers(1).limits("max_connections = 8").start();
    let other_certificate =
        scene.pki.client_with_spki("renewed", &scene.good.spki, &scene.good.key);
    let connect = |certificate| {
        let mut client = Client::connect(&scene.pki, scene.address(), certificate);
        let _ = client.try_send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = client.head_or_end();
        (client, head.is_some())
    };
    let certificates = [&scene.good, &other_certificate].into_iter().cycle();
    let held: Vec<_> = certificates.take(6).map(connect).collect();
    assert!(held.iter().all(|(_, is_served)| *is_served));
    let limited = "keygate_connections_total{result=\"limited\",service=\"test\"}";
    let refused = [connect(&scene.good), connect(&other_certificate)];
    assert!(refused.iter().all(|(_, is_served)| !is_served), "three quarters are in use");
    assert_eq!(scene.metric(limited), 2.0);
    let message = "client holds its share of max_connections";
    let lines = scene.wait_for_lines(message, 1, |line| line["message"] == message);
    assert_eq!(
        (lines.len(), &lines[0]["limit"], &lines[0]["level"]),
        (1, &8.into(), &"WARN".into())
    );
    // The refused connections are open, and give way.
    scene.admits(&scene.pki.client("other", Kind::P256));
    assert!(scene.metric("keygate_connections_total{result=\"limited\",service=\"\"}") >= 1.0);
    drop((held, refused));
    scene.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
    assert!(connect(&scene.good).1);
}

/// Guards: `is_older_than_header_timeout` in `src/proxy/open_connection.rs`.
#[test]
fn a_rejected_client_without_a_request_is_closed_after_the_header_timeout() {
    let limits = "max_connections_per_ip = 1\nheader_timeout = \"1s\"\nidle_timeout = \"1h\"";
    let scene = scene(Origin::start(), limits);
    let mut first = scene.connect();
    first.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
    let began = Instant::now();
    assert!(scene.connect().head_or_end().is_none(), "it would get 429");
    assert!(began.elapsed() < Duration::from_secs(30), "a read fails after a minute");
}
