//! A semaphore whose limit may rise and fall while permits are out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{AcquireError, Semaphore};

/// A semaphore whose limit can change. Clones share it.
///
/// A limit that falls below the number of permits in use revokes none of them. Permits that are
/// returned are then discarded until the number in use is below the limit.
#[derive(Debug, Clone)]
pub struct ResizableSemaphore(Arc<SemaphoreState>);

#[derive(Debug)]
struct SemaphoreState {
    free: Semaphore,
    limit: AtomicUsize,
    /// Number of permits in use above the limit. As many are discarded when they are returned.
    over_limit: AtomicUsize,
}

/// One permit of a [`ResizableSemaphore`], returned when it is dropped.
#[derive(Debug)]
pub struct Permit(Arc<SemaphoreState>);

impl ResizableSemaphore {
    /// A semaphore with `limit` permits, at most [`Semaphore::MAX_PERMITS`].
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(SemaphoreState {
            free: Semaphore::new(limit),
            limit: AtomicUsize::new(limit),
            over_limit: AtomicUsize::new(0),
        }))
    }

    /// Changes the limit, from one thread at a time.
    pub fn set_limit(&self, limit: usize) {
        let inner = &*self.0;
        let limit = limit.min(Semaphore::MAX_PERMITS);
        let before = inner.limit.swap(limit, Ordering::Relaxed);
        let fewer = before.saturating_sub(limit);
        let forgotten = inner.free.forget_permits(fewer);
        inner.over_limit.fetch_add(fewer.saturating_sub(forgotten), Ordering::Relaxed);
        let more = limit.saturating_sub(before);
        let lower = |over: usize| Some(over.saturating_sub(more));
        let over = inner.over_limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
        inner.free.add_permits(more.saturating_sub(over.unwrap_or_default()));
    }

    /// Maximum number of permits.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Number of permits in use, those above a lowered limit included.
    pub fn in_use(&self) -> usize {
        let within = self.limit().saturating_sub(self.0.free.available_permits());
        within.saturating_add(self.0.over_limit.load(Ordering::Relaxed))
    }

    /// Whether more permits are in use than a lowered limit allows.
    pub fn is_over_limit(&self) -> bool {
        self.0.over_limit.load(Ordering::Relaxed) > 0
    }

    /// Waits for a permit. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the semaphore is closed.
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        self.0.free.acquire().await?.forget(); // `Permit` returns it
        Ok(Permit(Arc::clone(&self.0)))
    }
}

impl Permit {
    /// Maximum number of permits.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Returns the permit to its semaphore.
    pub fn release(self) -> ResizableSemaphore {
        ResizableSemaphore(Arc::clone(&self.0))
    }
}

impl SemaphoreState {
    /// Lowers the number of permits above the limit by one; returns whether there was one.
    fn take_over_limit(&self) -> bool {
        let less = |over: usize| over.checked_sub(1);
        self.over_limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.0.take_over_limit() {
            self.0.free.add_permits(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::task::{Context, Waker};

    use super::*;

    impl ResizableSemaphore {
        fn try_acquire(&self) -> Option<Permit> {
            self.0.free.try_acquire().ok()?.forget();
            Some(Permit(Arc::clone(&self.0)))
        }

        fn has_free(&self) -> bool {
            self.0.free.available_permits() > 0
        }
    }

    #[test]
    fn a_limit_below_the_permits_in_use_applies_as_they_return() {
        let semaphore = ResizableSemaphore::new(10);
        let mut out: Vec<_> = std::iter::from_fn(|| semaphore.try_acquire()).collect();
        assert_eq!(out.len(), 10);
        semaphore.set_limit(4);
        while out.len() > 4 {
            out.pop();
            assert!(semaphore.try_acquire().is_none(), "{} are in use", out.len());
            assert_eq!(semaphore.in_use(), out.len());
        }
        out.pop();
        out.extend(semaphore.try_acquire());
        assert_eq!((out.len(), semaphore.in_use(), semaphore.limit()), (4, 4, 4));
        semaphore.set_limit(2);
        semaphore.set_limit(7);
        out.extend(std::iter::from_fn(|| semaphore.try_acquire()));
        assert_eq!(out.len(), 7);
        out.clear();
        out.extend(std::iter::from_fn(|| semaphore.try_acquire()));
        assert_eq!(out.len(), 7);
    }

    #[test]
    fn a_limit_may_be_zero_or_the_maximum() {
        let semaphore = ResizableSemaphore::new(100);
        semaphore.set_limit(2);
        let (first, second) = (semaphore.try_acquire().unwrap(), semaphore.try_acquire().unwrap());
        semaphore.set_limit(1);
        drop(first);
        assert!(semaphore.try_acquire().is_none(), "one is in use, and the limit is one");
        drop(second);
        let only = semaphore.try_acquire().unwrap();
        semaphore.set_limit(0);
        semaphore.set_limit(3);
        let more = (semaphore.try_acquire().unwrap(), semaphore.try_acquire().unwrap());
        assert!(semaphore.try_acquire().is_none());
        drop((only, more));
        assert_eq!(semaphore.0.free.available_permits(), 3);
        semaphore.set_limit(usize::MAX);
        assert_eq!(semaphore.0.free.available_permits(), Semaphore::MAX_PERMITS);
    }

    #[tokio::test]
    async fn a_cancelled_acquire_takes_no_permit() {
        let semaphore = ResizableSemaphore::new(1);
        let out = semaphore.acquire().await.unwrap();
        let waiting = semaphore.clone();
        let mut acquire = Box::pin(waiting.acquire());
        let mut context = Context::from_waker(Waker::noop());
        assert!(acquire.as_mut().poll(&mut context).is_pending());
        drop(out); // goes to the waiting call, which is never polled again
        assert!(!semaphore.has_free());
        drop(acquire);
        assert!(semaphore.has_free());
    }

    #[test]
    fn no_permit_is_lost_or_gained_if_the_limit_changes_while_permits_return() {
        let semaphore = ResizableSemaphore::new(1000);
        let out: Vec<_> = std::iter::from_fn(|| semaphore.try_acquire()).collect();
        let returning = std::thread::spawn(move || drop(out));
        for limit in (1..1000).cycle().step_by(7).take(1000) {
            semaphore.set_limit(limit);
        }
        returning.join().unwrap();
        semaphore.set_limit(10);
        assert_eq!(std::iter::from_fn(|| semaphore.try_acquire()).map(mem::forget).count(), 10);
    }
}
