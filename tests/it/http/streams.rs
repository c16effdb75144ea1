//! Requests as HTTP/2 streams, on either side of the proxy.

use std::io::Write;
use std::net::TcpStream;

use crate::support::client::Client;
use crate::support::http2::{
    CONTINUATION, Came, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, PING, RST_STREAM,
    field, frame, request,
};
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::server::{Server, next_frame, read_until, settings, settle};
use crate::support::{TIMEOUT, output_text, write_filter};

const OK: u8 = 0x88;
/// Settings (RFC 9113, section 6.5.2).
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const NO_ERROR: u32 = 0;

struct Scene {
    server: Server,
    keygate: Keygate,
    good: Party,
    pki: Pki,
}

fn scene(scheme: &str, extra: &str) -> Scene {
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let server = Server::start();
    let top = "access_log = { requests = \"all\" }";
    let keygate = Configuration::new(server.address)
        .servers(&[format!("{scheme}{}", server.address)])
        .workers(1)
        .global(top)
        .service(extra)
        .start(&pki);
    Scene { server, keygate, good, pki }
}

impl Scene {
    /// A client, and a server with these settings, who have exchanged one request.
    fn acquainted(&self, settings: &[(u16, u32)]) -> (Http2, TcpStream) {
        let mut client = Http2::connect(&self.pki, self.keygate.address(), &self.good);
        client.send_get(1);
        let mut server = self.server.http2_with(settings);
        assert_eq!(next_frame(&mut server).0, HEADERS);
        respond(&mut server, 1);
        assert_eq!(client.next(), Came::Response(OK, 1));
        (client, server)
    }
}

fn respond(server: &mut TcpStream, stream: u32) {
    server.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &[OK])).unwrap();
}

fn post(client: &mut Http2, stream: u32) {
    client.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("POST", &[])));
}

/// Waits until keygate has read all frames sent so far. Returns the types of the frames received.
fn ping(client: &mut Http2) -> Vec<u8> {
    client.send(&frame(PING, 0, 0, &[0; 8]));
    let kinds = std::iter::from_fn(|| client.frame()).map(|(kind, ..)| kind);
    kinds.take_while(|kind| *kind != PING).collect()
}

#[test]
fn requests_wait_for_a_free_stream_and_are_sent_completely() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[(MAX_CONCURRENT_STREAMS, 1)]);
    for stream in [3, 5, 7] {
        post(&mut client, stream);
    }
    let (kind, stream, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    ping(&mut client);
    // The server accepts no more streams. The waiting requests use another connection, although
    // they must not be sent twice.
    let last = [stream.to_be_bytes(), NO_ERROR.to_be_bytes()].concat();
    server.write_all(&frame(GOAWAY, 0, 0, &last)).unwrap();
    settle(&mut server);
    post(&mut client, 9);
    let mut other = scene.server.http2();
    for requested in [1, 3, 5] {
        let (kind, stream, ..) = next_frame(&mut other);
        assert_eq!((kind, stream), (HEADERS, requested));
        respond(&mut other, stream);
        assert!(matches!(client.next(), Came::Response(OK, 5 | 7 | 9)));
    }
    respond(&mut server, stream);
    assert_eq!(client.next(), Came::Response(OK, 3));
}

#[test]
fn a_raised_stream_limit_releases_waiting_requests() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[(MAX_CONCURRENT_STREAMS, 1)]);
    for stream in [3, 5, 7] {
        post(&mut client, stream);
    }
    let (_, first, ..) = next_frame(&mut server);
    ping(&mut client);
    server.write_all(&settings(&[(MAX_CONCURRENT_STREAMS, 2)])).unwrap();
    let (kind, second, ..) = next_frame(&mut server);
    assert_eq!((kind, second), (HEADERS, first + 2));
    // The limit is lowered: both requests must end before the third is sent.
    server.write_all(&settings(&[(MAX_CONCURRENT_STREAMS, 1)])).unwrap();
    respond(&mut server, first);
    assert_eq!(client.next(), Came::Response(OK, 3));
    ping(&mut client);
    respond(&mut server, second);
    assert_eq!(client.next(), Came::Response(OK, 5));
    let (kind, third, ..) = next_frame(&mut server);
    assert_eq!((kind, third), (HEADERS, second + 2));
    respond(&mut server, third);
    assert_eq!(client.next(), Came::Response(OK, 7));
}

