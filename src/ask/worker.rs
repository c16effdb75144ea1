//! The state of one worker that its connections of askers share. One thread owns it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use keygate_core::guard::RecentShard;
use keygate_wire::permit::Count;
use tokio::sync::{Notify, watch};

use super::asker::{AskerRejection, AskingPeer};
use super::shares::AskerShares;
use crate::client_log::RefusalLog;
use crate::config::{Config, ListenAddress};
use crate::confirm::Inquiry;
use crate::metrics::{AuthorizerMetrics, QuestionResult, WorkerMetrics};
use crate::process::lifecycle::Lifecycle;
use crate::recent_hits::RecentHits;
use crate::snapshot::{Authorizer, Current, Snapshot};

/// The state that all workers share, as far as authorizers need it.
#[derive(Debug, Clone)]
pub(crate) struct AskContext {
    /// The snapshot in use.
    pub(crate) current: Current,
    /// The clients that were rejected or flagged.
    pub(crate) recent_hits: RecentHits,
    pub(crate) lifecycle: watch::Receiver<Lifecycle>,
    /// Asks about the keys of clients.
    pub(crate) inquiry: Inquiry,
    /// The connections of each asker.
    pub(crate) shares: AskerShares,
}

/// The state of one worker.
pub(crate) struct AskWorker {
    current: RefCell<arc_swap::Cache<Current, Arc<Snapshot>>>,
    metrics: WorkerMetrics,
    /// By the id of the authorizer, and the moment at which it judges.
    authorizers: RefCell<HashMap<(usize, &'static str), Rc<AuthorizerMetrics>>>,
    pub(super) recent: Option<RecentShard>,
    pub(super) log: RefusalLog,
    pub(super) inquiry: Inquiry,
    pub(super) lifecycle: watch::Receiver<Lifecycle>,
    /// Notified after each swap of the snapshot.
    pub(super) snapshots: Notify,
    pub(super) shares: AskerShares,
    pub(super) open: Count,
    /// Connections that linger after their rejection.
    pub(super) lingering: Count,
}

impl AskWorker {
    pub(crate) fn new(
        config: &Config,
        context: AskContext,
        metrics: WorkerMetrics,
        recent: Option<RecentShard>,
    ) -> Self {
        let AskContext { current, recent_hits, lifecycle, inquiry, shares } = context;
        Self {
            current: RefCell::new(arc_swap::Cache::new(current)),
            metrics,
            authorizers: RefCell::default(),
            recent,
            log: RefusalLog::new(recent_hits, config.log.repeat_after),
            inquiry,
            lifecycle,
            snapshots: Notify::new(),
            shares,
            open: Count::default(),
            lingering: Count::default(),
        }
    }

    /// The snapshot in use.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.current.borrow_mut().load())
    }

    /// The authorizer on the address `listen` of the configuration.
    pub(crate) fn authorizer_on(&self, listen: &ListenAddress) -> Option<Arc<Authorizer>> {
        self.current.borrow_mut().load().authorizer_on(listen).cloned()
    }

    /// Makes the connections check whether their askers may go on asking. The cache lets go of the
    /// previous snapshot, whose filters and lists would stay in memory until the next question.
    pub(crate) fn follow_snapshot(&self) {
        self.current.borrow_mut().load();
        self.snapshots.notify_waiters();
    }

    /// Whether no connection of an asker is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// Counts and logs the connection of a peer that may not ask.
    pub(super) fn reject(
        &self,
        authorizer: &Authorizer,
        asker: &AskingPeer,
        rejection: AskerRejection,
    ) {
        self.metrics_of(authorizer).questions.of(QuestionResult::NotAllowed).inc();
        self.log.unauthorized(&authorizer.config.name, asker, asker.key(), rejection.as_str());
    }

    pub(super) fn metrics_of(&self, authorizer: &Authorizer) -> Rc<AuthorizerMetrics> {
        let mut authorizers = self.authorizers.borrow_mut();
        let (name, stage) = (&authorizer.config.name, authorizer.config.protocol.stage());
        let metrics = authorizers
            .entry((authorizer.id, stage.as_str()))
            .or_insert_with(|| Rc::new(self.metrics.authorizer(name, stage)));
        Rc::clone(metrics)
    }
}
