//! The rows of what expires first.

use std::sync::Arc;

use keygate_core::unix_time::{utc, within};

use super::Badge;
use crate::admin::attention::expiry_row;
use crate::recent_hits::{AllHits, RecentHit, SERVER_AUTH};
use crate::sources::{Expiry, ExpiryState};

/// Maximum number of valid objects on the page, earliest first. Others have a row each, because the
/// line about what needs attention links to it. The acceptance of certificates for servers always
/// has a row.
const MAX_VALID: usize = 20;

/// An object that expires.
pub(super) struct ExpiryRow<'a> {
    pub(super) expiry: &'a Expiry,
    pub(super) id: String,
    pub(super) state: Badge,
    pub(super) within: String,
    pub(super) at: String,
    /// Service or exception that the object belongs to.
    pub(super) subject: String,
}

/// The rows of `expiries`, which are sorted, with the clients among `hits` that are concerned. The
/// process has run since `start`.
pub(super) fn rows<'a>(
    expiries: &'a [Expiry],
    hits: &AllHits,
    (start, now): (u64, u64),
) -> Vec<ExpiryRow<'a>> {
    let mut valid = 0;
    let rows = expiries.iter().enumerate().filter(|(_, expiry)| match expiry.state(now) {
        ExpiryState::Expired | ExpiryState::Soon => true,
        ExpiryState::Valid => {
            valid += 1;
            valid <= MAX_VALID || expiry.kind == Expiry::SERVER_AUTH
        }
    });
    rows.map(|(index, expiry)| row(index, expiry, hits, (start, now))).collect()
}

fn row<'a>(
    index: usize,
    expiry: &'a Expiry,
    AllHits { hits, evicted }: &AllHits,
    (start, now): (u64, u64),
) -> ExpiryRow<'a> {
    const WEEK: u64 = 7 * 86_400;
    let subject = &expiry.subject;
    let subject = match expiry.kind {
        Expiry::SERVER_AUTH => {
            // The hits are lost at a restart.
            let since = start.max(now.saturating_sub(WEEK));
            let is_left = |hit: &&Arc<RecentHit>| {
                let is_of_service = hit.service == expiry.subject;
                hit.result == Some(SERVER_AUTH) && is_of_service && hit.last_seen >= since
            };
            let left = hits.iter().filter(is_left).count();
            let more = if *evicted > 0 { " or more" } else { "" };
            format!("{subject}, clients since {}: {left}{more}", utc(since))
        }
        _ => subject.clone(),
    };
    let state = match expiry.state(now) {
        ExpiryState::Expired => Badge::new("bad", "expired"),
        ExpiryState::Soon => Badge::new("warn", "soon"),
        ExpiryState::Valid => Badge::new("good", "valid"),
    };
    let (id, within, at) = (expiry_row(index), within(expiry.at, now), utc(expiry.at));
    ExpiryRow { expiry, id, state, within, at, subject }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acceptance_of_certificates_for_servers_has_a_row_however_many_expire_earlier() {
        const DAY: u64 = 86_400;
        let now = 100 * DAY;
        let expiry = |kind, days: u64| {
            let at = now + days * DAY;
            Expiry { kind, subject: "a".to_owned(), path: None, at, soon_from: at }
        };
        let mut expiries: Vec<_> = (1..40).map(|days| expiry(Expiry::EXCEPTION, days)).collect();
        expiries.push(expiry(Expiry::SERVER_AUTH, 40));
        let subject = |evicted, start| {
            let hits = AllHits { evicted, ..AllHits::default() };
            let rows = rows(&expiries, &hits, (start, now));
            assert_eq!(rows.len(), MAX_VALID + 1);
            rows.last().map(|it| it.subject.clone()).unwrap_or_default()
        };
        assert_eq!(subject(0, now - DAY), "a, clients since 1970-04-10 00:00:00 UTC: 0");
        assert_eq!(
            subject(1, now - 90 * DAY),
            "a, clients since 1970-04-04 00:00:00 UTC: 0 or more"
        );
    }
}
