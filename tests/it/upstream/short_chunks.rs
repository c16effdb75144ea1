//! Uploads in chunks of one byte. nginx ends a connection, which all clients share, if most of what
//! it received are the headers of frames.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::proxy::{Configure, Proxy};
use crate::support::wait_until;

/// Number of chunks in an upload.
const CHUNKS: usize = 20_000;

/// An h2c server that counts DATA frames and their bytes, and responds at the end of an upload.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    frames: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, frames: Arc::default(), bytes: Arc::default() };
        let counts = server.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    tokio::spawn(counts.clone().serve(tcp));
                }
            });
        });
        server
    }

    async fn serve(self, tcp: tokio::net::TcpStream) {
        let mut connection = h2::server::handshake(tcp).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let (mut body, counts) = (request.into_body(), self.clone());
            tokio::spawn(async move {
                while let Some(Ok(data)) = body.data().await {
                    counts.frames.fetch_add(1, Ordering::SeqCst);
                    counts.bytes.fetch_add(data.len(), Ordering::SeqCst);
                    let _ = body.flow_control().release_capacity(data.len());
                }
                let _ = respond.send_response(hyper::Response::new(()), true); // may be closed
            });
        }
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }
}

#[test]
fn chunks_of_one_byte_that_have_arrived_share_their_frames() {
    let server = Server::start();
    let scene = Proxy::before(format!("h2c://{}", server.address)).workers(1).start();
    let mut client = scene.connect();
    client.tcp().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send([head.as_bytes(), &b"1\r\nx\r\n".repeat(CHUNKS), b"0\r\n\r\n"].concat());
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let frames = server.frames.load(Ordering::SeqCst);
    assert_eq!(server.bytes(), CHUNKS);
    assert!(frames < CHUNKS / 20, "{frames} frames");
}

#[test]
fn a_chunk_does_not_wait_for_the_next_one() {
    let server = Server::start();
    let scene = Proxy::before(format!("h2c://{}", server.address)).workers(1).start();
    let mut client = scene.connect();
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for count in 1..=50 {
        client.send("1\r\nx\r\n");
        wait_until("the chunk", || server.bytes() == count);
    }
    client.send("0\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
}
