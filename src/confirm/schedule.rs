//! The order of the questions: single flight, a rate, back-off, and a bounded queue.
//!
//! Pure: the time is a parameter, and nothing here does I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::questions::{Ask, Question, UnderWay};
use crate::spki::Fingerprint;

/// Maximum number of questions that wait: queued, backing off and under way. Above it, the oldest
/// one that is not under way is dropped.
pub(super) const MAX_PENDING: usize = 1024;
/// Maximum number of questions under way.
pub(super) const MAX_UNDER_WAY: usize = 4;
/// Number of questions that may be asked at once, after a pause.
const BURST: f64 = 10.0;
/// Back-off after a failure, 1 s; doubled with each failure in a row.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// Maximum back-off after failures, 5 min.
const MAX_BACK_OFF: Duration = Duration::from_secs(5 * 60);
/// Time after which a question that no client has caused again is forgotten, 24 h.
const FORGET_AFTER: Duration = Duration::from_secs(86_400);
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

/// The place where a question is asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Directories, without the rate.
    Directory,
    /// The URL, within the rate.
    Url,
}

/// A question that is to be asked now.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) stage: Stage,
    pub(super) question: Arc<Question>,
    /// Whether the directories had a file that is no readable proof of the key. It may be the proof,
    /// so that a 404 of the URL does not clear the key.
    pub(super) directory_failed: bool,
}

/// How a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finished {
    /// The answer is in use.
    Answered,
    /// The source wants no questions for this time. The question stays in the queue.
    Blocked(Duration),
    /// No answer; ask again after a back-off. The source itself has failed.
    Failed,
    /// The directories have no answer; ask the URL.
    NotInDirectory,
    /// The directories have a file that is no readable proof; ask the URL, which clears no key.
    DirectoryFailed,
    /// No answer, although the source works; ask again after this time, or after a back-off.
    Unanswered(Option<Duration>),
}

/// What a question became, and whether another one was dropped for it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) ask: Ask,
    /// Whether the asking task has something to do.
    pub(super) is_new: bool,
    /// Number of questions that were dropped.
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct Entry {
    question: Arc<Question>,
    state: State,
    failures: u32,
    /// End of a back-off that a change of the directory has cut short for the directory alone.
    url_not_before: Option<Instant>,
    /// Whether the last look into the directories has failed.
    directory_failed: bool,
    /// Whether the directory has changed while the question was under way.
    is_outdated: bool,
    /// Dropped when the question is answered, or when no answer comes soon.
    ended: watch::Sender<()>,
    /// When a client caused the question the last time.
    asked_at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    BackingOff(Instant),
    Queued(Stage),
    UnderWay,
}

/// The answer about an encoding, as far as questions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Cleared, and asked about again from this time on.
    Cleared(SystemTime),
    Confirmed,
}

/// The questions that wait, by age, and the answers that make questions needless.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: ScheduleLimits,
    entries: BTreeMap<u64, Entry>,
    /// Numbers of the entries by the first encoding of the key.
    numbers: HashMap<Fingerprint, u64>,
    next_number: u64,
    under_way: usize,
    known: HashMap<Fingerprint, Known>,
    /// Questions that may be asked at once, at `refilled_at`.
    tokens: f64,
    refilled_at: Instant,
    /// The URL is not asked before this time.
    paused_until: Option<Instant>,
    /// Failures of the source in a row.
    source_failures: u32,
    /// Whether the source does not know its canary.
    is_canary_missing: bool,
}

