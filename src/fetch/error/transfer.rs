//! Why a response of a source is not usable.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::StatusCode;
use keygate_core::regular_file::{self, FileSize};

use super::remedy_of;
use crate::http_client::ExchangeError;

/// Maximum length of a value of a server in an error, in characters; the rest is cut.
const MAX_SHOWN: usize = 200;

/// Why a response is not usable.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The server sent another part of the file than requested. The value is shortened.
    #[error(
        "the response to a request for a part of the file has Content-Range {0:?}; the next run begins anew"
    )]
    BadRange(String),
    /// The connection was not made in time.
    #[error(
        "no connection within {0:?}; check the network to the source, or raise connect_timeout"
    )]
    ConnectTimeout(Duration),
    /// The body has a `Content-Encoding`, although no request has `Accept-Encoding`.
    #[error("the response has a Content-Encoding; let the source send the file as it is")]
    Encoded,
    /// There is no response.
    #[error("{0}; {remedy}", remedy = remedy_without_response(.0))]
    Exchange(#[from] ExchangeError),
    /// The end of the file cannot be known.
    #[error(
        "the response has neither Content-Length nor chunks, so that its end cannot be known; let the source send a length"
    )]
    NoLength,
    /// The source is at another address.
    #[error(
        "{status} to {location:?}: redirects are followed to redirect_hosts over https:// only; give its address as the URL, or name the host there"
    )]
    Redirect {
        /// The status.
        status: StatusCode,
        /// The value of `Location`, shortened, without credentials.
        location: String,
    },
    /// The last of the redirects that are followed leads to one more.
    #[error("more than {0} redirects; give its address as the URL")]
    Redirects(usize),
    /// No byte has arrived for some time.
    #[error("no byte for {0:?}; check the network to the source, or raise stall_timeout")]
    Stalled(Duration),
    /// Another status than 200.
    #[error("{0}; {remedy}", remedy = remedy_for(*.0))]
    Status(StatusCode),
    /// The download took too long.
    #[error("not complete within {0:?}; raise timeout, or find a faster source")]
    TimedOut(Duration),
    /// The file is too large.
    #[error(
        "larger than {}, the maximum; {}",
        FileSize(*max),
        if *is_max_size {
            "correct the URL, or raise max_size"
        } else {
            "correct the URL, because no setting raises this maximum"
        }
    )]
    TooLarge {
        /// The maximum, in bytes.
        max: u64,
        /// Whether `max_size` gives the maximum.
        is_max_size: bool,
    },
    /// The connection ended too early.
    #[error(
        "the response broke off after {received} bytes: {reason}; the next run continues there if the source supports it"
    )]
    Truncated {
        /// Number of bytes of the file that have arrived.
        received: u64,
        /// The error of the connection.
        reason: String,
    },
    /// The file cannot be written.
    #[error("{}: {}{}", path.display(), regular_file::cause(.source), remedy_of(.source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

fn remedy_without_response(error: &ExchangeError) -> &'static str {
    match error {
        ExchangeError::HeadTooLarge => "correct the URL",
        ExchangeError::Tls(_) => {
            "give the CAs of the server as trust anchors, correct the name in the URL, or give the source a server certificate"
        }
        ExchangeError::Unreachable(_) => "check the network to the source, or correct the URL",
        ExchangeError::Unresolved(_) => "correct the name in the URL, or check the DNS",
    }
}

/// The start of a value of a server, for an error.
pub(in crate::fetch) fn shortened(value: &str) -> String {
    value.chars().take(MAX_SHOWN).collect()
}

fn remedy_for(status: StatusCode) -> &'static str {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        "try again later"
    } else if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        "let the source permit this request"
    } else {
        "correct the URL, or let the source have the file"
    }
}
