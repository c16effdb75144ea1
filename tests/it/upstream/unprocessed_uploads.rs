//! Uploads that an HTTP/2 server has not processed are sent again, whole and to their end.

use std::io::Write;
use std::net::TcpStream;

use crate::support::client::Client;
use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, WINDOW_UPDATE, frame,
};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{Server, next_frame};

const REFUSED_STREAM: u32 = 7;
/// Maximum length of a body that is kept, in bytes.
const KEPT: usize = 64 << 10;

fn scene(server: &Server) -> Running {
    let proxy = Proxy::before(format!("h2c://{}", server.address)).workers(1);
    proxy.global("access_log = { requests = \"all\" }").start()
}

fn post(scene: &Running, head: &str, body: &[u8]) -> Client {
    let mut client = scene.connect();
    client.send(
        [format!("POST / HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n").as_bytes(), body].concat(),
    );
    client
}

/// Reads the head of the next request, and `length` bytes of its body. Returns the stream, the body,
/// and whether the request has ended.
fn request(http2: &mut TcpStream, length: usize) -> (u32, Vec<u8>, bool) {
    let (kind, stream, mut has_ended, _) = next_frame(http2);
    assert_eq!(kind, HEADERS);
    let mut body = Vec::new();
    while !has_ended && body.len() < length {
        let (kind, of, ends, data) = next_frame(http2);
        assert_eq!((kind, of), (DATA, stream));
        (has_ended, body) = (ends, [body, data].concat());
    }
    (stream, body, has_ended)
}

fn respond(http2: &mut TcpStream, stream: u32) {
    let status_200 = [0x88];
    http2.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &status_200)).unwrap();
}

fn go_away(http2: &mut TcpStream, last: u32) {
    let no_error = 0_u32.to_be_bytes();
    http2.write_all(&frame(GOAWAY, 0, 0, &[last.to_be_bytes(), no_error].concat())).unwrap();
}

/// Lets the client send as much as it likes on a stream, or on the connection, which is 0.
fn open_window(http2: &mut TcpStream, stream: u32) {
    http2.write_all(&frame(WINDOW_UPDATE, 0, stream, &(1_u32 << 30).to_be_bytes())).unwrap();
}

#[test]
fn an_upload_that_goes_on_is_sent_again_from_its_beginning() {
    let server = Server::start();
    let scene = scene(&server);
    let mut client = post(&scene, "Content-Length: 9", b"one");
    let mut first = server.http2();
    assert_eq!(request(&mut first, 3), (1, b"one".to_vec(), false));
    client.send("two");
    assert_eq!(next_frame(&mut first).3, b"two");
    go_away(&mut first, 0);
    let mut second = server.http2();
    assert_eq!(request(&mut second, 6), (1, b"onetwo".to_vec(), false));
    client.send("end");
    let (kind, stream, has_ended, data) = next_frame(&mut second);
    assert_eq!((kind, stream, &data[..]), (DATA, 1, &b"end"[..]));
    assert!(has_ended);
    respond(&mut second, 1);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(scene.access_line()["request_bytes"], 9, "bytes that were sent twice count once");
}

#[test]
fn a_refused_upload_is_sent_again_if_it_is_not_longer_than_what_is_kept() {
    for (length, is_resent) in [(1, true), (KEPT, true), (KEPT + 1, false)] {
        let server = Server::start();
        let scene = scene(&server);
        let body = vec![b'x'; length];
        let mut client = post(&scene, &format!("Content-Length: {length}"), &body);
        let mut http2 = server.http2();
        open_window(&mut http2, 0);
        let (kind, stream, ..) = next_frame(&mut http2);
        assert_eq!((kind, stream), (HEADERS, 1));
        open_window(&mut http2, 1);
        let mut read = 0;
        while read < length {
            let (kind, .., data) = next_frame(&mut http2);
            assert_eq!(kind, DATA);
            read += data.len();
        }
        http2.write_all(&frame(RST_STREAM, 0, 1, &REFUSED_STREAM.to_be_bytes())).unwrap();
        if is_resent {
            let (kind, stream, ..) = next_frame(&mut http2);
            assert_eq!((kind, stream), (HEADERS, 3), "{length} bytes");
            open_window(&mut http2, 3);
            let mut again = Vec::new();
            while again.len() < length {
                again.extend(next_frame(&mut http2).3);
            }
            assert_eq!(again, body);
            respond(&mut http2, 3);
        }
        let status = if is_resent { "HTTP/1.1 200 " } else { "HTTP/1.1 502 " };
        assert!(client.head().starts_with(status), "{length} bytes");
    }
}

/// The server has begun to process it.
#[test]
fn an_upload_is_not_sent_again_if_goaway_names_its_stream() {
    let server = Server::start();
    let scene = scene(&server);
    let mut client = post(&scene, "Content-Length: 4", b"body");
    let mut http2 = server.http2();
    assert_eq!(request(&mut http2, 4), (1, b"body".to_vec(), true));
    go_away(&mut http2, 1);
    drop(http2);
    assert!(client.head().starts_with("HTTP/1.1 502 "));
}
