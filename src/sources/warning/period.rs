//! Validity periods that do not contain the present, or end soon.

use std::fmt;

use keygate_core::spki::ValidityPeriod;
use keygate_core::unix_time::dated;

/// A validity period that does not contain the present, or ends soon. Times are in seconds since
/// the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeriodProblem {
    /// Ended at this time.
    Expired(u64),
    /// Ends at this time.
    ExpiresSoon(u64),
    /// Begins at this time.
    NotYetValid(u64),
    /// The validity period cannot be decoded.
    Unreadable,
}

/// Remaining time below which a certificate expires soon, in seconds: 14 days, as in the alert
/// `KeygateCertificateExpiresSoon`.
const SOON: u64 = 14 * 86_400;
/// A certificate does not expire soon while more than this share of its validity period remains,
/// because short-lived certificates are renewed late.
const SOON_SHARE: u64 = 3;

/// From when on a certificate with this validity expires soon, in seconds since the Unix epoch.
pub(crate) fn expires_soon_from(period: ValidityPeriod) -> u64 {
    let (start, end) = (period.not_before.as_secs(), period.not_after.as_secs());
    end.saturating_sub(SOON.min(end.saturating_sub(start) / SOON_SHARE))
}

impl PeriodProblem {
    /// The problem of a certificate with this validity. `None` if there is none at the time `now`,
    /// in seconds since the Unix epoch.
    #[must_use]
    pub fn from_period(period: ValidityPeriod, now: u64) -> Option<Self> {
        let (start, end) = (period.not_before.as_secs(), period.not_after.as_secs());
        if now > end {
            Some(Self::Expired(end))
        } else if now < start {
            Some(Self::NotYetValid(start))
        } else if now > expires_soon_from(period) {
            Some(Self::ExpiresSoon(end))
        } else {
            None
        }
    }

    /// Whether the expiries of the status have it.
    pub(crate) fn is_expiry(self) -> bool {
        match self {
            Self::Expired(_) | Self::ExpiresSoon(_) | Self::Unreadable => true,
            Self::NotYetValid(_) => false,
        }
    }
}

impl fmt::Display for PeriodProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(at) => write!(formatter, "expired at {}; renew it", dated(*at)),
            Self::ExpiresSoon(at) => write!(formatter, "expires at {}; renew it", dated(*at)),
            Self::NotYetValid(at) => {
                write!(formatter, "is not valid before {}; check the clock", dated(*at))
            }
            Self::Unreadable => formatter.write_str("has no readable validity period; replace it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_period_is_a_problem_outside_of_it_and_near_its_end() {
        const DAY: u64 = 86_400;
        let problem = |start, end, now| {
            let [not_before, not_after] = [start, end].map(Duration::from_secs);
            PeriodProblem::from_period(ValidityPeriod { not_before, not_after }, now)
        };
        let year = |now| problem(DAY, 366 * DAY, now);
        assert_eq!(year(DAY - 1), Some(PeriodProblem::NotYetValid(DAY)));
        assert_eq!(year(DAY), None);
        assert_eq!(year(352 * DAY), None);
        assert_eq!(year(352 * DAY + 1), Some(PeriodProblem::ExpiresSoon(366 * DAY)));
        assert_eq!(year(366 * DAY), Some(PeriodProblem::ExpiresSoon(366 * DAY)));
        assert_eq!(year(366 * DAY + 1), Some(PeriodProblem::Expired(366 * DAY)));
        // A certificate of six days expires soon in its last two.
        assert_eq!(problem(0, 6 * DAY, 4 * DAY), None);
        assert_eq!(problem(0, 6 * DAY, 4 * DAY + 1), Some(PeriodProblem::ExpiresSoon(6 * DAY)));
    }
}
