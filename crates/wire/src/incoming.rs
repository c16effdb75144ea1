//! Message bodies that are received, over either version of HTTP, and the errors of their peers.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::fields::InvalidContentLength;
use crate::http2::receive::ReceivedBody;
use crate::kept_body::KeptBody;
use crate::upload::ClientFault;

/// The body of a message that is received, over either version of HTTP.
#[derive(Debug)]
pub enum Incoming {
    /// No body.
    Empty,
    /// The body of a client's request over HTTP/1.1.
    Http1(hyper::body::Incoming),
    /// A body on a stream of HTTP/2.
    Http2(ReceivedBody),
    /// The body of a request that may be sent again.
    Kept(KeptBody<Self>),
    /// The body of a server's response over HTTP/1.1.
    Server(ServerBody),
}

impl Incoming {
    /// Ends the upload of the request as the end of its response does.
    pub fn end_upload(&mut self) {
        match self {
            Self::Http2(body) => body.end_upload(),
            Self::Empty | Self::Http1(_) | Self::Kept(_) | Self::Server(_) => {}
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => Pin::new(body).poll_frame(context).map_err(HttpError::from),
            Self::Http2(body) => body.poll_frame(context).map_err(HttpError::from),
            Self::Kept(body) => body.poll_frame(context),
            Self::Server(body) => body.poll_frame(context).map_err(HttpError::from),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Kept(body) => body.is_end_stream(),
            Self::Server(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Kept(body) => body.size_hint(),
            Self::Server(body) => body.size_hint(),
        }
    }
}

/// A connection on which the body of a response comes.
pub trait BodyConnection: std::fmt::Debug {
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
pub struct ServerBody(Option<Rc<RefCell<dyn BodyConnection>>>);

impl ServerBody {
    /// The body that comes on `connection`.
    pub fn new(connection: Rc<RefCell<dyn BodyConnection>>) -> Self {
        Self(Some(connection))
    }

    /// Reads the next frame.
    pub fn poll_frame(
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

    /// Whether nothing follows.
    pub fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    /// The number of bytes that follow, if it is known.
    pub fn size_hint(&self) -> SizeHint {
        let remaining = match &self.0 {
            Some(connection) => connection.borrow().remaining(),
            None => Some(0),
        };
        remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// An error of a peer in a message or on its connection.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The length of the message is invalid.
    #[error(transparent)]
    ContentLength(#[from] InvalidContentLength),
    /// An exchange with a server over HTTP/1.1 has failed.
    #[error(transparent)]
    Exchange(#[from] Http1Error),
    /// An error of hyper.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// An error of h2.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl HttpError {
    /// Whether the connection ended, and not the message alone.
    pub fn is_of_connection(&self) -> bool {
        match self {
            Self::Exchange(_) | Self::Http1(_) => true,
            Self::ContentLength(_) => false,
            Self::Http2(error) => error.is_go_away() || error.is_io(),
        }
    }

    /// Whether the body that was sent failed, and not the peer.
    pub fn is_of_own_body(&self) -> bool {
        match self {
            Self::Http1(error) => error.is_user(),
            Self::ContentLength(_) | Self::Exchange(_) | Self::Http2(_) => false,
        }
    }

    /// Whether the server has processed nothing of the request (RFC 9113, section 8.7). h2 has the
    /// error of a GOAWAY for streams above its last one only.
    pub fn is_unprocessed(&self) -> bool {
        match self {
            Self::ContentLength(_) | Self::Exchange(_) | Self::Http1(_) => false,
            Self::Http2(error) => {
                let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
                error.is_remote() && (error.is_go_away() || is_refused)
            }
        }
    }
}

/// The reason why an exchange with a server over HTTP/1.1 has failed.
#[derive(Debug, thiserror::Error)]
pub enum Http1Error {
    /// A chunk is malformed; the part of it is named.
    #[error("chunked body is malformed: {0}")]
    Chunk(&'static str),
    /// The server closed the connection within the response.
    #[error("connection closed before message completed")]
    Closed,
    /// The length of the message is invalid.
    #[error(transparent)]
    ContentLength(#[from] InvalidContentLength),
    /// The head of the response is malformed.
    #[error("{0} parsed")]
    Head(httparse::Error),
    /// The head of the response has too many bytes or fields.
    #[error("response head is too large")]
    HeadTooLarge,
    /// The connection has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The response has another transfer coding than `chunked`.
    #[error("the Transfer-Encoding of the response is not chunked alone")]
    TransferCoding,
    /// A response of HTTP/1.0 has a transfer coding.
    #[error("Transfer-Encoding in a response of HTTP/1.0")]
    TransferEncoding,
    /// The client did not send the whole body of its request.
    #[error("the body of the request broke off: {0}")]
    Upload(#[source] ClientFault),
    /// The body of the request is shorter or longer than its declared length.
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