impl Schedule {
    pub(super) fn new(limits: ScheduleLimits, now: Instant) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            under_way: 0,
            known: HashMap::new(),
            tokens: BURST,
            refilled_at: now,
            paused_until: None,
            source_failures: 0,
            is_canary_missing: false,
        }
    }

    /// Number of questions that wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.entries.len()
    }

    /// Takes a question, unless its answer is known.
    pub(super) fn ask(&mut self, question: Question, now: Instant, wall: SystemTime) -> Asked {
        let done = |ask| Asked { ask, is_new: false, dropped: 0 };
        let Some((first, _)) = question.encodings.first() else { return done(Ask::NotSoon) };
        if self.is_answered(&question, wall) {
            return done(Ask::Answered);
        }
        let is_too_large = question.encodings.iter().any(|(_, spki)| spki.len() > MAX_SPKI);
        if is_too_large || question.encodings.len() > MAX_ENCODINGS {
            return Asked { ask: Ask::NotSoon, is_new: false, dropped: 1 };
        }
        if let Some(number) = self.numbers.get(first).copied() {
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.asked_at = now;
            }
            return done(self.prospect(number, now));
        }
        let number = self.next_number;
        self.next_number += 1;
        let first_stage = if self.limits.has_directory { Stage::Directory } else { Stage::Url };
        self.numbers.insert(*first, number);
        let entry = Entry {
            question: Arc::new(question),
            state: State::Queued(first_stage),
            failures: 0,
            url_not_before: None,
            directory_failed: false,
            is_outdated: false,
            ended: watch::Sender::new(()),
            asked_at: now,
        };
        self.entries.insert(number, entry);
        let dropped = self.drop_oldest();
        Asked { ask: self.prospect(number, now), is_new: true, dropped }
    }

    /// Whether the key is confirmed, or cleared and not due to be asked about again.
    fn is_answered(&self, question: &Question, wall: SystemTime) -> bool {
        let mut known = question.encodings.iter().map(|(it, _)| self.known.get(it));
        known.clone().any(|known| known == Some(&Known::Confirmed))
            || known.all(|known| matches!(known, Some(Known::Cleared(due)) if wall < *due))
    }

    fn drop_oldest(&mut self) -> u64 {
        let mut dropped = 0;
        while self.entries.len() > MAX_PENDING {
            let mut idle = self.entries.iter().filter(|(_, it)| it.state != State::UnderWay);
            let Some(number) = idle.next().map(|(number, _)| *number) else { break };
            self.remove(number);
            dropped += 1;
        }
        dropped
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number)
            && let Some((first, _)) = entry.question.encodings.first()
        {
            self.numbers.remove(first);
        }
    }

    /// Whether the answer to a question may come within `wait`.
    fn prospect(&self, number: u64, now: Instant) -> Ask {
        match self.entries.get(&number) {
            Some(entry) if self.answers_in_time(number, entry, now) => {
                Ask::UnderWay(UnderWay::new(entry.ended.subscribe()))
            }
            Some(_) | None => Ask::NotSoon,
        }
    }

    fn answers_in_time(&self, number: u64, entry: &Entry, now: Instant) -> bool {
        let latest = now + self.limits.wait;
        let starts_in_time = match entry.state {
            State::BackingOff(until) => until <= latest && self.url_answers_by(number, now, latest),
            State::Queued(Stage::Directory) | State::UnderWay => true,
            State::Queued(Stage::Url) => self.url_answers_by(number, now, latest),
        };
        starts_in_time && !self.limits.wait.is_zero() && !self.is_canary_missing
    }

    /// Wakes the connections that are held for a question, unless the answer may come in time.
    fn wake_unless_in_time(&mut self, number: u64, now: Instant) {
        let Some(entry) = self.entries.get(&number) else { return };
        if !self.answers_in_time(number, entry, now)
            && let Some(entry) = self.entries.get_mut(&number)
        {
            entry.ended = watch::Sender::new(());
        }
    }

    /// Whether the URL may be asked the question with this number until `latest`.
    fn url_answers_by(&self, number: u64, now: Instant, latest: Instant) -> bool {
        if self.paused_until.is_some_and(|until| until > latest) {
            return false;
        }
        let order = self.entries.get(&number).map(|entry| (entry.failures, number));
        let is_ahead = |(number, entry): &(&u64, &Entry)| {
            entry.state == State::Queued(Stage::Url) && Some((entry.failures, **number)) < order
        };
        let ahead = self.entries.iter().filter(is_ahead).count();
        let tokens = self.tokens_at(now) + self.rate() * self.limits.wait.as_secs_f64();
        (ahead as f64) < tokens
    }

    fn rate(&self) -> f64 {
        f64::from(self.limits.rate)
    }

    fn tokens_at(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.refilled_at).as_secs_f64();
        (self.tokens + elapsed * self.rate()).min(BURST)
    }

    /// The next question to ask, if one may be asked now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Job> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        self.forget_unwanted(now);
        let may_ask_url = self.url_open_at(now).is_ok();
        let due = self.entries.iter().filter_map(|(number, entry)| {
            let stage = match entry.state {
                State::Queued(stage) => stage,
                State::BackingOff(until) if until <= now => self.retry_stage(),
                State::BackingOff(_) | State::UnderWay => return None,
            };
            let may_ask = stage == Stage::Directory || may_ask_url;
            may_ask.then_some((entry.failures, *number, stage))
        });
        // A question that failed often gives way, so that it cannot use up the rate.
        let (_, number, stage) = due.min_by_key(|(failures, number, _)| (*failures, *number))?;
        if stage == Stage::Url {
            self.take_tokens(1.0, now);
        }
        let entry = self.entries.get_mut(&number)?;
        entry.state = State::UnderWay;
        self.under_way += 1;
        Some(Job {
            number,
            stage,
            question: Arc::clone(&entry.question),
            directory_failed: entry.directory_failed,
        })
    }

    /// When a question may be asked next, unless one ends or comes before; `None` if none waits.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.under_way >= MAX_UNDER_WAY {
            return None;
        }
        let opens = self.url_open_at(now).err().unwrap_or(now);
        let times = self.entries.values().filter_map(|entry| match entry.state {
            State::BackingOff(until) => Some(match self.retry_stage() {
                Stage::Directory => until,
                Stage::Url => until.max(opens),
            }),
            State::Queued(Stage::Directory) => Some(now),
            State::Queued(Stage::Url) => Some(opens),
            State::UnderWay => None,
        });
        times.min()
    }

    fn retry_stage(&self) -> Stage {
        if self.limits.has_directory { Stage::Directory } else { Stage::Url }
    }

    /// Forgets due questions whose clients have not come back.
    fn forget_unwanted(&mut self, now: Instant) {
        let is_unwanted = |entry: &Entry| {
            matches!(entry.state, State::BackingOff(until) if until <= now)
                && now.saturating_duration_since(entry.asked_at) >= FORGET_AFTER
        };
        let unwanted = self.entries.iter().filter(|(_, entry)| is_unwanted(entry));
        let unwanted: Vec<u64> = unwanted.map(|(number, _)| *number).collect();
        unwanted.into_iter().for_each(|number| self.remove(number));
    }

    /// Whether the URL may be asked now, or when it may.
    fn url_open_at(&self, now: Instant) -> Result<(), Instant> {
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            return Err(until);
        }
        let missing = 1.0 - self.tokens_at(now);
        if missing <= 0.0 {
            return Ok(());
        }
        Err(now + Duration::from_secs_f64(missing / self.rate()))
    }

    /// Takes tokens for requests to the URL. Further requests wait until all of them are refilled.
    pub(super) fn take_tokens(&mut self, count: f64, now: Instant) {
        self.tokens = self.tokens_at(now) - count;
        self.refilled_at = now;
    }

    /// Ends a job. Returns the time until the next attempt, if there is one.
    pub(super) fn finish(
        &mut self,
        number: u64,
        finished: Finished,
        now: Instant,
    ) -> Option<Duration> {
        self.under_way = self.under_way.saturating_sub(1);
        if let Finished::Blocked(pause) = finished {
            self.pause(pause, now);
        }
        // Questions that were under way together have failed for one reason.
        let is_paused = self.paused_until.is_some_and(|until| until > now);
        if finished == Finished::Failed && !is_paused {
            self.source_failures = self.source_failures.saturating_add(1);
            self.pause(back_off(self.source_failures), now);
        }
        let is_confirmed = self.is_confirmed(number);
        let entry = self.entries.get_mut(&number)?;
        if std::mem::take(&mut entry.is_outdated) && !is_confirmed {
            // The directory may have a proof now.
            if let Finished::Blocked(_) | Finished::Failed | Finished::Unanswered(None) = finished {
                entry.failures = entry.failures.saturating_add(1);
                entry.url_not_before = Some(now + back_off(entry.failures));
            }
            entry.state = State::Queued(Stage::Directory);
            if finished != Finished::NotInDirectory {
                entry.ended = watch::Sender::new(()); // wakes the held connections
            }
            return Some(Duration::ZERO);
        }
        let retry = match finished {
            Finished::Answered => {
                entry.ended.send_replace(());
                self.remove(number);
                return None;
            }
            Finished::NotInDirectory | Finished::DirectoryFailed => {
                entry.directory_failed = finished == Finished::DirectoryFailed;
                let resumed = entry.url_not_before.filter(|until| *until > now);
                entry.state = resumed.map_or(State::Queued(Stage::Url), State::BackingOff);
                self.wake_unless_in_time(number, now);
                let retry = resumed.map(|until| until.saturating_duration_since(now));
                return Some(retry.unwrap_or_default());
            }
            Finished::Blocked(pause) => pause,
            Finished::Failed | Finished::Unanswered(None) => {
                entry.failures = entry.failures.saturating_add(1);
                back_off(entry.failures)
            }
            Finished::Unanswered(Some(time)) => {
                entry.failures = entry.failures.saturating_add(1);
                jittered(time)
            }
        };
        entry.state = State::BackingOff(now + retry);
        entry.url_not_before = None;
        entry.ended = watch::Sender::new(()); // wakes the held connections
        Some(retry)
    }

    /// Whether the compromise of the key of a question is proved.
    fn is_confirmed(&self, number: u64) -> bool {
        self.entries.get(&number).is_some_and(|entry| {
            let mut encodings = entry.question.encodings.iter();
            encodings.any(|(it, _)| self.known.get(it) == Some(&Known::Confirmed))
        })
    }

    /// Asks the URL nothing for this time.
    pub(super) fn pause(&mut self, time: Duration, now: Instant) {
        let until = now + time;
        self.paused_until = Some(self.paused_until.map_or(until, |before| before.max(until)));
        if until > now + self.limits.wait {
            for entry in self.entries.values_mut() {
                if let State::BackingOff(_) | State::Queued(Stage::Url) = entry.state {
                    entry.ended = watch::Sender::new(()); // wakes the held connections
                }
            }
        }
    }

    /// Records that the source works. Returns whether it had failed before.
    pub(super) fn record_response(&mut self) -> bool {
        std::mem::take(&mut self.source_failures) > 0
    }

    /// Records whether the source knows its canary.
    pub(super) fn set_canary_missing(&mut self, is_missing: bool) {
        self.is_canary_missing = is_missing;
    }

    /// Records that a key is cleared, and when it is asked about again.
    pub(super) fn set_cleared(&mut self, fingerprint: Fingerprint, due: SystemTime) {
        self.known.insert(fingerprint, Known::Cleared(due));
    }

    /// Records that the compromise of a key is proved.
    pub(super) fn set_confirmed(&mut self, fingerprint: Fingerprint) {
        self.known.insert(fingerprint, Known::Confirmed);
    }

    /// Forgets that a key was cleared.
    pub(super) fn forget_cleared(&mut self, fingerprint: &Fingerprint) {
        if let Some(Known::Cleared(_)) = self.known.get(fingerprint) {
            self.known.remove(fingerprint);
        }
    }

    /// Ends all back-offs of questions, because the directory has changed. The URL is asked no
    /// sooner.
    pub(super) fn retry_directory(&mut self) {
        for entry in self.entries.values_mut() {
            match entry.state {
                State::BackingOff(until) => entry.url_not_before = Some(until),
                State::Queued(Stage::Url) => {}
                State::Queued(Stage::Directory) => continue,
                State::UnderWay => {
                    entry.is_outdated = true;
                    continue;
                }
            }
            entry.state = State::Queued(Stage::Directory);
        }
    }
}

