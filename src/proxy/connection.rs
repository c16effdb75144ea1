//! One connection: ClientHello, service, handshake, identity, judgement, HTTP.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::activity::{Activity, Kind};
use super::headers::Annotations;
use super::http::{self, Session};
use super::interim::Interim;
use super::peers::Present;
use super::proxy_protocol;
use super::standing::Standing;
use super::tcp;
use super::worker::Worker;
use crate::config::{AlpnProtocol, Networks, Protocol};
use crate::guard::{Decision, JudgedAt, RejectWith, Verdict};
use crate::metrics::ConnectionResult;
use crate::snapshot::Service;
use crate::tls::{self, ClientIdentity, HandshakeResult, RejectedClient};

/// The address that a connection came in on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Via {
    /// As configured: services are found by it.
    pub(super) listen: SocketAddr,
    /// How long the handshake may take.
    pub(super) timeout: Duration,
}

/// Serves one accepted connection, from the ClientHello to the last response.
pub(super) async fn serve(worker: Rc<Worker>, via: Via, tcp: TcpStream, peer: SocketAddr) {
    let accepted = Instant::now();
    let _ = tcp.set_nodelay(true); // fails only if the client is gone, which the handshake notices
    let mut begun = Begun { peer, service: None, present: None };
    let handshake = handshake(&worker, via.listen, tcp, &mut begun);
    let outcome = match timeout(via.timeout, handshake).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::of(HandshakeResult::Timeout)),
    };
    let Begun { peer, service, present } = begun;
    match (outcome, service) {
        (Ok(stream), Some(service)) => {
            let elapsed = accepted.elapsed().as_secs_f64();
            worker.service_metrics(&service).handshake_duration.observe(elapsed);
            let is_over = present.as_ref().is_some_and(|present| {
                present.count > service.config.limits.max_connections_per_ip
            });
            admit(worker, &service, stream, peer, is_over).await;
        }
        (Ok(stream), None) => close(stream).await, // no handshake succeeds without a service
        (Err(failure), service) => failure.end(&worker, service.as_deref(), peer).await,
    }
    drop(present);
}

/// What is known of a connection whose handshake has begun.
struct Begun {
    /// The client, also behind a peer that speaks for it.
    peer: SocketAddr,
    /// The service that it asks for.
    service: Option<Arc<Service>>,
    present: Option<Present>,
}

/// Performs the handshake with the service that the client asks for.
async fn handshake(
    worker: &Worker,
    listen: SocketAddr,
    mut tcp: TcpStream,
    begun: &mut Begun,
) -> Result<TlsStream<TcpStream>, Failure> {
    let is_spoken_for = |networks: &Networks| networks.contains(begun.peer.ip());
    if worker.snapshot().accept_proxy(listen).is_some_and(is_spoken_for) {
        match proxy_protocol::read(&mut tcp).await {
            Ok(client) => begun.peer = client.unwrap_or(begun.peer),
            Err(error) => {
                let failure = Failure::of(HandshakeResult::NotTls);
                return Err(Failure { error: Some(error), tcp: Some(tcp), ..failure });
            }
        }
    }
    // Whoever holds connections without a word is counted, too.
    let present = begun.present.insert(worker.peers.enter(begun.peer.ip()));
    if present.count > worker.snapshot().max_connections_per_ip(listen).saturating_mul(2) {
        return Err(Failure { limited: true, ..Failure::of(HandshakeResult::Unsupported) });
    }
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), tcp);
    let hello = match (&mut acceptor).await {
        Ok(hello) => hello,
        Err(error) => {
            let failure = Failure::of(HandshakeResult::from_error(&error));
            return Err(Failure { error: Some(error), tcp: acceptor.take_io(), ..failure });
        }
    };
    let snapshot = worker.snapshot();
    let route = snapshot.route(listen, hello.client_hello().server_name());
    let Some(service) = route.map(Arc::clone) else {
        return Err(refuse_name(hello.io).await);
    };
    drop(snapshot);
    begun.service = Some(Arc::clone(&service));
    // A few too many are told so in HTTP; whoever goes on is not worth a handshake.
    let limits = &service.config.limits;
    let count = begun.present.as_ref().map_or(0, |present| present.count);
    let is_http = service.config.protocol == Protocol::Http;
    let most = limits.max_connections_per_ip.saturating_mul(if is_http { 2 } else { 1 });
    if count > most {
        return Err(Failure { limited: true, ..Failure::of(HandshakeResult::Unsupported) });
    }
    // All of it in there: a session is found before anything is awaited.
    let accepting = async { hello.into_stream(Arc::clone(&service.tls)).into_fallible().await };
    match tls::drive_handshake(accepting).await {
        (Ok(stream), _) => Ok(stream),
        (Err((error, tcp)), refusal) => {
            let result = HandshakeResult::from_error(&error);
            Err(Failure { error: Some(error), refusal, tcp: Some(tcp), ..Failure::of(result) })
        }
    }
}

