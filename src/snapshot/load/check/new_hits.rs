//! A dry run of a filter update: how many recent clients would it reject?

use std::collections::HashMap;
use std::sync::Arc;

use crate::guard::{Decision, Guard, NamedFilter, Policy, RecentKeys};

/// The filters in use and the policies of the services, against which updates are tried.
#[derive(Debug)]
pub(crate) struct DryRun {
    recent: RecentKeys,
    filters: Vec<Arc<NamedFilter>>,
    /// By service id.
    policies: HashMap<usize, Policy>,
}

impl DryRun {
    /// A dry run on the keys in `recent`; `policies` are by service id.
    pub(crate) fn new(
        recent: RecentKeys,
        filters: Vec<Arc<NamedFilter>>,
        policies: impl Iterator<Item = (usize, Policy)>,
    ) -> Self {
        Self { recent, filters, policies: policies.collect() }
    }

    /// Number of recent keys that are admitted now, and would be rejected with `update` in place of
    /// the filter at `index`.
    pub(crate) fn new_hits(&self, index: usize, update: &Arc<NamedFilter>) -> usize {
        let before = Guard::new(self.filters.clone());
        let filters = self.filters.iter().enumerate();
        let filters = filters.map(|(at, filter)| if at == index { update } else { filter });
        let after = Guard::new(filters.cloned().collect());
        self.recent.count(|service, encodings| {
            let rejects = |guard: &Guard| {
                self.policies.get(&service).is_some_and(|policy| {
                    policy.decide(&guard.judge_encodings(encodings)) == Decision::Reject
                })
            };
            rejects(&after) && !rejects(&before)
        })
    }
}
