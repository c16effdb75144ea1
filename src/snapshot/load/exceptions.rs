//! The exceptions, and when the operator is notified that one ends.

use std::time::{Duration, SystemTime};

use tracing::warn;

use super::super::report::ExceptionReport;
use super::unix_seconds;
use crate::guard::Exception;
use crate::metrics::ControlMetrics;

/// How long before its end an exception is warned of.
const NOTICE: Duration = Duration::from_secs(7 * 86_400);

#[derive(Debug)]
pub(super) struct Exceptions {
    all: Vec<(Exception, Notified)>,
}

/// What the operator has been notified of an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Notified {
    Nothing,
    ExpiresSoon,
    Expired,
}

impl Exceptions {
    /// Shows when each ends.
    pub(super) fn announce(&self, metrics: &ControlMetrics) {
        for (exception, _) in &self.all {
            let until = unix_seconds(exception.until) as f64;
            metrics.set_exception_until(&exception.fingerprint.to_string(), until);
        }
    }

    pub(super) fn new(exceptions: &[Exception]) -> Self {
        Self { all: exceptions.iter().map(|one| (one.clone(), Notified::Nothing)).collect() }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Exception> {
        self.all.iter().map(|(exception, _)| exception.clone())
    }

    /// When the next exception ends.
    pub(super) fn next_end(&self, now: SystemTime) -> Option<Duration> {
        let ends = self.all.iter().filter_map(|(one, _)| one.until.duration_since(now).ok());
        ends.filter(|left| !left.is_zero()).min()
    }

    /// Says once that an exception will end within a week, and once that it has. Returns whether any
    /// has ended since the last look.
    pub(super) fn look(&mut self, now: SystemTime) -> bool {
        let mut has_ended = false;
        for (exception, notified) in &mut self.all {
            let left = exception.until.duration_since(now).ok().filter(|left| !left.is_zero());
            let news = match left {
                None => Notified::Expired,
                Some(left) if left <= NOTICE => Notified::ExpiresSoon,
                Some(_) => Notified::Nothing,
            };
            // A clock that is set back makes news of it again.
            if news > std::mem::replace(notified, news) {
                has_ended |= news == Notified::Expired;
                let Exception { fingerprint, until, reason } = exception;
                let until = humantime::format_rfc3339_seconds(*until);
                let what =
                    if news == Notified::Expired { "has expired" } else { "expires within a week" };
                warn!(%fingerprint, %until, reason, "exception {what}");
            }
        }
        has_ended
    }

    pub(super) fn report(&self) -> Vec<ExceptionReport> {
        let reports = self.all.iter().map(|(exception, notified)| {
            let until = unix_seconds(exception.until);
            ExceptionReport::of(exception, until, *notified == Notified::Expired)
        });
        reports.collect()
    }
}
