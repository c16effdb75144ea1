//! A handshake that failed: what is counted, what is logged, and how its connection is closed.

use std::io;
use std::net::SocketAddr;

use keygate_core::guard::JudgedAt;
use keygate_core::tls::{HandshakeResult, RejectedClient};
use keygate_wire::lingering_close;
use keygate_wire::permit::BufferClass;
use keygate_wire::tls_stream::OVER_SHARE;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracing::debug;

use crate::client_log::FailedHandshake;
use crate::metrics::ConnectionResult;
use crate::proxy::client_hello::BadHello;
use crate::proxy::worker::Worker;
use crate::snapshot::Service;

/// A handshake that failed, and the socket if the client may still be sending.
pub(super) struct HandshakeFailure {
    pub(super) result: HandshakeResult,
    /// The error of rustls or of the network.
    pub(super) error: Option<io::Error>,
    pub(super) refusal: Option<RejectedClient>,
    /// The server name that no service has.
    pub(super) sni: Option<String>,
    pub(super) tcp: Option<TcpStream>,
    /// The client's address has too many connections, or there is no memory for the handshake.
    pub(super) is_over_limit: bool,
}

impl HandshakeFailure {
    pub(super) fn new(result: HandshakeResult) -> Self {
        Self { result, error: None, refusal: None, sni: None, tcp: None, is_over_limit: false }
    }

    /// A connection of an address that has more than `max_connections_per_ip` permits.
    pub(super) fn over_limit(worker: &Worker, peer: SocketAddr, limit: usize) -> Self {
        worker.refusal_log.limited(peer, limit);
        Self { is_over_limit: true, ..Self::new(HandshakeResult::Unsupported) }
    }

    /// Counts and logs the failure, and closes the connection.
    pub(super) async fn end(
        mut self,
        worker: &Worker,
        service: Option<&Service>,
        peer: SocketAddr,
    ) {
        if self.error.as_ref().is_some_and(|error| error.kind() == OVER_SHARE) {
            self.is_over_limit = true;
            worker.refusal_log.over_share(peer, BufferClass::Handshake, None);
        }
        let outcome = self.outcome();
        if let Some(service) = service {
            let metrics = worker.service_metrics(service);
            if !self.is_over_limit {
                metrics.handshakes(self.result, false).inc();
            }
            metrics.connections.of(outcome).inc();
            if let Some(RejectedClient { chain, judgement: Some(judgement) }) = &self.refusal {
                let stage = JudgedAt::FullHandshake;
                metrics.judgements.count(stage, judgement);
                let path: Vec<_> = chain.iter().collect();
                worker.refusal_log.hit(peer, service, &path, judgement, stage);
                // The client has proved its key. An answer may admit its next connection.
                worker.ask_about(service, &path);
            }
        } else {
            if !self.is_over_limit {
                worker.metrics.unrouted_handshakes.of(self.result).inc();
            }
            worker.metrics.unrouted.of(outcome).inc();
        }
        if !self.is_over_limit {
            let leaf = self.refusal.as_ref().and_then(|refusal| refusal.chain.first());
            worker.refusal_log.failure(&FailedHandshake {
                peer,
                service,
                leaf,
                sni: self.sni.as_deref(),
                result: self.result,
                error: self.error.as_ref(),
            });
        }
        let service = service.map(|service| service.config.name.as_str());
        let error = self.error.as_ref().map(keygate_core::tls::explain);
        debug!(%peer, service, result = self.result.as_str(), error, "connection failed");
        if let Some(tcp) = self.tcp {
            lingering_close::close(tcp).await;
        }
    }

    fn outcome(&self) -> ConnectionResult {
        match self.result {
            _ if self.is_over_limit => ConnectionResult::Limited,
            HandshakeResult::Compromised => ConnectionResult::Rejected,
            HandshakeResult::NotAllowed => ConnectionResult::NotAllowed,
            HandshakeResult::BadSignature
            | HandshakeResult::ClientGone
            | HandshakeResult::Expired
            | HandshakeResult::NoCertificate
            | HandshakeResult::NotTls
            | HandshakeResult::NotVouched
            | HandshakeResult::Ok
            | HandshakeResult::PlainHttp
            | HandshakeResult::Revoked
            | HandshakeResult::ServiceRejected
            | HandshakeResult::Timeout
            | HandshakeResult::UnknownIssuer
            | HandshakeResult::UnknownName
            | HandshakeResult::Unsuitable
            | HandshakeResult::Unsupported => ConnectionResult::Failed,
        }
    }
}

impl From<BadHello> for HandshakeFailure {
    fn from(BadHello { result, error, tcp }: BadHello) -> Self {
        Self { error, tcp: Some(tcp), ..Self::new(result) }
    }
}

/// A fatal `unrecognized_name` alert (RFC 6066, section 3) as a TLS record. rustls can send no
/// alert before a server configuration is chosen.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Rejects a client whose server name no service of the address has.
pub(super) async fn reject_name(mut tcp: TcpStream, sni: Option<String>) -> HandshakeFailure {
    let _ = tcp.write_all(&UNRECOGNIZED_NAME).await; // a client that has closed needs no alert
    let error = match sni {
        Some(_) => "no service of this address has the server name",
        None => "no server name was sent, and this address has no service without server_names",
    };
    HandshakeFailure {
        error: Some(io::Error::other(error)),
        sni,
        tcp: Some(tcp),
        ..HandshakeFailure::new(HandshakeResult::UnknownName)
    }
}
