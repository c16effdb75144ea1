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
}

impl Standing {
    pub(super) fn new(
        service: Arc<Service>,
        identity: ClientIdentity,
        verdict: Verdict,
        activity: Rc<Activity>,
    ) -> Rc<Self> {
        Rc::new(Self {
            activity,
            key_status: RefCell::new(key_status(&service.config, &verdict)),
            service,
            identity,
            verdict: RefCell::new(verdict),
            is_evicted: Cell::new(false),
        })
    }

    pub(super) fn key_status(&self) -> Option<HeaderValue> {
        self.key_status.borrow().clone()
    }

    /// Looks at the time-outs of the connection, and at the certificate of its client.
    pub(super) fn check(&self, now: Instant, time: SystemTime) {
        if !self.is_evicted.get() && self.identity.has_expired(time) {
            let (peer, service) = (self.identity.peer(), &self.service.config.name);
            info!(%peer, %service, "client certificate has expired, its connection ends");
            self.evict();
        }
        self.activity.check(now);
    }

    /// Judges the client by what is known now. One who is to be refused finishes what is in flight
    /// and goes; others are served on, and their upstream is told what has changed.
    pub(super) fn judge_again(&self, snapshot: &Snapshot, worker: &Worker, time: SystemTime) {
        if self.is_evicted.get() {
            return;
        }
        let verdict = snapshot.guard.judge(self.identity.chain(), time);
        let service = snapshot.present(&self.service).unwrap_or(&self.service);
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
