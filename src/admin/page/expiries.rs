//! The rows of what expires first.

use std::borrow::Cow;
use std::sync::Arc;

use keygate_core::unix_time::{utc, within};

use super::Badge;
use crate::admin::attention::expiry_row;
use crate::recent_hits::{RecentHit, SERVER_AUTH};
use crate::sources::{Expiry, ExpiryState};

/// Maximum number of valid objects on the page, earliest first. Others have a row each, because the
/// line about what needs attention links to it.
const MAX_VALID: usize = 20;

/// An object that expires.
pub(super) struct ExpiryRow<'a> {
    pub(super) id: String,
    pub(super) state: Badge,
    pub(super) within: String,
    pub(super) at: String,
    /// Kind of object, such as a certificate.
    pub(super) kind: &'static str,
    /// Service or exception that the object belongs to.
    pub(super) subject: Cow<'a, str>,
    /// Path of the file; empty for an exception.
    pub(super) path: &'a str,
}

/// The rows of `expiries`, which are sorted, with the clients among `hits` that are concerned.
pub(super) fn rows<'a>(
    expiries: &'a [Expiry],
    hits: &[Arc<RecentHit>],
    now: u64,
) -> Vec<ExpiryRow<'a>> {
    let mut valid = 0;
    let rows = expiries.iter().enumerate().filter(|(_, expiry)| match expiry.state(now) {
        ExpiryState::Expired | ExpiryState::Soon => true,
        ExpiryState::Valid => {
            valid += 1;
            valid <= MAX_VALID
        }
    });
    rows.map(|(index, expiry)| row(index, expiry, hits, now)).collect()
}

fn row<'a>(index: usize, expiry: &'a Expiry, hits: &[Arc<RecentHit>], now: u64) -> ExpiryRow<'a> {
    const WEEK: u64 = 7 * 86_400;
    let subject = Cow::from(&expiry.subject);
    let subject = match expiry.kind {
        Expiry::SERVER_AUTH => {
            let is_left = |hit: &&Arc<RecentHit>| {
                let is_recent = hit.last_seen.saturating_add(WEEK) > now;
                hit.result == Some(SERVER_AUTH) && hit.service == expiry.subject && is_recent
            };
            let left = hits.iter().filter(is_left).count();
            format!("{subject}, clients in the last week: {left}").into()
        }
        _ => subject,
    };
    let state = match expiry.state(now) {
        ExpiryState::Expired => Badge::new("bad", "expired"),
        ExpiryState::Soon => Badge::new("warn", "soon"),
        ExpiryState::Valid => Badge::new("good", "valid"),
    };
    ExpiryRow {
        id: expiry_row(index),
        state,
        within: within(expiry.at, now),
        at: utc(expiry.at),
        kind: expiry.kind,
        subject,
        path: expiry.path.as_deref().unwrap_or_default(),
    }
}
