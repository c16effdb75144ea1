//! The assessment of a client after its handshake, by the snapshot in use.

use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{Decision, Judgement, OpenQuestions};
use keygate_core::tls::ClientIdentity;
use keygate_wire::tls_stream::TlsStream;
use tokio::net::TcpStream;
use tracing::debug;

use super::held;
use crate::metrics::{ConnectionResult, WaitOutcome};
use crate::proxy::worker::Worker;
use crate::snapshot::{Service, Snapshot};

/// A client whose certificate is accepted, and the judgement of its key.
pub(super) struct Assessment {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) service: Arc<Service>,
    pub(super) judgement: Judgement,
}

impl Assessment {
    /// Judges the client of a handshake with `handshake_service`. `None` if a reload has removed
    /// the service, or if the certificate is no longer accepted.
    pub(super) fn new(
        worker: &Worker,
        handshake_service: &Service,
        identity: &ClientIdentity,
    ) -> Option<Self> {
        let snapshot = worker.snapshot();
        let service = snapshot.current(handshake_service).map(Arc::clone)?;
        let now = SystemTime::now();
        let verifier = &service.client_verifier;
        let is_new_verifier = !Arc::ptr_eq(&handshake_service.client_verifier, verifier);
        if (is_new_verifier || identity.is_due_for_check(now))
            && identity.verify_again(verifier, now).is_err()
        {
            let metrics = worker.service_metrics(handshake_service);
            metrics.connections.of(ConnectionResult::Rejected).inc();
            let (peer, service) = (identity.peer(), &service.config.name);
            debug!(%peer, %service, "client certificate is no longer accepted");
            return None;
        }
        let judgement = identity.judge(&snapshot.guard, &service.config.policy.decisions, now);
        Some(Self { snapshot, service, judgement })
    }

    /// Whether an answer about a key of the client could change the judgement.
    pub(super) fn leaves_questions(&self, worker: &Worker) -> bool {
        let depth = self.service.config.policy.decisions.judge;
        worker.inquiry.is_enabled() && self.judgement.leaves_questions(depth)
    }

    /// Asks about the client's keys, waits if the answers are decisive, and judges the client
    /// again: an answer may come at any time after a judgement, and leaves no question then. `None`
    /// if the client closes meanwhile, or as for [`Assessment::new`].
    pub(super) async fn answered(
        self,
        worker: &Worker,
        handshake_service: &Service,
        stream: &mut TlsStream<TcpStream>,
        identity: &ClientIdentity,
    ) -> Option<Self> {
        let open = self.open_questions(identity);
        let is_decisive = open.is_decisive;
        let queries = worker.inquiry.query(open);
        let is_rejected = self.judgement.decision == Decision::Reject;
        let holds = is_decisive && queries.holds(is_rejected) && !worker.inquiry.wait().is_zero();
        drop(self); // a held connection must keep no old filter in memory
        if holds {
            match held::hold(worker, handshake_service, stream, identity, queries).await {
                WaitOutcome::Answered | WaitOutcome::Expired | WaitOutcome::Stopped => {}
                WaitOutcome::ClientGone => {
                    let metrics = worker.service_metrics(handshake_service);
                    metrics.connections.of(ConnectionResult::Failed).inc();
                    debug!(peer = %identity.peer(), "the client closed while it was held");
                    return None;
                }
            }
        }
        let judged = Self::new(worker, handshake_service, identity)?;
        if holds {
            // A cleared key may be due again already. The judgement of open connections that asks
            // about due keys may have come before this connection was one of them.
            let _ = worker.inquiry.query(judged.open_questions(identity));
        }
        Some(judged)
    }

    fn open_questions(&self, identity: &ClientIdentity) -> OpenQuestions {
        let (policy, now) = (&self.service.config.policy.decisions, SystemTime::now());
        identity.with_path(|path| self.snapshot.guard.open_questions(policy, path, now))
    }
}
