//! HTTP/2 servers that end connections and streams at any time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::http2::{
    CONTINUATION, Came, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, RST_STREAM,
    SETTINGS, field, frame, request,
};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{next_frame, settings};
use crate::support::wait_until;

/// The reaction of a server to a request.
#[derive(Debug, Clone, Copy)]
enum Does {
    Response,
    /// Sends GOAWAY for the last response, and closes the connection.
    GoAway,
    /// Closes the connection without a frame.
    Hangup,
    /// Responds, sends GOAWAY, and completes the open streams.
    LastResponse,
    /// Does nothing.
    Nothing,
    Reset(u32),
}

const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

/// An HTTP/2 server. `does` gives the reaction to the n-th request, counted from 0.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(does: fn(usize) -> Does) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(AtomicUsize::new(0));
        let (opened, requested) = (Arc::clone(&connections), Arc::clone(&requests));
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                opened.fetch_add(1, Ordering::SeqCst);
                let requests = Arc::clone(&requested);
                // One thread per connection, because there are few.
                std::thread::spawn(move || drop(serve(tcp.unwrap(), &requests, does)));
            }
        });
        Self { address, connections, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(
    mut tcp: TcpStream,
    requests: &AtomicUsize,
    does: fn(usize) -> Does,
) -> std::io::Result<()> {
    tcp.read_exact(&mut [0; 24])?; // the preface
    tcp.write_all(&frame(SETTINGS, 0, 0, b""))?;
    let mut response = 0;
    loop {
        let mut header = [0; 9];
        tcp.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        tcp.read_exact(&mut vec![0; length as usize])?;
        if header[3] != HEADERS {
            continue;
        }
        let stream = u32::from_be_bytes(*header.last_chunk().unwrap());
        match does(requests.fetch_add(1, Ordering::SeqCst)) {
            Does::Response => {
                response = stream;
                let status_200 = [0x88];
                tcp.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &status_200))?;
            }
            Does::GoAway => {
                let no_error = 0_u32;
                let payload = [response.to_be_bytes(), no_error.to_be_bytes()].concat();
                tcp.write_all(&frame(GOAWAY, 0, 0, &payload))?;
                tcp.shutdown(Shutdown::Write)?;
                // A close with bytes unread would be a reset, which can overtake the GOAWAY.
                return std::io::copy(&mut tcp, &mut std::io::sink()).map(drop);
            }
            Does::Hangup => return Ok(()),
            Does::LastResponse => {
                let (status_200, no_error) = ([0x88], 0_u32);
                let headers = frame(HEADERS, END_STREAM | END_HEADERS, stream, &status_200);
                let payload = [stream.to_be_bytes(), no_error.to_be_bytes()].concat();
                // In one write, because a request with a body is lost if it is sent before the
                // GOAWAY arrives.
                tcp.write_all(&[headers, frame(GOAWAY, 0, 0, &payload)].concat())?;
            }
            Does::Nothing => {}
            Does::Reset(code) => {
                tcp.write_all(&frame(RST_STREAM, 0, stream, &code.to_be_bytes()))?;
            }
        }
    }
}

fn scene(server: &Server, settings: &str) -> Running {
    let url = format!("h2c://{}", server.address);
    Proxy::before(url).upstream(settings).workers(1).start()
}

#[test]
fn an_unprocessed_request_is_retried_and_one_whose_connection_ends_if_it_is_safe() {
    for (second, of_post) in
        [(Does::GoAway, "200"), (Does::Hangup, "502"), (Does::Reset(REFUSED_STREAM), "200")]
    {
        let script = match second {
            Does::GoAway => |request| if request == 1 { Does::GoAway } else { Does::Response },
            Does::Hangup => |request| if request == 1 { Does::Hangup } else { Does::Response },
            Does::Response | Does::LastResponse | Does::Nothing | Does::Reset(_) => {
                |request| if request == 1 { Does::Reset(REFUSED_STREAM) } else { Does::Response }
            }
        };
        for (arguments, code) in
            [(&[][..], "200"), (&["-d", "body"], of_post), (&["-d", ""], of_post)]
        {
            let server = Server::start(script);
            let scene = scene(&server, "");
            assert_eq!(scene.code(&[]), "200");
            assert_eq!(scene.code(arguments), code, "{second:?} {arguments:?}");
            assert_eq!(scene.code(&[]), "200");
        }
    }
}

#[test]
fn a_connection_after_goaway_serves_its_open_streams_to_the_end() {
    let server = Server::start(|request| match request {
        0 => Does::Nothing,
        1 => Does::LastResponse,
        _ => Does::Response,
    });
    let scene = scene(&server, "");
    let mut slow = scene.connect();
    slow.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wait_until("the slow request is there", || server.requests() == 1);
    assert_eq!(scene.code(&[]), "200");
    for arguments in [&["-d", "body"][..], &[]] {
        assert_eq!(scene.code(arguments), "200", "{arguments:?}");
    }
    assert_eq!(server.connections(), 2);
    slow.tcp().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let waits = slow.read_to_end().unwrap_err().kind();
    assert_eq!(waits, ErrorKind::WouldBlock, "neither a response nor a close");
}

