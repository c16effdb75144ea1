//! The questions of all workers about keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use super::question::{Ask, Question};
use super::schedule::{AskOutcome, Schedule, ScheduleLimits};
use crate::config::{Config, ConfirmConfig};
use crate::metrics::ConfirmMetrics;

/// Takes the questions of all workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Questions(Option<Arc<SharedQuestions>>);

#[derive(Debug)]
struct SharedQuestions {
    schedule: Mutex<Schedule>,
    /// Wakes the asking task.
    changed: Notify,
    wait: Duration,
    metrics: ConfirmMetrics,
}

impl Questions {
    /// Takes no question, because nothing is ever asked: there is no table `[confirm]`.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Takes the questions for the source in `config`, if there is one.
    #[must_use]
    pub fn new(config: &Config, metrics: &ConfirmMetrics) -> Self {
        let Some(confirm) = &config.confirm else { return Self::none() };
        let has_directory = confirm.proofs.is_some() || config.state_dir.is_some();
        Self::of_source(confirm, has_directory, metrics.clone())
    }

    fn of_source(config: &ConfirmConfig, has_directory: bool, metrics: ConfirmMetrics) -> Self {
        let limits = ScheduleLimits { rate: config.rate, wait: config.wait, has_directory };
        Self(Some(Arc::new(SharedQuestions {
            schedule: Mutex::new(Schedule::new(limits, Instant::now())),
            changed: Notify::new(),
            wait: config.wait,
            metrics,
        })))
    }

    /// Maximum time for which a connection is held for an answer, `confirm.wait`.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |shared| shared.wait)
    }

    /// Whether questions can be asked at all.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Puts `question`, unless the key is known or asked about already. Never waits: takes a lock
    /// for a few map operations.
    ///
    /// Call it for keys whose verdict is probable or cleared. A cleared key is asked about again
    /// after `confirm.cleared_ttl`. Its verdict does not change, so no client waits.
    #[must_use]
    pub fn ask(&self, question: Question) -> Ask {
        let Some(shared) = &self.0 else { return Ask::NotSoon };
        let mut schedule = shared.lock();
        let asked = schedule.ask(question, Instant::now(), SystemTime::now());
        let pending = schedule.pending();
        drop(schedule);
        let AskOutcome { ask, is_new, dropped } = asked;
        shared.metrics.record_dropped(dropped);
        if is_new {
            shared.metrics.set_pending(pending);
            shared.changed.notify_one();
        }
        ask
    }

    /// The schedule; `None` if nothing is ever asked.
    pub(super) fn schedule(&self) -> Option<MutexGuard<'_, Schedule>> {
        self.0.as_ref().map(|shared| shared.lock())
    }

    /// Waits for a new question.
    pub(super) async fn changed(&self) {
        match &self.0 {
            Some(shared) => shared.changed.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl SharedQuestions {
    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
