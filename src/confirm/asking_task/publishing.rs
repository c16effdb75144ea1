//! Answers in use: new ones are published, and old ones expire or become due again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keygate_core::guard::Guard;
use keygate_core::spki::Fingerprint;
use keygate_core::unix_time;
use tokio::sync::watch;

use super::super::schedule::Finished;
use super::{AskingTask, filters_of, system_time};

/// Minimum time between two judgements of all open connections because of answers, 1 s.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);

/// Answers that are not in use yet, and the judgements that they cause.
#[derive(Debug)]
pub(super) struct News {
    /// Questions that were answered since the answers were published.
    pub(super) answered: Vec<u64>,
    /// Keys that were confirmed or cleared since then. A cleared key has the time at which it is
    /// asked about again.
    pub(super) learned: Vec<(Fingerprint, Option<u64>)>,
    /// Whether answers have changed since they were published.
    pub(super) is_unpublished: bool,
    /// Whether open connections must be judged again.
    pub(super) judge_again: bool,
    judged_at: Option<Instant>,
    /// Clearances were expired up to this time, in seconds since the Unix epoch.
    pub(super) expired_at: u64,
}

impl News {
    /// No news. Clearances that ended before `now` are removed already.
    pub(super) fn new(now: u64) -> Self {
        Self {
            answered: Vec::new(),
            learned: Vec::new(),
            is_unpublished: false,
            judge_again: false,
            judged_at: None,
            expired_at: now,
        }
    }

    /// When open connections may be judged again; `None` if there is no reason, or at once.
    pub(super) fn next_judgement(&self) -> Option<Instant> {
        self.judged_at.filter(|_| self.judge_again).map(|at| at + JUDGE_INTERVAL)
    }
}

impl AskingTask {
    /// Puts new answers in use, then ends the questions, and has open connections judged again.
    pub(super) fn publish(&mut self, judgements: &watch::Sender<u64>) {
        let now = Instant::now();
        if std::mem::take(&mut self.news.is_unpublished) {
            self.answers.replace(Arc::new(self.book.answers().clone()));
            self.keeping.is_dirty = true;
            self.news.judge_again = true;
        }
        // A worker that gets no question any more judges by the answers above.
        if let Some(mut schedule) = self.questions.schedule() {
            for (fingerprint, due) in self.news.learned.drain(..) {
                match due {
                    Some(due) => schedule.set_cleared(fingerprint, system_time(due)),
                    None => schedule.set_confirmed(fingerprint),
                }
            }
            for number in self.news.answered.drain(..) {
                schedule.finish(number, Finished::Answered, now);
            }
        }
        let was_judged = |at: Instant| now.saturating_duration_since(at) < JUDGE_INTERVAL;
        if self.news.judge_again && !self.news.judged_at.is_some_and(was_judged) {
            self.news.judge_again = false;
            self.news.judged_at = Some(now);
            judgements.send_modify(|count| *count += 1);
        }
    }

    /// Removes the clearances that have ended, and has connections of due keys judged again, so
    /// that their clients cause new questions.
    pub(super) fn expire(&mut self) {
        let now = unix_time::now();
        let since = std::mem::replace(&mut self.news.expired_at, now);
        if self.book.next_event(since).is_none_or(|at| at > now) {
            return;
        }
        let ended = self.book.expire(now);
        let is_due = self.book.cleared().any(|(_, it)| it.due > since && it.due <= now);
        if let Some(mut schedule) = self.questions.schedule() {
            ended.iter().for_each(|fingerprint| schedule.forget_cleared(fingerprint));
        }
        self.news.is_unpublished |= !ended.is_empty();
        self.news.judge_again |= is_due;
    }

    /// Asks again about all cleared keys if a filter has changed: it may have entries of them now.
    pub(super) fn compare_filters(&mut self, guard: &Guard) {
        if self.book.set_filters(filters_of(&self.config, guard)) {
            self.ask_again(|_| true);
        }
    }

    /// Makes cleared keys due. They stay cleared until an answer comes.
    pub(super) fn ask_again(&mut self, is_due: impl Fn(&Fingerprint) -> bool) {
        let now = unix_time::now();
        let due = self.book.make_due(now, is_due);
        if let Some(mut schedule) = self.questions.schedule() {
            due.iter().for_each(|fingerprint| schedule.set_cleared(*fingerprint, system_time(now)));
        }
        self.news.is_unpublished |= !due.is_empty();
    }
}
