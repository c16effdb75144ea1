//! The rows of what expires first.

use super::Badge;
use super::time::within;
use crate::snapshot::Expiry;
use crate::unix_time::rfc3339;

/// Maximum number of expiry dates on the page, earliest first.
const MAX_EXPIRIES: usize = 20;

/// An object that expires.
pub(super) struct ExpiryRow<'a> {
    pub(super) state: Badge,
    pub(super) within: String,
    pub(super) at: String,
    /// Kind of object, such as a certificate.
    pub(super) kind: &'static str,
    /// Service or exception that the object belongs to.
    pub(super) subject: &'a str,
}

/// The rows of `expiries`, which are sorted.
pub(super) fn rows(expiries: &[Expiry], now: u64) -> Vec<ExpiryRow<'_>> {
    expiries.iter().take(MAX_EXPIRIES).map(|expiry| row(expiry, now)).collect()
}

fn row(expiry: &Expiry, now: u64) -> ExpiryRow<'_> {
    let state = if expiry.at <= now {
        Badge::new("bad", "expired")
    } else if expiry.soon_from < now {
        Badge::new("warn", "soon")
    } else {
        Badge::new("good", "valid")
    };
    ExpiryRow {
        state,
        within: within(expiry.at, now),
        at: rfc3339(expiry.at),
        kind: expiry.kind,
        subject: &expiry.subject,
    }
}