/// Sends the head of a request with a body of four bytes or of unknown length, then reads the head
/// of the response. Returns the client, and whether the response is complete.
fn half_sent(scene: &Running, is_counted: bool) -> (Http2, bool) {
    let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let length = [("content-length", "4")];
    let fields = request("POST", if is_counted { &length } else { &[] });
    client.send(&frame(HEADERS, END_HEADERS, 1, &fields));
    loop {
        let (kind, flags, _, payload) = client.frame().unwrap();
        if kind == HEADERS {
            assert_eq!(payload[0], 0x88);
            return (client, flags & END_STREAM != 0);
        }
    }
}

#[test]
fn a_response_does_not_end_before_a_request_body_of_known_length() {
    // The server responds as soon as it has the request head.
    let server = Server::start(|_| Does::Response);
    let scene = scene(&server, "");
    let (mut client, has_ended) = half_sent(&scene, true);
    assert!(!has_ended);
    client.send(&frame(DATA, END_STREAM, 1, b"body"));
    let ends = |client: &mut Http2| {
        std::iter::from_fn(|| client.frame()).find_map(|(kind, flags, stream, _)| {
            (stream == 1 && (kind == RST_STREAM || flags & END_STREAM != 0)).then_some(kind)
        })
    };
    assert_eq!(ends(&mut client), Some(DATA));
    // The stream is complete: the next frame is the response on the next stream, not a reset.
    client.send_get(3);
    assert_eq!(client.next(), Came::Response(0x88, 3));
}

#[test]
fn a_client_need_not_send_the_rest_after_its_response() {
    let server = Server::start(|_| Does::Response);
    let scene = scene(&server, "");
    for is_counted in [true, false] {
        let (mut client, has_ended) = half_sent(&scene, is_counted);
        assert_eq!(has_ended, !is_counted, "what may take for ever is not waited for");
        let no_error = 0;
        assert_eq!(client.next(), Came::Reset(1, no_error));
    }
}

#[test]
fn a_request_is_retried_only_once() {
    for script in [|_| Does::GoAway, |_| Does::Hangup, |_| Does::Reset(REFUSED_STREAM)]
        as [fn(usize) -> Does; 3]
    {
        let server = Server::start(script);
        let scene = scene(&server, "");
        assert_eq!(scene.code(&[]), "502");
        assert_eq!(server.requests(), 2);
    }
}

#[test]
fn a_request_that_the_server_processed_is_not_retried() {
    let server = Server::start(|_| Does::Reset(INTERNAL_ERROR));
    let scene = scene(&server, "");
    assert_eq!(scene.code(&[]), "502");
    assert_eq!(scene.code(&[]), "502");
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_server_that_sends_no_settings_is_skipped_after_the_connect_timeout() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let silent = listener.local_addr().unwrap(); // accepts by its backlog and never responds
    let server = Server::start(|_| Does::Response);
    let urls = [silent, server.address].map(|address| format!("h2c://{address}"));
    let settings = "balance = \"round-robin\", connect_timeout = \"1s\", \
                    response_timeout = \"1h\", max_failures = 1, retry_after = \"1h\"";
    let scene = Proxy::new().servers(&urls).upstream(settings).workers(1).start();
    for _ in 0..3 {
        assert_eq!(scene.code(&[]), "200");
    }
    let line = scene.wait_for("an ejection", |line| line["message"] == "upstream server ejected");
    assert_eq!(line["server"], urls[0].as_str());
}

/// A server that ends each connection after its SETTINGS, and holds it open or closes it. It allows
/// `streams` streams. Returns its address and the number of its connections.
fn ending_server(streams: u32, closes: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let server = support::server::Server::start();
    let (address, connections) = (server.address, Arc::new(AtomicUsize::new(0)));
    let opened = Arc::clone(&connections);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Some(mut tcp) = server.next() {
            opened.fetch_add(1, Ordering::SeqCst);
            // keygate may have stopped, at the end of the test.
            let _ = tcp.read_exact(&mut [0; 24]); // the preface
            let max_concurrent_streams = 3;
            let settings = settings(&[(max_concurrent_streams, streams)]);
            let ends = frame(GOAWAY, 0, 0, &[0; 8]); // no stream, NO_ERROR
            let _ = tcp.write_all(&[settings, ends].concat());
            if !closes {
                open.push(tcp);
            }
        }
    });
    (address, connections)
}

#[test]
fn a_server_that_ends_each_new_connection_gets_one_for_each_request() {
    for (streams, closes) in [(100, false), (100, true), (0, true)] {
        let (address, connections) = ending_server(streams, closes);
        let scene = Proxy::before(format!("h2c://{address}")).workers(1).start();
        for requests in 1..=3 {
            assert_eq!(scene.code(&[]), "502");
            let connections = connections.load(Ordering::SeqCst);
            assert_eq!(connections, requests, "{streams} {closes}");
        }
    }
}

