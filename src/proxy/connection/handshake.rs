//! The handshake: from the PROXY header to a client that has proved its key.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use keygate_core::guard::NameCheck;
use keygate_core::tls::{Handshake, HandshakeResult};
use keygate_wire::permit::ledger::Holder;
use keygate_wire::permit::{BufferClass, ClientKey, PerIpGuard, Unproven};
use keygate_wire::proxy_header;
use keygate_wire::tls_stream::TlsStream;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::handshake_failure::{HandshakeFailure, reject_name};
use crate::config::Protocol;
use crate::proxy::client_hello::{self, PlainHttp};
use crate::proxy::worker::Worker;
use crate::snapshot::Service;

/// The facts about a connection that outlive a failed handshake.
pub(super) struct HandshakeProgress {
    /// The client's address; behind a trusted PROXY header, the address that it names.
    pub(super) peer: SocketAddr,
    /// The service that the SNI names.
    pub(super) service: Option<Arc<Service>>,
    pub(super) per_ip: Option<PerIpGuard>,
    /// Held until the client has proved its key, or until a failed handshake is closed.
    pub(super) unproven: Unproven,
}

/// Time after which the connection of a proxy without a PROXY header may be evicted, 1 s.
const PROXY_HEADER: Duration = Duration::from_secs(1);

impl HandshakeProgress {
    /// Reads the PROXY header, and counts the connection for the client that it names.
    async fn read_client(&mut self, tcp: &mut TcpStream) -> io::Result<()> {
        let mut read = pin!(proxy_header::read(tcp));
        let client = match timeout(PROXY_HEADER, &mut read).await {
            Ok(client) => client,
            Err(_) => {
                self.unproven.set_evictable(true);
                read.await
            }
        };
        self.peer = client?.unwrap_or(self.peer);
        self.unproven.set_address(self.peer.ip());
        Ok(())
    }
}

/// Performs the handshake with the service that the SNI names.
pub(super) async fn perform(
    worker: &Worker,
    listen: SocketAddr,
    mut tcp: TcpStream,
    progress: &mut HandshakeProgress,
) -> Result<(Box<TlsStream<TcpStream>>, Handshake, Arc<Service>), HandshakeFailure> {
    if !progress.unproven.is_evictable()
        && let Err(error) = progress.read_client(&mut tcp).await
    {
        let failure = HandshakeFailure::new(HandshakeResult::NotTls);
        return Err(HandshakeFailure { error: Some(error), tcp: Some(tcp), ..failure });
    }
    // Counted before the ClientHello, so that silent connections count as well.
    let per_ip = progress.per_ip.insert(worker.per_ip.enter(progress.peer.ip()));
    let count = per_ip.count;
    let limit = worker.snapshot().max_connections_per_ip(listen);
    if count > limit.saturating_mul(2) {
        return Err(HandshakeFailure::over_limit(worker, progress.peer, limit));
    }
    // A TCP service has a protocol of its own, which may look like HTTP.
    let plain_http = match worker.snapshot().serves_http(listen) {
        true => PlainHttp::Detect,
        false => PlainHttp::Ignore,
    };
    let client = ClientKey::before_proof(progress.peer.ip());
    let holder = Holder { client, class: BufferClass::Handshake };
    let hello = client_hello::read(tcp, plain_http, holder).await?;
    let snapshot = worker.snapshot();
    let route = snapshot.route(listen, hello.server_name());
    let Some(service) = route.map(Arc::clone) else {
        let sni = hello.server_name().map(str::to_owned);
        return Err(reject_name(hello.into_io(), sni).await);
    };
    drop(snapshot);
    progress.service = Some(Arc::clone(&service));
    // An HTTP client slightly over the limit gets 429, for which the handshake is needed. Beyond
    // twice the limit the handshake is not worth its cost.
    let limit = service.config.limits.max_connections_per_ip;
    let factor = if service.config.protocol == Protocol::Http { 2 } else { 1 };
    if count > limit.saturating_mul(factor) {
        return Err(HandshakeFailure::over_limit(worker, progress.peer, limit));
    }
    let mut handshake = Handshake::default();
    let tls = Arc::clone(service.tls.for_groups(hello.groups()));
    match handshake.drive(hello.accept(tls)).await {
        Ok(stream) => Ok((stream, handshake, service)),
        Err((error, tcp)) => Err(failure_of(handshake, error, tcp)),
    }
}

/// Why a handshake failed: the client was rejected, or TLS failed.
fn failure_of(handshake: Handshake, error: io::Error, tcp: TcpStream) -> HandshakeFailure {
    let refusal = handshake.rejected;
    // A proved compromise has the alert of a revoked certificate.
    let judgement = refusal.as_ref().and_then(|refusal| refusal.judgement.as_ref());
    let result = match judgement.map(|judgement| judgement.names) {
        Some(NameCheck::NotAllowed) => HandshakeResult::NotAllowed,
        Some(NameCheck::Allowed | NameCheck::NotChecked) => HandshakeResult::Compromised,
        None => HandshakeResult::from_error(&error),
    };
    // The error of the signature is the same as the error of a certificate.
    let is_unproven = result == HandshakeResult::BadSignature;
    let error = if is_unproven { io::Error::other(UNPROVEN) } else { error };
    let failure = HandshakeFailure::new(result);
    HandshakeFailure { error: Some(error), refusal, tcp: Some(tcp), ..failure }
}

/// Error of a client that presented a certificate without having its key, such as a copied one.
const UNPROVEN: &str = "the client did not prove possession of its key";
