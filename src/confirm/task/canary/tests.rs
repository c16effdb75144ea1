//! Checks of a canary over time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn problem(pause: Option<Duration>) -> Result<(), CanaryProblem> {
    let mut problem = CanaryProblem::unfinished(&"no answer");
    problem.pause = pause;
    Err(problem)
}

#[test]
fn a_404_is_trusted_for_ten_minutes_after_a_check() {
    let (mut canary, now) = (CanaryCheck::default(), Instant::now());
    assert_eq!(canary.trust(None, now), Trust::Unchecked);
    canary.record(&Ok(()), now);
    assert_eq!(canary.trust(None, now + 599 * SECOND), Trust::Known);
    assert_eq!(canary.trust(None, now + 600 * SECOND), Trust::Unchecked);
    canary.forget();
    assert_eq!(canary.trust(None, now), Trust::Unchecked);
}

#[test]
fn a_404_is_not_trusted_until_a_failed_check_is_repeated() {
    let (mut canary, now) = (CanaryCheck::default(), Instant::now());
    canary.record(&Ok(()), now);
    canary.record(&problem(None), now);
    assert_eq!(canary.trust(None, now), Trust::Failed);
    let retry = canary.retry_at().unwrap();
    assert!(retry > now && retry < now + 2 * SECOND);
    assert!(!canary.is_retry_due(now) && canary.is_retry_due(retry));
    assert_eq!(canary.trust(None, retry), Trust::Unchecked);
    assert_eq!(canary.trust(Some(retry + SECOND), retry), Trust::Failed);
}

#[test]
fn failures_in_a_row_double_the_pause_and_those_before_a_retry_do_not() {
    let (mut canary, mut now) = (CanaryCheck::default(), Instant::now());
    for seconds in [1.0, 2.0, 4.0] {
        canary.record(&problem(None), now);
        canary.record(&problem(None), now);
        let retry = canary.retry_at().unwrap();
        let pause = (retry - now).as_secs_f64();
        assert!((0.9 * seconds..=1.1 * seconds).contains(&pause), "{seconds}: {pause}");
        now = retry;
    }
    canary.record(&problem(Some(60 * SECOND)), now);
    assert_eq!(canary.retry_at(), Some(now + 60 * SECOND), "a longer pause of the source counts");
    canary.record(&Ok(()), now);
    assert_eq!(canary.retry_at(), None);
}

#[test]
fn one_check_is_in_progress_and_counts_unless_the_files_have_changed() {
    let (mut canary, now) = (CanaryCheck::default(), Instant::now());
    canary.outdate();
    assert!(canary.begin() && !canary.begin());
    assert!(canary.end(), "it began after the change");
    assert!(canary.begin());
    canary.outdate();
    assert!(!canary.postpone(now), "a check in progress is not postponed");
    assert!(!canary.end() && canary.begin() && canary.end());
    assert!(canary.postpone(now + SECOND) && canary.postpone(now));
    assert_eq!(canary.retry_at(), Some(now + SECOND));
}
