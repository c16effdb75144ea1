//! Upstream server of the demo: its response shows the request that it received.

use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tracing::warn;

/// Starts the server on a separate thread, which runs until the process exits.
pub(super) fn start() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("keygate-demo-upstream".to_owned()).spawn(move || {
        let served = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .and_then(|runtime| runtime.block_on(serve(listener)));
        if let Err(error) = served {
            warn!(%error, "upstream server of the demo stopped");
        }
    })?;
    Ok(address)
}

async fn serve(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (tcp, _) = listener.accept().await?;
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(tcp), service_fn(echo));
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                warn!(%error, "upstream connection of the demo failed");
            }
        });
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut text = format!("The upstream received:\n\n{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    Ok(Response::new(Full::new(Bytes::from(text))))
}
