//! Clients that take more than their part: streams that are reset or not read, and connections
//! whose clients have gone.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::{SockFilter, SockRef};

use crate::support::TIMEOUT;
use crate::support::client::{Client, connect_from};
use crate::support::http2::{
    Came, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, field, frame, request,
};
use crate::support::origin::Origin;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{Server, next_frame, read_until, settings};

const OK: u8 = 0x88;
const NOT_FOUND: u8 = 0x8d;
const CANCEL: u32 = 8;
const FRAME_SIZE_ERROR: u32 = 6;
const ENHANCE_YOUR_CALM: u32 = 11;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// A proxy before a server whose bytes the test writes. The server may take as long as it likes.
fn before(server: &Server, scheme: &str, limits: &str) -> Running {
    Proxy::before(format!("{scheme}{}", server.address))
        .workers(1)
        .limits(limits)
        .upstream("response_timeout = \"300s\", body_timeout = \"300s\"")
        .start()
}

/// Waits until keygate has read all frames sent so far.
fn ping(client: &mut Http2) {
    client.send(&frame(PING, 0, 0, &[0; 8]));
    while client.frame().is_some_and(|(kind, ..)| kind != PING) {}
}

/// Reads to the end of a connection, which may be a reset.
fn read_to_end(tcp: &mut TcpStream) {
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let ended = tcp.read_to_end(&mut Vec::new());
    assert_ne!(ended.map_err(|error| error.kind()), Err(std::io::ErrorKind::WouldBlock));
}

#[test]
fn a_client_that_resets_its_requests_is_closed_and_costs_the_upstream_little() {
    let (sender, waiting) = std::sync::mpsc::channel::<()>();
    let waiting = std::sync::Mutex::new(waiting);
    let origin = Origin::responding(move |_, _| {
        let _ = waiting.lock().unwrap().recv(); // until the test ends
        Ok(())
    });
    // 101 resets are within the budget.
    let proxy = Proxy::to(origin).workers(1).limits("max_streams = 1").start();
    let mut client = proxy.connect_http2();
    ping(&mut client);
    let last = (0..2000).find_map(|number| {
        let stream = 2 * number + 1;
        client.send_get(stream);
        client.send(&frame(PING, 0, 0, &[0; 8]));
        loop {
            match client.frame()? {
                (PING, ..) => break,
                (GOAWAY, _, _, payload) => return Some(payload),
                _ => {}
            }
        }
        client.send(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
        None
    });
    let code = last.map(|payload| u32::from_be_bytes(payload[4..8].try_into().unwrap()));
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    let line = proxy.wait_for("its line", |line| {
        line["message"] == "too many reset streams, closing connection"
    });
    assert_eq!((&line["level"], &line["service"]), (&"WARN".into(), &"test".into()), "{line}");
    proxy.wait_for_metric("keygate_http2_misuses_total{service=\"test\"}", 1.0);
    proxy.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
    let opened = proxy.metric("keygate_upstream_connections_total{service=\"test\"}");
    assert!(opened <= 103.0, "{opened} upstream connections");
    drop(sender);
}

#[test]
fn responses_that_were_read_make_up_for_resets() {
    let server = Server::start();
    let proxy = before(&server, "h2c://", "max_streams = 1");
    let mut client = proxy.connect_http2();
    let mut upstream = None;
    // More resets than the budget has, and as many responses.
    for number in 0..150 {
        let stream = 4 * number + 1;
        client.send_get(stream);
        let upstream = upstream.get_or_insert_with(|| server.http2());
        let (_, cancelled, ..) = next_frame(upstream);
        client.send(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
        assert_eq!(next_frame(upstream).0, RST_STREAM);
        client.send_get(stream + 2);
        let (kind, requested, ..) = next_frame(upstream);
        assert_eq!((kind, requested), (HEADERS, cancelled + 2));
        upstream.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, requested, &[OK])).unwrap();
        assert_eq!(client.next(), Came::Response(OK, stream + 2));
    }
    assert_eq!(proxy.metric("keygate_http2_misuses_total{service=\"test\"}"), 0.0);
}

