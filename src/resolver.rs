//! Names of servers: looked up by the system's resolver on threads of their own, once at a time for
//! each name, and kept for a while.
//!
//! A name that hangs takes one thread and delays no other name. Decision:
//! `docs/decisions/name-resolution.md`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType};
use keygate_core::regular_file::cause;
use tokio::net::TcpStream;
use tokio::sync::SetOnce;
use tokio::time::timeout;

use crate::blocking::BlockingPool;

/// Number of threads that look up names, without threads that hang.
const THREADS: usize = 4;
/// Time after which a thread whose look-up has not returned is replaced.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// Number of times that a look-up waits for [`HANGS_AFTER`] until a thread is free.
const QUEUE_ATTEMPTS: usize = 3;
/// Age up to which addresses are used without a new look-up.
const FRESH: Duration = Duration::from_secs(5);
/// Age up to which addresses are used at once, while a new look-up runs.
const USED_AT_ONCE: Duration = Duration::from_secs(30);
/// Age up to which addresses are used if a new look-up fails or hangs (RFC 8767). A name that does
/// not exist any more loses its addresses at once.
const STALE: Duration = Duration::from_secs(60 * 60);
/// Maximum time to wait for a new look-up if the last outcome can be used instead.
const WAIT_FOR_NEWER: Duration = Duration::from_millis(500);
/// Time after a failure during which no new look-up begins; doubled with each failure in a row.
const FIRST_BACK_OFF: Duration = Duration::from_millis(500);
const MAX_BACK_OFF: Duration = Duration::from_secs(8);
/// Number of names above which those that were unused for [`STALE`] are dropped. Names come from
/// the configuration.
const MANY_NAMES: usize = 1000;

/// Minimum time to connect to one of several addresses, unless the time for all of them ends before.
const MIN_CONNECT_TIME: Duration = Duration::from_millis(500);

/// Looks up names. Clones share the threads and the outcomes.
#[derive(Debug, Clone)]
pub struct Resolver(Arc<SharedResolver>);

/// The addresses of a name, in the order of the system's resolver, with port 0.
pub(crate) type HostAddresses = Arc<[SocketAddr]>;

/// Why there is no connection to a host.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Io(io::Error),
    Resolve(ResolveError),
}

