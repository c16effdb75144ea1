//! The dry run of a change: the recent clients that it would reject.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keygate_core::guard::{
    CurrentAnswers, ExactList, Exception, Guard, NamedFilter, Policy, RecentClient, RecentClients,
    WeakChecks,
};
use keygate_core::spki::RsaExponents;
use keygate_core::tls::ClientVerifier;
use rustls::pki_types::UnixTime;

use crate::saved_state::{AffectedClient, MAX_NAMED};

/// Maximum number of services without a recent client that a text names.
const MAX_SERVICES: usize = 5;
/// Why `max_new_hits` did not count for an update, in logs and reports.
pub(crate) const NOT_CHECKED: &str = "not checked: no recent client";

/// The guard that judges the clients now, and the recent clients of the dry run.
#[derive(Debug)]
pub(crate) struct DryRun {
    pub(crate) recent: RecentClients,
    pub(crate) now: SystemTime,
    /// By service id.
    pub(crate) policies: HashMap<usize, Policy>,
    /// The names of all services by id, removed ones included.
    pub(crate) names: Vec<String>,
    /// The filters and lists in use.
    pub(crate) filters: Vec<Arc<NamedFilter>>,
    pub(crate) lists: Vec<ExactList>,
    /// The related exponents of each filter, by name.
    pub(crate) exponents: Vec<(String, RsaExponents)>,
    pub(crate) weak_checks: WeakChecks,
    pub(crate) exceptions: Vec<Exception>,
    pub(crate) answers: CurrentAnswers,
}

/// The properties that admit a client: its keys, its names, and its path.
pub(crate) type Judge<'a> = (&'a Guard, &'a Policy, Option<&'a ClientVerifier>);

/// The recent clients that an update would newly reject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NewHits {
    /// Number of distinct client keys.
    pub(crate) count: usize,
    /// At most [`MAX_NAMED`] of the clients.
    pub(crate) clients: Vec<AffectedClient>,
}

impl DryRun {
    /// The services on whose clients `limit` could not be checked, as text. `None` without a
    /// limit, or if each service has a recent client. With an id, the change is of that `service`
    /// alone.
    pub(crate) fn untried(&self, service: Option<usize>, limit: Option<usize>) -> Option<String> {
        limit?;
        let tried = self.recent.services();
        if let Some(service) = service {
            return (!tried.contains(&service)).then(|| NOT_CHECKED.to_owned());
        }
        // The clients of a removed service are tried on each policy.
        if tried.iter().any(|id| !self.policies.contains_key(id)) {
            return None;
        }
        let untried = self.policies.keys().filter(|id| !tried.contains(id));
        let mut untried: Vec<&str> =
            untried.filter_map(|id| self.names.get(*id)).map(String::as_str).collect();
        untried.sort_unstable();
        let named = untried.iter().take(MAX_SERVICES).copied().collect::<Vec<_>>().join(", ");
        match untried.len().saturating_sub(MAX_SERVICES) {
            _ if untried.is_empty() => None,
            _ if tried.is_empty() => Some(NOT_CHECKED.to_owned()),
            0 => Some(format!("{NOT_CHECKED} of {named}")),
            others => Some(format!("{NOT_CHECKED} of {named} and {others} more")),
        }
    }

    /// The recent clients that are admitted now, and would be rejected with `update` in place of
    /// the filter of the same name, or in addition to the filters if there is none.
    pub(crate) fn new_hits_of_filter(&self, update: &Arc<NamedFilter>) -> NewHits {
        let others = self.filters.iter().filter(|filter| filter.name != update.name);
        let after = others.chain([update]).cloned().collect();
        self.new_hits(&self.guard(after, self.lists.clone()))
    }

    /// [`Self::new_hits_of_filter`] for a list.
    pub(crate) fn new_hits_of_list(&self, update: &ExactList) -> NewHits {
        let others = self.lists.iter().filter(|list| list.name() != update.name());
        let after = others.chain([update]).cloned().collect();
        self.new_hits(&self.guard(self.filters.clone(), after))
    }