#[test]
fn a_stream_that_its_client_does_not_read_is_reset_although_another_waits() {
    let server = Server::start();
    let proxy = before(&server, "http://", "body_timeout = \"6s\"");
    let mut client = proxy.connect_http2();
    client.send(&settings(&[(INITIAL_WINDOW_SIZE, 4)]));
    ping(&mut client);
    // The upstream takes its time with one response.
    client.send_get(1);
    let mut slow = server.connection();
    read_until(&mut slow, "\r\n\r\n");
    // Two responses have more to send than the window allows. One client reads a little now and
    // then, which keeps its own stream only.
    client.send_get(3);
    let mut stalled = server.connection();
    read_until(&mut stalled, "\r\n\r\n");
    stalled.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello").unwrap();
    assert_eq!(client.next(), Came::Response(OK, 3));
    client.send_get(5);
    let mut trickle = server.connection();
    read_until(&mut trickle, "\r\n\r\n");
    trickle.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").unwrap();
    trickle.write_all(&[b'x'; 100_000]).unwrap();
    let start = Instant::now();
    let reset = loop {
        assert!(start.elapsed() < TIMEOUT, "the stream was not reset");
        match client.frame().expect("the connection stays open") {
            (RST_STREAM, _, stream, code) => break (stream, code),
            (DATA, _, 5, data) => {
                let more = u32::try_from(data.len().max(1)).unwrap().to_be_bytes();
                client.send(&frame(WINDOW_UPDATE, 0, 5, &more));
                client.send(&frame(WINDOW_UPDATE, 0, 0, &more));
            }
            _ => {}
        }
    };
    assert_eq!(reset, (3, CANCEL.to_be_bytes().to_vec()));
    read_to_end(&mut stalled);
    slow.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    let answered = std::iter::from_fn(|| client.frame())
        .any(|(kind, _, stream, _)| (kind, stream) == (HEADERS, 1));
    assert!(answered, "the request that waited gets its response");
}

#[test]
fn the_last_piece_of_a_response_counts_as_something_to_send() {
    let server = Server::start();
    let proxy = before(&server, "http://", "body_timeout = \"600ms\"");
    let mut client = proxy.connect_http2();
    client.send(&settings(&[(INITIAL_WINDOW_SIZE, 4)]));
    ping(&mut client);
    client.send_get(1);
    let mut upstream = server.connection();
    read_until(&mut upstream, "\r\n\r\n");
    upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap();
    assert_eq!(client.next(), Came::Response(OK, 1));
    assert_eq!(client.next(), Came::Reset(1, CANCEL));
}

#[test]
fn a_client_that_pipelines_and_goes_away_releases_both_connections() {
    for half_closes in [false, true] {
        let server = Server::start();
        let proxy = before(&server, "http://", "header_timeout = \"1s\"");
        let mut client = proxy.connect();
        let get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.send([get, get].concat());
        let mut upstream = server.connection();
        read_until(&mut upstream, "\r\n\r\n");
        if half_closes {
            client.finish();
            read_to_end(&mut upstream);
            assert_eq!(client.whatever_comes(), "", "a client that closes its side has gone");
        } else {
            drop(client);
            read_to_end(&mut upstream);
        }
        proxy.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
        proxy.wait_for_metric("keygate_upstream_connections_active{service=\"test\"}", 0.0);
    }
}

/// Drops every packet that arrives at a socket, as if the host had lost its network.
pub(super) fn cut_off(tcp: &TcpStream) {
    const RETURN: u16 = 6; // BPF_RET | BPF_K
    SockRef::from(tcp).attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)]).unwrap();
}

#[test]
fn a_client_that_vanished_is_noticed_while_its_response_trickles() {
    let server = Server::start();
    let proxy = before(&server, "http://", "body_timeout = \"1s\", idle_timeout = \"1s\"");
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut upstream = server.connection();
    read_until(&mut upstream, "\r\n\r\n");
    upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").unwrap();
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    cut_off(client.tcp());
    let start = Instant::now();
    while upstream.write_all(b"x").is_ok() {
        std::thread::sleep(Duration::from_millis(20)); // the pace of a slow upstream
        assert!(start.elapsed() < TIMEOUT, "the client was not missed");
    }
    proxy.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
}

