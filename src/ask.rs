//! Authorizers: other proxies ask about their clients, and get the decision of the policy.
//!
//! | step | module |
//! | --- | --- |
//! | A worker accepts a connection of an asker. A peer that may not ask is rejected. | `asker` |
//! | A protocol reads questions and writes answers. | `http`, `grpc`, `spop` |
//! | HTTP/1 and SPOP share buffers, timeouts and drain. | `exchange` |
//! | A question is verified, judged, decided, counted and logged. | `connection` |
//!
//! All protocols share one path from a `ClientQuestion` to an `Answer`: `AskConnection::answer`.
//! Nothing here decides about keys, and nothing here speaks to an upstream. A question that a
//! client can provoke is denied and never an error of the protocol, because hosts may admit on
//! errors.

mod asker;
mod connection;
mod denial;
mod exchange;
#[doc(hidden)]
pub mod grpc;
mod http;
mod http2;
mod judging;
mod question;
mod shares;
#[doc(hidden)]
pub mod spop;
mod stream;
mod worker;

use std::rc::Rc;
use std::sync::Arc;

use keygate_core::tls::{self, ClientIdentity, ClientVerifier, Handshake};
use keygate_wire::lingering_close;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use self::asker::{AskerRejection, AskingPeer};
use self::connection::AskConnection;
#[doc(hidden)]
pub use self::http::lengths as request_lengths;
pub(crate) use self::shares::AskerShares;
use self::shares::WaitingCount;
use self::stream::AskStream;
pub(crate) use self::worker::{AskContext, AskWorker};
use crate::config::{AlpnProtocol, AuthorizerProtocol};
use crate::listen::{Accepted, UnixAccepted};
use crate::metrics::QuestionResult;
use crate::snapshot::{AskerTls, Authorizer};

/// The response to an asker that has all of its connections open.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\
    Connection: close\r\n\r\n";
/// Maximum number of connections of a worker that linger after [`BUSY`]. Others are closed at once,
/// and their askers may not get the response.
const MAX_LINGERING: usize = 64;

