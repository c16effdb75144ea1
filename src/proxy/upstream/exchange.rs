//! One request and the head of its response, on a connection that is there.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::Body;
use hyper::client::conn::TrySendError;
use hyper::{Method, Request};
use tokio::time::sleep_until;

use super::error::UpstreamError;
use super::progress::Progress;
use super::request_body::{Outgoing, RequestBody};
use crate::proxy::incoming::HttpError;

/// Why a request got no answer from this server.
#[derive(Debug)]
pub(super) enum Failed {
    /// Some of it may have been read.
    Sent(UpstreamError),
    /// Nothing of it was read: another server can have it.
    Unsent(Outgoing, UpstreamError),
}

/// What a connection says of a request that it got no answer to.
#[derive(Debug)]
pub(super) struct Unanswered {
    /// The request, if nothing of it was sent.
    pub(super) unsent: Option<Outgoing>,
    pub(super) error: HttpError,
}

impl Unanswered {
    /// Of a request that may have been sent.
    pub(super) fn sent(error: impl Into<HttpError>) -> Self {
        Self { unsent: None, error: error.into() }
    }
}

impl From<TrySendError<Request<RequestBody>>> for Unanswered {
    fn from(mut error: TrySendError<Request<RequestBody>>) -> Self {
        let unsent = error.take_message().map(Box::new);
        Self { unsent, error: error.into_error().into() }
    }
}

/// Sends a request and waits for the response head, as long as `limit` after the last piece of the
/// request that the server took.
pub(super) async fn exchange<A, E: Into<Unanswered>>(
    mut response: Pin<&mut impl Future<Output = Result<A, E>>>,
    progress: &Progress,
    limit: Duration,
) -> Result<A, Failed> {
    let began = Instant::now(); // it may have waited until now
    let deadline_of = || (progress.last().max(began) + limit).into();
    let mut deadline = pin!(sleep_until(deadline_of()));
    poll_fn(|context| {
        if let Poll::Ready(outcome) = response.as_mut().poll(context) {
            return Poll::Ready(outcome.map_err(|error| {
                let Unanswered { unsent, error } = error.into();
                match (unsent, progress.fault()) {
                    (Some(unsent), _) => Failed::Unsent(unsent, error.into()),
                    (None, Some(fault)) => Failed::Sent(UpstreamError::Client(fault)),
                    (None, None) => Failed::Sent(error.into()),
                }
            }));
        }
        // The time runs from the last piece of the request body that the upstream took, and not
        // while the client owes more: that has a time of its own.
        while Pin::as_mut(&mut deadline).poll(context).is_ready() {
            let later = if progress.waits_for_client() {
                (Instant::now() + limit).into()
            } else {
                deadline_of()
            };
            if later <= deadline.deadline() {
                return Poll::Ready(Err(Failed::Sent(UpstreamError::ResponseTimeout(limit))));
            }
            deadline.as_mut().reset(later);
        }
        Poll::Pending
    })
    .await
}

/// The same request again, if it is safe to send it twice (RFC 9110, section 9.2.2).
pub(super) fn repeated(request: &Request<RequestBody>) -> Option<Outgoing> {
    let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    if !is_safe.contains(request.method()) || !request.body().is_end_stream() {
        return None;
    }
    let mut again = Request::new(request.body().repeated()?);
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    Some(Box::new(again))
}
