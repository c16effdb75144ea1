//! A connection that waits after its handshake for an answer about the client's key.
//!
//! The answer could turn refusing the client into serving it, or back. Nothing is served meanwhile.
//! A held connection counts under all limits.

use std::future::poll_fn;
use std::time::{Instant, SystemTime};

use keygate_core::tls::ClientIdentity;
use keygate_wire::tls_stream::{Prefetched, TlsStream};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::config::Protocol;
use crate::confirm::ClientQueries;
use crate::metrics::WaitOutcome;
use crate::proxy::worker::Worker;
use crate::snapshot::Service;

/// Maximum bytes that a client may send while it is held, 8 KiB. A TLS record more may be read.
const MAX_EARLY_DATA: usize = 8 << 10;

/// Holds a connection until the questions are answered, for `confirm.wait` at most. Ends early if
/// the client closes, if the process drains, and if a reload leaves nothing to wait for.
pub(super) async fn hold(
    worker: &Worker,
    service: &Service,
    stream: &mut TlsStream<TcpStream>,
    identity: &ClientIdentity,
    queries: ClientQueries,
) -> WaitOutcome {
    let began = Instant::now();
    let metrics = &worker.metrics;
    metrics.confirmation_waits_active.inc();
    let outcome = wait(worker, service, stream, identity, queries).await;
    metrics.confirmation_waits_active.dec();
    metrics.confirmation_waits.of(outcome).inc();
    metrics.confirmation_wait_duration.observe(began.elapsed().as_secs_f64());
    outcome
}

async fn wait(
    worker: &Worker,
    service: &Service,
    stream: &mut TlsStream<TcpStream>,
    identity: &ClientIdentity,
    mut queries: ClientQueries,
) -> WaitOutcome {
    let ended = async {
        let mut is_answered = true;
        for query in &mut queries.under_way {
            is_answered &= query.ended().await;
        }
        if is_answered { WaitOutcome::Answered } else { WaitOutcome::Expired }
    };
    let decided = async {
        loop {
            // Created before the check, so that no change after the check is lost.
            let changed = worker.connections.held.notified();
            if let Some(outcome) = decision(worker, service, identity) {
                return outcome;
            }
            changed.await;
        }
    };
    let is_http = service.config.protocol == Protocol::Http;
    tokio::select! {
        biased;
        outcome = ended => outcome,
        outcome = decided => outcome,
        () = client_gone(stream, is_http) => WaitOutcome::ClientGone,
        () = sleep(worker.inquiry.wait()) => WaitOutcome::Expired,
    }
}

/// Why the connection waits no longer; `None` if an answer is decisive by the snapshot in use.
fn decision(worker: &Worker, service: &Service, identity: &ClientIdentity) -> Option<WaitOutcome> {
    let snapshot = worker.snapshot();
    let service = snapshot.current(service).filter(|_| !worker.connections.draining.get());
    let Some(service) = service else { return Some(WaitOutcome::Stopped) };
    let (policy, now) = (&service.config.policy.decisions, SystemTime::now());
    let open = identity.with_path(|path| snapshot.guard.open_questions(policy, path, now));
    (!open.is_decisive).then_some(WaitOutcome::Answered)
}

/// Waits until the client has closed the connection, or has sent what TLS does not permit.
///
/// Decrypts what the client sends; the service finds it later. Above [`MAX_EARLY_DATA`] nothing
/// more is read, and the close is not noticed. A client of a TCP service may close its side behind
/// its data and read on.
async fn client_gone(stream: &mut TlsStream<TcpStream>, is_http: bool) {
    loop {
        match poll_fn(|context| stream.poll_prefetch(context)).await {
            Ok(Prefetched { is_closed: true, waiting: 1.. }) if !is_http => break,
            Ok(Prefetched { is_closed: true, .. }) | Err(_) => return,
            Ok(Prefetched { waiting: MAX_EARLY_DATA.., .. }) => break,
            Ok(Prefetched { .. }) => {}
        }
    }
    std::future::pending::<()>().await;
}
