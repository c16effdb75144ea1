//! Answers in use: new ones are published, and old ones expire or become due again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::super::schedule::Finished;
use super::{AskingTask, filters_of, system_time};
use crate::guard::Guard;
use crate::spki::Fingerprint;
use crate::unix_time;

/// Minimum time between two judgements of all open connections because of answers, 1 s.
pub(super) const JUDGE_INTERVAL: Duration = Duration::from_secs(1);

impl AskingTask {
    /// Puts new answers in use, then ends the questions, and has open connections judged again.
    pub(super) fn publish(&mut self, judgements: &watch::Sender<u64>) {
        let now = Instant::now();
        if std::mem::take(&mut self.has_news) {
            self.answers.replace(Arc::new(self.book.answers().clone()));
            self.is_dirty = true;
            self.judge_again = true;
        }
        // A worker that gets no question any more judges by the answers above.
        if let Some(mut schedule) = self.questions.schedule() {
            for (fingerprint, due) in self.learned.drain(..) {
                match due {
                    Some(due) => schedule.set_cleared(fingerprint, system_time(due)),
                    None => schedule.set_confirmed(fingerprint),
                }
            }
            for number in self.answered.drain(..) {
                schedule.finish(number, Finished::Answered, now);
            }
        }
        let was_judged = |at: Instant| now.saturating_duration_since(at) < JUDGE_INTERVAL;
        if self.judge_again && !self.judged_at.is_some_and(was_judged) {
            self.judge_again = false;
            self.judged_at = Some(now);
            judgements.send_modify(|count| *count += 1);
        }
    }

    /// Removes the clearances that have ended, and has connections of due keys judged again, so
    /// that their clients cause new questions.
    pub(super) fn expire(&mut self) {
        let now = unix_time::now();
        let since = std::mem::replace(&mut self.expired_at, now);
        if self.book.next_event(since).is_none_or(|at| at > now) {
            return;
        }
        let ended = self.book.expire(now);
        let is_due = self.book.cleared().any(|(_, it)| it.due > since && it.due <= now);
        if let Some(mut schedule) = self.questions.schedule() {
            ended.iter().for_each(|fingerprint| schedule.forget_cleared(fingerprint));
        }
        self.has_news |= !ended.is_empty();
        self.judge_again |= is_due;
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
        self.has_news |= !due.is_empty();
    }
}
