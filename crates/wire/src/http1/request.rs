//! Requests over HTTP/1.1 (RFC 9112): their heads, their bodies, and the bytes that wait to be
//! written.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::Body;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Request, body};
use tokio::io::AsyncWrite;

use crate::fields::{self, push_line};
use crate::incoming::Http1Error;
use crate::informational::InformationalSender;
use crate::upload::ClientFault;

/// Capacity that is reserved for a request head, in bytes.
const TYPICAL_HEAD: usize = 1024;
/// Maximum bytes of a body that wait to be written, without the last piece.
const MAX_QUEUED: usize = 128 << 10;
/// Maximum number of pieces that one system call writes. No more wait, because each takes memory
/// in addition to its bytes: chunks of one byte took 3 MiB before they had [`MAX_QUEUED`] bytes.
const MAX_SLICES: usize = 32;
/// Capacity of the memory for request heads above which it is freed.
const MAX_KEPT: usize = 4 << 10;

/// The body of a request on its way to a server, which the head of the request depends on.
pub trait OutgoingBody: Body<Data = Bytes, Error = ClientFault> + Unpin {
    /// Writes the field lines of the head that the request does not have.
    fn write_fields(&self, lines: &mut Vec<u8>);

    /// The sender of informational responses to the client; `None` if the client takes none.
    fn informational(&self) -> Option<InformationalSender>;
}

/// The requests of a connection, one after another: the bytes that wait to be written, and the
/// upload that gives further ones.
#[derive(Debug)]
pub(super) struct RequestWriter<B> {
    queue: WriteQueue,
    upload: Option<RequestEncoder<B>>,
    /// Whether written bytes may wait in the TLS session.
    needs_flush: bool,
}

impl<B> Default for RequestWriter<B> {
    fn default() -> Self {
        Self { queue: WriteQueue::default(), upload: None, needs_flush: false }
    }
}

impl<B: OutgoingBody> RequestWriter<B> {
    /// Begins a request. Returns the request, to be sent again, if it has no body.
    ///
    /// # Errors
    /// Returns an error if the request has an invalid `Content-Length`.
    pub(super) fn begin(
        &mut self,
        request: Box<Request<B>>,
    ) -> Result<Option<Box<Request<B>>>, Http1Error> {
        let framing = UploadFraming::from_request(&request)?;
        let write_fields = |lines: &mut Vec<u8>| request.body().write_fields(lines);
        encode(&request, write_fields, framing.as_ref(), &mut self.queue.head);
        let Some(rest) = framing else { return Ok(Some(request)) };
        self.upload = Some(RequestEncoder { body: request.into_body(), rest });
        Ok(None)
    }

    /// Whether a part of a request is not sent yet.
    pub(super) fn is_sending(&self) -> bool {
        self.upload.is_some() || !self.queue.is_empty() || self.needs_flush
    }

