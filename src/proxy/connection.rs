//! One connection: accepted, handshake with the service that the SNI names, admission, HTTP or TCP.
//!
//! Each stage is allocated when it begins and freed when it ends, because most connections are idle
//! most of the time. The tests below bound the size of each.

mod assessment;
mod handshake;
mod handshake_failure;
mod held;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use keygate_core::guard::{Decision, JudgedAt, Judgement, NameCheck, RejectWith};
use keygate_core::spki;
use keygate_core::tls::{
    CertificateSummary, ClientIdentity, HandshakeResult, KeyExchange, is_for_servers,
};
use keygate_wire::client_io::{ClientIo, detect_vanished};
use keygate_wire::lingering_close::{self, LINGER_TIME};
use keygate_wire::permit::{ClientKey, CountGuard, PerIpGuard, Permit, Place, Unproven};
use keygate_wire::tls_stream::TlsStream;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::assessment::Assessment;
use self::handshake::HandshakeProgress;
use self::handshake_failure::HandshakeFailure;
use super::http;
use super::open_connection::tls_facts::TlsFacts;
use super::open_connection::{OpenConnection, record_judgement};
use super::tcp;
use super::worker::Worker;
use crate::config::{Networks, Protocol};
use crate::listen::Accepted;
use crate::metrics::{ConnectionResult, KeyAlgorithm, Label, ServiceMetrics};
use crate::snapshot::Service;

/// Serves an accepted connection on a task of its own.
pub(crate) fn serve_accepted(worker: &Rc<Worker>, accepted: Accepted) {
    let open = worker.connections.open.enter();
    worker.metrics.unrouted.of(ConnectionResult::Limited).inc_by(accepted.evicted as u64);
    let (unproven, address) = (Arc::clone(&accepted.unproven), accepted.peer.ip());
    let snapshot = worker.snapshot();
    let is_trusted_proxy = |networks: &Networks| networks.contains(address);
    let is_of_proxy = snapshot.accept_proxy(accepted.listen).is_some_and(is_trusted_proxy);
    unproven.spawn(address, !is_of_proxy, |it| serve(Rc::clone(worker), (accepted, it), open));
}

/// Serves one accepted connection, from the ClientHello to the last response.
///
/// No `async fn`, because its future would hold both its arguments and the values moved from
/// them.
fn serve(
    worker: Rc<Worker>,
    accepted: (Accepted, Unproven),
    open: CountGuard,
) -> impl Future<Output = ()> {
    let establishing = Box::pin(establish(Rc::clone(&worker), accepted));
    async move {
        let _open = open;
        let Some(established) = establishing.await else { return };
        if let Some(admitted) = established.admit(Rc::clone(&worker)).await {
            admitted.serve(worker).await;
        }
    }
}

/// Performs the handshake. `None` if it fails.
async fn establish(
    worker: Rc<Worker>,
    (accepted, unproven): (Accepted, Unproven),
) -> Option<Established> {
    let worker = &*worker;
    let began = Instant::now();
    let Accepted { tcp, peer, listen, handshake_timeout, unacknowledged, permit, .. } = accepted;
    let places = accepted.unproven;
    let mut progress = HandshakeProgress { peer, service: None, per_ip: None, unproven };
    let handshake = handshake::perform(worker, listen, tcp, &mut progress);
    let outcome = match timeout(handshake_timeout, handshake).await {
        Ok(outcome) => outcome,
        Err(_) => Err(HandshakeFailure::new(HandshakeResult::Timeout)),
    };
    let HandshakeProgress { peer, service, per_ip, unproven } = progress;
    let (mut stream, handshake, service) = match outcome {
        Ok(established) => established,
        Err(failure) => {
            failure.end(worker, service.as_deref(), peer).await;
            return None;
        }
    };
    let verifier = &service.client_verifier;
    let identity = ClientIdentity::new(peer, stream.state(), handshake, verifier);
    // A second ECDSA signature can be derived from the first, so one key has several certificates.
    let key = identity.leaf().map(|leaf| spki::of_certificate(leaf).unwrap_or(leaf));
    let client = ClientKey::new(key, peer.ip());
    stream.set_client(client);
    let active = ActiveConnection::new(worker.service_metrics(&service));
    let Some(place) = places.take_place(client, permit.limit()) else {
        active.0.connections.of(ConnectionResult::Limited).inc();
        worker.refusal_log.over_share_of_places(peer, &service.config.name, permit.limit());
        close(stream).await; // still evictable
        return None;
    };
    if !unproven.prove() {
        return None; // evicted by another worker during the last message
    }
    active.0.handshake_duration.observe(began.elapsed().as_secs_f64());
    let limits = &service.config.limits;
    detect_vanished(stream.tcp(), unacknowledged, limits.unacknowledged_timeout());
    let is_over_limit = per_ip.as_ref().is_some_and(|it| it.count > limits.max_connections_per_ip);
    if is_over_limit {
        worker.refusal_log.limited(peer, limits.max_connections_per_ip);
    }
    let guards =
        ConnectionGuards { _active: active, _per_ip: per_ip, _place: place, _permit: permit };
    Some(Established { stream, service, identity, client, is_over_limit, guards })
}

