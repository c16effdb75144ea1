//! An update tried on the clients seen lately, before it is put to use.

use std::collections::HashMap;
use std::sync::Arc;

use super::Loader;
use crate::guard::{Decision, Guard, NamedFilter, Policy, RecentKeys};

/// What an update is tried against: the filters in use, and what each service does.
pub(super) struct DryRun {
    filters: Vec<Arc<NamedFilter>>,
    /// By the index of the service.
    policies: HashMap<usize, Policy>,
}

impl DryRun {
    pub(super) fn of(loader: &Loader) -> Self {
        let services = loader.sources.services.iter();
        let policies = services.map(|service| (service.index(), service.policy()));
        Self { filters: loader.filters(), policies: policies.collect() }
    }

    /// How many of the keys in `recent` are admitted as things are, and would be refused with
    /// `update` in place of the filter at `index`.
    pub(super) fn new_hits(
        &self,
        recent: &RecentKeys,
        index: usize,
        update: &Arc<NamedFilter>,
    ) -> usize {
        let after = self.filters.iter().enumerate();
        let after = after.map(|(at, filter)| if at == index { update } else { filter });
        let after = Guard::new(after.cloned().collect());
        let before = Guard::new(self.filters.clone());
        recent.count(|service, forms| {
            let refuses = |guard: &Guard| {
                self.policies.get(&service).is_some_and(|policy| {
                    policy.decide(&guard.judge_encodings(forms)) == Decision::Reject
                })
            };
            refuses(&after) && !refuses(&before)
        })
    }
}
