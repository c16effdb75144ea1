//! The end of connections: those that have waited for too long, those whose clients are to be
//! refused by now, and all of them when the worker stops.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use super::standing::Standing;

/// What the process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Accepting and serving.
    Serving,
    /// The same, but not ready for more: load balancers are to look elsewhere.
    Leaving,
    /// Not accepting; connections finish what they have in flight.
    Draining,
    /// Whatever is still open is cut.
    Ended,
}

/// The open connections of one worker.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    /// Those that serve requests, by their addresses.
    serving: RefCell<HashMap<*const Standing, Rc<Standing>>>,
    /// All of them, handshakes included.
    count: Rc<Cell<usize>>,
    leaving: Cell<bool>,
    draining: Cell<bool>,
}

/// A connection is open as long as this lives.
#[derive(Debug)]
pub(super) struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl OpenConnections {
    /// Counts a connection.
    pub(super) fn enter(&self) -> Open {
        self.count.set(self.count.get().saturating_add(1));
        Open(Rc::clone(&self.count))
    }

    /// Takes a connection that is about to serve requests under its care.
    pub(super) fn watch(&self, standing: &Rc<Standing>) {
        self.serving.borrow_mut().insert(Rc::as_ptr(standing), Rc::clone(standing));
        if self.draining.get() {
            standing.activity.leave();
        }
    }

    /// Looks after a connection no more: it has ended.
    pub(super) fn forget(&self, standing: *const Standing) {
        self.serving.borrow_mut().remove(&standing);
    }

    /// Whether the last of them has ended, and none will follow.
    pub(super) fn is_drained(&self) -> bool {
        self.draining.get() && self.count.get() == 0
    }

    /// All of them, as they are now.
    pub(super) fn serving(&self) -> Vec<Rc<Standing>> {
        self.serving.borrow().values().cloned().collect()
    }

    /// Whether no more connections are to be made.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Looks at the time-outs of all.
    pub(super) fn check_all(&self) {
        let (now, time) = (Instant::now(), SystemTime::now());
        self.serving.borrow().values().for_each(|standing| standing.check(now, time));
    }

    /// Whether clients are to make their next connection elsewhere.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// From now on every answer of HTTP/1.1 is the last on its connection.
    pub(super) fn leave(&self) {
        self.leaving.set(true);
    }

    /// Has every connection end, those that are made meanwhile, too.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        self.leave();
        self.serving.borrow().values().for_each(|standing| standing.activity.leave());
    }
}