/// Judges the client by the snapshot of this moment, whatever the handshake began with (the service
/// as it was `before`): a resumed session met no verifier, and filters, CAs and revocation lists may
/// have been replaced meanwhile. Then serves it.
async fn admit(
    worker: Rc<Worker>,
    before: &Service,
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    is_over: bool,
) {
    let snapshot = worker.snapshot();
    let identity = ClientIdentity::new(peer, stream.get_ref().1);
    let metrics = worker.service_metrics(before);
    metrics.handshakes(HandshakeResult::Ok, identity.judged_at() == JudgedAt::Resumption).inc();
    let Some(service) = snapshot.current(before).map(Arc::clone) else {
        return close(stream).await; // the service is gone
    };
    let now = SystemTime::now();
    let is_outdated = identity.has_expired(&*service.client_verifier, now)
        || (!Arc::ptr_eq(&before.client_verifier, &service.client_verifier)
            && identity.check(&*service.client_verifier, now).is_err());
    if is_outdated {
        metrics.connections.of(ConnectionResult::Rejected).inc();
        let service = &service.config.name;
        debug!(%peer, %service, "the certificate was accepted once and is not any more");
        return close(stream).await;
    }
    let verdict = snapshot.guard.judge(identity.chain(), service.config.policy.judge, now);
    let decision = service.config.policy.decide(&verdict);
    metrics.count_judgement(identity.judged_at(), &verdict, decision);
    if decision != Decision::Admit {
        let (chain, stage) = (identity.chain(), identity.judged_at());
        worker.reporter.hit(peer, &service, chain, &verdict, stage, decision);
    }
    if decision == Decision::Reject {
        metrics.connections.of(ConnectionResult::Rejected).inc();
        if service.config.policy.reject_with == RejectWith::Alert {
            return close(stream).await;
        }
    } else {
        let result = if is_over { ConnectionResult::Limited } else { ConnectionResult::Served };
        metrics.connections.of(result).inc();
    }
    let depends_on_filters =
        matches!(verdict, Verdict::Clean | Verdict::Confirmed(_) | Verdict::Probable(_));
    if depends_on_filters && decision != Decision::Reject {
        worker.note(service.id, identity.leaf());
    }
    let http2 = stream.get_ref().1.alpn_protocol() == Some(AlpnProtocol::H2.as_bytes());
    let kind = match (service.config.protocol, http2) {
        (Protocol::Http, false) => Kind::Http1,
        (Protocol::Http, true) => Kind::Http2,
        (Protocol::Tcp, _) => Kind::Tunnel,
    };
    let activity = Activity::new(service.config.limits, kind);
    let annotations = Annotations::new(&service.config, &identity);
    let believes_request_id = service.config.request_id_from.contains(peer.ip());
    let active = metrics.connections_active.clone();
    let routes = Arc::clone(snapshot.routes());
    let standing =
        Standing::new(Arc::clone(&service), routes, identity, verdict, decision, activity);
    if is_over && decision != Decision::Reject {
        standing.refuse((StatusCode::TOO_MANY_REQUESTS, "too many connections from this address"));
    }
    drop(snapshot); // an open connection keeps no old filter in memory
    let (watcher, watched) = (Rc::clone(&worker), Rc::as_ptr(&standing));
    active.inc();
    if service.config.protocol == Protocol::Tcp {
        // Boxed: room for it would be in every connection.
        Box::pin(tcp::serve(&worker, &service, &standing, stream)).await;
    } else {
        let session = Session {
            worker,
            metrics,
            annotations,
            tunnel: RefCell::default(),
            interim: Interim::default(),
            left_unread: Cell::new(false),
            believes_request_id,
            standing,
            service,
        };
        http::serve(Rc::new(session), stream, http2).await;
    }
    watcher.open.forget(watched);
    active.dec();
}

