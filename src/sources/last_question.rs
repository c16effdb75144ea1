//! When an authorizer was asked last, for the status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, Serializer};

/// When an authorizer was asked last. Clones share it, over snapshots as well.
#[derive(Debug, Clone, Default)]
pub struct LastQuestion(Arc<AtomicU64>);

impl LastQuestion {
    /// Records a question at `now`, in seconds since the Unix epoch. Writes once a second at most,
    /// because all workers share the value.
    pub(crate) fn record(&self, now: u64) {
        if self.0.load(Ordering::Relaxed) != now {
            self.0.store(now, Ordering::Relaxed);
        }
    }

    /// Seconds since the Unix epoch; `None` before the first question.
    #[must_use]
    pub fn seconds(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|seconds| *seconds > 0)
    }
}

impl Serialize for LastQuestion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.seconds().serialize(serializer)
    }
}
