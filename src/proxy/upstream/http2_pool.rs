//! The one HTTP/2 connection to a server that all its requests share.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::error::UpstreamError;
use super::http2::Http2Connection;

/// A shared connection, if there is one.
#[derive(Debug)]
pub(crate) struct SharedHttp2 {
    connection: Mutex<Option<Http2Connection>>,
    last_use: Cell<Instant>,
    last_failure: RefCell<Option<ConnectFailure>>,
}

#[derive(Debug)]
struct ConnectFailure {
    at: Instant,
    error: UpstreamError,
}

impl SharedHttp2 {
    pub(crate) fn new() -> Self {
        Self {
            connection: Mutex::new(None),
            last_use: Cell::new(Instant::now()),
            last_failure: RefCell::new(None),
        }
    }

    /// The open connection, unless a call of [`Self::get`] is connecting.
    pub(crate) fn open(&self) -> Option<Http2Connection> {
        let connection = self.connection.try_lock().ok()?;
        let http2 = connection.as_ref().filter(|http2| !http2.is_closed())?;
        self.last_use.set(Instant::now());
        Some(http2.clone())
    }

    /// The open connection, or a new one. Concurrent callers share one connection attempt and its
    /// error (single flight).
    pub(crate) async fn get(
        &self,
        connect: impl Future<Output = Result<Http2Connection, UpstreamError>>,
    ) -> Result<Http2Connection, UpstreamError> {
        let began = Instant::now();
        self.last_use.set(began);
        let mut connection = self.connection.lock().await;
        if let Some(http2) = connection.as_ref().filter(|http2| !http2.is_closed()) {
            return Ok(http2.clone());
        }
        if let Some(failure) = &*self.last_failure.borrow()
            && failure.at > began
        {
            return Err(failure.error.clone());
        }
        match connect.await {
            Ok(http2) => Ok(connection.insert(http2).clone()),
            Err(error) => {
                *connection = None;
                let failure = ConnectFailure { at: Instant::now(), error: error.clone() };
                self.last_failure.replace(Some(failure));
                Err(error)
            }
        }
    }

    /// Replaces the connection for later requests.
    pub(crate) async fn set(&self, http2: Http2Connection) {
        *self.connection.lock().await = Some(http2);
    }

    /// Removes a connection, so that the next request opens another one. Its requests in flight go
    /// on. A connection that has replaced it stays.
    pub(crate) fn remove(&self, http2: &Http2Connection) {
        if let Ok(mut connection) = self.connection.try_lock() {
            connection.take_if(|current| current.is_same(http2));
        }
    }

    /// Removes a connection that is closed, older than `max_age`, or unused for `max_idle`. It
    /// closes with its last request.
    pub(crate) fn drop_stale(
        &self,
        max_idle: Duration,
        max_age: Option<Duration>,
        in_flight: usize,
    ) {
        let Ok(mut connection) = self.connection.try_lock() else { return };
        let is_idle = in_flight == 0 && self.last_use.get().elapsed() >= max_idle;
        connection.take_if(|http2| {
            is_idle
                || http2.is_closed()
                || max_age.is_some_and(|max_age| http2.opened.elapsed() >= max_age)
        });
    }
}
