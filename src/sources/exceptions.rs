//! The configured exceptions, and the notices before and at their expiry.

use std::time::{Duration, SystemTime};

use keygate_core::guard::Exception;
use keygate_core::unix_time;
use tracing::warn;

use crate::metrics::ControlMetrics;
use crate::sources::expiry::{EXCEPTION_NOTICE, Expiry};
use crate::sources::report::ExceptionReport;

/// The exceptions in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct ConfiguredExceptions {
    all: Vec<Notified>,
}

/// An exception, and the last notice of its expiry.
#[derive(Debug)]
struct Notified {
    exception: Exception,
    notice: Notice,
}

/// A notice of the expiry of an exception, in the order in which notices are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Notice {
    None,
    ExpiresSoon,
    Expired,
}

impl Notice {
    /// The notice that is due for an exception at `now`.
    fn due(exception: &Exception, now: SystemTime) -> Self {
        match remaining(exception, now) {
            None => Self::Expired,
            Some(left) if left <= EXCEPTION_NOTICE => Self::ExpiresSoon,
            Some(_) => Self::None,
        }
    }

    fn log(self, exception: &Exception) {
        let Exception { key: fingerprint, until, reason } = exception;
        let until = humantime::format_rfc3339_seconds(*until);
        match self {
            Self::None => {}
            Self::ExpiresSoon => {
                warn!(%fingerprint, %until, reason, "exception expires within a week");
            }
            Self::Expired => warn!(%fingerprint, %until, reason, "exception has expired"),
        }
    }
}

impl ConfiguredExceptions {
    /// The exceptions of a configuration, without any notice yet.
    pub(crate) fn new(exceptions: &[Exception]) -> Self {
        let unnotified = |it: &Exception| Notified { exception: it.clone(), notice: Notice::None };
        Self { all: exceptions.iter().map(unnotified).collect() }
    }

    /// Sets the metrics that show when each exception expires.
    pub(crate) fn set_metrics(&self, metrics: &ControlMetrics) {
        for Notified { exception, .. } in &self.all {
            let until = unix_time::seconds(exception.until) as f64;
            metrics.exception_until.with_label_values(&[&exception.key.to_string()]).set(until);
        }
    }

    /// When each exception expires.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = Expiry> {
        self.all.iter().map(|it| Expiry::from_exception(&it.exception))
    }

    /// Copies of all exceptions.
    pub(crate) fn all(&self) -> impl Iterator<Item = Exception> {
        self.all.iter().map(|it| it.exception.clone())
    }

    /// Time until the next exception expires.
    pub(crate) fn next_expiry(&self, now: SystemTime) -> Option<Duration> {
        self.all.iter().filter_map(|it| remaining(&it.exception, now)).min()
    }

    /// Logs once that an exception expires within a week, and once that it has expired. Returns
    /// whether any exception has expired since the last call.
    pub(crate) fn log_expiry(&mut self, now: SystemTime) -> bool {
        let mut has_expired = false;
        for Notified { exception, notice } in &mut self.all {
            let due = Notice::due(exception, now);
            // A clock that was set back makes the notices due again.
            if due > std::mem::replace(notice, due) {
                has_expired |= due == Notice::Expired;
                due.log(exception);
            }
        }
        has_expired
    }

    /// The reports of all exceptions.
    pub(crate) fn report(&self) -> Vec<ExceptionReport> {
        let reports = self.all.iter().map(|Notified { exception, notice }| ExceptionReport {
            fingerprint: exception.key.to_string(),
            until: unix_time::seconds(exception.until),
            reason: exception.reason.clone(),
            expired: *notice == Notice::Expired,
        });
        reports.collect()
    }
}

/// Time until `exception` expires; `None` if it has expired.
fn remaining(exception: &Exception, now: SystemTime) -> Option<Duration> {
    exception.until.duration_since(now).ok().filter(|left| !left.is_zero())
}
