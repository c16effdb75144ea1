//! Idle connections of HTTP/1.1 give their HTTP state back, and are otherwise like all others.
//!
//! Guards: `begin_hibernation` in `src/proxy/http/http1.rs`, `wait_for_event` in
//! `src/proxy/http/http1.rs`, `begin_head` in `src/proxy/http/http1.rs`, `request_hibernation` in
//! `src/proxy/worker/awake.rs`.

use std::io::Write;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::unfair_clients::cut_off;
use crate::support::client::Client;
use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, frame};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{Server, next_frame, read_until};
use crate::support::write_revision;

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const ACTIVE: &str = "keygate_connections_active{service=\"test\"}";
const HIBERNATING: &str = "keygate_connections_hibernating{service=\"test\"}";

fn get(client: &mut Client) {
    client.send(GET);
    read_response(client);
}

fn read_response(client: &mut Client) {
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(client.exactly(6), b"hello\n");
}

/// A client whose connection hibernates after a request.
fn hibernating(proxy: &Running) -> Client {
    let mut client = proxy.connect();
    get(&mut client);
    proxy.wait_for_metric(HIBERNATING, 1.0);
    client
}

/// Starts a proxy with one worker and a second service, whose connections show what the worker
/// does.
fn start_observed(mut proxy: Proxy) -> Running {
    proxy.configuration = proxy.configuration.second_service("listen = \"127.0.0.2:0\"").workers(1);
    proxy.start()
}

/// Waits until the worker has requested the hibernation of all connections that are idle now: a
/// connection of the second service, which is idle since later, hibernates.
fn wait_for_requests_to_hibernate(observed: &Running) {
    let listening = observed.wait_for("the second address", |line| {
        line["message"] == "listening" && line["services"] == "second"
    });
    let second: SocketAddr = listening["address"].as_str().unwrap().parse().unwrap();
    let mut later = Client::connect(&observed.pki, second, &observed.good);
    later.send(""); // completes the handshake
    observed.wait_for_metric("keygate_connections_hibernating{service=\"second\"}", 1.0);
}

fn count_served(keygate: &Keygate) -> f64 {
    keygate.metric("keygate_connections_total{result=\"served\",service=\"test\"}")
}

#[test]
fn an_idle_connection_hibernates_and_serves_the_next_requests() {
    let proxy = Proxy::new().start();
    let mut client = hibernating(&proxy);
    for _ in 0..2 {
        get(&mut client);
        proxy.wait_for_metric(HIBERNATING, 1.0);
    }
    client.send([GET, GET, GET].concat()); // pipelined
    (0..3).for_each(|_| read_response(&mut client));
    proxy.wait_for_metric(HIBERNATING, 1.0);
    assert_eq!((proxy.metric(ACTIVE), count_served(&proxy)), (1.0, 1.0));
}

#[test]
fn a_connection_without_a_request_hibernates_and_serves_the_first_one() {
    let proxy = Proxy::new().start();
    let mut client = proxy.connect();
    client.send(""); // completes the handshake
    proxy.wait_for_metric(HIBERNATING, 1.0);
    get(&mut client);
}

#[test]
fn a_hibernating_connection_counts_under_the_limits() {
    let proxy = Proxy::new().limits("max_connections_per_ip = 1").start();
    let mut first = hibernating(&proxy);
    let mut second = proxy.connect();
    second.send(GET);
    assert!(second.head().starts_with("HTTP/1.1 429 "));
    assert_eq!(proxy.metric(HIBERNATING), 1.0, "the first one");
    get(&mut first);
}

#[test]
fn a_hibernating_connection_is_evicted_when_its_key_is_in_the_new_filter() {
    let proxy = Proxy::new().start();
    let mut client = hibernating(&proxy);
    write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.good.spki], 2);
    assert_eq!(client.rest(), "", "closed in an orderly way, and nothing is served");
    proxy.wait_for("the line about the client", |line| {
        line["message"] == "client key rejected, closing connection"
    });
    proxy.wait_for_metric(ACTIVE, 0.0);
    proxy.wait_for_metric(HIBERNATING, 0.0);
}

#[test]
fn the_next_request_of_a_hibernating_connection_carries_the_new_verdict() {
    let proxy = Proxy::new().policy("on_probable = \"header\"").start();
    let mut client = hibernating(&proxy);
    assert_eq!(proxy.origin.next().fields("client-key-status"), ["clean"]);
    write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.good.spki], 2);
    let live = "keygate_key_checks_total{service=\"test\",stage=\"live\",verdict=\"probable\"}";
    proxy.wait_for_metric(live, 1.0);
    assert_eq!(proxy.metric(HIBERNATING), 1.0, "the judgement needs no HTTP state");
    get(&mut client);
    let received = proxy.origin.next();
    let status = received.fields("client-key-status");
    assert!(status[0].starts_with("probable;"), "{status:?}");
}

