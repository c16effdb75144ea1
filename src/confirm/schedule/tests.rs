//! The order of queries: which key is next, when, and which connections are woken.

use keygate_core::guard::Answers;
use smallvec::smallvec;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const STALE_FOR: Duration = Duration::from_secs(60);

fn schedule(has_directory: bool) -> (Schedule, Instant) {
    let now = Instant::now();
    let limits = ScheduleLimits { rate: 1, wait: 2 * SECOND, stale_for: STALE_FOR, has_directory };
    (Schedule::new(limits, CurrentAnswers::default(), now), now)
}

fn query(key: u64) -> Query {
    let spki: Arc<[u8]> = key.to_be_bytes().as_slice().into();
    Query { encodings: smallvec![(Fingerprint::of(&spki), spki)] }
}

impl Schedule {
    fn change_answers(&self, change: impl FnOnce(&mut Answers)) {
        let mut answers = Answers::clone(&self.answers.load());
        change(&mut answers);
        self.answers.replace(answers.into());
    }

    fn put(&mut self, key: u64, now: Instant) -> Submission {
        self.submit(query(key), now, SystemTime::UNIX_EPOCH).submission
    }
}

fn is_soon(submission: &Submission) -> bool {
    matches!(submission, Submission::UnderWay(_))
}

#[test]
fn a_key_is_asked_about_once_for_all_waiters() {
    let (mut schedule, now) = schedule(false);
    assert!(is_soon(&schedule.put(1, now)) && is_soon(&schedule.put(1, now)));
    let job = schedule.next(now).unwrap();
    assert!(is_soon(&schedule.put(1, now)));
    assert!(schedule.next(now).is_none() && schedule.pending() == 1);
    schedule.finish(job.number, JobEnd::Answered, now);
    assert_eq!(schedule.pending(), 0);
}

#[test]
fn at_most_four_questions_are_under_way() {
    let (mut schedule, now) = schedule(true);
    (0..9).for_each(|key| drop(schedule.put(key, now)));
    let jobs: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
    assert_eq!(jobs.len(), 4);
    schedule.finish(jobs[0].number, JobEnd::Answered, now);
    assert!(schedule.next(now).is_some() && schedule.next(now).is_none());
}

#[test]
fn the_url_is_asked_in_bursts_of_ten_and_then_at_the_rate() {
    let (mut schedule, now) = schedule(false);
    (0..40).for_each(|key| drop(schedule.put(key, now)));
    let mut started_at = |at: Instant| {
        let mut started = 0;
        while let Some(job) = schedule.next(at) {
            schedule.finish(job.number, JobEnd::Answered, at);
            started += 1;
        }
        started
    };
    assert_eq!(started_at(now), 10);
    assert_eq!((started_at(now + SECOND / 2), started_at(now + SECOND)), (0, 1));
    assert_eq!(started_at(now + 4 * SECOND), 3);
    assert_eq!(started_at(now + 3600 * SECOND), 10);
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
    schedule.pace.take_tokens(10, now);
    schedule.put(1, now);
    let job = schedule.next(now).unwrap();
    assert_eq!(job.stage, Stage::Directory);
    schedule.finish(job.number, JobEnd::NotInDirectory, now);
    assert!(schedule.next(now).is_none());
    assert_eq!(schedule.next_wake(now), Some(now + SECOND));
    assert_eq!(schedule.next(now + SECOND).unwrap().stage, Stage::Url);
}

#[test]
fn a_failure_of_the_directory_goes_with_the_question_to_the_url() {
    let (mut schedule, now) = schedule(true);
    schedule.put(1, now);
    for (finished, directory_failed) in
        [(JobEnd::DirectoryFailed, true), (JobEnd::NotInDirectory, false)]
    {
        let job = schedule.next(now + 10 * SECOND).unwrap();
        assert_eq!(job.stage, Stage::Directory);
        schedule.finish(job.number, finished, now);
        let job = schedule.next(now).unwrap();
        assert_eq!((job.stage, job.directory_failed), (Stage::Url, directory_failed));
        schedule.finish(job.number, JobEnd::Unanswered(None), now);
    }
}