/// A handshake that did not succeed, and what is left of it.
struct Failure {
    result: HandshakeResult,
    /// What rustls or the network said of it.
    error: Option<io::Error>,
    refusal: Option<RejectedClient>,
    tcp: Option<TcpStream>,
    /// The client's address has too many connections.
    limited: bool,
}

impl Failure {
    fn of(result: HandshakeResult) -> Self {
        Self { result, error: None, refusal: None, tcp: None, limited: false }
    }

    /// Counts and logs the failure, and closes what is left of the connection.
    async fn end(self, worker: &Worker, service: Option<&Service>, peer: SocketAddr) {
        let outcome = match self.result {
            _ if self.limited => ConnectionResult::Limited,
            HandshakeResult::Compromised => ConnectionResult::Rejected,
            HandshakeResult::BadSignature
            | HandshakeResult::ClientGone
            | HandshakeResult::Expired
            | HandshakeResult::NoCertificate
            | HandshakeResult::NotTls
            | HandshakeResult::Ok
            | HandshakeResult::Revoked
            | HandshakeResult::Timeout
            | HandshakeResult::UnknownIssuer
            | HandshakeResult::Unsupported => ConnectionResult::Failed,
        };
        if let Some(service) = service {
            let metrics = worker.service_metrics(service);
            if !self.limited {
                metrics.handshakes(self.result, false).inc();
            }
            metrics.connections.of(outcome).inc();
            if let Some(RejectedClient { chain, verdict: Some(verdict) }) = &self.refusal {
                let (stage, decision) = (JudgedAt::FullHandshake, Decision::Reject);
                metrics.count_judgement(stage, verdict, decision);
                worker.reporter.hit(peer, service, chain, verdict, stage, decision);
            }
        } else {
            if !self.limited {
                worker.metrics().unrouted_handshakes.of(self.result).inc();
            }
            worker.metrics().unrouted.of(outcome).inc();
        }
        if !self.limited {
            let leaf = self.refusal.as_ref().and_then(|refusal| refusal.chain.first());
            worker.reporter.failure(peer, service, leaf, self.result, self.error.as_ref());
        }
        let service = service.map(|service| service.config.name.as_str());
        let error = self.error.as_ref().map(tracing::field::display);
        debug!(%peer, service, result = self.result.as_str(), error, "connection failed");
        if let Some(tcp) = self.tcp {
            linger(tcp).await;
        }
    }
}

/// A fatal `unrecognized_name` (RFC 6066, section 3) as a TLS record: rustls has no word for it
/// before a configuration is chosen.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

async fn refuse_name(mut tcp: TcpStream) -> Failure {
    let _ = tcp.write_all(&UNRECOGNIZED_NAME).await; // a client that is gone needs no alert
    Failure { tcp: Some(tcp), ..Failure::of(HandshakeResult::Unsupported) }
}

/// How long, and for how many bytes, a refused client that is still sending is listened to.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 8 << 20;

/// Ends a TLS connection in an orderly way: `close_notify`, then the end of the stream.
async fn close(mut stream: TlsStream<TcpStream>) {
    let _ = timeout(LINGER, stream.shutdown()).await; // it is closed either way
    linger(stream.into_inner().0).await;
}

/// Reads what the client still sends before the socket is closed: closed with bytes unread, the
/// kernel resets the connection, and the client loses the alert that it was sent.
async fn linger(mut tcp: TcpStream) {
    let drained = async {
        tcp.shutdown().await?;
        tokio::io::copy(&mut tcp.take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    let _ = timeout(LINGER, drained).await; // closed now, whether the client is done or not
}
