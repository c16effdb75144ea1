//! Responses: the upstream's, or one that keygate makes itself; their heads and their bodies.

mod body;

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode, Version};
use keygate_wire::fields;
use keygate_wire::upload::ClientFault;

pub(crate) use self::body::{ResponseBody, ResponseLimits};
use super::in_flight::RequestInFlight;
use crate::proxy::open_connection::RequestRejection;
use crate::proxy::upstream::UpstreamResponse;
use crate::proxy::upstream::error::UpstreamError;

/// The status for a request that got no response from the upstream.
pub(crate) fn status_of(error: &UpstreamError) -> StatusCode {
    match error {
        UpstreamError::Connect(_)
        | UpstreamError::Protocol(_)
        | UpstreamError::Response(_)
        | UpstreamError::SharedConnection(_) => StatusCode::BAD_GATEWAY,
        UpstreamError::Client(ClientFault::Broken) => StatusCode::BAD_REQUEST,
        UpstreamError::Client(ClientFault::Stalled) => StatusCode::REQUEST_TIMEOUT,
        UpstreamError::Client(ClientFault::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        UpstreamError::Dial(error) if error.is_shortage() => StatusCode::SERVICE_UNAVAILABLE,
        UpstreamError::Dial(error) if error.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Dial(_) => StatusCode::BAD_GATEWAY,
        UpstreamError::Request(status, _) => *status,
        UpstreamError::ResponseTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// A response with the status in words as its body.
pub(crate) fn plain(status: StatusCode, in_flight: RequestInFlight) -> Response<ResponseBody> {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut response = own(status, "text/plain; charset=utf-8", text, in_flight);
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// The response to a client that holds its share of the memory. Without a body, because the client
/// may read none.
pub(crate) fn over_share(in_flight: RequestInFlight) -> Response<ResponseBody> {
    if let Some(record) = in_flight.record() {
        record.set_error(&"the client holds its share of the memory");
    }
    in_flight.count_own_response(StatusCode::TOO_MANY_REQUESTS);
    let mut response = Response::new(ResponseBody::own(Bytes::new(), in_flight));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Whether a response of keygate over HTTP/1.1 ends its connection. The bytes behind a malformed
/// request, behind CONNECT, or behind a body of an unknown coding may be no request.
pub(crate) fn ends_connection(response: &Response<ResponseBody>) -> bool {
    response.body().is_own()
        && matches!(
            response.status(),
            StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        )
}

/// The response to a client that may send no more requests: JSON if it accepts JSON, else text.
pub(crate) fn rejection(
    parts: &Parts,
    rejection: RequestRejection,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let RequestRejection { status, reason } = rejection;
    if let Some(record) = in_flight.record() {
        record.set_error(&reason);
    }
    let (code, words) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (content_type, text) = if accept.is_some_and(|accept| accept.contains("application/json")) {
        ("application/json", format!("{{\"status\":{code},\"error\":\"{reason}\"}}\n"))
    } else {
        ("text/plain; charset=utf-8", format!("{code} {words}: {reason}\n"))
    };
    let mut response = own(status, content_type, text, in_flight);
    if parts.version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn own(
    status: StatusCode,
    content_type: &'static str,
    text: String,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    in_flight.count_own_response(status);
    let mut response = Response::new(ResponseBody::own(Bytes::from(text), in_flight));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// The upstream's response without its hop-by-hop fields.
pub(crate) fn from_upstream(
    response: UpstreamResponse,
    limits: ResponseLimits,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let UpstreamResponse { response, lease } = response;
    let holds_last_piece = response.status().is_success();
    without_hop_by_hop(response.map(|incoming| {
        ResponseBody::upstream(incoming, lease, limits, holds_last_piece, in_flight)
    }))
}

fn without_hop_by_hop(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let status = response.status();
    let is_lengthless = status.is_informational() || status == StatusCode::NO_CONTENT;
    // RFC 9110, section 8.6, and RFC 9112, section 6.3
    if is_lengthless || response.headers().contains_key(header::TRANSFER_ENCODING) {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    fields::remove_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response
}

/// The response to an extended CONNECT that the upstream has accepted.
pub(crate) fn connected<B>(response: Response<B>) -> Response<ResponseBody> {
    let mut response = without_hop_by_hop(response.map(|_| ResponseBody::empty()));
    for name in [header::CONTENT_LENGTH, header::SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(name);
    }
    *response.status_mut() = StatusCode::OK;
    response
}

/// The response to an `Upgrade` that the upstream has accepted.
pub(crate) fn switching<B>(response: Response<B>) -> Response<ResponseBody> {
    let mut response = response.map(|_| ResponseBody::empty());
    let protocol = response.headers_mut().remove(header::UPGRADE);
    response = without_hop_by_hop(response);
    let connection: HeaderName = header::CONNECTION;
    response.headers_mut().insert(connection, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    response
}
