//! Informational responses to an HTTP/2 client: sent on the stream before the final response.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Waker};

use hyper::{HeaderMap, Response, StatusCode};

use super::MAX_WAITING;

/// Size that one informational response counts for without its header fields, in bytes.
const OVERHEAD: usize = 32;

/// The informational responses to one request. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Http2Informational(Rc<RefCell<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Response<()>>,
    /// Bytes that were queued in all. h2 does not report which the client has read.
    queued_bytes: usize,
    /// Whether `100 Continue` was sent, which a request that is sent again must not repeat.
    has_continued: bool,
    waker: Option<Waker>,
}

impl Queue {
    fn push(&mut self, status: StatusCode, headers: HeaderMap) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        self.waiting.push(response);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Http2Informational {
    pub(super) fn forward(&self, status: StatusCode, headers: HeaderMap) {
        let lengths = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let length = OVERHEAD + lengths.sum::<usize>();
        let mut queue = self.0.borrow_mut();
        if queue.queued_bytes.saturating_add(length) <= MAX_WAITING {
            queue.queued_bytes += length;
            queue.push(status, headers);
        }
    }

    pub(super) fn send_continue(&self) {
        let mut queue = self.0.borrow_mut();
        if !std::mem::replace(&mut queue.has_continued, true) {
            queue.push(StatusCode::CONTINUE, HeaderMap::new());
        }
    }

    /// Takes the waiting responses. The task is woken when more are queued.
    pub fn take(&self, context: &Context<'_>) -> Vec<Response<()>> {
        let mut queue = self.0.borrow_mut();
        queue.waker.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
        std::mem::take(&mut queue.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_sent_again_has_one_continue() {
        let client = Http2Informational::default();
        client.send_continue();
        client.clone().send_continue();
        let responses = client.take(&Context::from_waker(Waker::noop()));
        assert_eq!(responses.iter().map(Response::status).collect::<Vec<_>>(), [100]);
    }
}
