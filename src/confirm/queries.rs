//! The queries of all workers about keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use keygate_core::guard::CurrentAnswers;
use tokio::sync::Notify;

use super::query::{Query, Submission};
use super::schedule::{Schedule, ScheduleLimits, Submitted};
use crate::config::Config;
use crate::metrics::ConfirmMetrics;

/// Takes the queries of all workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Queries(Option<Arc<SharedQueries>>);

#[derive(Debug)]
struct SharedQueries {
    schedule: Mutex<Schedule>,
    /// Wakes the confirmation task.
    changed: Notify,
    metrics: ConfirmMetrics,
}

impl Queries {
    /// Takes no query, because there is no source: no table `[confirm]`.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Takes the queries for the source in `config`, if there is one. `answers` are those in use.
    #[must_use]
    pub fn new(config: &Config, answers: CurrentAnswers, metrics: &ConfirmMetrics) -> Self {
        let Some(confirm) = &config.confirm else { return Self::none() };
        let limits = ScheduleLimits {
            rate: confirm.rate,
            wait: confirm.wait,
            stale_for: confirm.stale_for,
            has_directory: confirm.proofs.is_some() || config.state_dir.is_some(),
        };
        Self(Some(Arc::new(SharedQueries {
            schedule: Mutex::new(Schedule::new(limits, answers, Instant::now())),
            changed: Notify::new(),
            metrics: metrics.clone(),
        })))
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
        shared.metrics.record_dropped(dropped);
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
}

impl SharedQueries {
    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