#[test]
fn a_client_that_vanished_is_noticed_while_its_request_waits() {
    let server = Server::start();
    let proxy = before(&server, "http://", "body_timeout = \"1s\", idle_timeout = \"1s\"");
    let mut client = proxy.connect_http2();
    client.send(&frame(HEADERS, END_HEADERS, 1, &request("POST", &[])));
    client.send(&frame(DATA, END_STREAM, 1, b"body"));
    let mut upstream = server.connection();
    read_until(&mut upstream, "body");
    cut_off(client.tcp());
    read_to_end(&mut upstream);
    proxy.wait_for_metric("keygate_connections_active{service=\"test\"}", 0.0);
}

#[test]
fn a_frame_of_64_kib_reaches_the_server_and_a_longer_one_ends_the_connection() {
    const ACK: u8 = 1;
    let proxy = Proxy::to(Origin::start()).start();
    for (length, came) in
        [(64 << 10, Came::Response(OK, 1)), ((64 << 10) + 1, Came::GoAway(FRAME_SIZE_ERROR))]
    {
        let mut client = proxy.connect_http2();
        ping(&mut client);
        client.send(&frame(SETTINGS, ACK, 0, b"")); // the window of streams applies from now on
        let fields = request("POST", &[("content-length", &length.to_string())]);
        client.send(&frame(HEADERS, END_HEADERS, 1, &fields));
        let mut data = frame(DATA, END_STREAM, 1, &vec![b'x'; length]);
        if let Came::GoAway(_) = came {
            data.truncate(9); // a close with unread bytes would be a reset, which loses the GOAWAY
        }
        client.send(&data);
        assert_eq!(client.next(), came, "{length} bytes");
        if let Came::Response(..) = came {
            assert_eq!(proxy.origin.next().body.len(), length);
        }
    }
}

#[test]
fn rejected_requests_make_up_for_no_reset() {
    let server = Server::start(); // never responds
    let proxy = before(&server, "http://", "max_streams = 2");
    let mut client = proxy.connect_http2();
    ping(&mut client);
    let last = (0..300).find_map(|number| {
        let stream = 4 * number + 1;
        client.send_get(stream);
        ping(&mut client);
        client.send(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
        // 400, because it contradicts `:authority`.
        let rejected = request("GET", &[("host", "other.example")]);
        client.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream + 2, &rejected));
        loop {
            match client.frame()? {
                (HEADERS, _, response, _) if response == stream + 2 => break None,
                (GOAWAY, _, _, payload) => break Some(payload),
                _ => {}
            }
        }
    });
    let code = last.map(|payload| u32::from_be_bytes(payload[4..8].try_into().unwrap()));
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    proxy.wait_for_metric("keygate_http2_misuses_total{service=\"test\"}", 1.0);
}

#[test]
fn an_upload_that_the_server_leaves_unread_ends_soon_after_its_response() {
    let server = Server::start();
    let proxy = Proxy::before(format!("h2c://{}", server.address))
        .workers(1)
        .upstream("response_timeout = \"4s\"")
        .start();
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n");
    client.send([b'x'; 100_000]);
    let mut upstream = server.http2();
    let (kind, stream, ..) = next_frame(&mut upstream);
    assert_eq!(kind, HEADERS);
    let mut received = 0;
    // Three quarters of the window, the share of a client.
    while received < 49_151 {
        received += next_frame(&mut upstream).3.len();
    }
    upstream.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &[OK])).unwrap();
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    drop(client);
    let (kind, reset, ..) = next_frame(&mut upstream);
    assert_eq!((kind, reset), (RST_STREAM, stream));
}

