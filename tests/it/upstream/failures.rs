//! Upstreams that are down, silent, slow, failing or slow to read.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::proxy::{Configure, Proxy};
use crate::support::{TIMEOUT, output_text, wait_for, wait_until};

/// The value of the failure counter for `reason`.
fn failures(keygate: &Keygate, reason: &str) -> f64 {
    let series = format!("keygate_upstream_failures_total{{reason=\"{reason}\",service=\"test\"}}");
    keygate.metric(&series)
}

const CODE: [&str; 2] = ["-w", "%{http_code}"];

#[test]
fn an_upstream_that_is_down_gives_502() {
    // The port is bound, so that no other process uses it, and does not listen.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let keygate = Proxy::before(format!("http://{address}")).start();
    let served = keygate.curl(&keygate.good, &CODE);
    assert!(served.stdout.ends_with(b"502"), "{}", output_text(&served));
    assert_eq!(failures(&keygate, "connect"), 1.0);
    assert_eq!(keygate.metric(r#"keygate_requests_total{code="5xx",service="test"}"#), 1.0);
    keygate.wait_for("a line about the upstream", |line| line["message"] == "upstream failed");
}

/// A short `response_timeout`.
#[test]
fn a_silent_upstream_gives_504_after_the_response_timeout() {
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let origin = Origin::responding(move |_, _| {
        let _ = held.lock().unwrap().recv(); // until the test has ended
        Err(ErrorKind::ConnectionAborted.into())
    });
    let keygate = Proxy::to(origin).upstream("response_timeout = \"400ms\"").start();
    let served = keygate.curl(&keygate.good, &CODE);
    assert!(served.stdout.ends_with(b"504"), "{}", output_text(&served));
    assert_eq!(failures(&keygate, "timeout"), 1.0);
    drop(release);
}

#[test]
fn a_failure_names_its_server_in_the_log_and_in_the_access_log() {
    for timeout in
        ["upstream = { response_timeout = \"300ms\" }", "limits = { request_timeout = \"300ms\" }"]
    {
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let origin = Origin::responding(move |_, _| {
            let _ = held.lock().unwrap().recv(); // until the test has ended
            Err(ErrorKind::ConnectionAborted.into())
        });
        let server = format!("http://{}", origin.address());
        let keygate = Proxy::to(origin)
            .global("access_log = { requests = \"errors\" }")
            .service(timeout)
            .start();
        let response = keygate.curl(&keygate.good, &CODE);
        assert!(response.stdout.ends_with(b"504"), "{timeout}: {}", output_text(&response));
        let line = keygate.wait_for("the failure", |line| line["message"] == "upstream failed");
        assert_eq!(line["server"], server.as_str(), "{timeout}");
        assert_eq!(keygate.access_line()["upstream"], server.as_str(), "{timeout}");
        drop(release);
    }
}

#[test]
fn a_switch_of_protocols_that_was_not_requested_is_502() {
    for (request, accepted) in [
        ("", "websocket"),
        ("Connection: upgrade\r\nUpgrade: websocket\r\n", "h2c"),
        ("Connection: upgrade\r\nUpgrade: websocket\r\n", "websocket, h2c"),
        ("Connection: upgrade\r\nUpgrade: websocket\r\n", "websocket\r\nUpgrade: h2c"),
        ("Connection: upgrade\r\nUpgrade: websocket\r\n", "websocket\u{a0}"),
    ] {
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {accepted}\r\n\r\n"
        );
        let origin = Origin::responding(move |_, tcp| tcp.write_all(head.as_bytes()));
        let keygate = Proxy::to(origin).start();
        let mut client = keygate.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{request}\r\n"));
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 502"), "{request:?}, {accepted:?}: {head}");
    }
}

#[test]
fn a_response_head_of_120_kib_passes_and_a_larger_one_is_502_with_its_reason() {
    let head_with = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}content-length: 0\r\n\r\n");
    let padding = |count| format!("X-Padding: {}\r\n", "a".repeat(2 << 10)).repeat(count);
    for (fields, code) in [
        (padding(59), "200"),
        (padding(63), "200"),
        (padding(64), "502"),
        ("X-Padding: ".to_owned() + &"a".repeat(300 << 10) + "\r\n", "502"),
        ("X-Many: 1\r\n".repeat(99), "200"),
        ("X-Many: 1\r\n".repeat(100), "502"),
    ] {
        let head = head_with(&fields);
        let origin = Origin::responding(move |_, tcp| tcp.write_all(head.as_bytes()));
        let keygate = Proxy::to(origin).start();
        for http in ["--http1.1", "--http2"] {
            let served = keygate.curl(&keygate.good, &[CODE[0], CODE[1], http]);
            assert!(served.stdout.ends_with(code.as_bytes()), "{http}: {}", output_text(&served));
        }
        if code == "502" {
            let line = keygate.wait_for("its reason", |line| line["message"] == "upstream failed");
            let reason = "the response head is larger than 128 KiB or has more than 100 fields";
            assert_eq!(line["error"], reason, "{line}");
            assert_eq!(failures(&keygate, "response"), 2.0);
        }
    }
}

