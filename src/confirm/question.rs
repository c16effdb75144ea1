//! A question about a client's key, and its outcome.

use std::sync::Arc;

use keygate_core::spki::Fingerprint;
use smallvec::SmallVec;
use tokio::sync::watch;

/// A question whether a client's key is compromised.
#[derive(Debug, Clone)]
pub struct Question {
    /// The encodings of the key that hit in the filters of the source, with their
    /// SubjectPublicKeyInfo (DER). The presented encoding comes first if it is among them.
    pub encodings: SmallVec<[(Fingerprint, Arc<[u8]>); 2]>,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
}

/// The outcome of a question.
#[derive(Debug)]
pub enum Ask {
    /// The answer is in use. Judge the key again.
    Answered,
    /// No answer can come within `confirm.wait`: the source backs off or is blocked, the queue is
    /// too long, or nothing is ever asked. The question may be kept, and a later answer is applied
    /// to open connections.
    NotSoon,
    /// An answer may come soon.
    UnderWay(UnderWay),
}

/// A question whose answer may come soon.
#[derive(Debug, Clone)]
pub struct UnderWay(watch::Receiver<()>);

impl UnderWay {
    pub(super) fn new(ended: watch::Receiver<()>) -> Self {
        Self(ended)
    }

    /// Waits until the question is answered, or until it is clear that no answer comes soon.
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