/// The back-off after this number of failures in a row, within 10 % of its value.
pub(super) fn back_off(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    jittered(FIRST_BACK_OFF.saturating_mul(1 << doublings).min(MAX_BACK_OFF))
}

/// `time`, changed by up to 10 %, so that many questions do not become due at once.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(has_directory: bool) -> (Schedule, Instant) {
        let now = Instant::now();
        let limits = ScheduleLimits { rate: 1, wait: 2 * SECOND, has_directory };
        (Schedule::new(limits, now), now)
    }

    fn question(key: u64) -> Question {
        let spki: Arc<[u8]> = key.to_be_bytes().as_slice().into();
        Question { encodings: smallvec![(Fingerprint::of(&spki), spki)], position: 0 }
    }

    impl Schedule {
        fn put(&mut self, key: u64, now: Instant) -> Ask {
            self.ask(question(key), now, SystemTime::UNIX_EPOCH).ask
        }
    }

    fn is_soon(ask: &Ask) -> bool {
        matches!(ask, Ask::UnderWay(_))
    }

    #[test]
    fn a_key_is_asked_about_once_for_all_waiters() {
        let (mut schedule, now) = schedule(false);
        assert!(is_soon(&schedule.put(1, now)) && is_soon(&schedule.put(1, now)));
        let job = schedule.next(now).unwrap();
        assert!(is_soon(&schedule.put(1, now)));
        assert!(schedule.next(now).is_none() && schedule.pending() == 1);
        schedule.finish(job.number, Finished::Answered, now);
        assert_eq!(schedule.pending(), 0);
    }

    #[test]
    fn at_most_four_questions_are_under_way() {
        let (mut schedule, now) = schedule(true);
        (0..9).for_each(|key| drop(schedule.put(key, now)));
        let jobs: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
        assert_eq!(jobs.len(), 4);
        schedule.finish(jobs[0].number, Finished::Answered, now);
        assert!(schedule.next(now).is_some() && schedule.next(now).is_none());
    }

    #[test]
    fn the_url_is_asked_in_bursts_of_ten_and_then_at_the_rate() {
        let (mut schedule, now) = schedule(false);
        (0..20).for_each(|key| drop(schedule.put(key, now)));
        let mut asked_at = |at: Instant| {
            let mut asked = 0;
            while let Some(job) = schedule.next(at) {
                schedule.finish(job.number, Finished::Answered, at);
                asked += 1;
            }
            asked
        };
        assert_eq!(asked_at(now), 10);
        assert_eq!((asked_at(now + SECOND / 2), asked_at(now + SECOND)), (0, 1));
        assert_eq!(asked_at(now + 4 * SECOND), 3);
        assert_eq!(asked_at(now + 3600 * SECOND), 6);
    }

    #[test]
    fn an_answer_comes_soon_if_the_rate_allows_the_question_within_the_wait() {
        let (mut schedule, now) = schedule(false);
        let soon = (0..20).filter(|key| is_soon(&schedule.put(*key, now))).count();
        assert_eq!(soon, 12, "a burst of 10, and 2 in the two seconds of the wait");
    }

    #[test]
    fn a_directory_is_consulted_without_the_rate_and_before_the_url() {
        let (mut schedule, now) = schedule(true);
        schedule.take_tokens(10.0, now);
        schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        assert_eq!(job.stage, Stage::Directory);
        schedule.finish(job.number, Finished::NotInDirectory, now);
        assert!(schedule.next(now).is_none());
        assert_eq!(schedule.next_wake(now), Some(now + SECOND));
        assert_eq!(schedule.next(now + SECOND).unwrap().stage, Stage::Url);
    }

    #[test]
    fn a_failure_of_the_directory_goes_with_the_question_to_the_url() {
        let (mut schedule, now) = schedule(true);
        schedule.put(1, now);
        for (finished, directory_failed) in
            [(Finished::DirectoryFailed, true), (Finished::NotInDirectory, false)]
        {
            let job = schedule.next(now + 10 * SECOND).unwrap();
            assert_eq!(job.stage, Stage::Directory);
            schedule.finish(job.number, finished, now);
            let job = schedule.next(now).unwrap();
            assert_eq!((job.stage, job.directory_failed), (Stage::Url, directory_failed));
            schedule.finish(job.number, Finished::Unanswered(None), now);
        }
    }

    #[test]
    fn the_end_of_a_back_off_wakes_nobody_while_the_url_may_not_be_asked() {
        let (mut schedule, now) = schedule(false);
        schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        schedule.finish(job.number, Finished::Unanswered(None), now);
        schedule.pause(3600 * SECOND, now);
        let later = now + 60 * SECOND;
        assert!(schedule.next(later).is_none());
        assert_eq!(schedule.next_wake(later), Some(now + 3600 * SECOND));
        let later = now + 3600 * SECOND;
        schedule.take_tokens(10.0, later);
        assert!(schedule.next(later).is_none());
        assert_eq!(schedule.next_wake(later), Some(later + SECOND));
        assert!(schedule.next(later + SECOND).is_some());
    }

    /// Whether the connections that are held for the answer are woken.
    fn is_woken(ask: &Ask) -> bool {
        let Ask::UnderWay(under_way) = ask else { panic!("{ask:?}") };
        let mut under_way = under_way.clone();
        let ended = std::pin::pin!(under_way.ended());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        ended.poll(&mut context).is_ready()
    }

    #[test]
    fn held_connections_are_woken_if_the_url_is_paused_after_the_directory() {
        let (mut schedule, now) = schedule(true);
        schedule.pause(600 * SECOND, now);
        let ask = schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        assert!(!is_woken(&ask), "the directory may have a proof");
        schedule.finish(job.number, Finished::NotInDirectory, now);
        assert!(is_woken(&ask));
        assert!(!is_soon(&schedule.put(1, now)));
        // Shortly before the end of the pause, the connections are held on.
        let later = now + 599 * SECOND;
        let ask = schedule.put(2, later);
        let job = schedule.next(later).unwrap();
        schedule.finish(job.number, Finished::NotInDirectory, later);
        assert!(!is_woken(&ask));
    }

    #[test]
    fn a_pause_wakes_the_held_connections_of_all_queued_questions() {
        let (mut schedule, now) = schedule(false);
        let (first, second) = (schedule.put(1, now), schedule.put(2, now));
        let job = schedule.next(now).unwrap();
        schedule.pause(SECOND, now);
        assert!(!is_woken(&first) && !is_woken(&second), "the pause ends within the wait");
        schedule.finish(job.number, Finished::Blocked(600 * SECOND), now);
        assert!(is_woken(&first) && is_woken(&second));
    }

    #[test]
    fn a_change_of_the_directory_does_not_end_the_back_off_of_the_url() {
        let (mut schedule, now) = schedule(true);
        schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        schedule.finish(job.number, Finished::NotInDirectory, now);
        let job = schedule.next(now).unwrap();
        schedule.finish(job.number, Finished::Unanswered(Some(3600 * SECOND)), now);
        let due = schedule.next_wake(now).unwrap();
        for _ in 0..2 {
            schedule.retry_directory();
            let job = schedule.next(now).unwrap();
            assert_eq!(job.stage, Stage::Directory);
            schedule.finish(job.number, Finished::NotInDirectory, now);
            assert!(schedule.next(now).is_none());
            assert_eq!(schedule.next_wake(now), Some(due));
        }
        let job = schedule.next(due).unwrap();
        schedule.finish(job.number, Finished::NotInDirectory, due);
        assert_eq!(schedule.next(due).unwrap().stage, Stage::Url);
    }

    #[test]
    fn questions_that_failed_often_do_not_use_up_the_rate() {
        let (mut schedule, now) = schedule(false);
        (0..300).for_each(|key| drop(schedule.put(key, now)));
        let mut later = now;
        for _ in 0..300 {
            later += SECOND;
            let job = schedule.next(later).unwrap();
            schedule.finish(job.number, Finished::Unanswered(None), later);
        }
        // All are due again, and none of them is ahead of a new question.
        later += 3600 * SECOND;
        schedule.take_tokens(10.0, later);
        assert!(is_soon(&schedule.put(300, later)));
        let job = schedule.next(later + SECOND).unwrap();
        assert_eq!(job.question.encodings[0].0, question(300).encodings[0].0);
    }

    #[test]
    fn questions_under_way_that_fail_together_count_as_one_failure_of_the_source() {
        let (mut schedule, now) = schedule(false);
        (0..4).for_each(|key| drop(schedule.put(key, now)));
        let jobs: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
        assert_eq!(jobs.len(), 4);
        for job in &jobs {
            schedule.finish(job.number, Finished::Failed, now);
        }
        let later = now + 2 * SECOND;
        let job = schedule.next(later).expect("the first pause of the source is 1 s");
        schedule.finish(job.number, Finished::Failed, later);
        assert!(schedule.next(later + SECOND).is_none());
        assert!(schedule.next(later + 3 * SECOND).is_some());
    }

    #[test]
    fn a_change_of_the_directory_during_a_question_has_it_looked_into_again() {
        for finished in [
            Finished::Answered, // cleared
            Finished::Failed,
            Finished::NotInDirectory,
            Finished::Unanswered(Some(24 * 3600 * SECOND)),
        ] {
            let (mut schedule, now) = schedule(true);
            schedule.put(1, now);
            let job = schedule.next(now).unwrap();
            schedule.retry_directory();
            schedule.finish(job.number, finished, now);
            let again = schedule.next(now).unwrap();
            assert_eq!((again.number, again.stage), (job.number, Stage::Directory));
            schedule.set_confirmed(job.question.encodings[0].0);
            schedule.retry_directory();
            schedule.finish(again.number, Finished::Answered, now);
            assert_eq!(schedule.pending(), 0, "a proof needs no other one");
        }
    }

    #[test]
    fn failures_double_the_back_off_up_to_five_minutes() {
        for (failures, seconds) in
            [(1, 1.0), (2, 2.0), (3, 4.0), (9, 256.0), (10, 300.0), (99, 300.0)]
        {
            let time = back_off(failures).as_secs_f64();
            assert!((0.9 * seconds..=1.1 * seconds).contains(&time), "{failures}: {time}");
        }
        let (mut schedule, now) = schedule(false);
        let mut ask = schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        let Ask::UnderWay(_) = &mut ask else { panic!("{ask:?}") };
        let retry = schedule.finish(job.number, Finished::Failed, now).unwrap();
        assert!(retry < 2 * SECOND);
        assert!(is_soon(&schedule.put(1, now)), "the back-off ends within the wait");
        let later = now + 2 * SECOND;
        let job = schedule.next(later).unwrap();
        schedule.finish(job.number, Finished::Failed, later);
        let later = later + 3 * SECOND;
        let job = schedule.next(later).unwrap();
        schedule.finish(job.number, Finished::Failed, later);
        assert!(!is_soon(&schedule.put(1, later)));
        assert!(!is_soon(&schedule.put(2, later)), "the source backs off for every key");
        assert!(schedule.record_response() && !schedule.record_response());
    }

    #[test]
    fn a_blocked_source_is_asked_nothing_until_the_end_of_the_pause() {
        let (mut schedule, now) = schedule(false);
        (0..3).for_each(|key| drop(schedule.put(key, now)));
        let job = schedule.next(now).unwrap();
        schedule.finish(job.number, Finished::Blocked(600 * SECOND), now);
        assert!(schedule.next(now + 599 * SECOND).is_none());
        assert!(!is_soon(&schedule.put(9, now)));
        assert!(is_soon(&schedule.put(1, now + 599 * SECOND)));
        assert!(schedule.next(now + 600 * SECOND).is_some());
        assert_eq!(schedule.pending(), 4);
    }

    #[test]
    fn a_missing_canary_lets_nobody_wait() {
        let (mut schedule, now) = schedule(false);
        schedule.set_canary_missing(true);
        assert!(!is_soon(&schedule.put(1, now)));
        assert!(schedule.next(now).is_some(), "a proof would count");
        schedule.set_canary_missing(false);
        assert!(is_soon(&schedule.put(1, now)));
    }

    #[test]
    fn the_oldest_question_gives_way_and_none_under_way_is_dropped() {
        let (mut schedule, now) = schedule(false);
        schedule.put(0, now);
        let first = schedule.next(now).unwrap();
        let dropped: u64 = (1..=MAX_PENDING as u64 + 9)
            .map(|key| schedule.ask(question(key), now, SystemTime::UNIX_EPOCH).dropped)
            .sum();
        assert_eq!((schedule.pending(), dropped), (MAX_PENDING, 10));
        schedule.finish(first.number, Finished::Answered, now);
        let next = schedule.next(now).unwrap();
        assert_eq!(next.question.encodings[0].0, question(11).encodings[0].0);
    }

    #[test]
    fn the_holders_of_a_question_that_ends_are_told() {
        let (mut schedule, now) = schedule(false);
        for finished in [Finished::Answered, Finished::Failed, Finished::Unanswered(None)] {
            let later = now + 3600 * SECOND;
            let Ask::UnderWay(mut under_way) = schedule.put(7, later) else { panic!() };
            let job = schedule.next(later + 3600 * SECOND).unwrap();
            schedule.finish(job.number, finished, now);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(under_way.ended());
            schedule.remove(job.number);
        }
    }

    #[test]
    fn a_known_answer_needs_no_question_until_it_is_due() {
        let (mut schedule, now) = schedule(false);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let fingerprint = question(1).encodings[0].0;
        schedule.set_cleared(fingerprint, at(10));
        let mut ask = |wall| schedule.ask(question(1), now, wall);
        assert!(matches!(ask(at(9)).ask, Ask::Answered));
        assert!(ask(at(10)).is_new);
        schedule.set_confirmed(fingerprint);
        schedule.forget_cleared(&fingerprint);
        assert!(matches!(schedule.ask(question(1), now, at(99)).ask, Ask::Answered));
    }

    #[test]
    fn a_question_that_nobody_causes_again_is_forgotten_after_a_day() {
        let (mut schedule, now) = schedule(false);
        schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        schedule.finish(job.number, Finished::Unanswered(Some(25 * 3600 * SECOND)), now);
        assert!(schedule.next(now + 28 * 3600 * SECOND).is_none());
        assert_eq!(schedule.pending(), 0);
    }

    #[test]
    fn a_key_that_is_too_large_for_a_proof_is_not_asked_about() {
        let (mut schedule, now) = schedule(false);
        let spki: Arc<[u8]> = vec![0; MAX_SPKI + 1].into();
        let encodings = smallvec![(Fingerprint::of(&spki), spki)];
        let asked = schedule.ask(Question { encodings, position: 0 }, now, SystemTime::UNIX_EPOCH);
        assert!(matches!(asked.ask, Ask::NotSoon) && asked.dropped == 1 && schedule.pending() == 0);
        let empty = Question { encodings: smallvec![], position: 0 };
        let asked = schedule.ask(empty, now, SystemTime::UNIX_EPOCH);
        assert!(matches!(asked.ask, Ask::NotSoon) && asked.dropped == 0);
    }
}