#[test]
fn an_upstream_that_dies_in_mid_response_never_looks_complete() {
    for dying in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nten bytes."[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\na\r\nten bytes.\r\n",
    ] {
        let origin = Origin::responding(move |_, tcp| {
            tcp.write_all(dying)?;
            Err(ErrorKind::ConnectionAborted.into())
        });
        let keygate = Proxy::to(origin).start();
        for http in ["--http1.1", "--http2"] {
            let broken = keygate.curl(&keygate.good, &[http]);
            // Partial file, receive error, error in an HTTP/2 stream.
            let broken_off = [18, 56, 92].map(Some).contains(&broken.status.code());
            assert!(broken_off, "{http}: {}", output_text(&broken));
            assert_eq!(broken.stdout, b"ten bytes.", "{http}: {}", output_text(&broken));
        }
    }
}

#[test]
fn an_upload_that_makes_progress_outlasts_the_response_timeout() {
    // Its origin responds once it has read the whole body.
    let keygate = Proxy::new().upstream("response_timeout = \"1s\"").start();
    // While the machine pauses, the upload makes no progress.
    wait_for("an upload without a pause", || {
        let mut client = keygate.connect();
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n");
        for _ in 0..8 {
            // The passing of time is what is tested: all pieces together take twice the time-out.
            std::thread::sleep(Duration::from_millis(250));
            client.try_send("x").map_err(|error| error.to_string())?;
        }
        match client.head_or_end() {
            Some(head) if head.starts_with("HTTP/1.1 200 OK\r\n") => Ok(()),
            head => Err(format!("{head:?}")),
        }
    });
    assert_eq!(keygate.origin.next().body, b"xxxxxxxx");
}

#[test]
fn requests_share_an_upstream_connection_and_a_closed_one_is_replaced() {
    let (closing, counted) = (channel::<()>(), Mutex::new(0));
    let (closed, wait_closed) = closing;
    let closed = Mutex::new(closed);
    let origin = Origin::responding(move |_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")?;
        let mut count = counted.lock().unwrap();
        *count += 1;
        if *count == 3 {
            tcp.shutdown(std::net::Shutdown::Both)?;
            let _ = closed.lock().unwrap().send(());
            return Err(ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    });
    let keygate = Proxy::to(origin).workers(1).start();
    let mut client = keygate.connect();
    let mut send_get = || {
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 OK\r\n"));
        assert_eq!(client.exactly(6), b"hello\n");
    };
    for _ in 0..3 {
        send_get();
    }
    let connections = || keygate.metric("keygate_upstream_connections_total{service=\"test\"}");
    assert_eq!(connections(), 1.0);
    wait_closed.recv_timeout(TIMEOUT).unwrap();
    keygate.wait_for_metric("keygate_upstream_connections_active{service=\"test\"}", 0.0);
    send_get();
    assert_eq!(connections(), 2.0);
}

/// The timers of the connections of a process to `server`, as `/proc/net/tcp` has them.
fn timers(keygate: &Keygate, server: SocketAddr) -> Vec<String> {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", keygate.pid())).unwrap();
    let remote = format!("0100007F:{:04X}", server.port());
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|fields| fields[2] == remote).map(|fields| fields[5][..2].to_owned()).collect()
}

/// A server that loses power closes no connection.
#[test]
fn a_kept_upstream_connection_is_probed_by_the_kernel() {
    let keygate = Proxy::new().workers(1).start();
    assert_eq!(keygate.code(&[]), "200");
    let keep_alive = "02"; // Documentation/networking/proc_net_tcp of Linux
    wait_until("the timer of the connection", || {
        timers(&keygate, keygate.origin.address()) == [keep_alive]
    });
}

/// Resident memory of a process, in bytes.
fn resident(keygate: &Keygate) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", keygate.pid())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

const BODY: usize = 64 << 20;
const ROOM: u64 = 16 << 20;

#[test]
fn a_client_that_does_not_read_slows_the_upstream_and_memory_stays_bounded() {
    let (stalled, wait_stalled) = channel();
    let stalled = Mutex::new(stalled);
    let origin = Origin::responding(move |_, tcp| {
        tcp.set_write_timeout(Some(Duration::from_secs(1)))?;
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n")?;
        let piece = vec![b'x'; 1 << 16];
        let mut written = 0;
        while written < BODY {
            match tcp.write(&piece[..piece.len().min(BODY - written)]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let _ = stalled.lock().unwrap().send(written);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    let keygate = Proxy::to(origin).start();
    let mut client = keygate.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let before = resident(&keygate);
    let written = wait_stalled.recv_timeout(TIMEOUT).unwrap();
    assert!(written < BODY, "the origin was never stopped");
    let grown = resident(&keygate).saturating_sub(before);
    assert!(grown < ROOM, "{grown} bytes for one slow client");

    client.head();
    let body = client.exactly(BODY);
    assert!(body.iter().all(|byte| *byte == b'x'));
}

#[test]
fn an_upstream_that_does_not_read_slows_the_client_and_memory_stays_bounded() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let deaf = listener.local_addr().unwrap(); // accepts by its backlog and never reads
    let keygate = Proxy::before(format!("http://{deaf}")).start();
    let mut client = keygate.connect();
    client.send(format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY}\r\n\r\n"));
    let before = resident(&keygate);
    client.tcp().set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let sent = client.send_until_stalled(&vec![b'x'; BODY]);

    assert!(sent < BODY, "the client was never stopped");
    let grown = resident(&keygate).saturating_sub(before);
    assert!(grown < ROOM, "{grown} bytes for one slow upstream");
}
