//! Requests over HTTP/2: each stream is a question.

use std::task::Context;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::http::request::Parts;
use hyper::{Method, Request};
use keygate_wire::prefixed::Prefixed;
use tokio::io::{AsyncRead, AsyncWrite};

use super::fields::RequestFields;
use super::response::HttpAnswer;
use crate::ask::http2;
use crate::ask::question::Unusable;
use crate::config::AuthorizerLimits;

/// Bytes that HTTP/2 adds to the length of each field (RFC 9113, section 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Serves a connection whose first bytes are `read`, until it ends.
///
/// # Errors
/// Returns an error if the peer violates HTTP/2 or the connection is lost.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    read: BytesMut,
    limits: AuthorizerLimits,
    mut answer: impl FnMut(Result<RequestFields<'_>, Unusable>) -> HttpAnswer,
    drain: impl Future<Output = ()>,
) -> Result<(), h2::Error> {
    let max_size = usize::try_from(limits.max_question_size).unwrap_or(usize::MAX);
    let begin =
        |request: Request<RecvStream>, mut respond: SendResponse<Bytes>, _: &mut Context<'_>| {
            // The body is discarded with the stream, after the response (RFC 9113, section 8.1).
            let (head, _body) = request.into_parts();
            let fields = if header_size(&head) > max_size {
                Err(Unusable::Oversize)
            } else {
                Ok(RequestFields::Http2(&head.headers))
            };
            // Fails if the peer has reset the stream.
            let _ = answer(fields).send(head.method == Method::HEAD, &mut respond);
        };
    let max_header_size = limits.max_question_size.max(http2::MIN_HEADER_SIZE);
    let builder = http2::builder(limits.max_streams, max_header_size);
    let stream = Prefixed::new(read.freeze(), stream);
    http2::serve(stream, &builder, limits.idle_timeout, begin, drain).await
}

/// The size of the fields by RFC 9113, section 6.5.2, without the fields of the request line.
fn header_size(head: &Parts) -> usize {
    let sizes = head.headers.iter().map(|(name, value)| {
        name.as_str().len().saturating_add(value.len()).saturating_add(FIELD_OVERHEAD)
    });
    sizes.fold(0, usize::saturating_add)
}
