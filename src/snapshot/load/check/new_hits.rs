//! The trial of a filter update: the recent clients that it would reject.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::guard::{
    CurrentAnswers, ExactList, Exception, Guard, NamedFilter, Policy, RecentKeys, WeakChecks,
};
use crate::snapshot::report::AffectedClient;
use crate::spki::RsaExponents;

/// Maximum number of clients that a trial names.
pub(crate) const MAX_NAMED: usize = 20;

/// The guard that judges the clients now, and the updates that are tried against it.
#[derive(Debug)]
pub(crate) struct Trial {
    recent: RecentKeys,
    judges: Judges,
    now: SystemTime,
    /// Name and policy, by service id.
    services: HashMap<usize, (String, Policy)>,
}

/// The filters and lists in use, the exceptions and the answers.
#[derive(Debug, Default)]
pub(crate) struct Judges {
    pub(crate) filters: Vec<Arc<NamedFilter>>,
    pub(crate) lists: Vec<ExactList>,
    /// The related exponents of each filter, by name.
    pub(crate) exponents: Vec<(String, RsaExponents)>,
    pub(crate) weak_checks: WeakChecks,
    pub(crate) exceptions: Vec<Exception>,
    pub(crate) answers: CurrentAnswers,
}

/// The recent clients that an update would newly reject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NewHits {
    /// Number of distinct client keys.
    pub(crate) count: usize,
    /// At most [`MAX_NAMED`] of the clients.
    pub(crate) clients: Vec<AffectedClient>,
}

impl Trial {
    /// A trial at `now` on the clients in `recent`. `services` gives id, name and policy of each
    /// service.
    pub(crate) fn new(
        recent: RecentKeys,
        judges: Judges,
        now: SystemTime,
        services: impl Iterator<Item = (usize, String, Policy)>,
    ) -> Self {
        let services = services.map(|(id, name, policy)| (id, (name, policy))).collect();
        Self { recent, judges, now, services }
    }

    /// The recent clients that are admitted now, and would be rejected with `update` in place of
    /// the filter of the same name, or in addition to the filters if there is none.
    pub(crate) fn new_hits(&self, update: &Arc<NamedFilter>) -> NewHits {
        let before = self.guard(self.judges.filters.clone());
        let others = self.judges.filters.iter().filter(|filter| filter.name != update.name);
        let after = self.guard(others.chain([update]).cloned().collect());
        let found = self.recent.matching(MAX_NAMED, |service, client| {
            self.services.get(&service).is_some_and(|(_, policy)| {
                // Without a filter every key is unchecked, which says nothing about an update.
                let is_rejected_now = || {
                    !before.filters().is_empty() && client.is_rejected(&before, policy, self.now)
                };
                client.is_rejected(&after, policy, self.now) && !is_rejected_now()
            })
        });
        let clients = found.clients.into_iter().map(|(service, client)| AffectedClient {
            service: self.services.get(&service).map(|(name, _)| name.clone()).unwrap_or_default(),
            fingerprint: client.fingerprint.to_string(),
            subject: client.subject.into(),
        });
        NewHits { count: found.count, clients: clients.collect() }
    }

    fn guard(&self, filters: Vec<Arc<NamedFilter>>) -> Guard {
        let Judges { lists, exponents, weak_checks, exceptions, answers, filters: _ } =
            &self.judges;
        let guard = Guard::new(filters)
            .with_lists(lists.clone())
            .with_weak_checks(*weak_checks)
            .with_exceptions(exceptions.iter().cloned())
            .with_answers(answers.clone());
        exponents.iter().fold(guard, |guard, (filter, exponents)| {
            guard.with_related_exponents(filter, *exponents)
        })
    }
}
