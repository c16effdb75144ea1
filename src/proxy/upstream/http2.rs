//! An HTTP/2 connection to a server. Requests share it: each is a stream.

mod head;
mod server_settings;

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, SendStream};
use hyper::body::Body;
use hyper::{Request, Response};
use keygate_wire::fields::normalize_content_length;
use keygate_wire::http1::request::OutgoingBody;
use keygate_wire::http2::RESPONSE_WINDOW;
use keygate_wire::http2::duplex::Http2Duplex;
use keygate_wire::http2::frames::FrameScan;
use keygate_wire::http2::receive::ReceivedBody;
use keygate_wire::http2::send::{BackgroundSend, SendBody, SendEnd};
use keygate_wire::http2::send_window::{SendWindow, WindowShare};
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::io_events::{IoEvents, WithIoEvents};
use keygate_wire::permit::ClientKey;

pub(crate) use self::head::prepare;
use self::head::response_head;
use self::server_settings::Http2ServerSettings;
use super::dial::{ConnectionGuard, Io};
use crate::config::UpstreamConfig;
use crate::proxy::message::body::OutgoingRequest;

/// Flow-control window of the connection, in bytes. It is the maximum, because a client that reads
/// nothing would otherwise use it up for the others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Maximum size of a response's header fields, in bytes.
const MAX_HEADER_LIST: u32 = 64 << 10;
/// Streams allowed before the server's SETTINGS arrive, for which every request waits.
const INITIAL_STREAMS: usize = 1;
/// Maximum number of streams, whatever the server allows. More streams that are not read would use
/// up the window of the connection.
const MAX_STREAMS: usize = (CONNECTION_WINDOW / RESPONSE_WINDOW) as usize;
/// The type of DATA frames (RFC 9113, section 6.1).
const DATA: u8 = 0;
/// Bytes of a request that are buffered for a server that does not read.
const SEND_BUFFER: usize = 64 << 10;

/// An HTTP/2 connection. Clones share it; it closes when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Http2Connection {
    sender: SendRequest<Bytes>,
    /// The stream of an upload, which has a share in the window.
    upload: Option<u32>,
    /// The halves of a request's stream that have not ended; keygate resets it if there is one.
    open_halves: Cell<u8>,
    opened: Instant,
    shared: Rc<SharedState>,
}

/// Identifies an open connection. Only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionId(*const SharedState);

struct SharedState {
    settings: Http2ServerSettings,
    window: Rc<SendWindow>,
    has_ended: Cell<bool>,
    /// Whether a request was sent on it.
    is_used: Cell<bool>,
    /// Streams that the server allows.
    stream_limit: Cell<usize>,
    /// Streams in use.
    streams: Cell<usize>,
    /// The client of the newest request, and whether others were in flight when it was sent.
    newest: Cell<Option<(ClientKey, bool)>>,
    /// When the last stream ended, if none is in use.
    idle_since: Cell<Instant>,
    /// Called after a change of the stream limit, and at the end of the connection.
    on_change: Box<dyn Fn()>,
}