/// Serves a connection over TCP on a task of its own.
pub(crate) fn serve_tcp(worker: &Rc<AskWorker>, authorizer: &Arc<Authorizer>, accepted: Accepted) {
    let (open, worker, authorizer) =
        (worker.open.enter(), Rc::clone(worker), Arc::clone(authorizer));
    let Accepted { tcp, peer, handshake_timeout, permit, unproven, evicted, .. } = accepted;
    worker.metrics_of(&authorizer).questions.of(QuestionResult::Busy).inc_by(evicted as u64);
    unproven.spawn(peer.ip(), true, |mut unproven| async move {
        let asker = AskingPeer::Tcp(peer);
        // Networks are checked before the handshake, which costs more than the check.
        if !authorizer.config.askers.permits_address(peer.ip()) {
            worker.reject(&authorizer, &asker, AskerRejection::Address);
            return;
        }
        // Taken before the handshake, so that silent connections count as well.
        let (key, limits) = ((authorizer.id, asker.key()), authorizer.config.limits);
        let taken =
            worker.shares.take(key, limits.max_connections, permit, Some(&mut unproven)).await;
        let Some(share) = taken else {
            drop(unproven);
            reject_busy(&worker, &authorizer, AskStream::Tcp(tcp), &asker).await;
            return;
        };
        let (stream, asker) = match &authorizer.tls {
            None => (AskStream::Tcp(tcp), asker),
            Some(tls) => match timeout(handshake_timeout, handshake(tls, tcp, peer)).await {
                Ok(Ok((stream, identity))) => (stream, AskingPeer::Tls(Box::new(identity))),
                Ok(Err(error)) => {
                    let is_tls_error =
                        error.get_ref().is_some_and(|error| error.is::<rustls::Error>());
                    let (rejection, error) =
                        (AskerRejection::from_tls(&error), tls::explain(&error));
                    debug!(%peer, authorizer = %authorizer.config.name, %error, "asker rejected");
                    // A load balancer that checks the port closes its connection without a request.
                    if is_tls_error {
                        worker.reject(&authorizer, &asker, rejection);
                    }
                    return;
                }
                Err(_) => return, // a peer that sends nothing is no asker
            },
        };
        if !unproven.prove() {
            return; // evicted by another worker
        }
        serve(&worker, &authorizer, stream, asker, share.waiting.clone()).await;
        drop((share, open));
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
    let identity = ClientIdentity::from_asker(peer, stream.get_ref().1, handshake, verifier);
    Ok((AskStream::Tls(Box::new(stream)), identity))
}

/// Serves a connection to a Unix socket on a task of its own.
pub(crate) fn serve_unix(
    worker: &Rc<AskWorker>,
    authorizer: &Arc<Authorizer>,
    accepted: UnixAccepted,
) {
    let (open, worker, authorizer) =
        (worker.open.enter(), Rc::clone(worker), Arc::clone(authorizer));
    let UnixAccepted { stream, permit } = accepted;
    tokio::task::spawn_local(async move {
        let asker = AskingPeer::from_unix(&stream);
        let stream = AskStream::Unix(stream);
        let (key, limits) = ((authorizer.id, asker.key()), authorizer.config.limits);
        let taken = worker.shares.take(key, limits.max_connections, permit, None).await;
        let Some(share) = taken else {
            reject_busy(&worker, &authorizer, stream, &asker).await;
            return;
        };
        serve(&worker, &authorizer, stream, asker, share.waiting.clone()).await;
        drop((share, open));
    });
}

/// Serves the questions of one connection, in the protocol of its authorizer.
async fn serve(
    worker: &Rc<AskWorker>,
    authorizer: &Arc<Authorizer>,
    stream: AskStream,
    asker: AskingPeer,
    waiting: WaitingCount,
) {
    let connection = Rc::new(AskConnection::new(worker, authorizer, asker, waiting));
    if let Err(rejection) = connection.check_asker() {
        connection.reject(rejection);
        return;
    }
    match authorizer.config.protocol {
        AuthorizerProtocol::ExtAuthz => grpc::serve(stream, connection).await,
        AuthorizerProtocol::Admission | AuthorizerProtocol::Http | AuthorizerProtocol::StepCa => {
            http::serve(stream, connection).await;
        }
        AuthorizerProtocol::Spop => spop::serve(stream, connection).await,
    }
}

/// Closes a connection for which none of its asker's connections became free; with 503 over plain HTTP. The
/// connection must hold no permit, because other askers need the rest of them.
async fn reject_busy(
    worker: &AskWorker,
    authorizer: &Authorizer,
    mut stream: AskStream,
    asker: &AskingPeer,
) {
    worker.metrics_of(authorizer).questions.of(QuestionResult::Busy).inc();
    worker.log.busy(&authorizer.config.name, asker, asker.key());
    let speaks_http = authorizer.config.protocol.alpn().contains(&AlpnProtocol::Http11);
    if !speaks_http || authorizer.tls.is_some() {
        return;
    }
    // The send buffer of a new socket has room for the response.
    if stream.write_all(BUSY).await.is_ok() && worker.lingering.get() < MAX_LINGERING {
        let _lingering = worker.lingering.enter();
        lingering_close::close(stream).await;
    }
}

/// Checks a key that this thread has not seen, as [`keys_checked`] counts it.
///
/// [`keys_checked`]: keygate_core::guard::keys_checked
#[cfg(test)]
pub(crate) fn check_another_key() {
    use keygate_core::guard::{KeyStrength, WeakChecks, keys_checked};
    use keygate_core::spki::{Fingerprint, PublicKey};

    /// An RSA key of 512 bits. Results are kept by the fingerprint, which is another one each time.
    const KEY: &str = "305C300D06092A864886F70D0101010500034B003048024100975CE9C08070D07131D7CDD7\
        900E0108D621DE67CF0C6D017C1AE1586F77CF3CF0D67C0C9A1BF55868D982C12BB44C0BCC727B43DA4FACA3\
        55A1FDA1A4E4A1F70203010001";
    let spki = data_encoding::HEXUPPER.decode(KEY.as_bytes()).unwrap();
    let key = PublicKey::parse(&spki);
    let _ =
        KeyStrength::new(&key, WeakChecks::ALL, || Fingerprint::of(&keys_checked().to_be_bytes()));
}
