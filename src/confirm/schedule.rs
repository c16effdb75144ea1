//! The order of the queries: single flight, a rate, back-off, and a bounded queue.
//!
//! Pure: the time is a parameter, and nothing here does I/O.

mod pending_query;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use keygate_core::guard::CurrentAnswers;
use keygate_core::spki::Fingerprint;

pub(super) use self::pending_query::{JobEnd, Stage};
use self::pending_query::{PendingQuery, QueryState};
use super::pace::SourcePace;
use super::query::{Query, Submission};

/// Maximum number of queries that wait: queued, backing off and under way. Above it, the oldest
/// one that is not under way is dropped.
pub(super) const MAX_PENDING: usize = 1024;
/// Maximum number of queries under way.
pub(super) const MAX_UNDER_WAY: usize = 4;
/// Maximum size of a SubjectPublicKeyInfo that is queried, in bytes. No proof is defined for keys
/// of more than 1.1 KiB.
const MAX_SPKI: usize = 4 << 10;
/// Maximum number of encodings of a key; no key has more related ones.
const MAX_ENCODINGS: usize = 4;

/// The settings of a schedule.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScheduleLimits {
    /// Maximum number of queries a second to the URL.
    pub(super) rate: u32,
    /// Maximum time for which a connection is held.
    pub(super) wait: Duration,
    /// Part at the end of each clearance in which the key is queried again.
    pub(super) stale_for: Duration,
    /// Whether there is a directory, which is consulted without the rate.
    pub(super) has_directory: bool,
}

/// A query to be made now.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) stage: Stage,
    pub(super) query: Arc<Query>,
    /// Whether the directories had a file that is no readable proof of the key. It may be the
    /// proof, so a 404 of the URL does not clear the key.
    pub(super) directory_failed: bool,
}

/// The outcome of a query, and of others because of it.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) submission: Submission,
    /// Whether the confirmation task has something to do.
    pub(super) is_new: bool,
    /// Number of queries that were dropped.
    pub(super) dropped: u64,
}

/// The pending queries by age, and the pace of the URL.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: ScheduleLimits,
    /// The answers in use, which make queries needless.
    answers: CurrentAnswers,
    pending: BTreeMap<u64, PendingQuery>,
    /// Numbers of the pending queries by the first encoding of the key.
    numbers: HashMap<Fingerprint, u64>,
    next_number: u64,
    under_way: usize,
    pub(super) pace: SourcePace,
}

impl Schedule {
    pub(super) fn new(limits: ScheduleLimits, answers: CurrentAnswers, now: Instant) -> Self {
        Self {
            limits,
            answers,
            pending: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            under_way: 0,
            pace: SourcePace::new(limits.rate, now),
        }
    }

    /// Number of queries that wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Takes a query, unless its answer is known.
    pub(super) fn submit(&mut self, query: Query, now: Instant, wall: SystemTime) -> Submitted {
        let done = |submission| Submitted { submission, is_new: false, dropped: 0 };
        let Some((first, _)) = query.encodings.first() else { return done(Submission::NotSoon) };
        if self.is_answered(&query, wall) {
            return done(Submission::Answered);
        }
        let is_too_large = query.encodings.iter().any(|(_, spki)| spki.len() > MAX_SPKI);
        if is_too_large || query.encodings.len() > MAX_ENCODINGS {
            return Submitted { dropped: 1, ..done(Submission::NotSoon) };
        }
        if let Some(number) = self.numbers.get(first).copied() {
            if let Some(pending) = self.pending.get_mut(&number) {
                pending.submitted_at = now;
            }
            return done(self.prospect(number, now));
        }
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(*first, number);
        self.pending.insert(number, PendingQuery::new(query, self.first_stage(), now));
        let dropped = self.drop_oldest();
        Submitted { submission: self.prospect(number, now), is_new: true, dropped }
    }

    /// Whether the key is confirmed, or cleared in each encoding and not due.
    fn is_answered(&self, query: &Query, wall: SystemTime) -> bool {
        let answers = self.answers.load();
        let is_fresh = |fingerprint| {
            let until = answers.cleared_until(fingerprint);
            let left = until.and_then(|until| until.duration_since(wall).ok());
            left.is_some_and(|left| left > self.limits.stale_for)
        };
        self.is_confirmed(query) || query.encodings.iter().all(|(it, _)| is_fresh(it))
    }

    fn is_confirmed(&self, query: &Query) -> bool {
        let answers = self.answers.load();
        query.encodings.iter().any(|(fingerprint, _)| answers.is_confirmed(fingerprint))
    }

    fn first_stage(&self) -> Stage {
        if self.limits.has_directory { Stage::Directory } else { Stage::Url }
    }

    fn drop_oldest(&mut self) -> u64 {
        let mut dropped = 0;
        while self.pending.len() > MAX_PENDING {
            let mut idle = self.pending.iter().filter(|(_, it)| it.state != QueryState::UnderWay);
            let Some(number) = idle.next().map(|(number, _)| *number) else { break };
            self.remove(number);
            dropped += 1;
        }
        dropped
    }

    fn remove(&mut self, number: u64) {
        if let Some(pending) = self.pending.remove(&number)
            && let Some((first, _)) = pending.query.encodings.first()
        {
            self.numbers.remove(first);
        }
    }

    /// Whether the answer to a query may come within `wait`.
    fn prospect(&self, number: u64, now: Instant) -> Submission {
        match self.pending.get(&number) {
            Some(pending) if self.answers_in_time(number, pending, now) => {
                Submission::UnderWay(pending.subscribe())
            }
            Some(_) | None => Submission::NotSoon,
        }
    }

