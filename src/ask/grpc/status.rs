//! The end of a call: its gRPC status, and the HTTP status of a call without a message.
//!
//! A response without a message never has the HTTP status 200. Hosts that ask over HTTP take 200 as
//! "allowed", whatever the gRPC status beside it is. gRPC clients prefer the gRPC status
//! (<https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>).

use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// A fault of the host, never of its client: the status of a call that gets no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The message is compressed.
    Compressed,
    /// The content type is not gRPC with protobuf messages.
    ContentType,
    /// The question about the health has no usable message.
    HealthQuestion,
    /// keygate has no such method.
    UnknownMethod,
    /// The question about the health names an unknown service.
    UnknownService,
}

impl CallError {
    /// HTTP status, gRPC status, and text.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Compressed => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "12", "compression is not supported")
            }
            Self::ContentType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "3", "content-type is not application/grpc")
            }
            Self::HealthQuestion => (StatusCode::BAD_REQUEST, "3", "malformed HealthCheckRequest"),
            Self::UnknownMethod => (StatusCode::NOT_FOUND, "12", "unknown method"),
            Self::UnknownService => (StatusCode::NOT_FOUND, "5", "unknown service"),
        }
    }

    /// The response, which is complete with its head.
    pub(super) fn response(self) -> Response<()> {
        let (http, grpc, text) = self.parts();
        let mut response = Response::new(());
        *response.status_mut() = http;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, GRPC);
        headers.insert(GRPC_STATUS, HeaderValue::from_static(grpc));
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static(text));
        if self == Self::Compressed {
            headers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        response
    }
}

/// The head of a response with a message.
pub(super) fn head() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The trailers of a response with a message.
pub(super) fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}
