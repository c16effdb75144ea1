//! One request and the head of its response, on a connection that is there.

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::{Method, Request, Response};
use tokio::time::sleep_until;

use super::error::UpstreamError;
use super::progress::Progress;
use super::request_body::RequestBody;

/// Why a request got no answer from this server.
#[derive(Debug)]
pub(super) enum Failed {
    /// Some of it may have been read.
    Sent(UpstreamError),
    /// Nothing of it was read: another server can have it.
    Unsent(Box<Request<RequestBody>>, UpstreamError),
}

/// What hyper says of a request.
type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// Sends a request and waits for the response head, as long as `limit` after the last piece of the
/// request that the server took.
pub(super) async fn exchange(
    mut response: Pin<&mut impl Future<Output = Sent>>,
    progress: &Progress,
    limit: Duration,
) -> Result<Response<Incoming>, Failed> {
    let deadline_of = || (progress.last() + limit).into();
    let mut deadline = pin!(sleep_until(deadline_of()));
    poll_fn(|context| {
        if let Poll::Ready(outcome) = response.as_mut().poll(context) {
            return Poll::Ready(outcome.map_err(|mut error| match error.take_message() {
                Some(unsent) => Failed::Unsent(Box::new(unsent), error.into_error().into()),
                None => Failed::Sent(match progress.fault() {
                    Some(fault) => UpstreamError::Client(fault),
                    None => error.into_error().into(),
                }),
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
pub(super) fn repeated(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let is_safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    if !is_safe.contains(request.method()) || !request.body().is_end_stream() {
        return None;
    }
    let mut again = Request::new(request.body().repeated()?);
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    Some(again)
}

/// Whether a server has ended a connection: it says nothing of the request itself.
pub(super) fn is_of_connection(error: &hyper::Error) -> bool {
    http2_error(error).is_none_or(|error| error.is_go_away() || error.is_io())
}

/// Whether a server did not look at a request, on a connection that goes on (RFC 9113, section 8.7).
pub(super) fn is_refused(error: &hyper::Error) -> bool {
    http2_error(error).is_some_and(|error| error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

fn http2_error(error: &hyper::Error) -> Option<&h2::Error> {
    error.source().and_then(|source| source.downcast_ref())
}
