//! What a client is told: the upstream's answer, or one of keygate's own.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode, Version};
use tokio::time::timeout;

use super::response_body::{RequestInFlight, ResponseBody};
use crate::proxy::headers;
use crate::proxy::incoming::Incoming;
use crate::proxy::upstream::{DISCARDED_AT_MOST, DISCARDED_WITHIN, Fault, UpstreamError};

/// Reads what there is of a body, and drops it: clients that still send when the answer and
/// the end come, some do not read the answer. What is left is kept until that is out.
pub(super) async fn discard(mut body: Incoming, in_flight: RequestInFlight) -> RequestInFlight {
    // Who asks first is not to be encouraged.
    if body.is_end_stream() || in_flight.asks_first {
        return in_flight.keeping(body);
    }
    if in_flight.is_http2 {
        return in_flight.owing(body); // the answer goes out first
    }
    let reading = async {
        let mut read = 0;
        while read < DISCARDED_AT_MOST
            && let Some(Ok(frame)) = body.frame().await
        {
            read += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    let _ = timeout(DISCARDED_WITHIN, reading).await; // it is answered either way
    in_flight.keeping(body)
}

/// What a client is told for want of an answer.
pub(super) fn status_of(error: &UpstreamError) -> StatusCode {
    match error {
        UpstreamError::ChangedProtocol | UpstreamError::NoConsent | UpstreamError::Protocol(_) => {
            StatusCode::BAD_GATEWAY
        }
        UpstreamError::Client(Fault::Broken) | UpstreamError::Host => StatusCode::BAD_REQUEST,
        UpstreamError::Client(Fault::Stalled) => StatusCode::REQUEST_TIMEOUT,
        UpstreamError::Client(Fault::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        UpstreamError::Dial(error) if error.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Dial(_) => StatusCode::BAD_GATEWAY,
        UpstreamError::NoConnect => StatusCode::NOT_IMPLEMENTED,
        UpstreamError::NoServer | UpstreamError::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        UpstreamError::ResponseTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// An answer of keygate's own: the status in words.
pub(super) fn own(status: StatusCode, in_flight: RequestInFlight) -> Response<ResponseBody> {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut response = Response::new(ResponseBody::own(Bytes::from(text), in_flight));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Why a client is refused, as JSON for one that asks for it and as text for others; and the end of
/// its connection.
pub(super) fn refuse(
    parts: &Parts,
    status: StatusCode,
    why: &'static str,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let (code, words) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (content_type, text) = if accept.is_some_and(|accept| accept.contains("application/json")) {
        ("application/json", format!("{{\"status\":{code},\"error\":\"{why}\"}}\n"))
    } else {
        ("text/plain; charset=utf-8", format!("{code} {words}: {why}\n"))
    };
    let mut response = Response::new(ResponseBody::own(Bytes::from(text), in_flight));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    if parts.version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The upstream's answer without what is between it and us.
pub(super) fn from_upstream(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    headers::remove_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response
}

/// The upstream's consent to a stream of bytes, in the words of HTTP/2.
pub(super) fn connected(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let mut response = from_upstream(response);
    for name in [header::CONTENT_LENGTH, header::SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(name);
    }
    *response.status_mut() = StatusCode::OK;
    response
}

/// The upstream's consent to leave HTTP/1.1.
pub(super) fn switching(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let protocol = response.headers_mut().remove(header::UPGRADE);
    response = from_upstream(response);
    let connection: HeaderName = header::CONNECTION;
    response.headers_mut().insert(connection, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    response
}
