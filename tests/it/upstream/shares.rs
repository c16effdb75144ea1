//! One client that holds upstream connections and streams: the others are served meanwhile.

use std::future::poll_fn;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;

use crate::support::client::Client;
use crate::support::http2::{
    Came, END_HEADERS, END_STREAM, HEADERS, Http2, SETTINGS, WINDOW_UPDATE, frame, request,
};
use crate::support::origin::Origin;
use crate::support::pki::Kind;
use crate::support::proxy::{Configure, Proxy};
use crate::support::{output_text, wait_until};

/// An h2c server that allows few streams on each connection. The response to a request with the
/// field `endless` never ends.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(max_streams: u32) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, connections: Arc::default(), requests: Arc::default() };
        let (connections, requests) =
            (Arc::clone(&server.connections), Arc::clone(&server.requests));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    connections.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(serve(tcp, max_streams, Arc::clone(&requests)));
                }
            });
        });
        server
    }
}

async fn serve(tcp: tokio::net::TcpStream, max_streams: u32, requests: Arc<AtomicUsize>) {
    let mut builder = h2::server::Builder::new();
    let mut connection = builder.max_concurrent_streams(max_streams).handshake(tcp).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        requests.fetch_add(1, Ordering::SeqCst);
        let mut body = respond.send_response(hyper::Response::new(()), false).unwrap();
        if request.headers().contains_key("endless") {
            tokio::spawn(async move { while send_some(&mut body).await {} });
        } else {
            body.send_data(Bytes::from("hello\n"), true).unwrap();
        }
    }
}

/// Sends as much as the client takes; `false` if the stream has ended.
async fn send_some(body: &mut SendStream<Bytes>) -> bool {
    body.reserve_capacity(1 << 14);
    match poll_fn(|context| body.poll_capacity(context)).await {
        Some(Ok(capacity)) => body.send_data(Bytes::from(vec![b'x'; capacity]), false).is_ok(),
        Some(Err(_)) | None => false,
    }
}

/// SETTINGS_INITIAL_WINDOW_SIZE = 0.
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

#[test]
fn a_client_that_stalls_its_streams_leaves_upstream_streams_for_others() {
    let server = Server::start(2);
    let proxy = Proxy::before(format!("h2c://{}", server.address))
        .limits("body_timeout = \"15s\"")
        .workers(1);
    let other = proxy.pki.client("other", Kind::P256);
    let scene = proxy.start();

    let mut stalling = scene.connect_http2();
    stalling.send(&frame(SETTINGS, 0, 0, &NO_WINDOW));
    let streams = || (0..40).map(|index| 2 * index + 1);
    for stream in streams() {
        let fields = request("GET", &[("endless", "1")]);
        stalling.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields));
    }
    let requests = || server.requests.load(Ordering::SeqCst);
    // Three quarters of four connections with two streams each.
    wait_until("the requests of the client", || requests() == 6);
    assert_eq!(server.connections.load(Ordering::SeqCst), 4);

    // A byte now and then on each stream keeps the connection from its timeouts.
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let trickling = std::thread::spawn(move || {
        while !is_done.load(Ordering::SeqCst) {
            for stream in streams() {
                stalling.send(&frame(WINDOW_UPDATE, 0, stream, &1_u32.to_be_bytes()));
            }
            std::thread::sleep(Duration::from_millis(100)); // the rate is what is tested
        }
        stalling
    });
    for _ in 0..5 {
        let response = scene.curl(&other, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    }
    assert_eq!(requests(), 11, "the client got no further stream");
    done.store(true, Ordering::SeqCst);
    drop(trickling.join().unwrap());
    // Its slots are free again.
    let mut again: Http2 = scene.connect_http2();
    again.send_get(1);
    assert_eq!(again.next(), Came::Response(0x88, 1));
}

#[test]
fn a_client_that_holds_upstream_connections_leaves_some_for_others() {
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let origin = Origin::responding(move |request, tcp| {
        if request.head.starts_with("GET /hold ") {
            let _ = held.lock().unwrap().recv(); // until the test has ended
        }
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    let proxy = Proxy::to(origin).upstream("max_connections = 4").workers(1);
    let other = proxy.pki.client("other", Kind::P256);
    let scene = proxy.start();
    let mut holding: Vec<Client> = (0..3).map(|_| scene.connect()).collect();
    for client in &mut holding {
        client.send("GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
        scene.origin.next();
    }
    assert_eq!(scene.code(&[]), "503", "it has its share");
    let line = scene.wait_for("the reason", |line| line["message"] == "upstream failed");
    assert_eq!(line["error"], "the client holds its share of the upstream connections");
    let response = scene.curl(&other, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    drop(release);
    assert!(holding.iter_mut().all(|client| client.head().starts_with("HTTP/1.1 200 ")));
    scene.admits(&scene.good);
}

#[test]
fn a_client_that_holds_tcp_connections_leaves_some_for_others() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let greet = |tcp: std::io::Result<std::net::TcpStream>| {
            let mut tcp = tcp.unwrap();
            tcp.write_all(b"hello\n").unwrap();
            tcp
        };
        let _held: Vec<_> = listener.incoming().map(greet).collect();
    });
    let proxy = Proxy::before(address)
        .service("protocol = \"tcp\"")
        .upstream("max_connections = 4")
        .workers(1);
    let other = proxy.pki.client("other", Kind::P256);
    let scene = proxy.start();
    let greeted = |client: &mut Client| {
        client.send("x");
        client.exactly(6)
    };
    let mut holding: Vec<Client> = (0..3).map(|_| scene.connect()).collect();
    assert!(holding.iter_mut().all(|client| greeted(client) == b"hello\n"));
    assert_eq!(scene.connect().whatever_comes(), "", "it has its share");
    let mut client = Client::connect(&scene.pki, scene.address(), &other);
    assert_eq!(greeted(&mut client), b"hello\n");
}
