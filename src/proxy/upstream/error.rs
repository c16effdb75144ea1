//! The reasons why a request gets no response from a server.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use keygate_core::regular_file::without_numbers;
use keygate_wire::incoming::{Http1Error, HttpError};
use keygate_wire::upload::ClientFault;

use super::dial::DialError;
use super::ejection::ServerFailure;
use crate::metrics::UpstreamFailure;
use crate::proxy::message::body::OutgoingRequest;

/// The reason why a request got no response.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error(transparent)]
    Client(ClientFault),
    /// The server has ended a connection before a request, or has selected another protocol.
    #[error("{0}")]
    Connect(&'static str),
    #[error(transparent)]
    Dial(Arc<DialError>),
    #[error("the upstream connection failed: {}", without_numbers(&.0.to_string()))]
    Protocol(#[source] Arc<HttpError>),
    /// The request cannot be sent to this server, with the status for the client.
    #[error("{1}")]
    Request(StatusCode, &'static str),
    /// The server has sent another response than the protocol permits.
    #[error("{0}")]
    Response(&'static str),
    #[error("no response within {0:?}")]
    ResponseTimeout(Duration),
    /// Another request has counted the failure against the server.
    #[error("the upstream connection failed: {}", without_numbers(&.0.to_string()))]
    SharedConnection(#[source] Arc<HttpError>),
    /// There is no server or no connection for the request.
    #[error("{0}")]
    Unavailable(&'static str),
}

impl UpstreamError {
    pub(crate) const CHANGED_PROTOCOL: Self = Self::Connect("the server no longer speaks HTTP/2");
    pub(crate) const CLIENT_SHARE: Self =
        Self::Unavailable("the client holds its share of the upstream connections");
    pub(crate) const CONNECTION_LIMIT: Self =
        Self::Unavailable("upstream connection limit reached");
    pub(crate) const ENDED_UNUSED: Self =
        Self::Connect("the server ended a new HTTP/2 connection before a request");
    pub(crate) const HOST: Self =
        Self::Request(StatusCode::BAD_REQUEST, "the Host field is not a valid HTTP/2 authority");
    /// h2 has one error for both.
    const HTTP2_RESPONSE_HEAD: Self =
        Self::Response("the response head over HTTP/2 is malformed or larger than 64 KiB");
    pub(crate) const NO_EXTENDED_CONNECT: Self =
        Self::Request(StatusCode::NOT_IMPLEMENTED, "the server does not support extended CONNECT");
    pub(crate) const NO_HEALTHY_SERVER: Self = Self::Unavailable("no healthy upstream server");
    pub(crate) const REQUEST_HEAD: Self = Self::Request(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "the request head is larger than the server accepts over HTTP/2",
    );
    const RESPONSE_HEAD: Self =
        Self::Response("the response head is larger than 128 KiB or has more than 100 fields");
    pub(crate) const UNEXPECTED_UPGRADE: Self =
        Self::Response("upstream switched to a protocol that was not requested");
    pub(crate) const UPGRADE_REFUSED: Self =
        Self::Response("upstream refused the protocol upgrade");

    /// The label of the failure metric; `None` for a fault of the client.
    pub(crate) fn kind(&self) -> Option<UpstreamFailure> {
        Some(match self {
            Self::Client(_) | Self::Request(..) => return None,
            Self::Dial(error) if error.is_shortage() => UpstreamFailure::Unavailable,
            Self::Connect(_) | Self::Dial(_) => UpstreamFailure::Connect,
            Self::Protocol(_) | Self::Response(_) | Self::SharedConnection(_) => {
                UpstreamFailure::Response
            }
            Self::ResponseTimeout(_) => UpstreamFailure::Timeout,
            Self::Unavailable(_) => UpstreamFailure::Unavailable,
        })
    }

    /// Whether a request may be sent to the server again: the server has processed nothing of it,
    /// or it is safe and its connection has failed.
    pub(crate) fn permits_retry(&self, is_safe: bool) -> bool {
        let (Self::Protocol(error) | Self::SharedConnection(error)) = self else { return false };
        error.is_unprocessed() || (is_safe && error.is_of_connection())
    }

    /// The failure that counts against the server. A response that is late does not count, because
    /// a client can choose a slow page. `None` also for shortages of this process.
    pub(crate) fn server_failure(&self) -> Option<ServerFailure> {
        match self {
            Self::Connect(_) => Some(ServerFailure::Connect),
            Self::Dial(error) => error.is_of_server().then_some(ServerFailure::Connect),
            Self::Protocol(_) | Self::Response(_) => Some(ServerFailure::Response),
            Self::Client(_)
            | Self::Request(..)
            | Self::ResponseTimeout(_)
            | Self::SharedConnection(_)
            | Self::Unavailable(_) => None,
        }
    }
}

impl From<DialError> for UpstreamError {
    fn from(error: DialError) -> Self {
        Self::Dial(Arc::new(error))
    }
}

impl From<HttpError> for UpstreamError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Exchange(Http1Error::HeadTooLarge) => Self::RESPONSE_HEAD,
            HttpError::Http2(error) if is_broken_stream(&error) => Self::HTTP2_RESPONSE_HEAD,
            error @ (HttpError::ContentLength(_)
            | HttpError::Exchange(_)
            | HttpError::Http1(_)
            | HttpError::Http2(_)) => Self::Protocol(Arc::new(error)),
        }
    }
}

/// Whether h2 has reset the stream because of what the server sent on it.
fn is_broken_stream(error: &h2::Error) -> bool {
    error.is_library() && error.is_reset() && error.reason() == Some(h2::Reason::PROTOCOL_ERROR)
}

/// A request that one server did not respond to.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The server may have read a part of the request.
    MaybeSent(UpstreamError),
    /// The server has read nothing: another one may get the request.
    NotSent(OutgoingRequest, UpstreamError),
}