/// A client's stream, boxed because it is handed on from stage to stage.
type ClientStream = Box<TlsStream<TcpStream>>;

/// Count an open connection, in the metrics and under the limits, until it is closed.
struct ConnectionGuards {
    _active: ActiveConnection,
    _per_ip: Option<PerIpGuard>,
    _place: Place,
    _permit: Permit,
}

/// Counts a connection after its handshake, also while it is held.
struct ActiveConnection(Rc<ServiceMetrics>);

impl ActiveConnection {
    fn new(metrics: Rc<ServiceMetrics>) -> Self {
        metrics.connections_active.inc();
        Self(metrics)
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        self.0.connections_active.dec();
    }
}

/// A connection after its handshake.
struct Established {
    stream: ClientStream,
    /// The service of the snapshot that the handshake began with.
    service: Arc<Service>,
    identity: ClientIdentity,
    client: ClientKey,
    is_over_limit: bool,
    guards: ConnectionGuards,
}

impl Established {
    /// Judges the client by the current snapshot. `None` if the connection is closed instead.
    ///
    /// The handshake may have begun with an older snapshot, and a resumed session never met the
    /// verifier. Filters, CAs and CRLs may have been replaced since. Boxed, because a connection
    /// may be held in this stage, and the handshake is freed before.
    fn admit(self, worker: Rc<Worker>) -> Pin<Box<dyn Future<Output = Option<Admitted>>>> {
        Box::pin(admit(worker, self))
    }
}

async fn admit(worker: Rc<Worker>, established: Established) -> Option<Admitted> {
    let worker = &*worker;
    let Established { mut stream, service: of_handshake, identity, client, is_over_limit, guards } =
        established;
    let metrics = worker.service_metrics(&of_handshake);
    metrics.handshakes(HandshakeResult::Ok, identity.judged_at() == JudgedAt::Resumption).inc();
    let key_exchange = KeyExchange::negotiated(stream.state());
    let leaf = identity.presented().first();
    let spki = leaf.and_then(|leaf| spki::of_certificate(leaf).ok());
    let algorithm = leaf.map(|_| KeyAlgorithm::of(spki.unwrap_or_default()));
    metrics.count_key_use(key_exchange, algorithm);
    let mut assessment = Assessment::new(worker, &of_handshake, &identity);
    if let Some(first) = assessment.take_if(|it| it.leaves_questions(worker)) {
        let answered = first.answered(worker, &of_handshake, &mut stream, &identity);
        assessment = Box::pin(answered).await; // boxed, because few clients are asked about
    }
    let Some(Assessment { snapshot, service, judgement }) = assessment else {
        close(stream).await;
        return None;
    };
    let is_rejected = judgement.decision == Decision::Reject;
    let judged_at = identity.judged_at();
    record_judgement(&judgement, &worker.refusal_log, &metrics, &service, &identity, judged_at);
    metrics.connections.of(connection_result(&judgement, is_over_limit)).inc();
    if is_rejected && service.config.policy.decisions.reject_with == RejectWith::Alert {
        close(stream).await;
        return None;
    }
    if !is_rejected {
        let presented = identity.presented();
        identity.with_path(|path| {
            worker.record_admitted(&service, path, presented);
            if service.config.client_auth.accept_server_auth_until.is_some()
                && path.iter().any(|it| is_for_servers(it))
            {
                metrics.judgements.server_auth_clients.inc();
                let (peer, log) = (identity.peer(), &worker.refusal_log);
                log.server_auth(peer, &service, path, &judgement, judged_at);
            }
        });
        if let (Some(leaf), Some(spki), Some(algorithm)) = (leaf, spki, algorithm) {
            let (client, address) = ((service.id, &*service.config.name), identity.peer().ip());
            worker.key_uses.record(client, spki, algorithm, key_exchange, address, || {
                CertificateSummary::new(leaf).name().to_owned()
            });
        }
    }
    let needs_facts = worker.access_log.is_some() || worker.tracer.is_some();
    let key_use = [key_exchange.map(KeyExchange::as_str), algorithm.map(Label::as_str)];
    let tls_facts = needs_facts.then(|| Box::new(TlsFacts::new(&stream, key_use)));
    let alpn = stream.state().alpn_protocol();
    let client = (identity, client);
    let open = OpenConnection::new(&snapshot, service, client, judgement, alpn, tls_facts);
    if is_over_limit && !is_rejected {
        open.reject_over_limit();
    }
    Some(Admitted { stream, open, metrics, guards })
}

