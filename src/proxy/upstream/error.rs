//! The reasons why a request gets no response from a server.

use std::sync::Arc;
use std::time::Duration;

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
    #[error("the server no longer speaks HTTP/2")]
    ChangedProtocol,
    #[error(transparent)]
    Client(ClientFault),
    #[error("the client holds its share of the upstream connections")]
    ClientShare,
    #[error("upstream connection limit reached")]
    ConnectionLimit,
    #[error(transparent)]
    Dial(Arc<DialError>),
    #[error("the server ended a new HTTP/2 connection before a request")]
    EndedUnused,
    #[error("the Host field is not a valid HTTP/2 authority")]
    Host,
    /// h2 has one error for both.
    #[error("the response head over HTTP/2 is malformed or larger than 64 KiB")]
    Http2ResponseHead,
    #[error("the server does not support extended CONNECT")]
    NoExtendedConnect,
    #[error("no healthy upstream server")]
    NoHealthyServer,
    #[error("the upstream connection failed: {}", without_numbers(&.0.to_string()))]
    Protocol(#[source] Arc<HttpError>),
    #[error("the request head is larger than the server accepts over HTTP/2")]
    RequestHead,
    #[error("the response head is larger than 128 KiB or has more than 100 fields")]
    ResponseHead,
    #[error("no response within {0:?}")]
    ResponseTimeout(Duration),
    /// Another request has counted the failure against the server.
    #[error("the upstream connection failed: {}", without_numbers(&.0.to_string()))]
    SharedConnection(#[source] Arc<HttpError>),
    #[error("upstream switched to a protocol that was not requested")]
    UnexpectedUpgrade,
    #[error("upstream refused the protocol upgrade")]
    UpgradeRefused,
}

impl UpstreamError {
    /// The label of the failure metric; `None` for a fault of the client.
    pub(crate) fn kind(&self) -> Option<UpstreamFailure> {
        Some(match self {
            Self::Client(_) | Self::Host | Self::NoExtendedConnect | Self::RequestHead => {
                return None;
            }
            Self::Dial(error) if error.is_shortage() => UpstreamFailure::Unavailable,
            Self::ChangedProtocol | Self::Dial(_) | Self::EndedUnused => UpstreamFailure::Connect,
            Self::ClientShare | Self::ConnectionLimit | Self::NoHealthyServer => {
                UpstreamFailure::Unavailable
            }
            Self::Http2ResponseHead
            | Self::Protocol(_)
            | Self::ResponseHead
            | Self::SharedConnection(_)
            | Self::UnexpectedUpgrade
            | Self::UpgradeRefused => UpstreamFailure::Response,
            Self::ResponseTimeout(_) => UpstreamFailure::Timeout,
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
            Self::ChangedProtocol | Self::EndedUnused => Some(ServerFailure::Connect),
            Self::Dial(error) => error.is_of_server().then_some(ServerFailure::Connect),
            Self::Http2ResponseHead
            | Self::Protocol(_)
            | Self::ResponseHead
            | Self::UnexpectedUpgrade
            | Self::UpgradeRefused => Some(ServerFailure::Response),
            Self::Client(_)
            | Self::ClientShare
            | Self::ConnectionLimit
            | Self::Host
            | Self::NoExtendedConnect
            | Self::NoHealthyServer
            | Self::RequestHead
            | Self::ResponseTimeout(_)
            | Self::SharedConnection(_) => None,
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
            HttpError::Exchange(Http1Error::HeadTooLarge) => Self::ResponseHead,
            HttpError::Http2(error) if is_broken_stream(&error) => Self::Http2ResponseHead,
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

/// The error of a connection on which a request got no response.
#[derive(Debug)]
pub(crate) struct ExchangeError {
    /// The request, if nothing of it was sent.
    pub(crate) unsent: Option<OutgoingRequest>,
    pub(crate) error: HttpError,
}

impl ExchangeError {
    /// The error of a request that may have been sent.
    pub(crate) fn maybe_sent(error: impl Into<HttpError>) -> Self {
        Self { unsent: None, error: error.into() }
    }
}

impl From<Http1Error> for ExchangeError {
    fn from(error: Http1Error) -> Self {
        Self::maybe_sent(error)
    }
}
