//! The order of the questions: single flight, a rate, back-off, and a bounded queue.
//!
//! Pure: the time is a parameter, and nothing here does I/O.

mod known_answers;
mod pending_question;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use keygate_core::spki::Fingerprint;

use self::known_answers::KnownAnswers;
pub(super) use self::pending_question::{Finished, Stage};
use self::pending_question::{PendingQuestion, QuestionState};
use super::pace::SourcePace;
use super::question::{Ask, Question};

/// Maximum number of questions that wait: queued, backing off and under way. Above it, the oldest
/// one that is not under way is dropped.
pub(super) const MAX_PENDING: usize = 1024;
/// Maximum number of questions under way.
pub(super) const MAX_UNDER_WAY: usize = 4;
/// Maximum size of a SubjectPublicKeyInfo that is asked about, in bytes. No proof is defined for
/// keys of more than 1.1 KiB.
const MAX_SPKI: usize = 4 << 10;
/// Maximum number of encodings of a key; no key has more related ones.
const MAX_ENCODINGS: usize = 4;

/// The settings of a schedule.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScheduleLimits {
    /// Maximum number of questions a second to the URL.
    pub(super) rate: u32,
    /// Maximum time for which a connection is held.
    pub(super) wait: Duration,
    /// Whether there is a directory, which is consulted without the rate.
    pub(super) has_directory: bool,
}

/// A question that is to be asked now.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) stage: Stage,
    pub(super) question: Arc<Question>,
    /// Whether the directories had a file that is no readable proof of the key. It may be the
    /// proof, so that a 404 of the URL does not clear the key.
    pub(super) directory_failed: bool,
}

/// What a question became, and whether another one was dropped for it.
#[derive(Debug)]
pub(super) struct AskOutcome {
    pub(super) ask: Ask,
    /// Whether the asking task has something to do.
    pub(super) is_new: bool,
    /// Number of questions that were dropped.
    pub(super) dropped: u64,
}

/// The questions that wait, by age, and the answers that make questions needless.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: ScheduleLimits,
    pending: BTreeMap<u64, PendingQuestion>,
    /// Numbers of the pending questions by the first encoding of the key.
    numbers: HashMap<Fingerprint, u64>,
    next_number: u64,
    under_way: usize,
    known: KnownAnswers,
    /// The pace of the URL.
    pace: SourcePace,
}

impl Schedule {
    pub(super) fn new(limits: ScheduleLimits, now: Instant) -> Self {
        Self {
            limits,
            pending: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            under_way: 0,
            known: KnownAnswers::default(),
            pace: SourcePace::new(limits.rate, now),
        }
    }

    /// Number of questions that wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Takes a question, unless its answer is known.
    pub(super) fn ask(&mut self, question: Question, now: Instant, wall: SystemTime) -> AskOutcome {
        let done = |ask| AskOutcome { ask, is_new: false, dropped: 0 };
        let Some((first, _)) = question.encodings.first() else { return done(Ask::NotSoon) };
        if self.known.are_enough_for(&question, wall) {
            return done(Ask::Answered);
        }
        let is_too_large = question.encodings.iter().any(|(_, spki)| spki.len() > MAX_SPKI);
        if is_too_large || question.encodings.len() > MAX_ENCODINGS {
            return AskOutcome { ask: Ask::NotSoon, is_new: false, dropped: 1 };
        }
        if let Some(number) = self.numbers.get(first).copied() {
            if let Some(pending) = self.pending.get_mut(&number) {
                pending.record_asked(now);
            }
            return done(self.prospect(number, now));
        }
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(*first, number);
        let pending = PendingQuestion::new(question, self.first_stage(), now);
        self.pending.insert(number, pending);
        let dropped = self.drop_oldest();
        AskOutcome { ask: self.prospect(number, now), is_new: true, dropped }
    }

    fn first_stage(&self) -> Stage {
        if self.limits.has_directory { Stage::Directory } else { Stage::Url }
    }

