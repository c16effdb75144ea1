//! A response body that is received from a server over HTTP/1.1.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::proxy::message::upload::ClientFault;

/// The reason why an exchange with a server over HTTP/1.1 has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http1Error {
    #[error("chunked body is malformed: {0}")]
    Chunk(&'static str),
    #[error("connection closed before message completed")]
    Closed,
    #[error("Content-Length is invalid")]
    ContentLength,
    #[error("{0} parsed")]
    Head(httparse::Error),
    #[error("response head is too large")]
    HeadTooLarge,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("Transfer-Encoding in a response of HTTP/1.0")]
    TransferEncoding,
    #[error("the body of the request broke off: {0}")]
    Upload(#[source] ClientFault),
    #[error("the body of the request does not have its Content-Length")]
    UploadLength,
}

impl From<httparse::Error> for Http1Error {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => Self::HeadTooLarge,
            error @ (httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token
            | httparse::Error::Version) => Self::Head(error),
        }
    }
}

/// A connection on which the body of a response comes.
pub(crate) trait BodyConnection: std::fmt::Debug {
    /// The next piece of the body.
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>>;

    /// Whether the body has no further piece.
    fn has_ended(&self) -> bool;

    /// Bytes of the body that follow, if its length is known.
    fn remaining(&self) -> Option<u64>;
}

/// The body of a response. It leaves its connection at its end, because the connection then serves
/// another request.
#[derive(Debug)]
pub(crate) struct ServerBody(Option<Rc<RefCell<dyn BodyConnection>>>);

impl ServerBody {
    pub(crate) fn new(connection: Rc<RefCell<dyn BodyConnection>>) -> Self {
        Self(Some(connection))
    }

    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        let Some(connection) = &self.0 else { return Poll::Ready(None) };
        let mut connection = connection.borrow_mut();
        let polled = connection.poll_frame(context);
        let has_ended = connection.has_ended();
        drop(connection);
        if has_ended {
            self.0 = None;
        }
        polled
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let remaining = match &self.0 {
            Some(connection) => connection.borrow().remaining(),
            None => Some(0),
        };
        remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