/// Why a name has no addresses.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The resolver is certain.
    #[error("{}", cause(.0))]
    NotFound(#[source] Arc<io::Error>),
    /// The resolver failed. It may succeed later.
    #[error("{}", cause(.0))]
    Temporary(#[source] Arc<io::Error>),
    /// The look-up has not returned.
    #[error("the name was not looked up in time")]
    TimedOut,
}

struct SharedResolver {
    pool: BlockingPool,
    names: Mutex<HashMap<String, NameEntry>>,
    look_up: Box<LookUp>,
}

type LookUp = dyn Fn(&str) -> Result<HostAddresses, ResolveError> + Send + Sync;

/// The addresses of a name, and the look-up in progress.
#[derive(Debug)]
struct NameEntry {
    addresses: Option<ResolvedAddresses>,
    /// The failure of the last look-up.
    failure: Option<FailedLookUp>,
    look_up: Option<LookUpInProgress>,
    last_use: Instant,
}

#[derive(Debug)]
struct ResolvedAddresses {
    addresses: HostAddresses,
    at: Instant,
}

#[derive(Debug)]
struct FailedLookUp {
    error: ResolveError,
    at: Instant,
    back_off: Duration,
}

#[derive(Debug, Clone)]
struct LookUpInProgress {
    began: Instant,
    has_ended: Arc<SetOnce<()>>,
}

/// The first step of a call of [`Resolver::resolve`].
enum ResolveStep {
    Known(Result<HostAddresses, ResolveError>),
    /// Wait for the end of a look-up, for at most this time.
    Wait(LookUpInProgress, Duration),
}

impl Resolver {
    /// Starts the threads.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses a thread.
    pub fn start() -> io::Result<Self> {
        Self::with(Box::new(look_up))
    }

    fn with(look_up: Box<LookUp>) -> io::Result<Self> {
        let pool = BlockingPool::new("keygate-dns", THREADS)?;
        Ok(Self(Arc::new(SharedResolver { pool, names: Mutex::default(), look_up })))
    }

    /// Connects to the first address of a host that `permits` and that accepts, within `limit`. Each
    /// address has an equal part of the remaining time, but at least [`MIN_CONNECT_TIME`], so that one
    /// that does not respond leaves time for the next.
    pub(crate) async fn connect(
        &self,
        host: &str,
        port: u16,
        limit: Duration,
        permits: impl Fn(SocketAddr) -> io::Result<()>,
    ) -> Result<TcpStream, ConnectError> {
        let began = Instant::now();
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => [SocketAddr::new(address, 0)].into(),
            Err(_) => self.resolve(host, limit).await.map_err(ConnectError::Resolve)?,
        };
        let mut last_error = io::ErrorKind::AddrNotAvailable.into();
        for (index, mut address) in addresses.iter().copied().enumerate() {
            address.set_port(port);
            if let Err(error) = permits(address) {
                last_error = error;
                continue;
            }
            let left = limit.saturating_sub(began.elapsed());
            let part = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            match timeout(part.max(MIN_CONNECT_TIME.min(left)), TcpStream::connect(address)).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => last_error = error,
                Err(_) => last_error = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(ConnectError::Io(last_error))
    }

    /// The addresses of a name, at least one. Concurrent callers share one look-up. Waits for at
    /// most `limit`.
    pub(crate) async fn resolve(
        &self,
        name: &str,
        limit: Duration,
    ) -> Result<HostAddresses, ResolveError> {
        match self.first_step(name, limit) {
            ResolveStep::Known(outcome) => outcome,
            ResolveStep::Wait(in_progress, limit) => {
                let left = limit.saturating_sub(in_progress.began.elapsed());
                let _ = timeout(left, in_progress.has_ended.wait()).await; // either is looked at
                let names = self.0.lock();
                let outcome = names.get(name).and_then(|entry| entry.outcome(Instant::now()));
                outcome.unwrap_or(Err(ResolveError::TimedOut))
            }
        }
    }

    fn first_step(&self, name: &str, timeout: Duration) -> ResolveStep {
        let now = Instant::now();
        let mut names = self.0.lock();
        if names.len() >= MANY_NAMES && !names.contains_key(name) {
            names.retain(|_, entry| entry.look_up.is_some() || entry.last_use.elapsed() < STALE);
        }
        let entry = names.entry(name.to_owned()).or_insert_with(|| NameEntry::new(now));
        entry.last_use = now;
        let age = entry.age(now);
        if let Some(answer) = entry.addresses.as_ref().filter(|_| age < FRESH) {
            return ResolveStep::Known(Ok(Arc::clone(&answer.addresses)));
        }
        if entry.look_up.is_none() && !entry.is_in_back_off(now) {
            entry.look_up = Some(self.begin(name, now));
        }
        let recent_failure = entry.failure.as_ref().is_some_and(|it| now - it.at < USED_AT_ONCE);
        match (entry.look_up.clone(), entry.outcome(now)) {
            (_, Some(Ok(addresses))) if age < USED_AT_ONCE => ResolveStep::Known(Ok(addresses)),
            (Some(look_up), Some(Err(_))) if !recent_failure => ResolveStep::Wait(look_up, timeout),
            (Some(look_up), Some(_)) => ResolveStep::Wait(look_up, timeout.min(WAIT_FOR_NEWER)),
            (Some(look_up), None) => ResolveStep::Wait(look_up, timeout),
            (None, Some(outcome)) => ResolveStep::Known(outcome),
            (None, None) => ResolveStep::Known(Err(ResolveError::TimedOut)),
        }
    }

    /// Begins to look up a name on a thread of the pool.
    fn begin(&self, name: &str, now: Instant) -> LookUpInProgress {
        let call = Arc::new(LookUpCall::new(self.clone(), name.to_owned()));
        let pool = self.0.pool.clone();
        tokio::spawn(async move {
            for _ in 0..QUEUE_ATTEMPTS {
                let queued = Arc::clone(&call);
                // The call itself records its outcome, late or not.
                let _ = pool.run_within(HANGS_AFTER, move || queued.run()).await;
                if call.is_started.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        LookUpInProgress { began: now, has_ended: Arc::default() }
    }
}

impl SharedResolver {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, NameEntry>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedResolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Resolver").field("names", &self.names).finish_non_exhaustive()
    }
}

/// A look-up on its way to a thread. Records a failure if it is dropped on the way.
struct LookUpCall {
    resolver: Resolver,
    name: String,
    is_started: AtomicBool,
    is_done: AtomicBool,
}

impl LookUpCall {
    fn new(resolver: Resolver, name: String) -> Self {
        Self { resolver, name, is_started: AtomicBool::new(false), is_done: AtomicBool::new(false) }
    }

    fn run(&self) {
        if !self.is_started.swap(true, Ordering::Relaxed) {
            self.end((self.resolver.0.look_up)(&self.name));
        }
    }

    fn end(&self, outcome: Result<HostAddresses, ResolveError>) {
        self.is_done.store(true, Ordering::Relaxed);
        if let Some(entry) = self.resolver.0.lock().get_mut(&self.name) {
            entry.end_look_up(outcome, Instant::now());
        }
    }
}

impl Drop for LookUpCall {
    fn drop(&mut self) {
        if !self.is_done.load(Ordering::Relaxed) {
            self.end(Err(ResolveError::TimedOut)); // no thread was free, or the call panicked
        }
    }
}

impl NameEntry {
    fn new(now: Instant) -> Self {
        Self { addresses: None, failure: None, look_up: None, last_use: now }
    }

    /// The age of the addresses.
    fn age(&self, now: Instant) -> Duration {
        let answered =
            self.addresses.as_ref().map(|answer| now.saturating_duration_since(answer.at));
        answered.unwrap_or(Duration::MAX)
    }

    /// The addresses that may be used, or the last failure.
    fn outcome(&self, now: Instant) -> Option<Result<HostAddresses, ResolveError>> {
        if let Some(answer) = self.addresses.as_ref().filter(|_| self.age(now) < STALE) {
            return Some(Ok(Arc::clone(&answer.addresses)));
        }
        self.failure.as_ref().map(|failure| Err(failure.error.clone()))
    }

    fn is_in_back_off(&self, now: Instant) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| now.saturating_duration_since(failure.at) < failure.back_off)
    }

    fn end_look_up(&mut self, outcome: Result<HostAddresses, ResolveError>, now: Instant) {
        match outcome {
            Ok(addresses) => {
                self.addresses = Some(ResolvedAddresses { addresses, at: now });
                self.failure = None;
            }
            Err(error) => {
                if let ResolveError::NotFound(_) = error {
                    self.addresses = None;
                }
                let last = self.failure.take().map(|failure| failure.back_off * 2);
                let back_off = last.map_or(FIRST_BACK_OFF, |it| it.min(MAX_BACK_OFF));
                self.failure = Some(FailedLookUp { error, at: now, back_off });
            }
        }
        if let Some(look_up) = self.look_up.take() {
            let _ = look_up.has_ended.set(()); // set once: the look-up was taken
        }
    }
}

/// Asks the system's resolver, which follows `nsswitch.conf`, `/etc/hosts` and `resolv.conf`.
fn look_up(name: &str) -> Result<HostAddresses, ResolveError> {
    let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    let found = dns_lookup::getaddrinfo(Some(name), None, Some(hints)).map_err(|error| {
        let is_temporary = match error.kind() {
            LookupErrorKind::Again
            | LookupErrorKind::Fail
            | LookupErrorKind::Memory
            | LookupErrorKind::System => true,
            LookupErrorKind::Badflags
            | LookupErrorKind::Family
            | LookupErrorKind::IO
            | LookupErrorKind::NoData
            | LookupErrorKind::NoName
            | LookupErrorKind::Service
            | LookupErrorKind::Socktype
            | LookupErrorKind::Unknown => false,
        };
        let error = Arc::new(io::Error::from(error));
        if is_temporary { ResolveError::Temporary(error) } else { ResolveError::NotFound(error) }
    })?;
    let addresses: HostAddresses = found.flatten().map(|found| found.sockaddr).collect();
    if addresses.is_empty() {
        return Err(ResolveError::NotFound(Arc::new(io::Error::other("the name has no address"))));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests;
