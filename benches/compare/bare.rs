//! A server of rustls and h2 without a proxy: what these crates cost by themselves.
//!
//! It requires a client certificate and responds by itself, with what the origin would send. HTTP/2
//! connections use h2, without hyper; HTTP/1.1 connections use hyper. It has no filter, no timeout
//! and no limit.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use h2::RecvStream;
use h2::server::{self, SendResponse};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::harness::origin;
use super::load::provider;

/// Command line of the process that a comparison starts.
#[derive(Debug, Args)]
pub struct Bare {
    /// Serves as the bare server at this address, and does nothing else.
    #[arg(long, hide = true, requires = "pki")]
    bare: Option<SocketAddr>,
    /// The directory of the certificates.
    #[arg(long, hide = true)]
    pki: Option<PathBuf>,
}

impl Bare {
    /// Serves until the process ends, if the command line asks for it.
    pub fn serve(&self) -> bool {
        let (Some(address), Some(pki)) = (self.bare, &self.pki) else { return false };
        let acceptor = TlsAcceptor::from(Arc::new(tls(pki)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(address).await.unwrap();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tcp.set_nodelay(true).unwrap();
                tokio::spawn(serve_client(acceptor.clone(), tcp));
            }
        })
    }
}

fn tls(pki: &std::path::Path) -> ServerConfig {
    let mut anchors = RootCertStore::empty();
    anchors.add(CertificateDer::from_pem_file(pki.join("ca.pem")).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), provider());
    let chain = CertificateDer::pem_file_iter(pki.join("server.pem")).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12, &TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            chain.map(Result::unwrap).collect(),
            PrivateKeyDer::from_pem_file(pki.join("server.key")).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Serves one connection. A client may reset it at any time.
async fn serve_client(acceptor: TlsAcceptor, tcp: TcpStream) {
    let Ok(stream) = acceptor.accept(tcp).await else { return };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let _ = serve_http2(stream).await;
    } else {
        let service = service_fn(origin::respond);
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }
}

async fn serve_http2(stream: TlsStream<TcpStream>) -> Result<(), h2::Error> {
    let mut connection = server::Builder::new()
        .initial_window_size(1 << 18)
        .initial_connection_window_size(1 << 20)
        .handshake(stream)
        .await?;
    while let Some(stream) = connection.accept().await {
        let (request, respond) = stream?;
        match *request.method() {
            // A response of one frame needs no task.
            Method::GET if request.uri().path() == "/" => respond_short(respond)?,
            _ => drop(tokio::spawn(respond_to_body(request, respond))),
        }
    }
    Ok(())
}

fn head() -> Response<()> {
    Response::builder().header("content-type", "text/plain").body(()).unwrap()
}

fn respond_short(mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    respond.send_response(head(), false)?.send_data(origin::body("/"), true)
}

/// Reads the body of a request, and responds with as much as the client's window allows each time.
async fn respond_to_body(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut body = origin::body(request.uri().path());
    let mut upload = request.into_body();
    while let Some(data) = upload.data().await {
        upload.flow_control().release_capacity(data?.len())?;
    }
    let mut download = respond.send_response(head(), false)?;
    while !body.is_empty() {
        download.reserve_capacity(body.len());
        let capacity = std::future::poll_fn(|context| download.poll_capacity(context)).await;
        let Some(capacity) = capacity else { return Ok(()) };
        let part = body.split_to(capacity?.min(body.len()));
        download.send_data(part, body.is_empty())?;
    }
    Ok(())
}