#[test]
fn a_server_without_free_streams_gives_503_and_its_connection_is_kept() {
    let scene = scene("h2c://", "upstream = { response_timeout = \"8s\" }");
    let (mut client, mut server) = scene.acquainted(&[(MAX_CONCURRENT_STREAMS, 1)]);
    client.send_get(3);
    let (_, slow, ..) = next_frame(&mut server);
    server.write_all(&frame(HEADERS, END_HEADERS, slow, &[OK])).unwrap();
    assert_eq!(client.next(), Came::Response(OK, 3));
    client.send_get(5);
    assert!(matches!(client.next(), Came::Response(status, 5) if status != OK));
    let line = scene.keygate.access_lines(2).remove(1);
    assert_eq!(line["status"], 503, "{line}");
    server.write_all(&frame(DATA, END_STREAM, slow, b"")).unwrap();
    client.send_get(7);
    let (kind, next, ..) = next_frame(&mut server);
    assert_eq!((kind, next), (HEADERS, slow + 2));
    respond(&mut server, next);
    assert_eq!(client.next(), Came::Response(OK, 7));
}

#[test]
fn a_client_that_does_not_read_holds_no_stream_of_the_server() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[(MAX_CONCURRENT_STREAMS, 1)]);
    let mut greedy = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    greedy.send(&settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    ping(&mut greedy);
    greedy.send_get(1);
    let (_, stream, ..) = next_frame(&mut server);
    server.write_all(&frame(HEADERS, END_HEADERS, stream, &[OK])).unwrap();
    server.write_all(&frame(DATA, END_STREAM, stream, b"hello")).unwrap();
    assert_eq!(greedy.next(), Came::Response(OK, 1));
    client.send_get(3);
    let (kind, next, ..) = next_frame(&mut server);
    assert_eq!((kind, next), (HEADERS, stream + 2));
    respond(&mut server, next);
    assert_eq!(client.next(), Came::Response(OK, 3));
}

#[test]
fn an_early_response_with_no_error_ends_when_the_client_has_sent_its_body() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[]);
    // More than the flow-control window, so that keygate must read the body.
    let (piece, pieces) = ([b'x'; 16 << 10], 40);
    let length = (piece.len() * pieces).to_string();
    let fields = request("POST", &[("content-length", &length)]);
    client.send(&frame(HEADERS, END_HEADERS, 3, &fields));
    let (kind, stream, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    respond(&mut server, stream);
    server.write_all(&frame(RST_STREAM, 0, stream, &NO_ERROR.to_be_bytes())).unwrap();
    assert_eq!(client.next(), Came::Response(OK, 3));
    for number in 1..=pieces {
        let flags = if number == pieces { END_STREAM } else { 0 };
        client.send(&frame(DATA, flags, 3, &piece));
        let came = ping(&mut client); // its window has been updated, if it is
        assert!(!came.contains(&RST_STREAM), "after {number} pieces");
    }
    // The stream is complete: no reset precedes the next response.
    client.send_get(5);
    // Skips the part of the first body that was in flight before the server's reset.
    let (_, next, ..) = std::iter::repeat_with(|| next_frame(&mut server))
        .find(|(kind, ..)| *kind == HEADERS)
        .unwrap();
    respond(&mut server, next);
    assert_eq!(client.next(), Came::Response(OK, 5));
}

