//! The connections of HTTP/1.1 that have buffers. Idle ones free them and hibernate.
//!
//! A connection that hibernates keeps its socket and its TLS session. The first readable byte wakes
//! it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Worker;
use crate::proxy::open_connection::state::ConnectionState;

/// Time without a request after which a connection hibernates, 1 s.
const HIBERNATE_AFTER: Duration = Duration::from_secs(1);
/// The same time while more than [`MAX_IDLE_AWAKE`] connections have buffers, 25 ms. Clients that
/// connect in large numbers and send one request each would otherwise raise the peak of memory.
const HIBERNATE_SOON_AFTER: Duration = Duration::from_millis(25);
/// Maximum number of connections in a worker that wait for [`HIBERNATE_AFTER`].
const MAX_IDLE_AWAKE: usize = 64;
/// Interval between two checks, 25 ms. Without connections that have buffers there are none.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// The connections of one worker that have buffers.
#[derive(Debug, Default)]
pub(super) struct AwakeConnections {
    connections: RefCell<Vec<Weak<ConnectionState>>>,
    /// Whether a task checks the connections.
    is_watched: Cell<bool>,
}

impl Worker {
    /// Watches a connection that has buffers, until it hibernates or closes.
    pub(crate) fn watch_awake(self: &Rc<Self>, connection: &Rc<ConnectionState>) {
        if !connection.begin_watch() {
            return; // is watched since before it hibernated
        }
        self.awake.connections.borrow_mut().push(Rc::downgrade(connection));
        if !self.awake.is_watched.replace(true) {
            tokio::task::spawn_local(watch(Rc::clone(self)));
        }
    }
}

/// Lets idle connections hibernate, until all of them do.
async fn watch(worker: Rc<Worker>) {
    loop {
        let count = worker.awake.connections.borrow().len();
        if count == 0 {
            break worker.awake.is_watched.set(false);
        }
        let idle_for = if count > MAX_IDLE_AWAKE { HIBERNATE_SOON_AFTER } else { HIBERNATE_AFTER };
        sleep(CHECK_INTERVAL).await;
        let now = Instant::now();
        worker.awake.connections.borrow_mut().retain(|connection| {
            let connection = connection.upgrade();
            connection.is_some_and(|connection| connection.request_hibernation(now, idle_for))
        });
    }
}
