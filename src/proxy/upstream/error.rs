//! Why a request got no answer.

use std::sync::Arc;
use std::time::Duration;

use super::progress::Fault;
use crate::metrics::UpstreamFailure;
use crate::proxy::dial::DialError;
use crate::proxy::incoming::HttpError;

/// Why a request got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(in crate::proxy) enum UpstreamError {
    #[error("the server speaks another version of HTTP than before")]
    ChangedProtocol,
    #[error(transparent)]
    Client(Fault),
    #[error(transparent)]
    Dial(Arc<DialError>),
    #[error("the host cannot be sent over HTTP/2")]
    Host,
    #[error("the server does not take extended CONNECT")]
    NoConnect,
    #[error("the server's answer is no consent to leave HTTP")]
    NoConsent,
    #[error("no server is well")]
    NoServer,
    #[error("the connection could not be used: {0}")]
    Protocol(#[source] Arc<HttpError>),
    #[error("no response within {0:?}")]
    ResponseTimeout(Duration),
    #[error("as many connections are open as may be")]
    TooMany,
}

impl UpstreamError {
    /// How it is counted; what a client did is not the upstream's failure.
    pub(super) fn kind(&self) -> Option<UpstreamFailure> {
        Some(match self {
            Self::Client(_) | Self::Host | Self::NoConnect => return None,
            Self::ChangedProtocol | Self::Dial(_) => UpstreamFailure::Connect,
            Self::NoServer | Self::TooMany => UpstreamFailure::Unavailable,
            Self::NoConsent | Self::Protocol(_) => UpstreamFailure::Response,
            Self::ResponseTimeout(_) => UpstreamFailure::Timeout,
        })
    }

    /// Whether it says anything of the server.
    pub(super) fn is_of_server(&self) -> bool {
        !matches!(
            self,
            Self::Client(_) | Self::Host | Self::NoConnect | Self::NoServer | Self::TooMany
        )
    }
}

impl From<DialError> for UpstreamError {
    fn from(error: DialError) -> Self {
        Self::Dial(Arc::new(error))
    }
}

impl From<HttpError> for UpstreamError {
    fn from(error: HttpError) -> Self {
        Self::Protocol(Arc::new(error))
    }
}