#[test]
fn requests_cancelled_while_they_wait_for_a_stream_are_not_sent() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[(MAX_CONCURRENT_STREAMS, 1)]);
    post(&mut client, 3);
    let (kind, slow, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    for stream in (5..25).step_by(2) {
        post(&mut client, stream);
        ping(&mut client);
        let cancel = 8_u32;
        client.send(&frame(RST_STREAM, 0, stream, &cancel.to_be_bytes()));
    }
    post(&mut client, 25);
    ping(&mut client);
    respond(&mut server, slow);
    assert_eq!(client.next(), Came::Response(OK, 3));
    let (kind, next, ..) = next_frame(&mut server);
    assert_eq!((kind, next), (HEADERS, slow + 2), "the only request that still waits");
    respond(&mut server, next);
    assert_eq!(client.next(), Came::Response(OK, 25));
}

#[test]
fn an_upload_that_waits_for_window_ends_with_the_response() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[(INITIAL_WINDOW_SIZE, 4)]);
    client.send(&frame(HEADERS, END_HEADERS, 3, &request("POST", &[])));
    for _ in 0..2 {
        // The first request is sent up to the window, and the second waits.
        client.send(&frame(DATA, 0, 3, b"part and more"));
        ping(&mut client);
    }
    let (kind, stream, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    assert_eq!(next_frame(&mut server), (DATA, stream, false, b"part".to_vec()));
    respond(&mut server, stream);
    assert_eq!(client.next(), Came::Response(OK, 3));
    assert_eq!(client.next(), Came::Reset(3, NO_ERROR));
    let (kind, ended, ..) = next_frame(&mut server);
    assert_eq!((kind, ended), (RST_STREAM, stream));
}

