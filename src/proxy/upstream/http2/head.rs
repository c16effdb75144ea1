//! The head of a request over HTTP/2, and of its response.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use h2::RecvStream;
use h2::client::ResponseFuture;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, Response, Uri, Version, header};
use keygate_wire::http2::head_size;
use keygate_wire::informational::InformationalSender;

use crate::proxy::message::body::RequestBody;
use crate::proxy::upstream::error::UpstreamError;

/// Waits for the head of a response. Forwards the informational responses before it.
pub(super) async fn response_head(
    response: &mut ResponseFuture,
    informational: Option<InformationalSender>,
) -> Result<Response<RecvStream>, h2::Error> {
    poll_fn(|context| {
        while let Poll::Ready(Some(Ok(received))) = response.poll_informational(context) {
            if let Some(client) = &informational {
                let (head, ()) = received.into_parts();
                client.forward(head.status, head.headers);
            }
        }
        Pin::new(&mut *response).poll(context)
    })
    .await
}

/// Converts a request to HTTP/2: an absolute URI instead of `Host`.
///
/// # Errors
/// Returns an error if `Host` is not an authority, or if the head is larger than `max_size`.
pub(crate) fn prepare(
    request: &mut Request<RequestBody>,
    scheme: &Scheme,
    max_size: usize,
) -> Result<(), UpstreamError> {
    if let Some(fields) = request.body_mut().own_fields.take() {
        fields.set(request.headers_mut());
    }
    let headers = request.headers_mut();
    let host = headers.remove(header::HOST).ok_or(UpstreamError::HOST)?;
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONNECTION);
    let authority = Authority::try_from(host.as_bytes()).map_err(|_| UpstreamError::HOST)?;
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(scheme.clone());
    parts.authority = Some(authority);
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| UpstreamError::HOST)?;
    *request.version_mut() = Version::HTTP_2;
    if head_size::is_above(max_size, request) {
        return Err(UpstreamError::REQUEST_HEAD);
    }
    Ok(())
}