#[test]
fn the_end_of_a_back_off_wakes_nobody_while_the_url_may_not_be_asked() {
    let (mut schedule, now) = schedule(false);
    schedule.put(1, now);
    let job = schedule.next(now).unwrap();
    schedule.finish(job.number, JobEnd::Unanswered(None), now);
    schedule.pause(3600 * SECOND, now);
    let later = now + 60 * SECOND;
    assert!(schedule.next(later).is_none());
    assert_eq!(schedule.next_wake(later), Some(now + 3600 * SECOND));
    let later = now + 3600 * SECOND;
    schedule.pace.take_tokens(10, later);
    assert!(schedule.next(later).is_none());
    assert_eq!(schedule.next_wake(later), Some(later + SECOND));
    assert!(schedule.next(later + SECOND).is_some());
}

/// Whether the connections that are held for the answer are woken.
fn is_woken(submission: &Submission) -> bool {
    let Submission::UnderWay(under_way) = submission else { panic!("{submission:?}") };
    let mut under_way = under_way.clone();
    let ended = std::pin::pin!(under_way.ended());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    ended.poll(&mut context).is_ready()
}

#[test]
fn held_connections_are_woken_if_the_url_is_paused_after_the_directory() {
    let (mut schedule, now) = schedule(true);
    schedule.pause(600 * SECOND, now);
    let submission = schedule.put(1, now);
    let job = schedule.next(now).unwrap();
    assert!(!is_woken(&submission), "the directory may have a proof");
    schedule.finish(job.number, JobEnd::NotInDirectory, now);
    assert!(is_woken(&submission));
    assert!(!is_soon(&schedule.put(1, now)));
    // Shortly before the end of the pause, the connections are held on.
    let later = now + 599 * SECOND;
    let submission = schedule.put(2, later);
    let job = schedule.next(later).unwrap();
    schedule.finish(job.number, JobEnd::NotInDirectory, later);
    assert!(!is_woken(&submission));
}

#[test]
fn a_pause_wakes_the_held_connections_of_all_queued_questions() {
    let (mut schedule, now) = schedule(false);
    let (first, second) = (schedule.put(1, now), schedule.put(2, now));
    let job = schedule.next(now).unwrap();
    schedule.pause(SECOND, now);
    assert!(!is_woken(&first) && !is_woken(&second), "the pause ends within the wait");
    schedule.finish(job.number, JobEnd::Blocked(600 * SECOND), now);
    assert!(is_woken(&first) && is_woken(&second));
}

#[test]
fn a_change_of_the_directory_does_not_end_the_back_off_of_the_url() {
    let (mut schedule, now) = schedule(true);
    schedule.put(1, now);
    let job = schedule.next(now).unwrap();
    schedule.finish(job.number, JobEnd::NotInDirectory, now);
    let job = schedule.next(now).unwrap();
    schedule.finish(job.number, JobEnd::Unanswered(Some(3600 * SECOND)), now);
    let due = schedule.next_wake(now).unwrap();
    for _ in 0..2 {
        schedule.retry_directory();
        let job = schedule.next(now).unwrap();
        assert_eq!(job.stage, Stage::Directory);
        schedule.finish(job.number, JobEnd::NotInDirectory, now);
        assert!(schedule.next(now).is_none());
        assert_eq!(schedule.next_wake(now), Some(due));
    }
    let job = schedule.next(due).unwrap();
    schedule.finish(job.number, JobEnd::NotInDirectory, due);
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
        schedule.finish(job.number, JobEnd::Unanswered(None), later);
    }
    // All are due again, and none of them is ahead of a new question.
    later += 3600 * SECOND;
    schedule.pace.take_tokens(10, later);
    assert!(is_soon(&schedule.put(300, later)));
    let job = schedule.next(later + SECOND).unwrap();
    assert_eq!(job.query.encodings[0].0, query(300).encodings[0].0);
}

#[test]
fn questions_under_way_that_fail_together_count_as_one_failure_of_the_source() {
    let (mut schedule, now) = schedule(false);
    (0..4).for_each(|key| drop(schedule.put(key, now)));
    let jobs: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
    assert_eq!(jobs.len(), 4);
    for job in &jobs {
        schedule.finish(job.number, JobEnd::Failed, now);
    }
    let later = now + 2 * SECOND;
    let job = schedule.next(later).expect("the first pause of the source is 1 s");
    schedule.finish(job.number, JobEnd::Failed, later);
    assert!(schedule.next(later + SECOND).is_none());
    assert!(schedule.next(later + 3 * SECOND).is_some());
}

