//! Authorizers: other proxies ask about their clients, and get the decision of the policy.
//!
//! | step | module |
//! | --- | --- |
//! | A worker accepts a connection of an asker. A peer that may not ask is rejected. | `asker` |
//! | A door reads questions in its protocol and writes answers. | `http`, `grpc`, `spop` |
//! | The doors of HTTP/1 and SPOP share buffers, timeouts and drain. | `exchange` |
//! | A question is verified, judged, decided, counted and logged. | `connection` |
//!
//! All doors share one path from a `ClientQuestion` to an `Answer`: `AskConnection::answer`.
//! Nothing here decides about keys, and nothing here speaks to an upstream. A question that a client
//! can provoke is denied and never an error of the protocol, because hosts may admit on errors.

mod asker;
mod connection;
mod denial;
mod exchange;
#[doc(hidden)]
pub mod grpc;
mod http;
mod http2;
mod question;
#[doc(hidden)]
pub mod spop;
mod stream;
mod worker;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

pub(crate) use self::asker::AskerShares;
use self::asker::{AskerRejection, AskingPeer};
use self::connection::AskConnection;
use self::stream::AskStream;
pub(crate) use self::worker::{AskLinks, AskWorker};
use crate::config::AuthorizerProtocol;
use crate::listen::{Accepted, UnixAccepted};
use crate::metrics::QuestionResult;
use crate::snapshot::{AskerTls, Authorizer};
use crate::tls::{self, ClientIdentity, ClientVerifier, Handshake};

/// The response to an asker that has its share of the connections.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\
    Connection: close\r\n\r\n";
/// Maximum time for which an asker that gets [`BUSY`] may still send, 1 s. A close with unread bytes
/// would be a reset, and the response lost.
const BUSY_LINGER: Duration = Duration::from_secs(1);

/// Serves a connection over TCP on a task of its own.
pub(crate) fn serve_tcp(worker: &Rc<AskWorker>, authorizer: &Arc<Authorizer>, accepted: Accepted) {
    let (open, worker, authorizer) = (worker.enter(), Rc::clone(worker), Arc::clone(authorizer));
    tokio::task::spawn_local(async move {
        let Accepted { tcp, peer, handshake_timeout, permit, .. } = accepted;
        let asker = AskingPeer::Tcp(peer);
        // Networks are checked before the handshake, which costs more than the check.
        if !authorizer.config.askers.permits_address(peer.ip()) {
            worker.reject(&authorizer, &asker, AskerRejection::Address);
            return;
        }
        // Taken before the handshake, so that silent connections count as well.
        let Some(share) = worker.shares.take(&authorizer, asker.key()) else {
            reject_busy(&worker, &authorizer, AskStream::Tcp(tcp)).await;
            return;
        };
        let (stream, asker) = match &authorizer.tls {
            None => (AskStream::Tcp(tcp), asker),
            Some(tls) => match timeout(handshake_timeout, handshake(tls, tcp, peer)).await {
                Ok(Ok((stream, identity))) => (stream, AskingPeer::Tls(Box::new(identity))),
                Ok(Err(error)) => {
                    let (rejection, error) = (AskerRejection::of_tls(&error), tls::explain(&error));
                    debug!(%peer, authorizer = %authorizer.config.name, %error, "asker rejected");
                    worker.reject(&authorizer, &asker, rejection);
                    return;
                }
                Err(_) => return, // a peer that sends nothing is no asker
            },
        };
        serve(&worker, &authorizer, stream, asker).await;
        drop((share, permit, open));
    });
}

/// Performs the handshake with an asker, which verifies and judges its certificate.
async fn handshake(
    tls: &AskerTls,
    tcp: TcpStream,
    peer: std::net::SocketAddr,
) -> std::io::Result<(AskStream, ClientIdentity)> {
    let mut handshake = Handshake::default();
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.config));
    let accepting = async { acceptor.accept(tcp).await };
    let stream = handshake.drive(accepting).await?;
    let verifier: Option<&ClientVerifier> = tls.verifier.as_deref();
    let identity = ClientIdentity::of_asker(peer, stream.get_ref().1, handshake, verifier);
    Ok((AskStream::Tls(Box::new(stream)), identity))
}

/// Serves a connection to a Unix socket on a task of its own.
pub(crate) fn serve_unix(
    worker: &Rc<AskWorker>,
    authorizer: &Arc<Authorizer>,
    accepted: UnixAccepted,
) {
    let (open, worker, authorizer) = (worker.enter(), Rc::clone(worker), Arc::clone(authorizer));
    let UnixAccepted { stream, permit } = accepted;
    tokio::task::spawn_local(async move {
        let asker = AskingPeer::of_unix(&stream);
        let stream = AskStream::Unix(stream);
        match worker.shares.take(&authorizer, asker.key()) {
            None => reject_busy(&worker, &authorizer, stream).await,
            Some(_share) => serve(&worker, &authorizer, stream, asker).await,
        }
        drop((permit, open));
    });
}

/// Serves the questions of one connection, in the protocol of its authorizer.
async fn serve(
    worker: &Rc<AskWorker>,
    authorizer: &Arc<Authorizer>,
    stream: AskStream,
    asker: AskingPeer,
) {
    let connection = Rc::new(AskConnection::new(worker, authorizer, asker));
    if let Err(rejection) = connection.check_asker() {
        connection.reject(rejection);
        return;
    }
    match authorizer.config.protocol {
        AuthorizerProtocol::ExtAuthz => grpc::serve(stream, connection).await,
        AuthorizerProtocol::Http => http::serve(stream, connection).await,
        AuthorizerProtocol::Spop => spop::serve(stream, connection).await,
    }
}

/// Closes a connection whose asker has its share of the connections; with 503 over plain HTTP.
async fn reject_busy(worker: &AskWorker, authorizer: &Authorizer, mut stream: AskStream) {
    worker.metrics_of(authorizer).questions.of(QuestionResult::Draining).inc();
    if authorizer.config.protocol == AuthorizerProtocol::Http && authorizer.tls.is_none() {
        let _ = timeout(BUSY_LINGER, send_busy(&mut stream)).await; // closed in either case
    }
}

async fn send_busy(stream: &mut AskStream) -> std::io::Result<()> {
    stream.write_all(BUSY).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
