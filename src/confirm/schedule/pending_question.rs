//! A question that waits for its answer: queued, under way, or backing off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::super::pace::{back_off, jittered};
use super::super::question::{Question, UnderWay};

/// Time after which a question that no client has caused again is forgotten, 24 h.
const FORGET_AFTER: Duration = Duration::from_secs(86_400);

/// The place where a question is asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::confirm) enum Stage {
    /// Directories, without the rate.
    Directory,
    /// The URL, within the rate.
    Url,
}

/// How a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::confirm) enum Finished {
    /// The answer is in use.
    Answered,
    /// The source rejects questions for this time (`Retry-After`). The question stays in the queue.
    Blocked(Duration),
    /// The directories have a file that is no readable proof; ask the URL, which clears no key.
    DirectoryFailed,
    /// No answer; ask again after a back-off. The source itself has failed.
    Failed,
    /// The directories have no answer; ask the URL.
    NotInDirectory,
    /// No answer, although the source works; ask again after this time, or after a back-off.
    Unanswered(Option<Duration>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuestionState {
    BackingOff(Instant),
    Queued(Stage),
    UnderWay,
}

/// A question and its place in the order.
#[derive(Debug)]
pub(super) struct PendingQuestion {
    pub(super) question: Arc<Question>,
    pub(super) state: QuestionState,
    /// Attempts without an answer in a row.
    failures: u32,
    /// Whether a failure has paused the source, which one key does once.
    pub(super) has_paused_source: bool,
    /// Whether the last look into the directories has failed.
    pub(super) directory_failed: bool,
    /// End of a back-off that a change of the directory has cut short for the directory alone.
    url_not_before: Option<Instant>,
    /// Whether the directory has changed while the question was under way.
    is_outdated: bool,
    /// Dropped when the question is answered, or when no answer comes soon.
    ended: watch::Sender<()>,
    /// When a client caused the question the last time.
    asked_at: Instant,
}

impl PendingQuestion {
    pub(super) fn new(question: Question, first_stage: Stage, now: Instant) -> Self {
        Self {
            question: Arc::new(question),
            state: QuestionState::Queued(first_stage),
            failures: 0,
            has_paused_source: false,
            directory_failed: false,
            url_not_before: None,
            is_outdated: false,
            ended: watch::Sender::new(()),
            asked_at: now,
        }
    }

    /// The rank among due questions. A question that failed often must not use up the rate, so it
    /// gives way.
    pub(super) fn order(&self, number: u64) -> (u32, bool, u64) {
        (self.failures, self.has_paused_source, number)
    }

    /// Records that a client has caused the question again.
    pub(super) fn record_asked(&mut self, now: Instant) {
        self.asked_at = now;
    }

    /// Whether the question is due, and its clients have not come back.
    pub(super) fn is_unwanted(&self, now: Instant) -> bool {
        matches!(self.state, QuestionState::BackingOff(until) if until <= now)
            && now.saturating_duration_since(self.asked_at) >= FORGET_AFTER
    }

    /// The end of the question, for a connection that is held for it.
    pub(super) fn subscribe(&self) -> UnderWay {
        UnderWay::new(self.ended.subscribe())
    }

    /// Wakes the connections that are held for the question, because no answer comes soon.
    pub(super) fn wake(&mut self) {
        self.ended = watch::Sender::new(());
    }

    /// Wakes the connections that are held for the question, because its answer is in use.
    pub(super) fn wake_answered(&self) {
        self.ended.send_replace(());
    }

    /// Ends a back-off, because the directory has changed. The URL is asked no sooner.
    pub(super) fn retry_directory(&mut self) {
        match self.state {
            QuestionState::BackingOff(until) => self.url_not_before = Some(until),
            QuestionState::Queued(Stage::Url) => {}
            QuestionState::Queued(Stage::Directory) => return,
            QuestionState::UnderWay => {
                self.is_outdated = true;
                return;
            }
        }
        self.state = QuestionState::Queued(Stage::Directory);
    }

    /// Whether the directory has changed during the job that has ended now.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.is_outdated)
    }

    /// Has the directory looked into again, because it may have a proof now.
    pub(super) fn look_again(&mut self, finished: Finished, now: Instant) {
        if let Finished::Blocked(_) | Finished::Failed | Finished::Unanswered(None) = finished {
            self.failures = self.failures.saturating_add(1);
            self.url_not_before = Some(now + back_off(self.failures));
        }
        self.state = QuestionState::Queued(Stage::Directory);
        if finished != Finished::NotInDirectory {
            self.wake();
        }
    }

    /// Goes on to the URL, at the end of its back-off. Returns the time until then.
    pub(super) fn go_on_to_url(&mut self, directory_failed: bool, now: Instant) -> Duration {
        self.directory_failed = directory_failed;
        let resumed = self.url_not_before.filter(|until| *until > now);
        self.state = resumed.map_or(QuestionState::Queued(Stage::Url), QuestionState::BackingOff);
        resumed.map(|until| until.saturating_duration_since(now)).unwrap_or_default()
    }

    /// Waits for the next attempt: for `pause`, or for a back-off by the number of failures.
    /// Returns the time until then.
    pub(super) fn back_off(&mut self, pause: Option<Duration>, now: Instant) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let retry = pause.map_or_else(|| back_off(self.failures), jittered);
        self.wait_for(retry, now);
        retry
    }

    /// Waits for the next attempt, which is no failure of this question.
    pub(super) fn wait_for(&mut self, retry: Duration, now: Instant) {
        self.state = QuestionState::BackingOff(now + retry);
        self.url_not_before = None;
        self.wake();
    }
}
