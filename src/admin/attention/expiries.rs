//! Certificates, CAs, revocation lists and exceptions that have expired, or expire soon.

use keygate_core::unix_time::utc;

use super::{Attention, amber, red};
use crate::admin::view::View;
use crate::sources::{Expiry, ExpiryState};

pub(super) fn conditions(view: &View) -> Vec<Attention> {
    let expiries = view.report.expiries.iter().enumerate();
    expiries.filter_map(|(index, expiry)| expiring(index, expiry, view.now)).collect()
}

/// Id of the row of the expiry at `index` in the report.
pub(in crate::admin) fn expiry_row(index: usize) -> String {
    format!("expiry-{index}")
}

fn expiring(index: usize, expiry: &Expiry, now: u64) -> Option<Attention> {
    let subject = format!("{} of {}", expiry.kind, expiry.subject);
    let path = expiry.path.as_ref().map(|path| format!(": {path}")).unwrap_or_default();
    let (at, object) = (format!("{}{path}", utc(expiry.at)), (subject, expiry_row(index)));
    match (expiry.state(now), expiry.kind) {
        // Their clients are rejected, as it was planned.
        (ExpiryState::Expired, Expiry::EXCEPTION | Expiry::SERVER_AUTH) => {
            Some(amber(object, format!("expired at {at}")))
        }
        (ExpiryState::Expired, _) => Some(red(object, format!("expired at {at}"))),
        (ExpiryState::Soon, _) => Some(amber(object, format!("expires at {at}"))),
        (ExpiryState::Valid, _) => None,
    }
}
