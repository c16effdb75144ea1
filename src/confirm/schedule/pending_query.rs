//! A query that waits for its answer: queued, under way, or backing off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::super::pace::{back_off, jittered};
use super::super::query::{Query, UnderWay};

/// Time after which a query that no client has caused again is forgotten, 24 h.
const FORGET_AFTER: Duration = Duration::from_secs(86_400);

/// The place where a key is looked up next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::confirm) enum Stage {
    /// Directories, without the rate.
    Directory,
    /// The URL, within the rate.
    Url,
}

/// How a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::confirm) enum JobEnd {
    /// The answer is in use.
    Answered,
    /// The source rejects requests for this time (`Retry-After`). The query stays in the queue.
    Blocked(Duration),
    /// The directories have a file that is no readable proof. The URL is next, and clears no key.
    DirectoryFailed,
    /// The source itself has failed. The next attempt follows a back-off.
    Failed,
    /// The directories have no answer. The URL is next.
    NotInDirectory,
    /// The source works and has no answer. The next attempt follows this time, or a back-off.
    Unanswered(Option<Duration>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryState {
    BackingOff(Instant),
    Queued(Stage),
    UnderWay,
}

/// A query and its place in the order.
#[derive(Debug)]
pub(super) struct PendingQuery {
    pub(super) query: Arc<Query>,
    pub(super) state: QueryState,
    /// Attempts without an answer in a row.
    failures: u32,
    /// Whether a failure has paused the source, which one key does once.
    pub(super) has_paused_source: bool,
    /// Whether the last look into the directories has failed.
    pub(super) directory_failed: bool,
    /// End of a back-off that a change of the directory has cut short for the directory alone.
    url_not_before: Option<Instant>,
    /// Whether the directory has changed while the query was under way.
    is_outdated: bool,
    /// Dropped when the query is answered, or when no answer comes soon.
    ended: watch::Sender<()>,
    /// When a client caused the query the last time.
    pub(super) submitted_at: Instant,
}

impl PendingQuery {
    pub(super) fn new(query: Query, first_stage: Stage, now: Instant) -> Self {
        Self {
            query: Arc::new(query),
            state: QueryState::Queued(first_stage),
            failures: 0,
            has_paused_source: false,
            directory_failed: false,
            url_not_before: None,
            is_outdated: false,
            ended: watch::Sender::new(()),
            submitted_at: now,
        }
    }

    /// The rank among due queries. A query that failed often must not use up the rate, so it gives
    /// way.
    pub(super) fn order(&self, number: u64) -> (u32, bool, u64) {
        (self.failures, self.has_paused_source, number)
    }

    /// Whether the query is due, and its clients have not come back.
    pub(super) fn is_unwanted(&self, now: Instant) -> bool {
        matches!(self.state, QueryState::BackingOff(until) if until <= now)
            && now.saturating_duration_since(self.submitted_at) >= FORGET_AFTER
    }

    /// The end of the query, for a connection that is held for it.
    pub(super) fn subscribe(&self) -> UnderWay {
        UnderWay(self.ended.subscribe())
    }

    /// Wakes the connections that are held for the query, because no answer comes soon.
    pub(super) fn wake(&mut self) {
        self.ended = watch::Sender::new(());
    }

    /// Wakes the connections that are held for the query, because its answer is in use.
    pub(super) fn wake_answered(&self) {
        self.ended.send_replace(());
    }

    /// Ends a back-off, because the directory has changed. The URL gets the query no sooner.
    pub(super) fn retry_directory(&mut self) {
        match self.state {
            QueryState::BackingOff(until) => self.url_not_before = Some(until),
            QueryState::Queued(Stage::Url) => {}
            QueryState::Queued(Stage::Directory) => return,
            QueryState::UnderWay => {
                self.is_outdated = true;
                return;
            }
        }
        self.state = QueryState::Queued(Stage::Directory);
    }

    /// Whether the directory has changed during the job that has ended now.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.is_outdated)
    }

    /// Has the directory looked into again, because it may have a proof now.
    pub(super) fn look_again(&mut self, end: JobEnd, now: Instant) {
        if let JobEnd::Blocked(_) | JobEnd::Failed | JobEnd::Unanswered(None) = end {
            self.failures = self.failures.saturating_add(1);
            self.url_not_before = Some(now + back_off(self.failures));
        }
        self.state = QueryState::Queued(Stage::Directory);
        if end != JobEnd::NotInDirectory {
            self.wake();
        }
    }

    /// Goes on to the URL, at the end of its back-off. Returns the time until then.
    pub(super) fn go_on_to_url(&mut self, now: Instant) -> Duration {
        let resumed = self.url_not_before.filter(|until| *until > now);
        self.state = resumed.map_or(QueryState::Queued(Stage::Url), QueryState::BackingOff);
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

    /// Waits for the next attempt, which is no failure of this query.
    pub(super) fn wait_for(&mut self, retry: Duration, now: Instant) {
        self.state = QueryState::BackingOff(now + retry);
        self.url_not_before = None;
        self.wake();
    }
}