    fn drop_oldest(&mut self) -> u64 {
        let mut dropped = 0;
        while self.pending.len() > MAX_PENDING {
            let mut idle =
                self.pending.iter().filter(|(_, it)| it.state != QuestionState::UnderWay);
            let Some(number) = idle.next().map(|(number, _)| *number) else { break };
            self.remove(number);
            dropped += 1;
        }
        dropped
    }

    fn remove(&mut self, number: u64) {
        if let Some(pending) = self.pending.remove(&number)
            && let Some((first, _)) = pending.question.encodings.first()
        {
            self.numbers.remove(first);
        }
    }

    /// Whether the answer to a question may come within `wait`.
    fn prospect(&self, number: u64, now: Instant) -> Ask {
        match self.pending.get(&number) {
            Some(pending) if self.answers_in_time(number, pending, now) => {
                Ask::UnderWay(pending.subscribe())
            }
            Some(_) | None => Ask::NotSoon,
        }
    }

    fn answers_in_time(&self, number: u64, pending: &PendingQuestion, now: Instant) -> bool {
        let starts_in_time = match pending.state {
            QuestionState::BackingOff(until) => {
                until <= now + self.limits.wait && self.url_answers_in_time(number, now)
            }
            QuestionState::Queued(Stage::Directory) | QuestionState::UnderWay => true,
            QuestionState::Queued(Stage::Url) => self.url_answers_in_time(number, now),
        };
        starts_in_time && !self.limits.wait.is_zero()
    }

    /// Whether the URL may be asked the question with this number within `wait`.
    fn url_answers_in_time(&self, number: u64, now: Instant) -> bool {
        let order = self.pending.get(&number).map(|pending| pending.order(number));
        let is_ahead = |(number, pending): &(&u64, &PendingQuestion)| {
            pending.state == QuestionState::Queued(Stage::Url)
                && Some(pending.order(**number)) < order
        };
        let ahead = self.pending.iter().filter(is_ahead).count();
        self.pace.opens_within(self.limits.wait, ahead, now)
    }

