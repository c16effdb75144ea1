//! The questions of a worker about the keys of its clients. Nothing here waits.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keygate_core::guard::{Guard, OpenQuestions, Policy, UnansweredKey};
use keygate_core::tls::Deferral;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::question::{Ask, Question, UnderWay};
use super::questions::Questions;

/// Asks about keys of clients, and limits the time for which a connection waits for an answer.
#[derive(Debug, Clone)]
pub struct Inquiry {
    questions: Questions,
    wait: Duration,
}

/// The outcome of the questions about one client.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The questions whose answers may come soon.
    pub(crate) under_way: SmallVec<[UnderWay; 1]>,
    /// Whether no answer comes soon about one of the keys.
    is_late: bool,
}

impl Inquiry {
    /// Asks `questions`. A connection is held for `wait` at most; 0 holds none.
    #[must_use]
    pub fn new(questions: Questions, wait: Duration) -> Self {
        Self { questions, wait }
    }

    /// Maximum time for which a connection is held.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Whether questions are asked at all.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.questions.is_enabled()
    }

    /// Selects the clients that complete their handshakes; `None` if no connection is ever held.
    #[must_use]
    pub fn deferral(&self) -> Option<Arc<dyn Deferral>> {
        let may_hold = self.is_enabled() && !self.wait.is_zero();
        may_hold.then(|| Arc::new(self.clone()) as Arc<dyn Deferral>)
    }

    /// Asks about every key of `open`.
    pub(crate) fn ask(&self, open: OpenQuestions) -> Asked {
        let mut asked = Asked::default();
        for key in open.keys {
            let is_cleared = key.is_cleared;
            match self.ask_one(key) {
                // A cleared key keeps its verdict while it is asked about again.
                Ask::NotSoon | Ask::UnderWay(_) if is_cleared => {}
                Ask::Answered => {}
                Ask::NotSoon => asked.is_late = true,
                Ask::UnderWay(question) => asked.under_way.push(question),
            }
        }
        asked
    }

    fn ask_one(&self, key: UnansweredKey) -> Ask {
        let UnansweredKey { position, encodings, is_cleared: _ } = key;
        self.questions.ask(Question { encodings, position })
    }
}

impl Asked {
    /// Whether a connection waits for the answers, which are decisive. `is_rejected` tells whether
    /// the client is rejected without them: it is admitted only if all of them come.
    pub(crate) fn holds(&self, is_rejected: bool) -> bool {
        !self.under_way.is_empty() && (!is_rejected || !self.is_late)
    }
}

impl Deferral for Inquiry {
    /// Asks about the key of the leaf only. Keys of issuers are asked about after the handshake,
    /// because a client may attach any certificates.
    fn defers(&self, guard: &Guard, policy: &Policy, path: &[&CertificateDer<'_>]) -> bool {
        let open = guard.open_questions(policy, path, SystemTime::now());
        if !open.is_decisive {
            return false;
        }
        let leaf = open.keys.into_iter().find(|key| key.position == 0 && !key.is_cleared);
        leaf.is_none_or(|leaf| match self.ask_one(leaf) {
            Ask::Answered | Ask::UnderWay(_) => true,
            Ask::NotSoon => false,
        })
    }
}