#[test]
fn a_hibernating_connection_drains_with_the_process() {
    let mut proxy = Proxy::new().start();
    let mut client = hibernating(&proxy);
    proxy.keygate.signal("TERM");
    assert_eq!(client.rest(), "", "closed in an orderly way");
    assert!(proxy.keygate.ended().success());
}

#[test]
fn a_hibernating_connection_is_closed_after_the_idle_timeout_and_not_before() {
    let proxy = Proxy::new().limits("idle_timeout = \"12s\"").start();
    let mut client = proxy.connect();
    client.send(GET);
    let served = Instant::now(); // the connection is idle from now on at the earliest
    read_response(&mut client);
    proxy.wait_for_metric(HIBERNATING, 1.0);
    assert_eq!(client.rest(), "");
    assert!(served.elapsed() >= Duration::from_secs(12), "{:?}", served.elapsed());
    proxy.wait_for_metric(ACTIVE, 0.0);
}

#[test]
fn a_hibernating_connection_is_closed_at_its_maximum_age() {
    let proxy = Proxy::new().limits("max_connection_age = \"12s\"").start();
    let mut client = hibernating(&proxy);
    assert_eq!(client.rest(), "");
    proxy.wait_for_metric(ACTIVE, 0.0);
}

#[test]
fn half_a_request_wakes_a_connection_and_keeps_it_awake() {
    let proxy = start_observed(Proxy::new().limits("header_timeout = \"30s\""));
    let mut client = hibernating(&proxy);
    client.send(&GET[..9]);
    proxy.wait_for_metric(HIBERNATING, 0.0);
    wait_for_requests_to_hibernate(&proxy);
    assert_eq!(proxy.metric(HIBERNATING), 0.0);
    client.send(&GET[9..]);
    read_response(&mut client);
    proxy.wait_for_metric(HIBERNATING, 1.0);
}

#[test]
fn half_a_request_after_hibernation_gets_408_after_the_header_timeout() {
    let proxy = Proxy::new().limits("header_timeout = \"1s\"").start();
    let mut client = hibernating(&proxy);
    client.send(&GET[..9]);
    assert!(client.head().starts_with("HTTP/1.1 408 "));
}

#[test]
fn half_a_request_that_arrived_with_the_last_one_is_kept_and_completed() {
    let proxy = start_observed(Proxy::new().limits("header_timeout = \"30s\""));
    let mut client = proxy.connect();
    client.send(format!("{GET}{}", &GET[..9]));
    read_response(&mut client);
    wait_for_requests_to_hibernate(&proxy);
    assert_eq!(proxy.metric(HIBERNATING), 0.0);
    client.send(&GET[9..]);
    read_response(&mut client);
    proxy.origin.next();
    assert_eq!(proxy.origin.next().head.lines().next(), Some("GET / HTTP/1.1"));
    assert_eq!(proxy.origin.untaken(), 0, "each request was sent once");
    proxy.wait_for_metric(HIBERNATING, 1.0);
}

#[test]
fn half_a_request_that_arrived_with_the_last_one_gets_408_after_the_header_timeout() {
    let proxy = Proxy::new().limits("header_timeout = \"1s\", idle_timeout = \"10m\"").start();
    let mut client = proxy.connect();
    client.send(format!("{GET}{}", &GET[..9]));
    read_response(&mut client);
    assert!(client.head().starts_with("HTTP/1.1 408 "));
}

#[test]
fn requests_that_arrive_at_the_moment_of_hibernation_are_served_once() {
    let proxy = Proxy::new().start();
    let mut clients: Vec<_> = (0..60).map(|_| proxy.connect()).collect();
    clients.iter_mut().for_each(get);
    // Connections hibernate about one second after their last request.
    sleep(Duration::from_millis(950));
    for client in &mut clients {
        client.send([GET, GET].concat());
        sleep(Duration::from_millis(6));
    }
    for client in &mut clients {
        read_response(client);
        read_response(client);
    }
    assert_eq!(proxy.origin.untaken(), 180, "each request was sent once");
}

#[test]
fn many_idle_connections_hibernate_and_are_served_again() {
    let proxy = Proxy::new().start();
    let mut clients: Vec<_> = (0..100).map(|_| proxy.connect()).collect();
    clients.iter_mut().for_each(get);
    proxy.wait_for_metric(HIBERNATING, 100.0);
    clients.iter_mut().for_each(get);
    proxy.wait_for_metric(HIBERNATING, 100.0);
    assert_eq!((proxy.metric(ACTIVE), count_served(&proxy)), (100.0, 100.0));
}

