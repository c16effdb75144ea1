//! Blocking calls, such as file reads and name look-ups, on threads that exist from the start.
//!
//! tokio's blocking pool panics if the operating system refuses a thread (`pids.max`,
//! `RLIMIT_NPROC`). A [`BlockingPool`] returns that error when it is created. Later it makes a
//! thread only to replace one that hangs, and works without the replacement.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// Maximum calls that wait for a thread; further calls fail with [`BlockingError::QueueFull`].
const MAX_QUEUED: usize = 1024;
/// Maximum threads of one pool that hang. Further ones are not replaced, so that a hung file system
/// does not use up the threads of the process.
const MAX_HUNG: usize = 16;

/// A fixed number of threads for blocking calls. Clones share the threads, which end with the last
/// clone.
#[derive(Debug, Clone)]
pub struct BlockingPool(Arc<Owner>);

/// Why a blocking call has no result.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// All threads hang, and no other one can be made.
    #[error("all threads for this call hang, and none can be added: {0}")]
    NoThread(io::Error),
    /// The call panicked.
    #[error("the call panicked")]
    Panicked,
    /// Too many calls wait for a thread.
    #[error("{MAX_QUEUED} calls wait for a thread")]
    QueueFull,
    /// The call has not returned in time. It may return later; its result is dropped.
    #[error("no result after {0:?}")]
    TimedOut(Duration),
}

/// Closes the pool when the last clone is dropped.
#[derive(Debug)]
struct Owner(Arc<SharedPool>);

#[derive(Debug)]
struct SharedPool {
    name: &'static str,
    /// The number of threads that take calls, unless some hang and cannot be replaced.
    size: usize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    queue: VecDeque<Call>,
    /// The number of threads that take calls. Hung ones are not among them.
    available: usize,
    /// The calls in progress that have a deadline, by thread.
    deadlines: HashMap<usize, Instant>,
    /// Threads whose call has passed its deadline.
    hung: HashSet<usize>,
    /// The number of threads made so far.
    made: usize,
    is_closed: bool,
}

struct Call {
    run: Box<dyn FnOnce() + Send>,
    deadline: Option<Instant>,
}

impl BlockingPool {
    /// Makes `size` threads, which are named `name` and a number.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses a thread.
    pub fn new(name: &'static str, size: usize) -> io::Result<Self> {
        let shared = SharedPool { name, size, state: Mutex::default(), changed: Condvar::new() };
        let pool = Self(Arc::new(Owner(Arc::new(shared))));
        SharedPool::add_threads(&pool.0.0, &mut pool.0.0.lock())?;
        Ok(pool)
    }

