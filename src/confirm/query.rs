//! A query about a client's key, and what becomes of it.

use std::sync::Arc;

use keygate_core::spki::Fingerprint;
use smallvec::SmallVec;
use tokio::sync::watch;

/// A query whether a client's key is compromised.
#[derive(Debug, Clone)]
pub struct Query {
    /// The encodings of the key that hit in the filters of the source, with their
    /// SubjectPublicKeyInfo (DER). The presented encoding comes first if it is among them.
    pub encodings: SmallVec<[(Fingerprint, Arc<[u8]>); 2]>,
}

/// The outcome of a query that was submitted.
#[derive(Debug)]
pub enum Submission {
    /// The answer is in use. Judge the key again.
    Answered,
    /// No answer can come within `confirm.wait`: the source backs off or is blocked, the queue is
    /// too long, or there is no source. The query may wait, and a later answer is applied to open
    /// connections.
    NotSoon,
    /// An answer may come soon.
    UnderWay(UnderWay),
}

/// A query whose answer may come soon.
#[derive(Debug, Clone)]
pub struct UnderWay(pub(super) watch::Receiver<()>);

impl UnderWay {
    /// Waits until the query is answered, or until it is clear that no answer comes soon.
    /// Returns whether it is answered. The answer is in use then: judge the key again.
    pub async fn ended(&mut self) -> bool {
        // The sender sends once if there is an answer, and is dropped at the end.
        let mut is_answered = false;
        while self.0.changed().await.is_ok() {
            is_answered = true;
        }
        is_answered
    }
}
