//! The guard in use, behind a handle.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Guard;

/// A handle to the guard in use, which can be replaced.
///
/// A [`Guard`] keeps its filters in memory. Values that live as long as a connection therefore hold
/// this handle instead.
#[derive(Debug, Clone)]
pub struct CurrentGuard(Arc<ArcSwap<Guard>>);

impl CurrentGuard {
    /// The guard in use. Never waits.
    #[must_use]
    pub fn load(&self) -> arc_swap::Guard<Arc<Guard>> {
        self.0.load()
    }

    /// Replaces the guard in use.
    pub fn replace(&self, guard: Arc<Guard>) {
        self.0.store(guard);
    }
}

impl From<Guard> for CurrentGuard {
    fn from(guard: Guard) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(guard)))
    }
}
