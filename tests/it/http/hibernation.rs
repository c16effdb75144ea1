//! Idle connections of HTTP/1.1 give their HTTP state back, and are otherwise like all others.
//!
//! Guards: `begin_hibernation` in `src/proxy/http/http1.rs`, `wait_for_event` in
//! `src/proxy/http/http1.rs`, `begin_head` in `src/proxy/http/http1.rs`, `request_hibernation` in
//! `src/proxy/worker/awake.rs`.

use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::unfair_clients::cut_off;
use crate::support::client::Client;
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{Server, read_until};
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
    let proxy = Proxy::new().limits("idle_timeout = \"4s\"").start();
    let mut client = proxy.connect();
    client.send(GET);
    let served = Instant::now(); // the connection is idle from now on at the earliest
    read_response(&mut client);
    proxy.wait_for_metric(HIBERNATING, 1.0);
    assert_eq!(client.rest(), "");
    assert!(served.elapsed() >= Duration::from_secs(4), "{:?}", served.elapsed());
    proxy.wait_for_metric(ACTIVE, 0.0);
}

#[test]
fn a_hibernating_connection_is_closed_at_its_maximum_age() {
    let proxy = Proxy::new().limits("max_connection_age = \"4s\"").start();
    let mut client = hibernating(&proxy);
    assert_eq!(client.rest(), "");
    proxy.wait_for_metric(ACTIVE, 0.0);
}

#[test]
fn half_a_request_wakes_a_connection_and_keeps_it_awake() {
    let proxy = Proxy::new().limits("header_timeout = \"30s\"").start();
    let mut client = hibernating(&proxy);
    client.send(&GET[..9]);
    proxy.wait_for_metric(HIBERNATING, 0.0);
    // Nothing shows that a connection does not hibernate, except time.
    sleep(Duration::from_millis(1500));
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
    let proxy = Proxy::new().limits("header_timeout = \"30s\"").start();
    let mut client = proxy.connect();
    client.send(format!("{GET}{}", &GET[..9]));
    read_response(&mut client);
    // hyper has the half request, so the attempt to hibernate shows nowhere.
    sleep(Duration::from_millis(1500));
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
    let proxy = Proxy::new().limits("idle_timeout = \"3s\", body_timeout = \"1s\"").start();
    let client = hibernating(&proxy);
    cut_off(client.tcp());
    proxy.wait_for_metric(ACTIVE, 0.0);
    proxy.wait_for_metric(HIBERNATING, 0.0);
}

#[test]
fn a_connection_upgrades_after_hibernation_and_a_tunnel_does_not_hibernate() {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address)).start();
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
    // Nothing shows that a connection does not hibernate, except time.
    sleep(Duration::from_millis(1500));
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
    let proxy = Proxy::to(origin).start();
    let mut client = proxy.connect();
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    // Nothing shows that a connection does not hibernate, except time.
    sleep(Duration::from_millis(1500));
    assert_eq!(proxy.metric(HIBERNATING), 0.0);
    assert!(client.exactly(32 << 20).iter().all(|byte| *byte == b'x'));
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
