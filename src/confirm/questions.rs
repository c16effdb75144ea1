//! The questions of all workers about keys, and what became of each.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::watch;

use crate::spki::Fingerprint;

/// A question whether a client's key is compromised.
#[derive(Debug, Clone)]
pub struct Question {
    /// The encodings of the key that hit in the filters of the source, with their
    /// SubjectPublicKeyInfo (DER). The presented encoding comes first if it is among them.
    pub encodings: SmallVec<[(Fingerprint, Arc<[u8]>); 2]>,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
}

/// What became of a question.
#[derive(Debug)]
pub enum Ask {
    /// The answer is in use. Judge the key again.
    Answered,
    /// No answer can come within `confirm.wait`: the source backs off or is blocked, its canary has
    /// failed, the queue is too long, or nothing is ever asked. The question may be kept, and a
    /// later answer is applied to open connections.
    NotSoon,
    /// An answer may come soon.
    UnderWay(UnderWay),
}

/// A question whose answer may come soon.
#[derive(Debug, Clone)]
pub struct UnderWay(watch::Receiver<()>);

impl UnderWay {
    /// Waits until the question is answered, or until it is clear that no answer comes soon. The
    /// answer is in use then: judge the key again. Cancel-safe.
    pub async fn ended(&mut self) {
        // The sender sends nothing and is dropped at the end.
        while self.0.changed().await.is_ok() {}
    }
}

/// Takes the questions of all workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Questions(Option<Arc<()>>);

impl Questions {
    /// Takes no question, because nothing is ever asked: there is no table `[confirm]`.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Maximum time for which a connection is held for an answer, `confirm.wait`.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether questions can be asked at all.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Puts `question`, unless the key is known or asked about already. Never waits: takes a lock
    /// for a few map operations.
    ///
    /// Call it for keys whose verdict is probable or cleared. A cleared key is asked about again
    /// after `confirm.cleared_ttl`. It keeps its verdict meanwhile, so that there is nothing to wait
    /// for.
    #[must_use]
    pub fn ask(&self, _question: Question) -> Ask {
        Ask::NotSoon
    }
}