    /// Writes what waits, and the pieces of the upload as they come. Ready at the end.
    pub(super) fn poll_send<IO: AsyncWrite + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        io: &mut IO,
    ) -> Poll<Result<(), Http1Error>> {
        while self.is_sending() {
            let mut waits_for_client = false;
            while let Some(upload) = self.upload.as_mut().filter(|_| !self.queue.is_full()) {
                match upload.poll(context, &mut self.queue) {
                    Poll::Pending => {
                        waits_for_client = true;
                        break;
                    }
                    Poll::Ready(Ok(false)) => {}
                    Poll::Ready(Ok(true)) => self.upload = None,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                }
            }
            if !self.queue.is_empty() {
                self.needs_flush = true;
                ready!(self.queue.poll_write(context, io))?;
            }
            if waits_for_client || self.upload.is_none() {
                if self.needs_flush {
                    ready!(Pin::new(&mut *io).poll_flush(context))?;
                    self.needs_flush = false;
                }
                if waits_for_client {
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives up the upload.
    pub(super) fn stop(&mut self) {
        *self = Self::default(); // the rest of the upload stays with the client's request
    }
}

/// The framing of a request body, which defines its end (RFC 9112, section 6).
#[derive(Debug)]
enum UploadFraming {
    /// A `Content-Length`: so many bytes follow.
    Bytes(u64),
    /// Chunks, and trailers with these names.
    Chunks(Vec<HeaderName>),
}

impl UploadFraming {
    /// The framing of the body of a request; `None` if it has no body.
    ///
    /// # Errors
    /// Returns an error if the request has an invalid `Content-Length`.
    fn from_request<B: Body>(request: &Request<B>) -> Result<Option<Self>, Http1Error> {
        let (headers, body) = (request.headers(), request.body());
        if body.is_end_stream() {
            return Ok(None);
        }
        let length = match headers.contains_key(header::TRANSFER_ENCODING) {
            true => None,
            false => fields::content_length(headers)?.or_else(|| body.size_hint().exact()),
        };
        Ok(Some(length.map_or_else(|| Self::Chunks(trailer_names(headers)), Self::Bytes)))
    }
}

/// Writes the head of a request. The fields that frame its body come from `framing`.
fn encode<B>(
    request: &Request<B>,
    write_fields: impl FnOnce(&mut Vec<u8>),
    framing: Option<&UploadFraming>,
    head: &mut Vec<u8>,
) {
    head.reserve(TYPICAL_HEAD);
    let uri = request.uri();
    let line = [request.method().as_str().as_bytes(), b" ", uri.path().as_bytes()];
    line.into_iter().for_each(|part| head.extend_from_slice(part));
    if let Some(query) = uri.query() {
        head.push(b'?');
        head.extend_from_slice(query.as_bytes());
    }
    head.extend_from_slice(b" HTTP/1.1\r\n");
    let (mut has_connection, mut has_host, mut has_te) = (false, false, false);
    for (name, value) in request.headers() {
        match name.as_str() {
            "connection" => has_connection = true,
            "host" => has_host = true,
            "te" => has_te = true,
            "content-length" if framing.is_some() => continue,
            "transfer-encoding" => continue,
            _ => {}
        }
        push_line(head, name, value);
    }
    write_fields(head);
    // A request that was prepared for HTTP/2 has its host in the target.
    if let Some(authority) = uri.authority().filter(|_| !has_host) {
        let parts = [b"host: ", authority.as_str().as_bytes(), b"\r\n"];
        parts.into_iter().for_each(|part| head.extend_from_slice(part));
    }
    // `TE` is a hop-by-hop field, so `Connection` must name it (RFC 9110, section 10.1.4).
    if has_te && !has_connection {
        head.extend_from_slice(b"connection: te\r\n");
    }
    match framing {
        None => {}
        Some(UploadFraming::Bytes(length)) => {
            let _ = write!(head, "content-length: {length}\r\n"); // a Vec takes every write
        }
        Some(UploadFraming::Chunks(_)) => {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
    }
    head.extend_from_slice(b"\r\n");
}

/// A request body, and how much of it follows.
#[derive(Debug)]
struct RequestEncoder<B> {
    body: B,
    rest: UploadFraming,
}

impl<B: OutgoingBody> RequestEncoder<B> {
    /// Adds the next piece of the body to the queue. Returns whether it was the last one.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        queue: &mut WriteQueue,
    ) -> Poll<Result<bool, Http1Error>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame.transpose() {
            Err(fault) => Err(Http1Error::Upload(fault)),
            Ok(frame) => self.push(frame, queue),
        })
    }

    fn push(
        &mut self,
        frame: Option<body::Frame<Bytes>>,
        queue: &mut WriteQueue,
    ) -> Result<bool, Http1Error> {
        let data = match frame.map(body::Frame::into_data) {
            None => return self.end(queue, None),
            Some(Err(other)) => return self.end(queue, other.into_trailers().ok()),
            Some(Ok(data)) => data,
        };
        let length = data.len();
        match &mut self.rest {
            UploadFraming::Chunks(_) if length == 0 => {}
            UploadFraming::Chunks(_) => {
                queue.push(Bytes::from(format!("{length:x}\r\n")));
                queue.push(data);
                queue.push(Bytes::from_static(b"\r\n"));
            }
            UploadFraming::Bytes(rest) => {
                *rest = rest.checked_sub(length as u64).ok_or(Http1Error::UploadLength)?;
                queue.push(data);
            }
        }
        if self.body.is_end_stream() { self.end(queue, None) } else { Ok(false) }
    }

    fn end(&self, queue: &mut WriteQueue, trailers: Option<HeaderMap>) -> Result<bool, Http1Error> {
        match &self.rest {
            UploadFraming::Bytes(0) => {}
            UploadFraming::Bytes(_) => return Err(Http1Error::UploadLength),
            UploadFraming::Chunks(names) => {
                let mut end = b"0\r\n".to_vec();
                for (name, value) in trailers.iter().flatten() {
                    if names.contains(name) {
                        push_line(&mut end, name, value);
                    }
                }
                end.extend_from_slice(b"\r\n");
                queue.push(end.into());
            }
        }
        Ok(true)
    }
}

/// The trailers that a request has announced.
fn trailer_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let fields = headers.get_all(header::TRAILER).iter().filter_map(|value| value.to_str().ok());
    let names = fields.flat_map(|field| field.split(','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok()).collect()
}

/// Bytes that wait to be written to a server: the head of a request, and pieces of its body.
#[derive(Debug, Default)]
struct WriteQueue {
    head: Vec<u8>,
    /// Bytes of the head that were written.
    written: usize,
    pieces: VecDeque<Bytes>,
    /// Bytes of the pieces.
    queued: usize,
}

impl WriteQueue {
    fn push(&mut self, piece: Bytes) {
        self.queued = self.queued.saturating_add(piece.len());
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    fn is_full(&self) -> bool {
        self.queued >= MAX_QUEUED || self.pieces.len() >= MAX_SLICES
    }

    fn is_empty(&self) -> bool {
        self.head.is_empty() && self.pieces.is_empty()
    }

    /// Writes everything.
    fn poll_write<IO: AsyncWrite + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        io: &mut IO,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let head = self.head.get(self.written..).unwrap_or_default();
            let written = if self.pieces.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(context, head))?
            } else {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let parts = [head].into_iter().chain(self.pieces.iter().map(Bytes::as_ref));
                let count = slices.iter_mut().zip(parts).fold(0, |count, (slice, part)| {
                    *slice = IoSlice::new(part);
                    count + 1
                });
                let slices = slices.get(..count).unwrap_or_default();
                ready!(Pin::new(&mut *io).poll_write_vectored(context, slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head.len().saturating_sub(self.written));
        self.written += of_head;
        if self.written == self.head.len() {
            self.written = 0;
            self.head.clear();
            self.head.shrink_to(MAX_KEPT);
        }
        let mut count = count.saturating_sub(of_head);
        self.queued = self.queued.saturating_sub(count);
        while let Some(piece) = self.pieces.front_mut().filter(|_| count > 0) {
            let of_piece = count.min(piece.len());
            piece.advance(of_piece);
            count -= of_piece;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests;
