//! The origin behind all proxies: HTTP/1.1 in a process of its own, on the core of the load.
//!
//! `GET /` is answered with 128 bytes, `GET /mebibyte` with 1 MiB, and a POST after its body.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::cores::Cores;

/// Size of the response to `GET /mebibyte`, and of the bodies of uploads.
pub const MEBIBYTE: usize = 1 << 20;

static SHORT: [u8; 128] = [b'x'; 128];
static LONG: [u8; MEBIBYTE] = [b'x'; MEBIBYTE];

/// The process of the origin, which ends with this value.
pub struct Origin {
    child: Child,
    address: SocketAddr,
}

impl Origin {
    pub fn start(cores: Cores) -> Self {
        let mut command = cores.of_load(std::env::current_exe().unwrap());
        let mut child = command.arg("--origin").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim().parse().unwrap() }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Serves until the process is killed. Prints the address.
#[tokio::main(flavor = "current_thread")]
pub async fn serve() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        tcp.set_nodelay(true).unwrap();
        let connection =
            http1::Builder::new().serve_connection(TokioIo::new(tcp), service_fn(respond));
        // A proxy may reset a connection when it ends.
        tokio::spawn(async move { connection.await.ok() });
    }
}

/// The response to a request, after its body.
pub async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = body(request.uri().path());
    let mut upload = request.into_body();
    while let Some(Ok(_)) = upload.frame().await {}
    Ok(Response::builder().header("content-type", "text/plain").body(Full::new(body)).unwrap())
}

/// The body of a response.
pub fn body(path: &str) -> Bytes {
    if path == "/mebibyte" { Bytes::from_static(&LONG) } else { Bytes::from_static(&SHORT) }
}