    fn answers_in_time(&self, number: u64, pending: &PendingQuery, now: Instant) -> bool {
        let starts_in_time = match pending.state {
            QueryState::BackingOff(until) => {
                until <= now + self.limits.wait && self.url_answers_in_time(number, now)
            }
            QueryState::Queued(Stage::Directory) | QueryState::UnderWay => true,
            QueryState::Queued(Stage::Url) => self.url_answers_in_time(number, now),
        };
        starts_in_time && !self.limits.wait.is_zero()
    }

    /// Whether the turn of the query with this number comes within `wait`.
    fn url_answers_in_time(&self, number: u64, now: Instant) -> bool {
        let order = self.pending.get(&number).map(|pending| pending.order(number));
        let is_ahead = |(number, pending): &(&u64, &PendingQuery)| {
            pending.state == QueryState::Queued(Stage::Url) && Some(pending.order(**number)) < order
        };
        let ahead = self.pending.iter().filter(is_ahead).count();
        self.pace.opens_within(self.limits.wait, ahead, now)
    }

    /// Starts the next query, if one may start now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Job> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        self.forget_unwanted(now);
        let is_url_open = self.pace.opens_at(now) <= now;
        let due = self.pending.iter().filter_map(|(number, pending)| {
            let stage = match pending.state {
                QueryState::Queued(stage) => stage,
                QueryState::BackingOff(until) if until <= now => self.first_stage(),
                QueryState::BackingOff(_) | QueryState::UnderWay => return None,
            };
            let may_start = stage == Stage::Directory || is_url_open;
            may_start.then_some((pending.order(*number), *number, stage))
        });
        let (_, number, stage) = due.min_by_key(|(order, ..)| *order)?;
        let pending = self.pending.get_mut(&number)?;
        pending.state = QueryState::UnderWay;
        self.under_way += 1;
        let query = Arc::clone(&pending.query);
        let directory_failed = pending.directory_failed;
        if stage == Stage::Url {
            self.pace.take_tokens(query.encodings.len(), now);
        }
        Some(Job { number, stage, query, directory_failed })
    }

    /// When a query may start next, unless one ends or comes before; `None` if none waits.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        let opens = self.pace.opens_at(now);
        let times = self.pending.values().filter_map(|pending| match pending.state {
            QueryState::BackingOff(until) => Some(match self.first_stage() {
                Stage::Directory => until,
                Stage::Url => until.max(opens),
            }),
            QueryState::Queued(Stage::Directory) => Some(now),
            QueryState::Queued(Stage::Url) => Some(opens),
            QueryState::UnderWay => None,
        });
        times.min()
    }

    /// Forgets due queries whose clients have not come back.
    fn forget_unwanted(&mut self, now: Instant) {
        let unwanted = self.pending.iter().filter(|(_, pending)| pending.is_unwanted(now));
        let unwanted: Vec<u64> = unwanted.map(|(number, _)| *number).collect();
        unwanted.into_iter().for_each(|number| self.remove(number));
    }

    /// Ends a job. Returns the time until the next attempt, if there is one.
    pub(super) fn finish(&mut self, number: u64, end: JobEnd, now: Instant) -> Option<Duration> {
        self.under_way = self.under_way.saturating_sub(1);
        let mut pending = self.pending.get_mut(&number);
        let pause = match end {
            JobEnd::Blocked(pause) => Some(pause),
            // The key may be the cause of a second failure.
            JobEnd::Failed if pending.as_ref().is_some_and(|it| it.has_paused_source) => None,
            JobEnd::Failed => self.pace.record_failure(now).inspect(|_| {
                pending.iter_mut().for_each(|it| it.has_paused_source = true);
            }),
            JobEnd::Answered
            | JobEnd::DirectoryFailed
            | JobEnd::NotInDirectory
            | JobEnd::Unanswered(_) => None,
        };
        if let Some(pause) = pause {
            self.pause(pause, now);
        }
        let is_confirmed = self.pending.get(&number).is_some_and(|it| self.is_confirmed(&it.query));
        let pending = self.pending.get_mut(&number)?;
        if pending.take_outdated() && !is_confirmed {
            pending.look_again(end, now);
            return Some(Duration::ZERO);
        }
        match end {
            JobEnd::Answered => {
                pending.wake_answered();
                self.remove(number);
                None
            }
            JobEnd::NotInDirectory | JobEnd::DirectoryFailed => {
                pending.directory_failed = end == JobEnd::DirectoryFailed;
                let retry = pending.go_on_to_url(now);
                self.wake_unless_in_time(number, now);
                Some(retry)
            }
            JobEnd::Blocked(pause) => {
                pending.wait_for(pause, now);
                Some(pause)
            }
            JobEnd::Failed => Some(pending.back_off(None, now)),
            JobEnd::Unanswered(pause) => Some(pending.back_off(pause, now)),
        }
    }

    /// Wakes the connections that are held for a query, unless the answer may come in time.
    fn wake_unless_in_time(&mut self, number: u64, now: Instant) {
        let Some(pending) = self.pending.get(&number) else { return };
        if !self.answers_in_time(number, pending, now)
            && let Some(pending) = self.pending.get_mut(&number)
        {
            pending.wake();
        }
    }

    /// Sends the URL no query for this time.
    pub(super) fn pause(&mut self, time: Duration, now: Instant) {
        self.pace.pause(time, now);
        if time <= self.limits.wait {
            return;
        }
        for pending in self.pending.values_mut() {
            if let QueryState::BackingOff(_) | QueryState::Queued(Stage::Url) = pending.state {
                pending.wake();
            }
        }
    }

    /// Ends all back-offs of queries, because the directory has changed. The URL gets them no
    /// sooner.
    pub(super) fn retry_directory(&mut self) {
        self.pending.values_mut().for_each(PendingQuery::retry_directory);
    }
}

#[cfg(test)]
mod tests;
