//! The one connection of HTTP/2 to a server, which carries all its requests.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::error::UpstreamError;
use super::http2::Http2;

/// The connection, if there is one.
#[derive(Debug)]
pub(super) struct Shared {
    connection: Mutex<Option<Http2>>,
    used: Cell<Instant>,
    /// When the last attempt to connect failed, and why.
    failed: RefCell<Option<(Instant, UpstreamError)>>,
}

impl Shared {
    pub(super) fn new() -> Self {
        let (connection, failed) = (Mutex::new(None), RefCell::new(None));
        Self { connection, used: Cell::new(Instant::now()), failed }
    }

    /// The connection, if it is there and nobody is making one.
    pub(super) fn present(&self) -> Option<Http2> {
        let connection = self.connection.try_lock().ok()?;
        let http2 = connection.as_ref().filter(|http2| !http2.is_closed())?;
        self.used.set(Instant::now());
        Some(http2.clone())
    }

    /// The connection, made if it is not there. Everybody waits for the same one, and hears of the
    /// same failure: a thousand requests do not knock at a dead server one after the other.
    pub(super) async fn get(
        &self,
        make: impl Future<Output = Result<Http2, UpstreamError>>,
    ) -> Result<Http2, UpstreamError> {
        let began = Instant::now();
        self.used.set(began);
        let mut connection = self.connection.lock().await;
        if let Some(http2) = connection.as_ref().filter(|http2| !http2.is_closed()) {
            return Ok(http2.clone());
        }
        if let Some((at, error)) = &*self.failed.borrow()
            && *at > began
        {
            return Err(error.clone());
        }
        match make.await {
            Ok(http2) => Ok(connection.insert(http2).clone()),
            Err(error) => {
                *connection = None;
                self.failed.replace(Some((Instant::now(), error.clone())));
                Err(error)
            }
        }
    }

    /// Has everybody use this connection from now on.
    pub(super) async fn set(&self, http2: Http2) {
        *self.connection.lock().await = Some(http2);
    }

    /// Has the next request make another connection. What is in flight on this one goes on.
    /// Somebody may have made another meanwhile: that one stays.
    pub(super) fn forget(&self, http2: &Http2) {
        if let Ok(mut connection) = self.connection.try_lock() {
            connection.take_if(|present| present.is(http2));
        }
    }

    /// Lets go of a connection that nobody has used for `idle`, or that is older than `age`: it ends
    /// with the last request on it.
    pub(super) fn drop_stale(&self, idle: Duration, age: Option<Duration>, in_flight: usize) {
        let Ok(mut connection) = self.connection.try_lock() else { return };
        let is_idle = in_flight == 0 && self.used.get().elapsed() >= idle;
        connection.take_if(|http2| {
            is_idle || http2.is_closed() || age.is_some_and(|age| http2.made.elapsed() >= age)
        });
    }
}