impl Http2Connection {
    /// Starts HTTP/2 on a connection. Calls `on_change` after each change of the stream limit, and
    /// at the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the connection has failed.
    pub(crate) async fn start(
        socket: Box<dyn Io>,
        guard: ConnectionGuard,
        on_change: impl Fn() + 'static,
    ) -> Result<Self, h2::Error> {
        let shared = Rc::new(SharedState {
            settings: Http2ServerSettings::default(),
            window: Rc::default(),
            has_ended: Cell::new(false),
            is_used: Cell::new(false),
            stream_limit: Cell::new(INITIAL_STREAMS),
            streams: Cell::new(0),
            newest: Cell::new(None),
            idle_since: Cell::new(Instant::now()),
            on_change: Box::new(on_change),
        });
        // The guard counts the connection as long as its socket is open.
        let written = RefCell::new(FrameScan::with_preface());
        let io = ServerIo { shared: Rc::clone(&shared), written, _guard: guard };
        let io = WithIoEvents::new(socket, Rc::new(io));
        let (sender, mut connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(INITIAL_STREAMS)
            .initial_window_size(RESPONSE_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buffer_size(SEND_BUFFER)
            .handshake(io)
            .await?;
        let driven = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|context| {
                let ended = Pin::new(&mut connection).poll(context);
                driven.follow(connection.max_concurrent_send_streams(), ended.is_ready());
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "upstream connection ended");
            }
        });
        let open_halves = Cell::new(0);
        Ok(Self { sender, upload: None, open_halves, opened: Instant::now(), shared })
    }

    /// Identifies the connection while it is open.
    pub(crate) fn id(&self) -> ConnectionId {
        ConnectionId(Rc::as_ptr(&self.shared))
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.has_ended.get()
    }

    /// Whether a request was sent on the connection.
    pub(crate) fn is_used(&self) -> bool {
        self.shared.is_used.get()
    }

    /// Time since the connection was opened.
    pub(crate) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Time since the last stream ended; zero while one is in use.
    pub(crate) fn idle_time(&self) -> Duration {
        if self.shared.streams.get() == 0 {
            self.shared.idle_since.get().elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// Waits for the server's first SETTINGS, which have its stream limit. Also returns when the
    /// connection has ended.
    pub(crate) async fn first_settings(&self) {
        self.shared.settings.is_applied.wait().await;
    }

    /// Maximum size of a request head, by the SETTINGS of the server, in bytes.
    pub(crate) fn max_header_list(&self) -> usize {
        self.shared.settings.max_header_list.get()
    }

    /// Whether the server supports extended CONNECT (RFC 8441), by its SETTINGS.
    pub(crate) fn supports_extended_connect(&self) -> bool {
        self.sender.is_extended_connect_protocol_enabled()
    }

    /// Whether streams are in use.
    pub(crate) fn has_streams(&self) -> bool {
        self.shared.streams.get() > 0
    }

    /// Number of streams that may begin now.
    pub(crate) fn free_streams(&self) -> usize {
        if self.is_closed() {
            return 0;
        }
        self.shared.stream_limit.get().saturating_sub(self.shared.streams.get())
    }

    /// Whether an upload of a client has room in the window of the connection.
    pub(crate) fn has_room(&self, client: ClientKey) -> bool {
        self.shared.window.has_room(client)
    }

    /// Counts a stream until [`Self::end_stream`].
    pub(crate) fn begin_stream(&self) {
        self.shared.streams.set(self.shared.streams.get().saturating_add(1));
    }

    /// Ends the count of a stream.
    pub(crate) fn end_stream(&self) {
        self.upload.iter().for_each(|stream| self.shared.window.end_upload(*stream));
        let streams = self.shared.streams.get().saturating_sub(1);
        self.shared.streams.set(streams);
        if streams == 0 {
            self.shared.idle_since.set(Instant::now());
        }
    }

    /// Records that the response or the upload has ended.
    pub(crate) fn end_half(&self) {
        self.open_halves.set(self.open_halves.get().saturating_sub(1));
    }

    /// Records that the server has ended the stream of the request.
    pub(crate) fn end_stream_by_server(&self) {
        self.open_halves.set(0);
    }

    /// Whether keygate resets the stream of the request, which is used no more.
    pub(crate) fn is_reset(&self) -> bool {
        self.open_halves.get() > 0 && !self.is_closed()
    }

    /// Whether the connection accepts requests: it has neither failed nor got GOAWAY.
    pub(crate) async fn accepts_requests(&mut self) -> bool {
        poll_fn(|context| self.sender.poll_ready(context)).await.is_ok()
    }

    /// The client of the newest request on a connection that has failed, and whether others were in
    /// flight when it was sent. `None` if the server has closed the connection in an orderly way.
    pub(crate) fn suspect(&mut self) -> Option<(ClientKey, bool)> {
        match self.sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) if error.reason() != Some(Reason::NO_ERROR) => {
                self.shared.newest.take()
            }
            Poll::Ready(_) | Poll::Pending => None,
        }
    }

    fn begin_upload(&mut self, client: ClientKey, stream: &SendStream<Bytes>) -> WindowShare {
        let stream = stream.stream_id().as_u32();
        self.upload = Some(stream);
        WindowShare::new(&self.shared.window, client, stream)
    }

    fn begin_request(&self, client: ClientKey) {
        self.shared.is_used.set(true);
        self.shared.newest.set(Some((client, self.shared.streams.get() > 1)));
    }

    /// Sends a request on the connection of `slot`, and waits for the head of the response. The
    /// slot is shared with the upload, which may last longer than the response. The stream is reset
    /// if the server takes nothing of the upload for `response_timeout` after the response.
    pub(crate) async fn send<S: AsMut<Self> + AsRef<Self> + Debug + 'static>(
        (client, request): (ClientKey, OutgoingRequest),
        mut slot: S,
        upstream: &UpstreamConfig,
    ) -> Result<(Response<Incoming>, Rc<S>), HttpError> {
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let is_bodiless = body.is_end_stream();
        let (informational, outlives_response) = (body.informational(), body.outlives_response());
        let sent = slot.as_mut().sender.send_request(head, is_bodiless);
        let (mut response, stream) = sent?;
        slot.as_mut().begin_request(client);
        slot.as_mut().open_halves.set(if is_bodiless { 1 } else { 2 });
        let share = (!is_bodiless).then(|| slot.as_mut().begin_upload(client, &stream));
        let slot = Rc::new(slot);
        let upload = if let Some(share) = share {
            let held = Rc::clone(&slot);
            let mut sending = SendBody::new(body, stream, Reason::CANCEL).with_share(share);
            if !upstream.request_trailers {
                sending = sending.without_trailers();
            }
            let end = move |end| match end {
                SendEnd::Aborted => {}
                SendEnd::Complete => (*held).as_ref().end_half(),
                SendEnd::Reset => (*held).as_ref().end_stream_by_server(),
            };
            let timeout = upstream.response_timeout;
            BackgroundSend::start(sending, outlives_response, timeout, end).await
        } else {
            None
        };
        let response = response_head(&mut response, informational).await;
        let response = response.inspect_err(|error| {
            if error.is_remote() || !error.is_reset() {
                (*slot).as_ref().end_stream_by_server();
            }
        });
        let (mut head, stream) = response?.into_parts();
        normalize_content_length(&mut head.headers)?;
        let body = ReceivedBody::new(stream, &head.headers).with_upload(upload);
        Ok((Response::from_parts(head, Incoming::Http2(body)), slot))
    }

    /// Sends an extended CONNECT. Returns the response, and the stream if the server accepts.
    pub(crate) async fn connect(
        &mut self,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<(Response<Incoming>, Option<Http2Duplex>), HttpError> {
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let sent = self.sender.send_request(head, false);
        let (mut response, send) = sent?;
        self.begin_request(client);
        let response = response_head(&mut response, body.informational()).await;
        let (mut head, receive) = response?.into_parts();
        normalize_content_length(&mut head.headers)?;
        if head.status.is_success() {
            let response = Response::from_parts(head, Incoming::Empty);
            let share = self.begin_upload(client, &send);
            return Ok((response, Some(Http2Duplex::new(send, receive).with_share(share))));
        }
        let body = ReceivedBody::new(receive, &head.headers);
        Ok((Response::from_parts(head, Incoming::Http2(body)), None))
    }
}

