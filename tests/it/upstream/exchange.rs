//! Exchanges over HTTP/1.1: when a connection to a server may carry another request.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::client::Client;
use crate::support::pki::Kind;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{Server, read_until};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";
/// Bytes that the next client would take for its response.
const FORGED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nforged\n";

/// A server, and a proxy with one worker before it.
fn scene() -> (Server, Running) {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address)).workers(1).start();
    (server, proxy)
}

fn send(proxy: &Running, method: &str) -> Client {
    let mut client = proxy.connect();
    client.send(format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    client
}

/// Sends a request that must come on a connection of its own, and closes that connection.
fn expect_new_connection(server: &Server, proxy: &Running) {
    let mut client = send(proxy, "GET");
    let mut tcp = server.connection();
    read_until(&mut tcp, "\r\n\r\n");
    tcp.write_all(OK).unwrap();
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
}

#[test]
fn bytes_after_a_response_reach_no_other_client() {
    let (server, proxy) = scene();
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n";
    for (method, response) in [
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned()),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n".to_owned()),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n".to_owned()),
        ("GET", "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()),
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n".to_owned()),
        ("GET", chunked.to_owned() + "\r\n"),
        ("GET", chunked.to_owned() + "a: trailer\r\n\r\n"),
    ] {
        for is_late in [false, true] {
            let mut client = send(&proxy, method);
            let mut tcp = server.connection();
            read_until(&mut tcp, "\r\n\r\n");
            let (at_once, later) = if is_late { ("", FORGED) } else { (FORGED, "") };
            tcp.write_all((response.clone() + at_once).as_bytes()).unwrap();
            assert!(client.head().starts_with("HTTP/1.1 "), "{response:?}");
            tcp.write_all(later.as_bytes()).unwrap();
            expect_new_connection(&server, &proxy);
        }
    }
}

#[test]
fn a_response_that_ends_its_connection_or_has_two_lengths_is_the_last_one() {
    let (server, proxy) = scene();
    for response in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: x\r\nconnection: y, Close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\nok\r\n0\r\n\r\n",
    ] {
        let mut client = send(&proxy, "GET");
        let mut tcp = server.connection();
        read_until(&mut tcp, "\r\n\r\n");
        tcp.write_all(response.as_bytes()).unwrap();
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let lengths = ["content-length", "transfer-encoding"];
        let lengths = lengths.map(|name| usize::from(head.contains(name)));
        assert_eq!(lengths.iter().sum::<usize>(), 1, "{head}");
        assert_eq!(tcp.read(&mut [0]).unwrap(), 0, "{response:?}: keygate closes");
        expect_new_connection(&server, &proxy);
    }
    // One of HTTP/1.0 that is kept.
    let mut client = send(&proxy, "GET");
    let mut tcp = server.connection();
    for _ in 0..2 {
        read_until(&mut tcp, "\r\n\r\n");
        let head = "HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\n";
        write!(tcp, "{head}ok").unwrap();
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(2), b"ok");
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
}

#[test]
fn a_connection_with_an_unfinished_upload_takes_no_other_request() {
    for is_finished in [true, false] {
        let (server, proxy) = scene();
        let mut client = proxy.connect();
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nhalf");
        let mut tcp = server.connection();
        read_until(&mut tcp, "half");
        tcp.write_all(OK).unwrap();
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(6), b"hello\n");
        expect_new_connection(&server, &proxy);
        if is_finished {
            client.send("rest");
            read_until(&mut tcp, "rest");
        } else {
            drop(client);
        }
        expect_new_connection(&server, &proxy);
        assert_eq!(tcp.read(&mut [0]).unwrap(), 0, "closed after the upload");
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn no_request_follows_a_response_that_began_before_its_upload_ended() {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address)).upstream("reuse = \"always\"");
    let proxy = proxy.workers(1).start();
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nhalf");
    let mut tcp = server.connection();
    read_until(&mut tcp, "half");
    tcp.write_all(OK).unwrap();
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    client.send("rest");
    read_until(&mut tcp, "rest");
    assert_eq!(client.exactly(6), b"hello\n");
    expect_new_connection(&server, &proxy);
}

#[test]
fn a_connection_that_carried_an_upload_serves_its_client_only_unless_configured() {
    for (reuse, is_shared) in [("safe", false), ("always", true)] {
        let server = Server::start();
        let proxy = Proxy::before(format!("http://{}", server.address)).workers(1);
        let other = proxy.pki.client("other", Kind::P256);
        let proxy = proxy.upstream(&format!("reuse = \"{reuse}\"")).start();
        let mut client = proxy.connect();
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody");
        let mut first = server.connection();
        read_until(&mut first, "body");
        let respond = |tcp: &mut TcpStream, client: &mut Client| {
            tcp.write_all(OK).unwrap();
            assert!(client.head().starts_with("HTTP/1.1 200 "));
            assert_eq!(client.exactly(6), b"hello\n");
        };
        respond(&mut first, &mut client);

        let mut stranger = Client::connect(&proxy.pki, proxy.address(), &other);
        stranger.send(GET);
        let mut second = if is_shared { first.try_clone().unwrap() } else { server.connection() };
        read_until(&mut second, "\r\n\r\n");
        respond(&mut second, &mut stranger);
        // A request without a body leaves its connection to all.
        client.send(GET);
        read_until(&mut second, "\r\n\r\n");
        respond(&mut second, &mut client);
        client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nmore");
        read_until(&mut second, "more");
        respond(&mut second, &mut client);
        stranger.send(GET);
        let mut third = if is_shared { second } else { server.connection() };
        read_until(&mut third, "\r\n\r\n");
        respond(&mut third, &mut stranger);
    }
}