#[test]
fn a_change_of_the_directory_during_a_question_has_it_looked_into_again() {
    for finished in [
        JobEnd::Answered, // cleared
        JobEnd::Failed,
        JobEnd::NotInDirectory,
        JobEnd::Unanswered(Some(24 * 3600 * SECOND)),
    ] {
        let (mut schedule, now) = schedule(true);
        schedule.put(1, now);
        let job = schedule.next(now).unwrap();
        schedule.retry_directory();
        schedule.finish(job.number, finished, now);
        let again = schedule.next(now).unwrap();
        assert_eq!((again.number, again.stage), (job.number, Stage::Directory));
        schedule.change_answers(|answers| assert!(answers.confirm(&job.query.encodings[0].1)));
        schedule.retry_directory();
        schedule.finish(again.number, JobEnd::Answered, now);
        assert_eq!(schedule.pending(), 0, "a proof needs no other one");
    }
}

#[test]
fn failures_make_every_question_wait_for_the_back_off() {
    let (mut schedule, now) = schedule(false);
    let mut submission = schedule.put(1, now);
    let job = schedule.next(now).unwrap();
    let Submission::UnderWay(_) = &mut submission else { panic!("{submission:?}") };
    let retry = schedule.finish(job.number, JobEnd::Failed, now).unwrap();
    assert!(retry < 2 * SECOND);
    assert!(is_soon(&schedule.put(1, now)), "the back-off ends within the wait");
    let later = now + 2 * SECOND;
    let job = schedule.next(later).unwrap();
    schedule.finish(job.number, JobEnd::Failed, later);
    let mut later = later + 3 * SECOND;
    for key in [2, 3] {
        schedule.put(key, later);
        let job = schedule.next(later).expect("a key that was never asked about comes first");
        assert_eq!(job.query.encodings[0].0, query(key).encodings[0].0);
        schedule.finish(job.number, JobEnd::Failed, later);
        later += 3 * SECOND;
    }
    assert!(!is_soon(&schedule.put(1, later - 3 * SECOND)));
    assert!(!is_soon(&schedule.put(4, later - 3 * SECOND)), "the source backs off for every key");
    assert!(schedule.pace.record_response() && !schedule.pace.record_response());
}

#[test]
fn a_key_that_always_fails_backs_off_alone() {
    let (mut schedule, mut now) = schedule(false);
    schedule.put(1, now);
    for _ in 0..8 {
        let job = schedule.next(now).unwrap();
        let retry = schedule.finish(job.number, JobEnd::Failed, now).unwrap();
        let before_retry = now + retry - SECOND / 2;
        assert!(is_soon(&schedule.put(2, before_retry)), "after {retry:?}");
        // The first pause of the source and the first back-off of the key differ by their jitter.
        now += retry + SECOND / 2;
        let innocent = schedule.next(now).unwrap();
        assert_eq!(innocent.query.encodings[0].0, query(2).encodings[0].0);
        schedule.finish(innocent.number, JobEnd::Answered, now);
        schedule.put(1, now);
        now += SECOND;
    }
}

#[test]
fn two_keys_that_always_fail_in_turn_pause_the_source_once_each() {
    let (mut schedule, mut now) = schedule(false);
    (1..3).for_each(|key| drop(schedule.put(key, now)));
    let mut failures = 0;
    while failures < 20 {
        if let Some(job) = schedule.next(now) {
            schedule.finish(job.number, JobEnd::Failed, now);
            failures += 1;
            let is_open = schedule.pace.opens_within(2 * SECOND, 0, now);
            assert!(failures <= 2 || is_open, "failure {failures} pauses the source");
        } else {
            now = schedule.next_wake(now).unwrap() + SECOND / 1000;
        }
    }
}

#[test]
fn a_blocked_source_is_asked_nothing_until_the_end_of_the_pause() {
    let (mut schedule, now) = schedule(false);
    (0..3).for_each(|key| drop(schedule.put(key, now)));
    let job = schedule.next(now).unwrap();
    schedule.finish(job.number, JobEnd::Blocked(600 * SECOND), now);
    assert!(schedule.next(now + 599 * SECOND).is_none());
    assert!(!is_soon(&schedule.put(9, now)));
    assert!(is_soon(&schedule.put(1, now + 599 * SECOND)));
    assert!(schedule.next(now + 600 * SECOND).is_some());
    assert_eq!(schedule.pending(), 4);
}

