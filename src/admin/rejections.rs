//! Counters of rejections of clients, for their keys and by rules by name.
//!
//! `keygate_key_actions_total` has the actions that follow verdicts. `keygate_name_checks_total`
//! has the clients that no rule names. A client is in one of them only.

use std::collections::BTreeMap;

use keygate_core::guard::JudgedAt;

use crate::metrics::{ByService, KeyAction, Label, NameResult, Scrape};

/// The actions on clients since the start, by service or authorizer, then by action.
pub(super) fn actions(scrape: &Scrape) -> ByService<BTreeMap<String, f64>> {
    let mut actions = scrape.sums_by_service("keygate_key_actions_total", "action");
    for (labels, count) in scrape.values("keygate_name_checks_total") {
        let label = |name| labels.get(name).copied().unwrap_or_default();
        if label("result") == NameResult::NotAllowed.as_str() {
            let is_evicted = label("stage") == JudgedAt::Reload.as_str();
            let action = if is_evicted { KeyAction::Evict } else { KeyAction::Reject };
            let of_service = actions.entry(label("service").to_owned()).or_default();
            *of_service.entry(action.as_str().to_owned()).or_default() += count;
        }
    }
    actions
}

/// The clients among `actions` that were rejected, or evicted from an open connection.
pub(super) fn rejected(actions: &BTreeMap<String, f64>) -> f64 {
    let rejections = [KeyAction::Reject, KeyAction::Evict].map(|action| action.as_str());
    rejections.iter().filter_map(|action| actions.get(*action)).sum()
}