    /// The next question to ask, if one may be asked now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Job> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        self.forget_unwanted(now);
        let may_ask_url = self.pace.opens_at(now) <= now;
        let due = self.pending.iter().filter_map(|(number, pending)| {
            let stage = match pending.state {
                QuestionState::Queued(stage) => stage,
                QuestionState::BackingOff(until) if until <= now => self.first_stage(),
                QuestionState::BackingOff(_) | QuestionState::UnderWay => return None,
            };
            let may_ask = stage == Stage::Directory || may_ask_url;
            may_ask.then_some((pending.order(*number), *number, stage))
        });
        let (_, number, stage) = due.min_by_key(|(order, ..)| *order)?;
        if stage == Stage::Url {
            self.take_tokens(1.0, now);
        }
        let pending = self.pending.get_mut(&number)?;
        pending.state = QuestionState::UnderWay;
        self.under_way += 1;
        Some(Job {
            number,
            stage,
            question: Arc::clone(&pending.question),
            directory_failed: pending.directory_failed,
        })
    }

    /// When a question may be asked next, unless one ends or comes before; `None` if none waits.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        let opens = self.pace.opens_at(now);
        let times = self.pending.values().filter_map(|pending| match pending.state {
            QuestionState::BackingOff(until) => Some(match self.first_stage() {
                Stage::Directory => until,
                Stage::Url => until.max(opens),
            }),
            QuestionState::Queued(Stage::Directory) => Some(now),
            QuestionState::Queued(Stage::Url) => Some(opens),
            QuestionState::UnderWay => None,
        });
        times.min()
    }

    /// Forgets due questions whose clients have not come back.
    fn forget_unwanted(&mut self, now: Instant) {
        let unwanted = self.pending.iter().filter(|(_, pending)| pending.is_unwanted(now));
        let unwanted: Vec<u64> = unwanted.map(|(number, _)| *number).collect();
        unwanted.into_iter().for_each(|number| self.remove(number));
    }

    /// Takes tokens for requests to the URL. Further requests wait until all of them are refilled.
    pub(super) fn take_tokens(&mut self, count: f64, now: Instant) {
        self.pace.take_tokens(count, now);
    }

    /// Ends a job. Returns the time until the next attempt, if there is one.
    pub(super) fn finish(
        &mut self,
        number: u64,
        finished: Finished,
        now: Instant,
    ) -> Option<Duration> {
        self.under_way = self.under_way.saturating_sub(1);
        let mut pending = self.pending.get_mut(&number);
        let pause = match finished {
            Finished::Blocked(pause) => Some(pause),
            // The key may be the cause of a second failure.
            Finished::Failed if pending.as_ref().is_some_and(|it| it.has_paused_source) => None,
            Finished::Failed => self.pace.record_failure(now).inspect(|_| {
                pending.iter_mut().for_each(|it| it.has_paused_source = true);
            }),
            Finished::Answered
            | Finished::DirectoryFailed
            | Finished::NotInDirectory
            | Finished::Unanswered(_) => None,
        };
        if let Some(pause) = pause {
            self.pause(pause, now);
        }
        let pending = self.pending.get_mut(&number)?;
        if pending.take_outdated() && !self.known.is_confirmed(&pending.question) {
            pending.look_again(finished, now);
            return Some(Duration::ZERO);
        }
        match finished {
            Finished::Answered => {
                pending.wake_answered();
                self.remove(number);
                None
            }
            Finished::NotInDirectory | Finished::DirectoryFailed => {
                let directory_failed = finished == Finished::DirectoryFailed;
                let retry = pending.go_on_to_url(directory_failed, now);
                self.wake_unless_in_time(number, now);
                Some(retry)
            }
            Finished::Blocked(pause) => {
                pending.wait_for(pause, now);
                Some(pause)
            }
            Finished::Failed => Some(pending.back_off(None, now)),
            Finished::Unanswered(pause) => Some(pending.back_off(pause, now)),
        }
    }

    /// Wakes the connections that are held for a question, unless the answer may come in time.
    fn wake_unless_in_time(&mut self, number: u64, now: Instant) {
        let Some(pending) = self.pending.get(&number) else { return };
        if !self.answers_in_time(number, pending, now)
            && let Some(pending) = self.pending.get_mut(&number)
        {
            pending.wake();
        }
    }

    /// Asks the URL nothing for this time.
    pub(super) fn pause(&mut self, time: Duration, now: Instant) {
        self.pace.pause(time, now);
        if time <= self.limits.wait {
            return;
        }
        for pending in self.pending.values_mut() {
            if let QuestionState::BackingOff(_) | QuestionState::Queued(Stage::Url) = pending.state
            {
                pending.wake();
            }
        }
    }

    /// Records that the source works. Returns whether it had failed before.
    pub(super) fn record_response(&mut self) -> bool {
        self.pace.record_response()
    }

    /// Records that a key is cleared, and when it is asked about again.
    pub(super) fn set_cleared(&mut self, fingerprint: Fingerprint, due: SystemTime) {
        self.known.set_cleared(fingerprint, due);
    }

    /// Records that the compromise of a key is proved.
    pub(super) fn set_confirmed(&mut self, fingerprint: Fingerprint) {
        self.known.set_confirmed(fingerprint);
    }

    /// Forgets that a key was cleared.
    pub(super) fn forget_cleared(&mut self, fingerprint: &Fingerprint) {
        self.known.forget_cleared(fingerprint);
    }

    /// Ends all back-offs of questions, because the directory has changed. The URL is asked no
    /// sooner.
    pub(super) fn retry_directory(&mut self) {
        self.pending.values_mut().for_each(PendingQuestion::retry_directory);
    }
}
