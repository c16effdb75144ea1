//! Requests over HTTP/2: each stream is a question.

use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::http::request::Parts;
use hyper::{Method, Request};
use keygate_wire::prefixed::Prefixed;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::fields::{HttpRequest, RequestFields};
use super::response::HttpAnswer;
use crate::ask::http2;
use crate::ask::question::Unusable;
use crate::config::AuthorizerLimits;

/// Bytes that HTTP/2 adds to the length of each field (RFC 9113, section 6.5.2).
const FIELD_OVERHEAD: usize = 32;
/// Maximum time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const LATE: Unusable = Unusable::Malformed("the body has not arrived within 10 s");

/// Serves a connection whose first bytes are `read`, until it ends. A body is a part of the question
/// if the protocol `reads_body`, and discarded otherwise.
///
/// # Errors
/// Returns an error if the peer violates HTTP/2 or the connection is lost.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    read: BytesMut,
    limits: AuthorizerLimits,
    reads_body: bool,
    answer: impl Fn(Result<HttpRequest<'_>, Unusable>) -> HttpAnswer + 'static,
    drain: impl Future<Output = ()>,
) -> Result<(), h2::Error> {
    let max_size = usize::try_from(limits.max_question_size).unwrap_or(usize::MAX);
    let answer = Rc::new(answer);
    let begin =
        |request: Request<RecvStream>, mut respond: SendResponse<Bytes>, _: &mut Context<'_>| {
            // The rest of a body is discarded with the stream, after the response (RFC 9113, section
            // 8.1).
            let (head, body) = request.into_parts();
            let answer = Rc::clone(&answer);
            let mut respond = move |body: Result<&[u8], Unusable>| {
                let fields = RequestFields::Http2(&head.headers);
                let is_oversize = header_size(&head) > max_size;
                let request = if is_oversize { Err(Unusable::Oversize) } else { body };
                let answer = answer(request.map(|body| HttpRequest { fields, body }));
                // Fails if the peer has reset the stream.
                let _ = answer.send(head.method == Method::HEAD, &mut respond);
            };
            if reads_body {
                tokio::task::spawn_local(async move {
                    let body = timeout(BODY_TIMEOUT, read_body(body, max_size)).await;
                    if let Some(body) = body.unwrap_or(Some(Err(LATE))) {
                        respond(body.as_deref().map_err(|it| *it));
                    }
                });
            } else {
                respond(Ok(&[]));
            }
        };
    let builder = if reads_body {
        http2::message_builder(limits, max_size)
    } else {
        let max_header_size = limits.max_question_size.max(http2::MIN_HEADER_SIZE);
        http2::builder(limits.max_streams, max_header_size)
    };
    let stream = Prefixed::new(read.freeze(), stream);
    http2::serve(stream, &builder, limits.idle_timeout, begin, drain).await
}

/// Reads a body of at most `max_size` bytes; `None` if the peer has cancelled the stream. The window
/// of the stream bounds what waits to be read.
async fn read_body(mut stream: RecvStream, max_size: usize) -> Option<Result<BytesMut, Unusable>> {
    let mut body = BytesMut::new();
    while let Some(data) = stream.data().await {
        let data = data.ok()?;
        // Fails if the window is larger than what was received, which it is not.
        let _ = stream.flow_control().release_capacity(data.len());
        if data.len() > max_size.saturating_sub(body.len()) {
            return Some(Err(Unusable::Oversize));
        }
        body.extend_from_slice(&data);
    }
    Some(Ok(body))
}

/// The size of the fields by RFC 9113, section 6.5.2, without the fields of the request line.
fn header_size(head: &Parts) -> usize {
    let sizes = head.headers.iter().map(|(name, value)| {
        name.as_str().len().saturating_add(value.len()).saturating_add(FIELD_OVERHEAD)
    });
    sizes.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use hyper::header::HeaderName;
    use tokio::io::duplex;
    use tokio::task::{LocalSet, spawn_local};
    use tokio::time::Instant;

    use super::*;
    use crate::ask::denial::denial;

    const LIMITS: AuthorizerLimits = AuthorizerLimits {
        max_connections: 1,
        max_streams: 1,
        max_question_size: 8 << 10,
        idle_timeout: Duration::from_secs(600),
    };

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_arriving_is_denied_after_ten_seconds() {
        let asking = async {
            let (stream, peer) = duplex(64 << 10);
            let answer = |request: Result<HttpRequest<'_>, Unusable>| {
                assert_eq!(request.err(), Some(LATE));
                let header = HeaderName::from_static("client-key-status");
                HttpAnswer::new(denial("late"), &header, None, Duration::ZERO)
            };
            let serving = serve(stream, BytesMut::new(), LIMITS, true, answer, pending());
            spawn_local(async move { serving.await.unwrap() });
            let (mut client, connection) = h2::client::handshake(peer).await.unwrap();
            spawn_local(connection);
            let request = Request::post("http://keygate/").body(()).unwrap();
            let (response, mut body) = client.send_request(request, false).unwrap();
            body.send_data(Bytes::from_static(b"{"), false).unwrap();
            let began = Instant::now();
            assert_eq!(response.await.unwrap().status(), 403);
            assert_eq!(began.elapsed().as_secs(), BODY_TIMEOUT.as_secs());
        };
        LocalSet::new().run_until(asking).await;
    }
}