/// A client that was admitted, or that is rejected with responses.
struct Admitted {
    stream: ClientStream,
    open: Rc<OpenConnection>,
    metrics: Rc<ServiceMetrics>,
    guards: ConnectionGuards,
}

impl Admitted {
    /// Serves the client until its connection closes. Each protocol's stage is boxed, so that the
    /// task has no room for it.
    fn serve(self, worker: Rc<Worker>) -> impl Future<Output = ()> {
        let Self { stream, open, metrics, guards } = self;
        worker.connections.add(&open);
        let protocol = open.service().config.protocol;
        let served: Pin<Box<dyn Future<Output = ()>>> = match protocol {
            Protocol::Tcp => Box::pin(tcp::serve(Rc::clone(&worker), Rc::clone(&open), stream)),
            Protocol::Http => http::serve(Rc::clone(&worker), metrics, Rc::clone(&open), stream),
        };
        async move {
            let _guards = guards;
            served.await;
            worker.connections.remove(Rc::as_ptr(&open));
        }
    }
}

fn connection_result(judgement: &Judgement, is_over_limit: bool) -> ConnectionResult {
    match judgement.decision {
        Decision::Reject if judgement.names == NameCheck::NotAllowed => {
            ConnectionResult::NotAllowed
        }
        Decision::Reject => ConnectionResult::Rejected,
        Decision::Admit | Decision::Annotate | Decision::Flag if is_over_limit => {
            ConnectionResult::Limited
        }
        Decision::Admit | Decision::Annotate | Decision::Flag => ConnectionResult::Served,
    }
}

/// Closes a TLS connection in order: `close_notify`, then a lingering close. Boxed, because few
/// clients are rejected after the handshake.
fn close(mut stream: ClientStream) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        let _ = timeout(LINGER_TIME, stream.shutdown()).await; // closed in either case
        lingering_close::close(stream.into_io()).await;
    })
}
#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of a connection's task, in bytes: without its boxed stages.
    const TASK: usize = 336;
    /// Maximum size of the handshake, in bytes. It is freed before the admission.
    const ESTABLISHMENT: usize = 5120;
    /// Maximum size of the admission, in bytes, without the wait of a held connection. It is freed
    /// before HTTP begins.
    const ADMISSION: usize = 1024;
    /// Maximum size of a TCP service's connection, in bytes, without its two buffers.
    const TUNNEL: usize = 3072;
    /// Maximum size of the TLS stream and of the facts about a client, in bytes, without their
    /// buffers and certificates.
    const CLIENT: usize = 2048;

    fn size_of_future<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn each_stage_of_a_connection_keeps_within_its_size() {
        type Admission = (Rc<Worker>, (Accepted, Unproven));
        type Tunnel = (Rc<Worker>, Rc<OpenConnection>, ClientStream);
        let task = size_of_future(|(worker, accepted, open)| serve(worker, accepted, open));
        let establishment = size_of_future(|(worker, it): Admission| establish(worker, it));
        let admission = size_of_future(|(worker, it): (Rc<Worker>, Established)| admit(worker, it));
        let tunnel = size_of_future(|(worker, open, io): Tunnel| tcp::serve(worker, open, io));
        let client = size_of::<TlsStream<TcpStream>>() + OpenConnection::size();
        let sizes = [task, establishment, admission, tunnel, client];
        let limits = [TASK, ESTABLISHMENT, ADMISSION, TUNNEL, CLIENT];
        assert!(sizes.iter().zip(limits).all(|(size, limit)| *size <= limit), "{sizes:?}");
    }
}