    /// Runs `call` on a thread of this pool, without a deadline.
    ///
    /// # Errors
    /// Returns an error if the queue is full, if all threads hang, or if `call` panics.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockingError> {
        let (sender, result) = oneshot::channel();
        self.submit(None, move || {
            let _ = sender.send(call()); // the caller may have gone
        })?;
        result.await.map_err(|_| BlockingError::Panicked)
    }

    /// Runs `call` on a thread of this pool, and waits for it for `timeout` at most. The time in
    /// the queue counts. A thread whose call does not return in time is replaced.
    ///
    /// # Errors
    /// Returns an error if the time is over, if the queue is full, if all threads hang, or if
    /// `call` panics.
    pub async fn run_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockingError> {
        let Some(deadline) = Instant::now().checked_add(timeout) else {
            return self.run(call).await;
        };
        let (sender, result) = oneshot::channel();
        self.submit(Some(deadline), move || {
            let _ = sender.send(call()); // the caller may have gone
        })?;
        match timeout_at(deadline.into(), result).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(self.no_result(timeout, deadline)),
            Err(_) => Err(self.timed_out(timeout)),
        }
    }

    /// Runs `call` like [`BlockingPool::run_within`], and blocks the calling thread meanwhile. The
    /// caller must not be a thread of the same pool.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`BlockingPool::run_within`].
    pub fn call_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockingError> {
        let deadline = Instant::now().checked_add(timeout);
        let (sender, result) = sync_channel(1);
        self.submit(deadline, move || {
            let _ = sender.send(call()); // the caller may have gone
        })?;
        let Some(deadline) = deadline else {
            return result.recv().map_err(|_| BlockingError::Panicked);
        };
        match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(result) => Ok(result),
            Err(RecvTimeoutError::Disconnected) => Err(self.no_result(timeout, deadline)),
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(timeout)),
        }
    }

    fn submit(
        &self,
        deadline: Option<Instant>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), BlockingError> {
        let shared = &self.0.0;
        let mut state = shared.lock();
        let replaced = SharedPool::replace_hung(shared, &mut state);
        if let (0, Err(error)) = (state.available, replaced) {
            return Err(BlockingError::NoThread(error));
        }
        if state.queue.len() >= MAX_QUEUED {
            return Err(BlockingError::QueueFull);
        }
        state.queue.push_back(Call { run: Box::new(run), deadline });
        drop(state);
        shared.changed.notify_one();
        Ok(())
    }

    /// The reason why a call was dropped: its deadline passed in the queue, or it panicked.
    fn no_result(&self, timeout: Duration, deadline: Instant) -> BlockingError {
        if Instant::now() < deadline { BlockingError::Panicked } else { self.timed_out(timeout) }
    }

    /// Replaces the thread of the call, because calls of others may wait for it.
    fn timed_out(&self, timeout: Duration) -> BlockingError {
        let _ = SharedPool::replace_hung(&self.0.0, &mut self.0.0.lock()); // the next call tries again
        BlockingError::TimedOut(timeout)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl SharedPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes threads until the pool has its size.
    fn add_threads(self: &Arc<Self>, state: &mut PoolState) -> io::Result<()> {
        while state.available < self.size {
            if state.hung.len() >= MAX_HUNG {
                return Err(io::Error::other(format!("{MAX_HUNG} threads hang")));
            }
            let (id, shared) = (state.made, Arc::clone(self));
            Builder::new()
                .name(format!("{}-{id}", self.name))
                .spawn(move || shared.run_calls(id))?;
            state.made += 1;
            state.available += 1;
        }
        Ok(())
    }

    /// Takes the threads whose call has passed its deadline out of the pool, and makes others.
    fn replace_hung(self: &Arc<Self>, state: &mut PoolState) -> io::Result<()> {
        let now = Instant::now();
        for (thread, _) in state.deadlines.extract_if(|_, deadline| *deadline <= now) {
            state.available = state.available.saturating_sub(1);
            state.hung.insert(thread);
        }
        self.add_threads(state)
    }

    /// Runs calls until the pool is closed, or until it has a replacement for this thread.
    fn run_calls(&self, thread: usize) {
        while let Some(Call { run, deadline }) = self.next(thread) {
            if deadline.is_none_or(|deadline| Instant::now() < deadline) {
                // A panic drops the sender of the result, and the caller gets an error.
                let _ = catch_unwind(AssertUnwindSafe(run));
            }
            if !self.continues(thread) {
                return;
            }
        }
    }

    /// Waits for the next call; `None` if the pool is closed.
    fn next(&self, thread: usize) -> Option<Call> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(call) = state.queue.pop_front() {
                if let Some(deadline) = call.deadline {
                    state.deadlines.insert(thread, deadline);
                }
                return Some(call);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether `thread`, whose call has returned, takes further calls.
    fn continues(&self, thread: usize) -> bool {
        let mut state = self.lock();
        state.deadlines.remove(&thread);
        if !state.hung.remove(&thread) {
            return true;
        }
        let is_needed = state.available < self.size;
        state.available += usize::from(is_needed);
        is_needed
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Call").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{current, park};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    fn name() -> Option<String> {
        current().name().map(ToOwned::to_owned)
    }

    #[test]
    fn a_thread_runs_one_call_after_the_other_and_survives_a_panic() {
        let pool = BlockingPool::new("test", 1).unwrap();
        assert_eq!(pool.call_within(LONG, name).unwrap().as_deref(), Some("test-0"));
        let panicked = pool.call_within(LONG, || std::panic::resume_unwind(Box::new("x")));
        let panicked: Result<(), _> = panicked;
        assert!(matches!(panicked, Err(BlockingError::Panicked)), "{panicked:?}");
        assert_eq!(pool.call_within(LONG, name).unwrap().as_deref(), Some("test-0"));
    }

    /// Hangs one more thread of `pool`, until `released` returns.
    fn hang(pool: &BlockingPool, released: &Arc<Mutex<Receiver<()>>>) {
        let hung = pool.0.0.lock().hung.len();
        // A call that finds no thread within its short time is dropped.
        while pool.0.0.lock().hung.len() == hung {
            let released = Arc::clone(released);
            let error = pool.call_within(SHORT, move || {
                released.lock().unwrap().recv().unwrap();
            });
            assert!(matches!(error, Err(BlockingError::TimedOut(SHORT))), "{error:?}");
        }
    }

    #[test]
    fn a_hung_thread_is_replaced_and_ends_when_its_call_returns() {
        let pool = BlockingPool::new("test", 1).unwrap();
        let (release, released) = channel();
        hang(&pool, &Arc::new(Mutex::new(released)));
        assert_eq!(pool.call_within(LONG, name).unwrap().as_deref(), Some("test-1"));
        release.send(()).unwrap();
        while !pool.0.0.lock().hung.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(pool.0.0.lock().available, 1);
        assert_eq!(pool.call_within(LONG, name).unwrap().as_deref(), Some("test-1"));
    }

    #[test]
    fn calls_fail_at_once_when_the_maximum_of_threads_hangs_and_succeed_when_one_returns() {
        let pool = BlockingPool::new("test", 1).unwrap();
        let (release, released) = channel();
        let released = Arc::new(Mutex::new(released));
        for _ in 0..MAX_HUNG {
            hang(&pool, &released);
        }
        let error = pool.call_within(LONG, name);
        assert!(matches!(error, Err(BlockingError::NoThread(_))), "{error:?}");
        release.send(()).unwrap();
        while pool.0.0.lock().available == 0 {
            std::thread::yield_now();
        }
        assert!(pool.call_within(LONG, name).is_ok());
        for _ in 1..MAX_HUNG {
            release.send(()).unwrap();
        }
    }

    #[test]
    fn calls_beyond_the_maximum_of_the_queue_fail() {
        let pool = BlockingPool::new("test", 1).unwrap();
        let (release, released) = channel::<()>();
        let (report, running) = channel();
        pool.submit(None, move || {
            report.send(()).unwrap();
            released.recv().unwrap_err();
        })
        .unwrap();
        running.recv().unwrap();
        for _ in 0..MAX_QUEUED {
            pool.submit(None, || {}).unwrap();
        }
        assert!(matches!(pool.submit(None, || {}), Err(BlockingError::QueueFull)));
        drop(release);
    }

    #[tokio::test]
    async fn a_task_waits_for_a_call_until_the_deadline() {
        let pool = BlockingPool::new("test", 1).unwrap();
        assert_eq!(pool.run(|| 1).await.unwrap(), 1);
        assert_eq!(pool.run_within(LONG, || 2).await.unwrap(), 2);
        let hung = pool.run_within(SHORT, || {
            loop {
                park();
            }
        });
        let hung: Result<(), _> = hung.await;
        assert!(matches!(hung, Err(BlockingError::TimedOut(_))), "{hung:?}");
        assert_eq!(pool.run_within(LONG, || 3).await.unwrap(), 3);
    }

    #[test]
    fn the_threads_end_with_the_pool() {
        let pool = BlockingPool::new("test", 2).unwrap();
        let shared = Arc::downgrade(&pool.0.0);
        drop(pool);
        while shared.upgrade().is_some() {
            std::thread::yield_now();
        }
    }
}
