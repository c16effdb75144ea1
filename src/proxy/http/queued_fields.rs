//! The heads and trailers of responses over HTTP/2 that h2 keeps until the socket has taken them.
//!
//! The request may end before the client reads them, so the connection holds their bytes.

use std::cell::{Cell, RefCell};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use keygate_wire::permit::ledger::{Held, Holder, MIN_READ};

/// Memory of a field without its name and its value, in bytes.
const FIELD: usize = 128;
/// Memory of a stream whose response waits for the socket, in bytes.
const STREAM: usize = 1 << 10;

/// The queued fields of one connection.
pub(super) struct QueuedFields {
    /// Their size in bytes.
    size: Cell<usize>,
    /// Bytes of that size which the client holds: all, or none if requests cover them.
    held: RefCell<Held>,
}

impl QueuedFields {
    pub(super) fn new(holder: Holder) -> Self {
        Self { size: Cell::new(0), held: RefCell::new(Held::new(holder)) }
    }

    /// Charges the client with the head or the trailers of a response.
    pub(super) fn hold(&self, fields: &HeaderMap) {
        let size =
            |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + FIELD;
        let fields = fields.iter().map(size).sum::<usize>();
        let queued = self.size.get().saturating_add(STREAM + fields);
        self.size.set(queued);
        if queued > MIN_READ {
            self.held.borrow_mut().set(queued);
        }
    }

    /// Gives back what the socket has taken.
    pub(super) fn release(&self) {
        if self.size.take() > MIN_READ {
            self.held.borrow_mut().set(0);
        }
    }
}