#[test]
fn an_upload_that_its_server_does_not_read_after_the_response_is_reset_in_time() {
    let server = Server::start();
    let proxy = Proxy::before(format!("h2c://{}", server.address))
        .workers(1)
        .upstream("response_timeout = \"2s\", body_timeout = \"300s\"")
        .start();
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx");
    let mut upstream = server.http2_with(&[(INITIAL_WINDOW_SIZE, 0)]);
    let (kind, stream, ..) = next_frame(&mut upstream);
    assert_eq!(kind, HEADERS);
    // Its content is complete, and its stream is not.
    let head = [vec![NOT_FOUND], field("content-length", "2")].concat();
    upstream.write_all(&frame(HEADERS, END_HEADERS, stream, &head)).unwrap();
    upstream.write_all(&frame(DATA, 0, stream, b"no")).unwrap();
    assert!(client.head().starts_with("HTTP/1.1 404 "));
    assert_eq!(client.exactly(2), b"no");
    let (kind, reset, ..) = next_frame(&mut upstream);
    assert_eq!((kind, reset), (RST_STREAM, stream));
}

#[test]
fn an_idle_upstream_connection_is_closed_for_an_upgrade() {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address))
        .workers(1)
        .upstream("max_connections = 1")
        .start();
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut idle = server.connection();
    read_until(&mut idle, "\r\n\r\n");
    idle.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(client.head().starts_with("HTTP/1.1 204 "));
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n";
    client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n"));
    let mut upgraded = server.connection();
    read_until(&mut upgraded, "\r\n\r\n");
    write!(upgraded, "HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n").unwrap();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    read_to_end(&mut idle);
}

#[test]
fn declined_upgrades_leave_no_upstream_connections() {
    let server = Server::start();
    let proxy = before(&server, "http://", "");
    let mut client = proxy.connect();
    for _ in 0..3 {
        let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n";
        client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n"));
        let mut upstream = server.connection();
        read_until(&mut upstream, "\r\n\r\n");
        upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").unwrap();
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        upstream.write_all(b"no").unwrap();
        assert_eq!(client.exactly(2), b"no");
        read_to_end(&mut upstream);
    }
}

#[test]
fn silent_connections_keep_no_other_address_out_and_take_no_place_of_a_client() {
    let limits = "max_connections = 40, max_connections_per_ip = 30, handshake_timeout = \"10m\"";
    let proxy = Proxy::new().workers(2).limits(limits).start();
    let serve = |client: &mut Client| {
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        client.exactly(6);
    };
    let mut clients = vec![proxy.connect()];
    clients.iter_mut().for_each(serve);
    let silent: Vec<_> =
        (0..200).map(|number| connect_from([127, 0, 0, 2 + number % 5], proxy.address())).collect();
    for _ in 1..20 {
        clients.push(proxy.connect());
        clients.last_mut().into_iter().for_each(serve);
    }
    clients.iter_mut().for_each(serve);
    // 180 of them had to leave: 20 places are left by the clients.
    let evicted = "keygate_connections_total{result=\"limited\",service=\"\"}";
    assert!(proxy.metric(evicted) >= 180.0, "{:?}", proxy.metrics());
    drop(silent);
}

/// A TLS handshake that fails stands for any: its place is free when the client has the response.
#[test]
fn newcomers_behind_a_load_balancer_wait_for_a_place_and_evict_none() {
    let from = "accept_proxy = { from = [\"127.0.0.1\"] }";
    let proxy = Proxy::new().workers(1).service(from).limits("max_connections = 4").start();
    std::thread::scope(|scope| {
        let clients = (1..=100).map(|number| {
            let mut tcp = TcpStream::connect(proxy.address()).unwrap();
            scope.spawn(move || {
                let request = format!("PROXY TCP4 192.0.2.{number} 192.0.2.200 1 443\r\nGET / HT");
                tcp.write_all(request.as_bytes()).unwrap();
                tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut response = String::new();
                tcp.read_to_string(&mut response).unwrap();
                assert!(response.starts_with("HTTP/1.1 400 "), "{number}: {response}");
            })
        });
        clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    });
    assert_eq!(proxy.metric("keygate_connections_total{result=\"limited\",service=\"\"}"), 0.0);
}