/// A request without a stream slot waits for another connection, and would wait for the next one
/// again.
#[test]
fn a_server_that_allows_no_stream_and_ends_its_connections_gets_few_for_each_request() {
    const ACK: u8 = 1;
    let server = support::server::Server::start();
    let (address, connections) = (server.address, Arc::new(AtomicUsize::new(0)));
    let opened = Arc::clone(&connections);
    std::thread::spawn(move || {
        while let Some(mut tcp) = server.next() {
            opened.fetch_add(1, Ordering::SeqCst);
            let max_concurrent_streams = 3;
            let _ = tcp.read_exact(&mut [0; 24]); // the preface
            let _ = tcp.write_all(&settings(&[(max_concurrent_streams, 0)]));
            // The connection ends after keygate has applied the settings.
            let mut header = [0; 9];
            while tcp.read_exact(&mut header).is_ok() && header[3..5] != [SETTINGS, ACK] {
                let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
                let _ = tcp.read_exact(&mut vec![0; length as usize]);
            }
            let _ = tcp.write_all(&frame(GOAWAY, 0, 0, &[0; 8]));
        }
    });
    let scene = Proxy::before(format!("h2c://{address}")).workers(1).start();
    for requests in 1..=3 {
        assert_eq!(scene.code(&[]), "502");
        let connections = connections.load(Ordering::SeqCst);
        assert!(connections <= 4 * requests, "{connections} for {requests} requests");
    }
}

#[test]
fn a_server_that_ends_each_new_connection_is_ejected() {
    let (ending, connections) = ending_server(100, false);
    let server = Server::start(|_| Does::Response);
    let urls = [ending, server.address].map(|address| format!("h2c://{address}"));
    let settings = "balance = \"round-robin\", max_failures = 2, retry_after = \"1h\"";
    let scene = Proxy::new().servers(&urls).upstream(settings).workers(1).start();
    for _ in 0..8 {
        assert_eq!(scene.code(&[]), "200");
    }
    let line = scene.wait_for("an ejection", |line| line["message"] == "upstream server ejected");
    assert_eq!(line["server"], urls[0].as_str());
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[test]
fn an_idle_or_old_upstream_connection_is_closed() {
    for settings in ["idle_timeout = \"1s\", ", "max_connection_age = \"1s\", "] {
        let server = Server::start(|_| Does::Response);
        let scene = scene(&server, settings);
        let open = "keygate_upstream_connections_active{service=\"test\"}";
        // While the machine pauses, the connection may close before the look.
        wait_until("an open connection", || {
            assert_eq!(scene.code(&[]), "200");
            scene.keygate.metric(open) == 1.0
        });
        let before = server.connections();
        scene.keygate.wait_for_metric(open, 0.0);
        assert_eq!(scene.code(&[]), "200");
        assert_eq!(server.connections(), before + 1);
    }
}

#[test]
fn a_response_head_above_the_limit_is_502_with_its_reason() {
    let server = support::server::Server::start();
    let proxy = Proxy::before(format!("h2c://{}", server.address)).workers(1).start();
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut http2 = server.http2();
    let (kind, stream, ..) = next_frame(&mut http2);
    assert_eq!(kind, HEADERS);
    let large = field("x-large", &"x".repeat(16_000));
    http2.write_all(&frame(HEADERS, END_STREAM, stream, &[0x88])).unwrap(); // :status 200
    for last in [false, false, false, false, true] {
        let flags = if last { END_HEADERS } else { 0 };
        http2.write_all(&frame(CONTINUATION, flags, stream, &large)).unwrap();
    }
    assert!(client.head().starts_with("HTTP/1.1 502 "));
    let line = proxy.wait_for("the reason", |line| line["message"] == "upstream failed");
    let reason = "the response head over HTTP/2 is malformed or larger than 64 KiB";
    assert_eq!(line["error"], reason, "{line}");
}

/// Node ends each stream by a frame of its own. A reset would count against the connection: nghttp2
/// ends it after 1,000 of them.
#[test]
fn a_stream_whose_content_has_come_is_not_reset_before_its_server_ends_it() {
    let server = support::server::Server::start();
    let proxy = Proxy::before(format!("h2c://{}", server.address)).workers(1);
    let proxy = proxy.upstream("body_timeout = \"1s\"");
    let proxy = proxy.global("access_log = { requests = \"all\" }").start();
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut http2 = server.http2();
    let head = [vec![0x88], field("content-length", "4")].concat(); // :status 200
    for stream in [1, 3] {
        let (kind, requested, ..) = next_frame(&mut http2);
        assert_eq!((kind, requested), (HEADERS, stream), "no reset comes before the request");
        http2.write_all(&frame(HEADERS, END_HEADERS, stream, &head)).unwrap();
        http2.write_all(&frame(DATA, 0, stream, b"body")).unwrap();
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(4), b"body");
        if stream == 1 {
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            http2.write_all(&frame(DATA, END_STREAM, stream, b"")).unwrap();
        }
    }
    assert!(proxy.access_lines(2).iter().all(|line| line["complete"] == true));
    let cancel = 8_u32.to_be_bytes().to_vec();
    assert_eq!(next_frame(&mut http2), (RST_STREAM, 3, false, cancel), "after the timeout");
}