#[test]
fn the_oldest_question_gives_way_and_none_under_way_is_dropped() {
    let (mut schedule, now) = schedule(false);
    schedule.put(0, now);
    let first = schedule.next(now).unwrap();
    let dropped: u64 = (1..=MAX_PENDING as u64 + 9)
        .map(|key| schedule.submit(query(key), now, SystemTime::UNIX_EPOCH).dropped)
        .sum();
    assert_eq!((schedule.pending(), dropped), (MAX_PENDING, 10));
    schedule.finish(first.number, JobEnd::Answered, now);
    let next = schedule.next(now).unwrap();
    assert_eq!(next.query.encodings[0].0, query(11).encodings[0].0);
}

#[test]
fn the_holders_of_a_question_that_ends_are_told() {
    let (mut schedule, now) = schedule(false);
    for finished in [JobEnd::Answered, JobEnd::Failed, JobEnd::Unanswered(None)] {
        let later = now + 3600 * SECOND;
        let submission = schedule.put(7, later);
        let job = schedule.next(later + 3600 * SECOND).unwrap();
        schedule.finish(job.number, finished, now);
        assert!(is_woken(&submission), "{finished:?}");
        schedule.remove(job.number);
    }
}

#[test]
fn a_known_answer_needs_no_question_until_it_is_due() {
    let (mut schedule, now) = schedule(false);
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let (fingerprint, spki) = query(1).encodings[0].clone();
    schedule.change_answers(|answers| answers.clear(fingerprint, at(10) + STALE_FOR));
    let mut submit = |wall| schedule.submit(query(1), now, wall);
    assert!(matches!(submit(at(9)).submission, Submission::Answered));
    assert!(submit(at(10)).is_new);
    schedule.change_answers(|answers| assert!(answers.confirm(&spki)));
    let submitted = schedule.submit(query(1), now, at(99));
    assert!(matches!(submitted.submission, Submission::Answered));
}

#[test]
fn a_key_with_an_encoding_that_is_not_cleared_is_queried() {
    let (mut schedule, now) = schedule(false);
    let encodings = [query(1), query(2)].map(|it| it.encodings[0].clone());
    let wall = SystemTime::UNIX_EPOCH;
    let until = wall + STALE_FOR + SECOND;
    schedule.change_answers(|answers| answers.clear(encodings[0].0, until));
    let both = Query { encodings: encodings.clone().into_iter().collect() };
    assert!(schedule.submit(both.clone(), now, wall).is_new);
    schedule.change_answers(|answers| answers.clear(encodings[1].0, until));
    let submitted = schedule.submit(both, now, wall);
    assert!(matches!(submitted.submission, Submission::Answered));
}

#[test]
fn a_question_that_nobody_causes_again_is_forgotten_after_a_day() {
    let (mut schedule, now) = schedule(false);
    schedule.put(1, now);
    let job = schedule.next(now).unwrap();
    schedule.finish(job.number, JobEnd::Unanswered(Some(25 * 3600 * SECOND)), now);
    assert!(schedule.next(now + 28 * 3600 * SECOND).is_none());
    assert_eq!(schedule.pending(), 0);
}

#[test]
fn a_key_that_is_too_large_for_a_proof_is_not_asked_about() {
    let (mut schedule, now) = schedule(false);
    let spki: Arc<[u8]> = vec![0; MAX_SPKI + 1].into();
    let encodings = smallvec![(Fingerprint::of(&spki), spki)];
    let submitted = schedule.submit(Query { encodings }, now, SystemTime::UNIX_EPOCH);
    assert!(
        matches!(submitted.submission, Submission::NotSoon)
            && submitted.dropped == 1
            && schedule.pending() == 0
    );
    let empty = Query { encodings: smallvec![] };
    let submitted = schedule.submit(empty, now, SystemTime::UNIX_EPOCH);
    assert!(matches!(submitted.submission, Submission::NotSoon) && submitted.dropped == 0);
}
