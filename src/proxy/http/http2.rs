//! A client's HTTP/2 connection: each stream is a request, handled on a task of its own.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use h2::server::{Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use hyper::body::Body;
use hyper::header::HeaderValue;
use hyper::http::response::Parts;
use hyper::{HeaderMap, Method, Request, Response, header};
use keygate_wire::client_io::ClientIo;
use keygate_wire::fields::date_now;
use keygate_wire::gathered_io::GatheredIo;
use keygate_wire::http2::client_frames::ClientFrames;
use keygate_wire::http2::duplex::Http2Duplex;
use keygate_wire::http2::receive::ReceivedBody;
use keygate_wire::http2::send::{SendBody, SendEnd};
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::informational::InformationalSender;
use keygate_wire::informational::http2::Http2Informational;
use keygate_wire::io_events::WithIoEvents;
use keygate_wire::permit::{BufferClass, ledger};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tracing::debug;

use super::in_flight::HttpConnection;
use super::response::ResponseBody;
use super::uploads::{STREAM_WINDOW, STREAMS_OF_WINDOW};
use super::{ClientChannels, ClientConnection, handle};
use crate::client_log::Misuse;
use crate::proxy::open_connection::state::Close;

/// Bytes of a response that are buffered for a client that does not read, plus the last piece.
const SEND_BUFFER: usize = 64 << 10;
/// Maximum flow-control window of one stream, in bytes.
const MAX_STREAM_WINDOW: u32 = 4 * STREAM_WINDOW;
/// Overhead of small DATA frames in h2, in bytes. h2 would derive it from the window.
const SMALL_FRAMES: usize = 512 << 10;

/// Maximum length of a client's frame, in bytes; a longer one is a `FRAME_SIZE_ERROR`. h2 buffers
/// one frame. With the default, 16 KiB, an upload took 667 µs of CPU for each MiB instead of 567.
const MAX_FRAME: u32 = 64 << 10;

/// Maximum number of streams that a connection accepts before others have their turn.
const STREAMS_AT_ONCE: usize = 8;

/// A client's HTTP/2 connection.
pub(crate) struct Http2Server<IO> {
    phase: Http2Phase<WithIoEvents<GatheredIo<IO>, ClientFrames>>,
    io: GatheredIo<IO>,
    http: Rc<HttpConnection>,
    frames: Rc<ClientFrames>,
    /// Flow-control window of each stream, in bytes.
    window: u32,
    is_closing: bool,
}

enum Http2Phase<IO> {
    Handshake(Handshake<IO, Bytes>),
    Open(Connection<IO, Bytes>),
}

impl<IO: ClientIo> Http2Server<IO> {
    pub(crate) fn new(io: IO, http: Rc<HttpConnection>) -> Self {
        let limits = &http.service.config.limits;
        let frames = Rc::new(ClientFrames::new(http.holder(BufferClass::Tls)));
        let io = GatheredIo::new(io);
        let below = WithIoEvents::new(io.clone(), Rc::clone(&frames));
        let handshake = h2::server::Builder::new()
            // h2 responds to a longer list itself, without a trace of the request.
            .max_header_list_size(limits.max_header_size.saturating_mul(2))
            .max_concurrent_streams(limits.max_streams)
            .max_send_buffer_size(SEND_BUFFER)
            .max_frame_size(MAX_FRAME)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * STREAMS_OF_WINDOW)
            .data_frame_budget(SMALL_FRAMES)
            .enable_connect_protocol()
            .handshake(below);
        let phase = Http2Phase::Handshake(handshake);
        Self { phase, io, http, frames, window: STREAM_WINDOW, is_closing: false }
    }

    /// Doubles the windows when servers have read two windows of a stream and the ledger is nearly
    /// empty. They never shrink.
    fn grow_windows(&mut self) {
        let next = self.window.saturating_mul(2);
        let Http2Phase::Open(connection) = &mut self.phase else { return };
        if next > MAX_STREAM_WINDOW || self.http.consumed.get() < next {
            return;
        }
        self.http.consumed.set(0);
        if !ledger::is_nearly_empty() || !self.http.set_window(next) {
            return;
        }
        // Fails while the client has not acknowledged the last change.
        if connection.set_initial_window_size(next).is_ok() {
            connection.set_target_window_size(next.saturating_mul(STREAMS_OF_WINDOW));
            self.window = next;
        } else {
            self.http.set_window(self.window);
        }
    }

    /// Closes the connection if its client sends too many control frames.
    fn check_glitches(&mut self) {
        let count = self.frames.take_control();
        if count > 0 && self.http.glitches.record(count, Instant::now()) {
            self.http.record_misuse(Misuse::ControlFrames);
            self.http.open.state.close(Close::EnhanceYourCalm);
        }
    }

    /// Accepts streams until the connection waits or has ended. After [`STREAMS_AT_ONCE`], it goes
    /// on when the worker has looked for events of other connections.
    fn poll_streams(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        for _ in 0..STREAMS_AT_ONCE {
            match &mut self.phase {
                Http2Phase::Handshake(handshake) => {
                    let mut connection = ready!(Pin::new(handshake).poll(context))?;
                    if self.is_closing {
                        connection.graceful_shutdown();
                    }
                    self.phase = Http2Phase::Open(connection);
                }
                Http2Phase::Open(connection) => {
                    let accepted = ready!(connection.poll_accept(context)).transpose();
                    let accepted = accepted.inspect_err(|error| {
                        if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                            self.http.record_misuse(Misuse::Resets); // a limit of h2
                        }
                    });
                    let Some((request, respond)) = accepted? else {
                        return Poll::Ready(Ok(()));
                    };
                    let http = Rc::clone(&self.http);
                    tokio::task::spawn_local(serve(http, request, respond));
                }
            }
        }
        ready!(pin!(yield_now()).poll(context)); // pending, and wakes this task
        Poll::Pending
    }
}

