//! HTTP servers of the demo on loopback: the upstream and the source of proofs.

use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tracing::warn;

type DemoResponse = Response<Full<Bytes>>;

/// Starts the upstream server, whose response shows the request that it received.
pub(super) fn start_upstream() -> io::Result<SocketAddr> {
    start("keygate-demo-upstream", echo)
}

/// Starts a server on a separate thread, which runs until the process exits.
pub(super) fn start(
    name: &str,
    respond: impl Fn(&Request<Incoming>) -> DemoResponse + Send + 'static,
) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let served = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .and_then(|runtime| runtime.block_on(serve(listener, respond)));
        if let Err(error) = served {
            warn!(%error, "a server of the demo stopped");
        }
    })?;
    Ok(address)
}

async fn serve(
    listener: std::net::TcpListener,
    respond: impl Fn(&Request<Incoming>) -> DemoResponse + 'static,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let respond = Rc::new(respond);
    loop {
        let (tcp, _) = listener.accept().await?;
        let respond = Rc::clone(&respond);
        let service = service_fn(move |request| {
            let response = respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tcp), service);
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                warn!(%error, "a connection to a server of the demo failed");
            }
        });
    }
}

fn echo(request: &Request<Incoming>) -> DemoResponse {
    let mut text = format!("The upstream received:\n\n{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    Response::new(Full::new(Bytes::from(text)))
}
