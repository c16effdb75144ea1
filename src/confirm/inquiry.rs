//! The queries of a worker about the keys of its clients. Nothing here waits.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keygate_core::guard::{Guard, OpenQuestions, Policy, UnansweredKey};
use keygate_core::tls::Deferral;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::queries::Queries;
use super::query::{Query, Submission, UnderWay};

/// Queries keys of clients, and limits the time for which a connection waits for an answer.
#[derive(Debug, Clone)]
pub struct Inquiry {
    queries: Queries,
    wait: Duration,
}

/// The queries about one client.
#[derive(Debug, Default)]
pub(crate) struct ClientQueries {
    /// The queries whose answers may come soon.
    pub(crate) under_way: SmallVec<[UnderWay; 1]>,
    /// Whether no answer comes soon about one of the keys.
    is_late: bool,
}

impl Inquiry {
    /// Submits to `queries`. A connection is held for `wait` at most; 0 holds none.
    #[must_use]
    pub fn new(queries: Queries, wait: Duration) -> Self {
        Self { queries, wait }
    }

    /// Maximum time for which a connection is held.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Whether there is a source.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.queries.is_enabled()
    }

    /// Selects the clients that complete their handshakes; `None` if no connection is ever held.
    #[must_use]
    pub fn deferral(&self) -> Option<Arc<dyn Deferral>> {
        let may_hold = self.is_enabled() && !self.wait.is_zero();
        may_hold.then(|| Arc::new(self.clone()) as Arc<dyn Deferral>)
    }

    /// Queries every key of `open`.
    pub(crate) fn query(&self, open: OpenQuestions) -> ClientQueries {
        let mut queries = ClientQueries::default();
        for key in open.keys {
            let is_cleared = key.is_cleared;
            match self.submit(key) {
                // A cleared key keeps its verdict while it is queried again.
                Submission::NotSoon | Submission::UnderWay(_) if is_cleared => {}
                Submission::Answered => {}
                Submission::NotSoon => queries.is_late = true,
                Submission::UnderWay(query) => queries.under_way.push(query),
            }
        }
        queries
    }

    fn submit(&self, key: UnansweredKey) -> Submission {
        self.queries.submit(Query { encodings: key.encodings })
    }
}

impl ClientQueries {
    /// Whether a connection waits for the answers, which are decisive. `is_rejected` tells whether
    /// the client is rejected without them: it is admitted only if all of them come.
    pub(crate) fn holds(&self, is_rejected: bool) -> bool {
        !self.under_way.is_empty() && (!is_rejected || !self.is_late)
    }
}

impl Deferral for Inquiry {
    /// Queries the key of the leaf only. Keys of issuers are queried after the handshake, because a
    /// client may attach any certificates.
    fn defers(&self, guard: &Guard, policy: &Policy, path: &[&CertificateDer<'_>]) -> bool {
        let open = guard.open_questions(policy, path, SystemTime::now());
        if !open.is_decisive {
            return false;
        }
        let leaf = open.keys.into_iter().find(|key| key.position == 0 && !key.is_cleared);
        leaf.is_none_or(|leaf| match self.submit(leaf) {
            Submission::Answered | Submission::UnderWay(_) => true,
            Submission::NotSoon => false,
        })
    }
}
