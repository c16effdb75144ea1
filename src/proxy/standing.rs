//! How an open connection stands: who its client is, what is known of the key, and what becomes of
//! the connection when that changes or the client's certificate expires.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::header::HeaderValue;
use tracing::info;

use super::activity::Activity;
use super::headers::key_status;
use super::report::report;
use super::worker::Worker;
use crate::guard::{Decision, Verdict};
use crate::metrics::Stage;
use crate::snapshot::{Service, Snapshot};
use crate::tls::ClientIdentity;

/// An open connection that serves requests.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) activity: Rc<Activity>,
    service: Arc<Service>,
    identity: ClientIdentity,
    verdict: RefCell<Verdict>,
    /// What the upstream is told of the verdict with the next request.
    key_status: RefCell<Option<HeaderValue>>,
    is_evicted: Cell<bool>,
    /// Every request is answered with 403, and none goes further.
    is_refused: bool,
    has_answered: Cell<bool>,
}

impl Standing {
    pub(super) fn new(
        service: Arc<Service>,
        identity: ClientIdentity,
        verdict: Verdict,
        decision: Decision,
        activity: Rc<Activity>,
    ) -> Rc<Self> {
        Rc::new(Self {
            activity,
            key_status: RefCell::new(key_status(&service.config, &verdict)),
            service,
            identity,
            verdict: RefCell::new(verdict),
            is_evicted: Cell::new(false),
            is_refused: decision == Decision::Reject,
            has_answered: Cell::new(false),
        })
    }

    pub(super) fn key_status(&self) -> Option<HeaderValue> {
        self.key_status.borrow().clone()
    }

    /// A request and its answer are over.
    pub(super) fn request_ended(&self) {
        self.activity.request_ended();
        self.has_answered.set(true);
    }

    /// What a client that is refused is told instead of an answer to its request, which is its last.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        if !self.is_refused {
            return None;
        }
        Some(match *self.verdict.borrow() {
            Verdict::Listed(_) => "the key of the client certificate is on a list of refused keys",
            Verdict::Probable(_) => {
                "the key of the client certificate is probably compromised: replace key and certificate"
            }
            Verdict::Allowed | Verdict::Clean | Verdict::Unchecked => {
                "the key of the client certificate could not be checked"
            }
        })
    }

    /// Looks at the time-outs of the connection, and at the certificate of its client.
    pub(super) fn check(&self, now: Instant, time: SystemTime) {
        if !self.is_evicted.get() && self.identity.has_expired(time) {
            let (peer, service) = (self.identity.peer(), &self.service.config.name);
            info!(%peer, %service, "client certificate has expired, its connection ends");
            self.evict();
        }
        // At the next look, not with the answer: h2 sends GOAWAY before what it has to send besides,
        // and some clients then give up a request whose body they are still sending.
        if self.is_refused && self.has_answered.get() && !self.is_evicted.get() {
            self.evict();
        }
        self.activity.check(now);
    }

    /// Judges the client by what is known now. One who is to be refused finishes what is in flight
    /// and goes; others are served on, and their upstream is told what has changed.
    pub(super) fn judge_again(&self, snapshot: &Snapshot, worker: &Worker, time: SystemTime) {
        if self.is_evicted.get() || self.is_refused {
            return;
        }
        let service = snapshot.present(&self.service).unwrap_or(&self.service);
        let verdict =
            snapshot.guard.judge(self.identity.chain(), service.config.policy.judge, time);
        let decision = service.config.policy.decide(&verdict);
        let metrics = worker.service_metrics(service.index);
        metrics.count_judgement(Stage::Live, &verdict, decision);
        if *self.verdict.borrow() == verdict {
            return;
        }
        if decision != Decision::Admit {
            let (peer, leaf) = (self.identity.peer(), self.identity.leaf());
            report(peer, service, leaf, &verdict, Stage::Live, decision);
        }
        if decision == Decision::Reject {
            self.evict();
        }
        self.key_status.replace(key_status(&service.config, &verdict));
        self.verdict.replace(verdict);
    }

    fn evict(&self) {
        self.is_evicted.set(true);
        self.activity.evict(Instant::now() + self.service.config.evict_within);
    }
}