impl SharedState {
    /// Follows the connection after each poll: the server's stream limit, and its end.
    fn follow(&self, stream_limit: usize, has_ended: bool) {
        self.has_ended.set(has_ended);
        if self.settings.have_arrived.get() || has_ended {
            let _ = self.settings.is_applied.set(()); // only the first call counts
        }
        let stream_limit = stream_limit.min(MAX_STREAMS);
        let has_new_limit = self.stream_limit.replace(stream_limit) != stream_limit;
        if has_new_limit || has_ended {
            (self.on_change)();
        }
    }
}

impl Debug for SharedState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("SharedState");
        debug.field("has_ended", &self.has_ended).field("streams", &self.streams);
        debug.finish_non_exhaustive()
    }
}

/// The events of a connection's socket.
#[derive(Debug)]
struct ServerIo {
    shared: Rc<SharedState>,
    written: RefCell<FrameScan>,
    _guard: ConnectionGuard,
}

impl IoEvents for ServerIo {
    fn on_read(&self, bytes: &[u8]) {
        self.shared.settings.record_read(bytes, &self.shared.window);
    }

    fn on_written(&self, bytes: &[u8]) {
        self.written.borrow_mut().read(bytes, |frame| {
            if frame.kind == DATA && frame.bytes.is_empty() {
                self.shared.window.record_written(frame.stream, frame.left as u64);
            }
        });
    }
}
