//! When answers are put in use, and what the status shows.

use keygate_core::guard::Answers;
use smallvec::smallvec;

use super::super::super::answer_book::Basis;
use super::super::super::query::{Query, Submission};
use super::*;
use crate::config::CanaryConfig;
use crate::metrics::ControlMetrics;

const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    answers: CurrentAnswers,
    queries: Inquiry,
    metrics: ConfirmMetrics,
    book: AnswerBook,
    publisher: Publisher,
    judgements: watch::Sender<u64>,
    now: Instant,
}

fn scene() -> Scene {
    let source = Source::fixture(None, CanaryConfig::Off);
    let book = AnswerBook::new(Basis::default(), &source.config, unix_time::now());
    let (answers, metrics) = (CurrentAnswers::default(), ControlMetrics::new().unwrap().confirm);
    let queries = Inquiry::from_source(&source.config, true, answers.clone(), &metrics);
    let publisher =
        Publisher::new(&source, &book, queries.clone(), answers.clone(), metrics.clone());
    let judgements = watch::Sender::new(0);
    Scene { answers, queries, metrics, book, publisher, judgements, now: Instant::now() }
}

impl Scene {
    fn publish_after(&mut self, seconds: u32) -> u64 {
        let now = self.now + SECOND * seconds;
        self.publisher.publish(&self.book, &self.judgements, now);
        *self.judgements.borrow()
    }

    fn in_use(&self) -> Arc<Answers> {
        Arc::clone(&self.answers.load())
    }

    /// A job about a new key, and the submission that it is for.
    fn job(&mut self) -> (Job, Submission) {
        let spki: Arc<[u8]> = b"key".as_slice().into();
        let query = Query { encodings: smallvec![(Fingerprint::of(&spki), spki)] };
        let submission = self.queries.submit(query);
        (self.queries.with_schedule(|it| it.next(self.now)).unwrap(), submission)
    }
}

#[test]
fn an_answer_is_in_use_before_its_query_ends() {
    let mut scene = scene();
    let (job, submission) = scene.job();
    let Submission::UnderWay(mut under_way) = submission else { panic!("{submission:?}") };
    let (fingerprint, spki) = job.query.encodings[0].clone();
    let effect = scene.book.confirm(fingerprint, Arc::clone(&spki));
    let (body, file) = (Vec::new(), None);
    let found = FoundProof { fingerprint, spki, body, file, is_saved: false };
    scene.publisher.record_confirmed(&job, &found, effect, None);
    assert!(!scene.in_use().is_confirmed(&fingerprint));
    assert_eq!(scene.queries.with_schedule(|it| it.pending()), 1);
    assert_eq!(scene.publish_after(0), 1);
    assert!(scene.in_use().is_confirmed(&fingerprint));
    assert_eq!(scene.queries.with_schedule(|it| it.pending()), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(under_way.ended()), "the connection that waits is judged again");
    assert_eq!(scene.metrics.results.of(ConfirmationResult::Confirmed).get(), 1);
    let report = scene.publisher.status().load().unwrap();
    assert_eq!(report.answers[0].fingerprint, fingerprint.to_string());
}

#[test]
fn unchanged_answers_are_not_replaced() {
    let mut scene = scene();
    let before = scene.in_use();
    assert_eq!(scene.publish_after(0), 0);
    assert!(Arc::ptr_eq(&before, &scene.in_use()));
    scene.book.set_can_clear(false);
    assert_eq!(scene.publish_after(0), 1);
    assert!(!Arc::ptr_eq(&before, &scene.in_use()));
}

#[test]
fn open_connections_are_judged_again_once_a_second_at_most() {
    let mut scene = scene();
    for (seconds, expected) in [(0, 1), (0, 1), (1, 2), (5, 3)] {
        scene.publisher.judge_again();
        assert_eq!(scene.publish_after(seconds), expected, "{seconds}");
    }
    assert_eq!(scene.publisher.next_judgement(), None);
    scene.publisher.judge_again();
    assert_eq!(scene.publisher.next_judgement(), Some(scene.now + 6 * SECOND));
    assert_eq!(scene.publish_after(6), 4);
    assert_eq!(scene.publish_after(9), 4);
}

#[test]
fn a_query_without_an_answer_is_counted_and_shown_by_its_reason() {
    let untrusted = Unanswered::untrusted("not trusted");
    let limited = Unanswered {
        result: ConfirmationResult::RateLimited,
        end: JobEnd::Blocked(60 * SECOND),
        ..Unanswered::untrusted("429")
    };
    let failed = Unanswered {
        result: ConfirmationResult::Timeout,
        end: JobEnd::Failed,
        ..Unanswered::untrusted("late")
    };
    for (unanswered, error, failure, is_blocked) in [
        (untrusted, None, None, false),
        (limited, Some("429"), None, true),
        (failed, Some("late"), Some("late"), false),
    ] {
        let mut scene = scene();
        let (job, _) = scene.job();
        scene.publisher.end_unanswered(&job, &unanswered);
        assert_eq!(scene.metrics.results.of(unanswered.result).get(), 1);
        let report = scene.publisher.status().load().unwrap();
        let last_error = report.last_error.as_deref();
        assert_eq!(last_error.is_some(), error.is_some(), "{last_error:?}");
        assert!(last_error.unwrap_or_default().ends_with(error.unwrap_or_default()));
        assert_eq!(report.failure.as_deref(), failure);
        assert_eq!(report.blocked_until.is_some(), is_blocked);
        assert!(scene.queries.with_schedule(|it| it.next(scene.now)).is_none(), "it backs off");
    }
}

#[test]
fn log_lines_of_one_kind_are_ten_seconds_apart_and_count_those_between() {
    let (mut limit, now) = (LogLimit::default(), Instant::now());
    assert_eq!(limit.pass(now), Some(0));
    assert_eq!((limit.pass(now), limit.pass(now + 9 * SECOND)), (None, None));
    assert_eq!(limit.pass(now + 10 * SECOND), Some(2));
    assert_eq!(limit.pass(now + 20 * SECOND), Some(0));
}