#[test]
fn a_hibernating_connection_ends_with_its_client() {
    let proxy = Proxy::new().limits("idle_timeout = \"10m\"").start();
    let mut closed = hibernating(&proxy);
    closed.finish();
    assert_eq!(closed.rest(), "", "close_notify is answered with close_notify");
    proxy.wait_for_metric(ACTIVE, 0.0);
    let cut = hibernating(&proxy);
    cut.tcp().shutdown(std::net::Shutdown::Write).unwrap(); // FIN alone
    proxy.wait_for_metric(ACTIVE, 0.0);
    let reset = hibernating(&proxy);
    SockRef::from(reset.tcp()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(reset);
    proxy.wait_for_metric(ACTIVE, 0.0);
    proxy.wait_for_metric(HIBERNATING, 0.0);
}

#[test]
fn a_hibernating_connection_ends_although_its_client_has_vanished() {
    let proxy = Proxy::new().limits("idle_timeout = \"12s\", body_timeout = \"1s\"").start();
    let client = hibernating(&proxy);
    cut_off(client.tcp());
    proxy.wait_for_metric(ACTIVE, 0.0);
    proxy.wait_for_metric(HIBERNATING, 0.0);
}

#[test]
fn a_connection_upgrades_after_hibernation_and_a_tunnel_does_not_hibernate() {
    let server = Server::start();
    let proxy = start_observed(Proxy::before(format!("http://{}", server.address)));
    let mut client = proxy.connect();
    client.send(GET);
    let mut plain = server.connection();
    read_until(&mut plain, "\r\n\r\n");
    plain.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n").unwrap();
    read_response(&mut client);
    proxy.wait_for_metric(HIBERNATING, 1.0);
    let upgrade = "connection: upgrade\r\nupgrade: echo\r\n";
    client.send(format!("GET / HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\nearly"));
    let mut upgraded = server.connection();
    read_until(&mut upgraded, "\r\n\r\n");
    write!(upgraded, "HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\nwelcome").unwrap();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    assert_eq!(client.exactly(7), b"welcome");
    read_until(&mut upgraded, "early");
    wait_for_requests_to_hibernate(&proxy);
    assert_eq!(proxy.metric(HIBERNATING), 0.0);
    client.send("late");
    read_until(&mut upgraded, "late");
    drop(upgraded);
    client.finish();
    assert_eq!(client.rest(), "");
}

#[test]
fn a_response_that_the_client_has_not_read_keeps_its_connection_awake() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 33554432\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; 32 << 20])
    });
    let proxy = start_observed(Proxy::to(origin));
    let mut client = proxy.connect();
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    wait_for_requests_to_hibernate(&proxy);
    assert_eq!(proxy.metric(HIBERNATING), 0.0);
    assert!(client.exactly(32 << 20).iter().all(|byte| *byte == b'x'));
    proxy.wait_for_metric(HIBERNATING, 1.0);
}

#[test]
fn a_connection_that_waits_for_room_for_the_end_of_a_response_serves_the_next_request() {
    let origin = Origin::responding(|request, tcp| {
        let length = request.head.split(['/', ' ']).nth(2).unwrap();
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
        tcp.write_all(&vec![b'x'; length.parse().unwrap()])
    });
    let proxy = start_observed(Proxy::to(origin).limits("body_timeout = \"10m\""));
    // Some of these responses are longer than what the sockets take, and so little longer that the
    // whole rest is in buffers of keygate.
    let lengths = (1..=40).map(|step| step * (128 << 10));
    let mut clients: Vec<_> = lengths.map(|length| (proxy.connect(), length)).collect();
    for (client, length) in &mut clients {
        client.send(format!("GET /{length} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    }
    for (client, _) in &mut clients {
        assert!(client.head().starts_with("HTTP/1.1 200 "));
    }
    wait_for_requests_to_hibernate(&proxy);
    for (client, length) in &mut clients {
        assert!(client.exactly(*length).iter().all(|byte| *byte == b'x'));
        client.send("GET /6 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "), "after {length} bytes");
        assert_eq!(client.exactly(6), b"xxxxxx");
    }
    proxy.wait_for_metric(HIBERNATING, 40.0);
}

#[test]
fn a_connection_whose_upload_outlived_its_response_hibernates_after_the_next_request() {
    let server = Server::start();
    let proxy = Proxy::before(format!("h2c://{}", server.address)).start();
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8\r\n\r\npart");
    let mut http2 = server.http2();
    let mut respond = |expected: &[u8]| {
        let stream = loop {
            let (kind, stream, ..) = next_frame(&mut http2);
            if kind == expected[0] {
                break stream;
            }
        };
        let response = frame(HEADERS, END_STREAM | END_HEADERS, stream, &[0x88]); // :status 200
        http2.write_all(&response).unwrap();
    };
    respond(&[DATA]);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    client.send("rest");
    client.send(GET);
    respond(&[HEADERS]);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    proxy.wait_for_metric(HIBERNATING, 1.0);
}

#[test]
fn a_client_that_a_service_rejects_with_responses_hibernates_too() {
    let proxy = Proxy::new().policy("reject_with = \"http-403\"").start();
    let mut client = Client::connect(&proxy.pki, proxy.address(), &proxy.lost);
    client.send("");
    proxy.wait_for_metric(HIBERNATING, 1.0);
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 403 "));
}