#[test]
fn the_rest_of_an_upload_is_drained_before_the_504_for_a_slow_server() {
    let scene = scene("h2c://", "limits = { request_timeout = \"8s\" }");
    let (mut client, mut server) = scene.acquainted(&[]);
    let length = [("content-length", "8")];
    client.send(&frame(HEADERS, END_HEADERS, 3, &request("POST", &length)));
    client.send(&frame(DATA, 0, 3, b"part"));
    let (kind, late, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    assert_eq!(next_frame(&mut server).0, DATA);
    assert_eq!(next_frame(&mut server).0, RST_STREAM, "after the timeout");
    client.send(&frame(DATA, END_STREAM, 3, b"rest"));
    assert!(matches!(client.next(), Came::Response(status, 3) if status != OK));
    // The stream is complete: no reset precedes the next response.
    client.send_get(5);
    let (kind, next, ..) = next_frame(&mut server);
    assert_eq!((kind, next), (HEADERS, late + 2));
    respond(&mut server, next);
    assert_eq!(client.next(), Came::Response(OK, 5));
}

#[test]
fn a_response_that_ends_with_an_empty_frame_or_trailers_is_complete() {
    let http2 = scene("h2c://", "");
    let (mut client, mut server) = http2.acquainted(&[]);
    client.send(&frame(HEADERS, END_STREAM | END_HEADERS, 3, &request("HEAD", &[])));
    let (kind, stream, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    server.write_all(&frame(HEADERS, END_HEADERS, stream, &[OK])).unwrap();
    assert_eq!(client.next(), Came::Response(OK, 3));
    server.write_all(&frame(DATA, END_STREAM, stream, b"")).unwrap();
    let lines = http2.keygate.access_lines(2);
    for (line, method) in lines.iter().zip(["GET", "HEAD"]) {
        assert_eq!((&line["method"], &line["complete"]), (&method.into(), &true.into()), "{line}");
    }
    let http1 = scene("http://", "");
    std::thread::scope(|scope| {
        let client_thread = scope
            .spawn(|| http1.keygate.curl(&http1.good, &["--http2", "-D", "-", "-o", "/dev/null"]));
        let mut server = http1.server.connection();
        read_until(&mut server, "\r\n\r\n");
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n";
        // Fields that no trailer may be are removed, and the response is complete.
        let forbidden = "keep-alive: 5\r\ncontent-length: 9\r\nhost: a\r\nset-cookie: a=b\r\n\
                         content-type: text/html\r\nif-match: a\r\n";
        write!(server, "{head}5\r\nhello\r\n0\r\nx-sum: 1\r\n{forbidden}\r\n").unwrap();
        let response = client_thread.join().unwrap();
        let text = String::from_utf8_lossy(&response.stdout);
        assert!(
            response.status.success() && text.ends_with("\r\n\r\nx-sum: 1\r\n"),
            "{}",
            output_text(&response)
        );
    });
    let line = http1.keygate.access_line();
    assert_eq!(line["complete"], true, "{line}");
}

#[test]
fn an_extended_connect_with_a_length_is_rejected() {
    // With the length, an HTTP/1.1 server that declines the upgrade would wait for a body.
    let scene = scene("http://", "");
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let fields = [(":protocol", "websocket"), ("content-length", "30")];
    client.send(&frame(HEADERS, END_HEADERS, 1, &request("CONNECT", &fields)));
    assert_eq!(scene.keygate.access_line()["status"], 400);
    client.send(&frame(HEADERS, END_HEADERS, 3, &request("CONNECT", &fields[..1])));
    let requested = read_until(&mut scene.server.connection(), "\r\n\r\n").to_ascii_lowercase();
    assert!(
        requested.contains("upgrade: websocket") && !requested.contains("length"),
        "{requested}"
    );
}

#[test]
fn a_server_whose_header_block_never_ends_is_closed() {
    let scene = scene("h2c://", "");
    let (mut client, mut server) = scene.acquainted(&[]);
    post(&mut client, 3); // a GET would be asked once more
    let (kind, stream, ..) = next_frame(&mut server);
    assert_eq!(kind, HEADERS);
    let large = field("x-large", &"x".repeat(10_000));
    let more = (0..20).map(|number| {
        let flags = if number < 19 { 0 } else { END_HEADERS };
        frame(CONTINUATION, flags, stream, &large)
    });
    let head = frame(HEADERS, END_STREAM, stream, &[OK]);
    let _ = server.write_all(&[head, more.collect::<Vec<_>>().concat()].concat()); // or cut off
    assert!(matches!(client.next(), Came::Response(status, 3) if status != OK));
    let line = &scene.keygate.access_lines(2)[1];
    assert_eq!(line["status"], 502, "{line}");
}

#[test]
fn the_access_log_has_the_bytes_of_a_tunnel() {
    let scene = scene("http://", "");
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n";
    client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n"));
    let mut server = scene.server.connection();
    read_until(&mut server, "\r\n\r\n");
    write!(server, "HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\nwelcome").unwrap();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    assert_eq!(client.exactly(7), b"welcome");
    client.send("hello");
    read_until(&mut server, "hello");
    drop(server);
    client.finish();
    let line = scene.keygate.access_line();
    let found = [&line["status"], &line["request_bytes"], &line["response_bytes"]];
    assert_eq!(found, [101, 5, 7], "{line}");
}

#[test]
fn an_http2_response_has_a_date_and_one_of_the_proxy_a_length() {
    let scene = scene("http://", "limits = { max_body_size = \"1KiB\" }");
    let seen = std::thread::scope(|scope| {
        let client_thread = scope.spawn(|| scene.keygate.curl(&scene.good, &["-i", "--http2"]));
        let mut server = scene.server.connection();
        read_until(&mut server, "\r\n\r\n");
        server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap();
        output_text(&client_thread.join().unwrap())
    });
    let date = seen.lines().find_map(|line| line.strip_prefix("date: ")).unwrap();
    let age = httpdate::parse_http_date(date.trim()).unwrap().elapsed().unwrap();
    assert!(age < TIMEOUT, "{seen}");
    let large = "x".repeat(2000);
    let seen = output_text(&scene.keygate.curl(&scene.good, &["-i", "--http2", "-d", &large]));
    let length = format!("content-length: {}", "413 Payload Too Large\n".len());
    assert!(seen.contains("HTTP/2 413") && seen.contains(&length), "{seen}");
    assert!(seen.contains("date: "), "{seen}");
}
