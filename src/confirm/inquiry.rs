//! The queries of the workers about the keys of their clients. Nothing here waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use keygate_core::guard::{CurrentAnswers, Guard, OpenQuestions, Policy};
use keygate_core::tls::Deferral;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::query::{Query, Submission, UnderWay};
use super::schedule::{Schedule, ScheduleLimits, Submitted};
use crate::config::{Config, ConfirmConfig};
use crate::metrics::{ConfirmMetrics, ConfirmationResult};

/// Takes the queries of all workers, and limits the time for which a connection waits for an
/// answer. Clones share the queries.
#[derive(Debug, Clone)]
pub struct Inquiry(Option<Arc<SharedQueries>>);

#[derive(Debug)]
struct SharedQueries {
    schedule: Mutex<Schedule>,
    /// Wakes the confirmation task.
    changed: Notify,
    wait: Duration,
    metrics: ConfirmMetrics,
}

/// The queries about one client.
#[derive(Debug, Default)]
pub(crate) struct ClientQueries {
    /// The queries whose answers may come soon.
    pub(crate) under_way: SmallVec<[UnderWay; 1]>,
    /// Whether no answer comes soon about one of the keys.
    is_late: bool,
}

impl Inquiry {
    /// Takes the queries for the source in `config`, and none without one. `answers` are those in
    /// use.
    #[must_use]
    pub fn new(config: &Config, answers: CurrentAnswers, metrics: &ConfirmMetrics) -> Self {
        let Some(confirm) = &config.confirm else { return Self(None) };
        let has_directory = confirm.proofs.is_some() || config.state.dir.is_some();
        Self::from_source(confirm, has_directory, answers, metrics)
    }

    pub(super) fn from_source(
        config: &ConfirmConfig,
        has_directory: bool,
        answers: CurrentAnswers,
        metrics: &ConfirmMetrics,
    ) -> Self {
        let (rate, wait, stale_for) = (config.rate, config.wait, config.stale_for);
        let limits = ScheduleLimits { rate, wait, stale_for, has_directory };
        Self(Some(Arc::new(SharedQueries {
            schedule: Mutex::new(Schedule::new(limits, answers, Instant::now())),
            changed: Notify::new(),
            wait,
            metrics: metrics.clone(),
        })))
    }

    /// Maximum time for which a connection is held; 0 holds none.
    pub(crate) fn wait(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |shared| shared.wait)
    }

    /// Whether there is a source.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Submits `query`, unless the answer is known or the key is queried already. Never waits:
    /// takes a lock for a few map operations.
    ///
    /// Call it for keys whose verdict is probable or cleared. A cleared key is queried again after
    /// `confirm.cleared_ttl`. Its verdict does not change, so no client waits.
    #[must_use]
    pub fn submit(&self, query: Query) -> Submission {
        let Some(shared) = &self.0 else { return Submission::NotSoon };
        let mut schedule = shared.lock();
        let submitted = schedule.submit(query, Instant::now(), SystemTime::now());
        let pending = schedule.pending();
        drop(schedule);
        let Submitted { submission, is_new, dropped } = submitted;
        shared.metrics.results.of(ConfirmationResult::Dropped).inc_by(dropped);
        if is_new {
            shared.metrics.set_pending(pending);
            shared.changed.notify_one();
        }
        submission
    }

    /// The result of `access` to the schedule; the default without a source.
    pub(super) fn with_schedule<R: Default>(&self, access: impl FnOnce(&mut Schedule) -> R) -> R {
        self.0.as_ref().map(|shared| access(&mut shared.lock())).unwrap_or_default()
    }

    /// Waits for a new query.
    pub(super) async fn changed(&self) {
        match &self.0 {
            Some(shared) => shared.changed.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Selects the clients that complete their handshakes; `None` if no connection is ever held.
    #[must_use]
    pub fn deferral(&self) -> Option<Arc<dyn Deferral>> {
        (!self.wait().is_zero()).then(|| Arc::new(self.clone()) as Arc<dyn Deferral>)
    }

    /// Queries every key of `open`.
    pub(crate) fn query(&self, open: OpenQuestions) -> ClientQueries {
        let mut queries = ClientQueries::default();
        for key in open.keys {
            let is_cleared = key.is_cleared;
            match self.submit(Query { encodings: key.encodings }) {
                // A cleared key keeps its verdict while it is queried again.
                Submission::NotSoon | Submission::UnderWay(_) if is_cleared => {}
                Submission::Answered => {}
                Submission::NotSoon => queries.is_late = true,
                Submission::UnderWay(query) => queries.under_way.push(query),
            }
        }
        queries
    }
}

impl SharedQueries {
    fn lock(&self) -> std::sync::MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientQueries {
    /// Whether a connection waits for the answers, which are decisive. `is_rejected` tells whether
    /// the client is rejected without them: it is admitted only if all of them come.
    pub(crate) fn holds(&self, is_rejected: bool) -> bool {
        !self.under_way.is_empty() && (!is_rejected || !self.is_late)
    }
}

impl Deferral for Inquiry {
    /// Queries the key of the leaf only. Keys of issuers are queried after the handshake, because a
    /// client may attach any certificates.
    fn defers(&self, guard: &Guard, policy: &Policy, path: &[&CertificateDer<'_>]) -> bool {
        let open = guard.open_questions(policy, path, SystemTime::now());
        if !open.is_decisive {
            return false;
        }
        let leaf = open.keys.into_iter().find(|key| key.position == 0 && !key.is_cleared);
        leaf.is_none_or(|leaf| match self.submit(Query { encodings: leaf.encodings }) {
            Submission::Answered | Submission::UnderWay(_) => true,
            Submission::NotSoon => false,
        })
    }
}