impl<IO: ClientIo> ClientConnection for Http2Server<IO> {
    fn close_gracefully(&mut self) {
        self.is_closing = true;
        if let Http2Phase::Open(connection) = &mut self.phase {
            connection.graceful_shutdown();
        }
    }

    fn close_for_misuse(&mut self) {
        if let Http2Phase::Open(connection) = &mut self.phase {
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        self.grow_windows();
        let polled = self.poll_streams(context);
        let state = &self.http.open.state;
        if state.close_check.take() && self.io.has_closed() {
            state.close(Close::Abort);
        }
        self.check_glitches();
        self.io.flush(context); // at the end as well: h2 does not flush after an early EOF
        if !self.io.is_waiting() {
            self.http.release_written(); // the socket has taken all
        }
        polled
    }
}

/// Serves the request on one stream.
fn serve(
    http: Rc<HttpConnection>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> impl Future<Output = ()> {
    let began = Instant::now();
    // Boxed, because tokio moves a task's future several times: 8 % of a request.
    let exchange = Box::pin(exchange(Rc::clone(&http), began, request, respond));
    async move {
        let end = exchange.await;
        match end {
            SendEnd::Aborted | SendEnd::Complete => {}
            SendEnd::Reset => {
                if http.resets.record_reset(began, Instant::now()) {
                    http.record_misuse(Misuse::Resets);
                    http.open.state.close(Close::EnhanceYourCalm);
                }
            }
        }
    }
}

/// Handles the request on one stream and sends its response.
async fn exchange(
    http: Rc<HttpConnection>,
    began: Instant,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> SendEnd {
    let is_head = request.method() == Method::HEAD;
    let informational = Http2Informational::default();
    let StreamRequest { request, client, tunnel } =
        StreamRequest::new(request, &http.consumed, &informational);
    let response = {
        let handling = pin!(handle(Rc::clone(&http), began, request, client));
        response_to(handling, &mut respond, &informational).await
    };
    let Some(Ok(response)) = response else { return SendEnd::Reset };
    let (mut head, body) = response.into_parts();
    if let Some(tunnel) = tunnel.filter(|_| head.status.is_success()) {
        let send = send_head(&http, &mut respond, head, false);
        let Some(send) = send else { return SendEnd::Reset };
        let duplex = Http2Duplex::new(send, tunnel.receive);
        let _ = tunnel.sender.send(duplex); // fails if the upstream's side has ended
        return SendEnd::Complete;
    }
    if !body.is_end_stream()
        && let Some(length) = body.size_hint().exact()
    {
        head.headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    // The end of an upstream's response to HEAD is awaited, because it may still have to be read.
    let is_own = body.is_own();
    let is_bodiless = body.is_end_stream() || (is_head && is_own);
    let send = send_head(&http, &mut respond, head, is_bodiless);
    let Some(send) = send else { return SendEnd::Reset };
    let end = if is_bodiless {
        SendEnd::Complete
    } else {
        let timeout = http.service.config.limits.body_timeout;
        SendBody::new(body, send, Reason::INTERNAL_ERROR).with_stall_timeout(timeout).await
    };
    if end == SendEnd::Complete && !is_own {
        http.resets.record_complete();
    }
    end
}

/// A request on a stream, ready to be handled.
struct StreamRequest {
    request: Request<Incoming>,
    client: ClientChannels,
    /// The stream of an extended CONNECT.
    tunnel: Option<PendingTunnel>,
}

/// The client's side of a tunnel, until the response is out.
struct PendingTunnel {
    receive: RecvStream,
    sender: oneshot::Sender<Http2Duplex>,
}

impl StreamRequest {
    fn new(
        request: Request<RecvStream>,
        consumed: &Rc<Cell<u32>>,
        informational: &Http2Informational,
    ) -> Self {
        let informational = Some(InformationalSender::Http2(informational.clone()));
        let (head, receive) = request.into_parts();
        if head.method == Method::CONNECT {
            let (sender, tunnel) = oneshot::channel();
            return Self {
                request: Request::from_parts(head, Incoming::Empty),
                client: ClientChannels { informational, tunnel: Some(tunnel) },
                tunnel: Some(PendingTunnel { receive, sender }),
            };
        }
        let body = ReceivedBody::new(receive, &head.headers);
        let body = Incoming::Http2(body.with_consumed(consumed));
        Self {
            request: Request::from_parts(head, body),
            client: ClientChannels { informational, tunnel: None },
            tunnel: None,
        }
    }
}

/// Waits for the response to a request. Sends the informational responses before it. `None` if the
/// client resets the stream.
async fn response_to(
    mut handling: Pin<&mut impl Future<Output = Result<Response<ResponseBody>, Infallible>>>,
    respond: &mut SendResponse<Bytes>,
    informational: &Http2Informational,
) -> Option<Result<Response<ResponseBody>, Infallible>> {
    poll_fn(|context| {
        if respond.poll_reset(context).is_ready() {
            return Poll::Ready(None);
        }
        let response = handling.as_mut().poll(context);
        for waiting in informational.take(context) {
            if let Err(error) = respond.send_informational(waiting) {
                debug!(%error, "informational response not sent");
            }
        }
        response.map(Some)
    })
    .await
}

/// Sends the head of a response. Returns the stream for its body.
fn send_head(
    http: &HttpConnection,
    respond: &mut SendResponse<Bytes>,
    mut head: Parts,
    is_bodiless: bool,
) -> Option<SendStream<Bytes>> {
    compact(&mut head.headers);
    if !head.headers.contains_key(header::DATE)
        && let Some(date) = date_now()
    {
        head.headers.insert(header::DATE, date);
    }
    http.queued_fields.hold(&head.headers);
    let sent = respond.send_response(Response::from_parts(head, ()), is_bodiless);
    sent.inspect_err(|error| {
        debug!(%error, "response not sent");
        respond.send_reset(Reason::INTERNAL_ERROR);
    })
    .ok()
}

/// Maximum length of the values of a response that share one allocation, 1 KiB. A value that h2
/// keeps has the others in memory as well.
const MAX_SHARED: usize = 1024;

/// Copies the values into memory of their own. h2 keeps those that it compresses for as long as the
/// connection is open. Each would keep a read buffer of the upstream's connection, up to 128 KiB.
fn compact(headers: &mut HeaderMap) {
    let length = headers.values().map(HeaderValue::len).sum();
    let is_shared = length <= MAX_SHARED;
    let mut copies = BytesMut::with_capacity(if is_shared { length } else { 0 });
    for value in headers.values_mut() {
        if !is_shared {
            copies = BytesMut::with_capacity(value.len());
        }
        copies.extend_from_slice(value.as_bytes());
        if let Ok(mut copy) = HeaderValue::from_maybe_shared(copies.split().freeze()) {
            copy.set_sensitive(value.is_sensitive());
            *value = copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_response_keep_no_read_buffer() {
        let buffer = Bytes::from(b"text/html secret".repeat(100));
        let mut headers = HeaderMap::new();
        let value = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap();
        headers.insert(header::CONTENT_TYPE, value(0..9));
        let mut secret = value(10..16);
        secret.set_sensitive(true);
        headers.insert(header::ETAG, secret);
        compact(&mut headers);
        assert!(buffer.is_unique());
        assert_eq!(headers[header::CONTENT_TYPE], "text/html");
        assert_eq!(headers[header::ETAG], "secret");
        assert!(headers[header::ETAG].is_sensitive());
    }
}
