//! The state of each upstream server that all workers and the status page share.
//!
//! It is written when a connection opens or closes, when a health check ends, when a worker ejects
//! the server, and once a second at most while its exchanges fail; for a request that succeeds only
//! if it is the first one after such failures.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keygate_core::unix_time;

use crate::config::ServerConfig;

/// Maximum length of the error of a health check or of a request, in characters; the rest is cut.
const MAX_ERROR: usize = 500;

/// Maximum time between two failures of one row, 5 min. In seconds.
const MAX_PAUSE: u64 = 300;

/// The states of the servers of every service. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ServerStates(Arc<Mutex<ByServer>>);

/// Keys are the names of the service and of the server.
type ByServer = HashMap<(String, String), Arc<ServerState>>;

impl ServerStates {
    /// The state of a server of a service.
    pub(crate) fn of(&self, service: &str, server: &ServerConfig) -> Arc<ServerState> {
        let key = (service.to_owned(), server.to_string());
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(servers.entry(key).or_default())
    }

    /// The state of the server with this name, as in the configuration; `None` if it has none yet.
    pub(crate) fn get(&self, service: &str, server: &str) -> Option<Arc<ServerState>> {
        let key = (service.to_owned(), server.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }
}

/// The state of one server.
#[derive(Debug)]
pub(crate) struct ServerState {
    /// The result of the health checks, which the control thread makes.
    is_healthy: AtomicBool,
    /// When the health checks found the server unhealthy, in seconds since the Unix epoch.
    unhealthy_since: AtomicU64,
    last_check: Mutex<Option<HealthCheck>>,
    /// Open connections of all workers.
    connections: AtomicUsize,
    /// Whether a connection was opened since the start.
    was_used: AtomicBool,
    /// Ejections by all workers since the start.
    ejections: AtomicU64,
    /// End of the longest ejection, in seconds since the Unix epoch.
    ejected_until: AtomicU64,
    /// Time of the last failure in `failing`, in seconds since the Unix epoch; 0 if there is none.
    failed_at: AtomicU64,
    /// The failures of a worker whose last exchanges all failed; `None` after a response.
    failing: Mutex<Option<Failing>>,
}

/// Failures in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failing {
    /// When the row began, in seconds since the Unix epoch.
    pub(crate) since: u64,
    /// Time of the last failure.
    pub(crate) at: u64,
    /// The last failure.
    pub(crate) error: String,
}

/// A health check that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    /// When it ended, in seconds since the Unix epoch.
    pub(crate) at: u64,
    /// Why it failed; `None` if it succeeded.
    pub(crate) error: Option<String>,
}

impl Default for ServerState {
    /// A server may get requests until its checks have failed.
    fn default() -> Self {
        Self {
            is_healthy: AtomicBool::new(true),
            unhealthy_since: AtomicU64::default(),
            last_check: Mutex::default(),
            connections: AtomicUsize::default(),
            was_used: AtomicBool::default(),
            ejections: AtomicU64::default(),
            ejected_until: AtomicU64::default(),
            failed_at: AtomicU64::default(),
            failing: Mutex::default(),
        }
    }
}

impl ServerState {
    /// Whether the server may get requests.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Sets the result of the health checks, for every worker.
    pub(crate) fn set_healthy(&self, is_healthy: bool) {
        let was_healthy = self.is_healthy.swap(is_healthy, Ordering::Relaxed);
        if was_healthy && !is_healthy {
            self.unhealthy_since.store(unix_time::now(), Ordering::Relaxed);
        }
    }

    /// When the health checks found the server unhealthy, in seconds since the Unix epoch; `None`
    /// if it is healthy.
    pub(crate) fn unhealthy_since(&self) -> Option<u64> {
        (!self.is_healthy()).then(|| self.unhealthy_since.load(Ordering::Relaxed))
    }

    /// The last health check; `None` before the first one.
    pub(crate) fn last_check(&self) -> Option<HealthCheck> {
        self.last_check.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the end of a health check.
    pub(crate) fn record_check(&self, error: Option<String>) {
        let error = error.map(|error| cut(&error));
        let check = HealthCheck { at: unix_time::now(), error };
        *self.last_check.lock().unwrap_or_else(PoisonError::into_inner) = Some(check);
    }

    /// Number of open connections of all workers.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts an open connection until [`Self::end_connection`].
    pub(super) fn begin_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.was_used.store(true, Ordering::Relaxed);
    }

    pub(super) fn end_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a connection was opened, or a health check ended, since the start.
    pub(crate) fn is_known(&self) -> bool {
        self.was_used.load(Ordering::Relaxed) || self.last_check().is_some()
    }

    /// Number of ejections by all workers since the start.
    pub(crate) fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// End of the longest ejection, in seconds since the Unix epoch; 0 before the first one.
    pub(crate) fn ejected_until(&self) -> u64 {
        self.ejected_until.load(Ordering::Relaxed)
    }

    /// Records that a worker has ejected the server.
    pub(crate) fn record_ejection(&self, duration: Duration) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
        let until = unix_time::now().saturating_add(duration.as_secs());
        self.ejected_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Failures of the last exchanges; `None` if there are none, or a response came since.
    pub(crate) fn failing(&self) -> Option<Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a failure of a worker whose last exchanges all failed, once a second at most.
    pub(crate) fn record_failing(&self, error: impl FnOnce() -> String) {
        let at = unix_time::now();
        if self.failed_at.load(Ordering::Relaxed) == at {
            return;
        }
        self.failed_at.store(at, Ordering::Relaxed);
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = failing.as_ref().filter(|failing| at.saturating_sub(failing.at) < MAX_PAUSE);
        let since = recent.map_or(at, |failing| failing.since);
        *failing = Some(Failing { since, at, error: cut(&error()) });
    }

    /// Records a response, which ends the failures of every worker.
    pub(crate) fn record_response(&self) {
        if self.failed_at.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.failed_at.store(0, Ordering::Relaxed);
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn cut(error: &str) -> String {
    error.chars().take(MAX_ERROR).collect()
}