    /// The recent clients that the guard in use admits and `after` would reject, by the policy of
    /// their service. The clients of a removed service may use any other one, so that each policy
    /// counts for them.
    fn new_hits(&self, after: &Guard) -> NewHits {
        let before = self.guard(self.filters.clone(), self.lists.clone());
        // Without filters and lists every key is unchecked, which says nothing about an update.
        let can_find = !self.filters.is_empty() || !self.lists.is_empty();
        self.named(|service, client| {
            let is_new_hit = |policy: &Policy| {
                client.is_rejected(after, policy, self.now)
                    && !(can_find && client.is_rejected(&before, policy, self.now))
            };
            match self.policies.get(&service) {
                Some(policy) => is_new_hit(policy),
                None => self.policies.values().any(is_new_hit),
            }
        })
    }

    /// The recent clients of the service with this id, and of removed services, that the first
    /// verifier accepts and the second one would not.
    pub(crate) fn new_hits_of_verifier(
        &self,
        service: usize,
        (before, after): &(ClientVerifier, ClientVerifier),
    ) -> NewHits {
        // Each worker has recorded the client.
        let tried = RefCell::new(HashMap::new());
        self.named(|id, client| {
            let is_new_hit =
                || !self.is_verified(client, after) && self.is_verified(client, before);
            self.may_be_of(service, id)
                && *tried
                    .borrow_mut()
                    .entry(Arc::clone(client.presented()))
                    .or_insert_with(is_new_hit)
        })
    }

    /// The recent clients of the service with this id, and of removed services, that the first judge
    /// admits and the second one would not, and the number of these clients.
    pub(crate) fn new_hits_of_configuration(
        &self,
        service: usize,
        [before, after]: [Judge<'_>; 2],
    ) -> (NewHits, usize) {
        let is_same = before.2.zip(after.2).is_some_and(|(one, other)| ptr::eq(one, other));
        let rejects = |(guard, policy, _): Judge<'_>, client: &RecentClient| {
            client.is_rejected(guard, policy, self.now)
        };
        let verifies = |(_, _, verifier): Judge<'_>, client: &RecentClient| {
            verifier.is_none_or(|verifier| self.is_verified(client, verifier))
        };
        let hits = self.named(|id, client| {
            self.may_be_of(service, id)
                && !rejects(before, client)
                && (rejects(after, client) || !is_same && !verifies(after, client))
                && (is_same && id == service || verifies(before, client))
        });
        (hits, self.recent.matching(0, |id, _| self.may_be_of(service, id)).count)
    }

    /// Whether the clients of the service with this `id` may use this `service`: it is the same one, or
    /// was removed.
    fn may_be_of(&self, service: usize, id: usize) -> bool {
        id == service || !self.policies.contains_key(&id)
    }

    fn is_verified(&self, client: &RecentClient, verifier: &ClientVerifier) -> bool {
        let since_epoch = self.now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(since_epoch);
        verifier.verify_presented(client.presented(), now).is_ok()
    }

    fn named(&self, matches: impl Fn(usize, &RecentClient) -> bool) -> NewHits {
        let found = self.recent.matching(MAX_NAMED, matches);
        let clients = found.clients.into_iter().map(|(service, client)| AffectedClient {
            service: self.names.get(service).cloned().unwrap_or_default(),
            fingerprint: client.fingerprint.to_string(),
            subject: client.subject.into(),
        });
        NewHits { count: found.count, clients: clients.collect() }
    }

    fn guard(&self, filters: Vec<Arc<NamedFilter>>, lists: Vec<ExactList>) -> Guard {
        let guard = Guard::new(filters)
            .with_lists(lists)
            .with_weak_checks(self.weak_checks)
            .with_exceptions(self.exceptions.iter().cloned())
            .with_answers(self.answers.clone());
        self.exponents.iter().fold(guard, |guard, (filter, exponents)| {
            guard.with_related_exponents(filter, *exponents)
        })
    }
}
