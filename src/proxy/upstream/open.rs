//! Connections to servers, counted while they are open.

use std::cell::Cell;
use std::rc::Rc;

use prometheus::IntGauge;

/// A connection to a server is open as long as this lives.
#[derive(Debug)]
pub(in crate::proxy) struct Open {
    count: Rc<Cell<usize>>,
    metric: IntGauge,
}

impl Open {
    pub(super) fn new(count: &Rc<Cell<usize>>, metric: IntGauge) -> Self {
        count.set(count.get().saturating_add(1));
        metric.inc();
        Self { count: Rc::clone(count), metric }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
        self.metric.dec();
    }
}
