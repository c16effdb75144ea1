//! The table of the module, row by row.

use std::io;
use std::sync::Arc;

use hyper::StatusCode;
use keygate_core::proof::BadProof;
use keygate_core::spki::Fingerprint;
use smallvec::smallvec;

use super::super::super::lookup::{UnusableProof, UnusableReason};
use super::super::super::query::Query;
use super::*;
use crate::config::{CanaryConfig, SourceUrl};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn url(host: &str) -> Option<SourceUrl> {
    Some(SourceUrl::parse(&format!("http://{host}")).unwrap())
}

fn job(stage: Stage) -> Job {
    let query = Arc::new(Query { encodings: smallvec![] });
    Job { number: 1, stage, query, directory_failed: false }
}

fn unusable() -> LookUpOutcome {
    let (fingerprint, reason) = (Fingerprint::of(b""), UnusableReason::Proof(BadProof::Json));
    LookUpOutcome::Unusable(UnusableProof { fingerprint, file: None, reason })
}

fn unreadable() -> LookUpOutcome {
    LookUpOutcome::DirectoryFailed(io::ErrorKind::PermissionDenied.into())
}

/// The conclusion of a look-up: what is counted, with which level it is logged, and how the job
/// ends.
fn unanswered(
    job: &Job,
    outcome: LookUpOutcome,
    source: &Source,
) -> (ConfirmationResult, Level, JobEnd) {
    let conclusion = Conclusion::new(job, outcome, source);
    let Conclusion::Unanswered(it) = conclusion else { panic!("{conclusion:?}") };
    (it.result, it.level, it.end)
}

#[test]
fn the_url_follows_a_directory_without_a_proof() {
    let source = Source::fixture(url("localhost"), CanaryConfig::Published);
    for (outcome, expected) in [
        (LookUpOutcome::Unknown, JobEnd::NotInDirectory),
        (unreadable(), JobEnd::DirectoryFailed),
        (unusable(), JobEnd::DirectoryFailed),
    ] {
        let conclusion = Conclusion::new(&job(Stage::Directory), outcome, &source);
        let Conclusion::ToUrl(end) = conclusion else { panic!("{conclusion:?}") };
        assert_eq!(end, expected);
    }
}

#[test]
fn a_directory_without_a_url_has_the_last_word() {
    let source = Source::fixture(None, CanaryConfig::Published);
    let job = job(Stage::Directory);
    assert_eq!(
        unanswered(&job, unreadable(), &source),
        (ConfirmationResult::Unreachable, Level::WARN, JobEnd::Unanswered(None))
    );
    assert_eq!(
        unanswered(&job, unusable(), &source),
        (ConfirmationResult::BadProof, Level::WARN, JobEnd::Unanswered(Some(HOUR)))
    );
}

#[test]
fn a_404_clears_only_by_a_source_that_can_clear_and_after_a_readable_directory() {
    let job = job(Stage::Url);
    let failed = Job { directory_failed: true, ..job.clone() };
    let untrusted = ConfirmationResult::Untrusted;
    let clears = Source::fixture(url("localhost"), CanaryConfig::Published);
    let unknown = Conclusion::new(&job, LookUpOutcome::Unknown, &clears);
    assert!(matches!(unknown, Conclusion::Unknown));
    assert_eq!(
        unanswered(&failed, LookUpOutcome::Unknown, &clears),
        (untrusted, Level::WARN, JobEnd::Unanswered(None))
    );
    for source in [
        Source::fixture(url("localhost"), CanaryConfig::Off),
        Source::fixture(url("192.0.2.1"), CanaryConfig::Published),
        Source::fixture(None, CanaryConfig::Published),
    ] {
        assert_eq!(
            unanswered(&job, LookUpOutcome::Unknown, &source),
            (untrusted, Level::INFO, JobEnd::Unanswered(Some(DAY)))
        );
    }
}

#[test]
fn each_failure_of_the_url_has_a_result_and_a_next_attempt() {
    let source = Source::fixture(url("localhost"), CanaryConfig::Published);
    let job = job(Stage::Url);
    let (bad, busy) = (StatusCode::BAD_REQUEST, StatusCode::SERVICE_UNAVAILABLE);
    for (error, result, end) in [
        (QueryError::RateLimited(HOUR), ConfirmationResult::RateLimited, JobEnd::Blocked(HOUR)),
        (QueryError::TooLarge, ConfirmationResult::TooLarge, JobEnd::Unanswered(None)),
        (QueryError::Refused(bad), ConfirmationResult::Refused, JobEnd::Failed),
        (QueryError::Server(busy), ConfirmationResult::ServerError, JobEnd::Failed),
        (QueryError::Timeout(HOUR), ConfirmationResult::Timeout, JobEnd::Failed),
        (QueryError::Tls(String::new()), ConfirmationResult::Unreachable, JobEnd::Failed),
    ] {
        let outcome = LookUpOutcome::Failed(error);
        assert_eq!(unanswered(&job, outcome, &source), (result, Level::WARN, end));
    }
}
