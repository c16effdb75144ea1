//! A client's HTTP/1.1 connection. hyper serves it while requests are in flight or expected soon.
//!
//! An idle connection hibernates: hyper's state and buffers, some 30 KiB, are freed. Socket and TLS
//! session stay, and the first readable byte, a close or an eviction builds the state again. No
//! byte is lost, because hyper has read nothing that belongs to the next request, or returns it.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use keygate_wire::client_io::{ClientIo, has_closed, reset_on_close};
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::informational::WithInformational;
use keygate_wire::prefixed::Prefixed;
use keygate_wire::{forward_io, lingering_close};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::in_flight::HttpConnection;
use super::response::ResponseBody;
use super::{ClientChannels, ClientConnection, ConnectionEnd, drive, handle, upgrade};
use crate::config::LimitsConfig;
use crate::metrics::ServiceMetrics;
use crate::proxy::open_connection::OpenConnection;
use crate::proxy::open_connection::state::{Close, ConnectionState};
use crate::proxy::worker::Worker;
use crate::snapshot::Service;

/// Serves HTTP/1.1 on a connection until it closes.
#[expect(clippy::manual_async_fn, reason = "its future would have room for the arguments twice")]
pub(super) fn serve<IO>(
    worker: Rc<Worker>,
    metrics: Rc<ServiceMetrics>,
    open: Rc<OpenConnection>,
    service: Arc<Service>,
    mut io: IO,
) -> impl Future<Output = ()>
where
    IO: ClientIo,
{
    async move {
        loop {
            let (metrics_of_http, service) = (Rc::clone(&metrics), Arc::clone(&service));
            let http = HttpConnection::new(&worker, metrics_of_http, &open, service);
            worker.watch_awake(&open.state);
            // Boxed, so that a connection that hibernates has no room for it.
            let Some(idle) = Box::pin(serve_awake(http, io)).await else { return };
            io = idle;
            open.state.set_hibernating(true);
            metrics.connections_hibernating.inc();
            wait_for_event(&mut io, &open.state).await;
            metrics.connections_hibernating.dec();
            open.state.set_hibernating(false);
        }
    }
}

/// Waits until the client sends something, closes or vanishes, or the worker closes the connection.
async fn wait_for_event(io: &mut impl ClientIo, state: &ConnectionState) {
    poll_fn(|context| {
        let is_readable = io.poll_readable(context).is_ready();
        let is_closed = state.poll_close_requested(context).is_ready();
        if is_readable || is_closed { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The layers between hyper and a client's connection.
type Http1Io<IO> = TokioIo<WithInformational<Prefixed<KeptOpen<IO>>>>;

/// Serves requests. Returns the connection if it is idle and may hibernate, and closes it
/// otherwise.
async fn serve_awake<IO>(http: Rc<HttpConnection>, mut io: IO) -> Option<IO>
where
    IO: ClientIo,
{
    let builder = builder(&http.service.config.limits);
    let state = &http.open.state;
    let mut unread = Bytes::new();
    loop {
        let handled = Rc::clone(&http);
        let service = service_fn(move |request| respond(Rc::clone(&handled), request));
        let keeps_open = Rc::<Cell<bool>>::default();
        let kept = KeptOpen { io, keeps_open: Rc::clone(&keeps_open), state: Rc::clone(state) };
        let layers = Prefixed::new(unread, kept);
        let layers = WithInformational::new(layers, http.informational.clone());
        let connection = builder.serve_connection(TokioIo::new(layers), service);
        let mut connection = Http1Server { connection, http: &http, keeps_open };
        let end = drive(&mut connection, &http.open).await;
        let into_io = |connection: http1::Connection<Http1Io<_>, _>| {
            let parts = connection.into_parts();
            let layers: Http1Io<_> = parts.io;
            into_parts(layers.into_inner().into_inner(), parts.read_buf)
        };
        let connection = connection.connection;
        match (end, http.upgrade.take()) {
            (ConnectionEnd::Hibernates, _) => {
                let (idle, read) = into_io(connection);
                if read.is_empty() {
                    return Some(idle);
                }
                // The beginning of a request, which arrived with the last one.
                state.begin_head();
                (io, unread) = (idle, read);
                continue;
            }
            (ConnectionEnd::Closed(Close::RequestTimeout), _) => {
                let status = StatusCode::REQUEST_TIMEOUT;
                http.record_bad_request(status, &"the head exceeded header_timeout");
                Box::pin(respond_408(into_io(connection).0)).await;
            }
            (ConnectionEnd::Done, Some(accepted)) => {
                let (io, early) = into_io(connection);
                Box::pin(upgrade::carry_connection(io, early, accepted, state)).await;
            }
            (ConnectionEnd::Done, None) if http.left_unread.get() => {
                Box::pin(lingering_close::close(into_io(connection).0)).await;
            }
            // The end of the connection would be the end of the response.
            (ConnectionEnd::Closed(Close::Abort) | ConnectionEnd::Truncated, _)
                if http.is_http10.get() =>
            {
                reset_on_close(into_io(connection).0.tcp());
            }
            // A client that broke the protocol got a 400, which a reset would lose.
            (ConnectionEnd::Failed | ConnectionEnd::Truncated, _) => {
                Box::pin(lingering_close::close(into_io(connection).0)).await;
            }
            (ConnectionEnd::Done | ConnectionEnd::Closed(_), _) => {}
        }
        return None;
    }
}

/// The response to a request, which is the next one of the connection.
fn respond(
    http: Rc<HttpConnection>,
    request: Request<hyper::body::Incoming>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
    http.left_unread.set(false); // hyper has read the last request to its end
    http.is_http10.set(request.version() == Version::HTTP_10);
    let takes_informational = request.version() == Version::HTTP_11;
    let informational = takes_informational.then(|| http.informational.begin_request());
    let client = ClientChannels { informational, tunnel: None };
    handle(http, Instant::now(), request.map(Incoming::Http1), client)
}

/// hyper with the limits of the service.
fn builder(limits: &LimitsConfig) -> http1::Builder {
    let max_header_size = limits.max_header_size.try_into().unwrap_or(usize::MAX);
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None) // `ConnectionState` has this timeout
        .max_buf_size(max_header_size.max(MAX_BUFFER))
        .max_header_size(max_header_size);
    if limits.max_headers != HYPER_MAX_HEADERS {
        builder.max_headers(limits.max_headers);
    }
    builder
}

/// Maximum bytes of an upload that hyper reads at once, and of a response above which it takes no
/// further piece, 64 KiB. hyper's own limit is 408 KiB, and TLS returns no more at once.
const MAX_BUFFER: usize = 64 << 10;

/// hyper has room for this many header fields on its stack; for any other limit it allocates.
const HYPER_MAX_HEADERS: usize = 100;

/// Maximum time to send a 408 to a client whose request head is late.
const RESPOND_408_TIMEOUT: Duration = Duration::from_secs(1);

async fn respond_408<IO: AsyncWrite + Unpin>(mut io: IO) {
    let response =
        b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let sent = async {
        io.write_all(response).await?;
        io.shutdown().await
    };
    let _ = timeout(RESPOND_408_TIMEOUT, sent).await; // closed in either case
}

/// hyper's side of a connection.
struct Http1Server<'a, C> {
    connection: C,
    http: &'a HttpConnection,
    /// Whether the connection stays open when hyper shuts it down.
    keeps_open: Rc<Cell<bool>>,
}

impl<I, S> ClientConnection for Http1Server<'_, http1::Connection<I, S>>
where
    http1::Connection<I, S>: Future<Output = hyper::Result<()>> + Unpin,
    S: HttpService<hyper::body::Incoming, Error = Infallible, ResBody = ResponseBody>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    fn close_gracefully(&mut self) {
        Pin::new(&mut self.connection).graceful_shutdown();
    }

    fn close_for_misuse(&mut self) {
        self.close_gracefully(); // only HTTP/2 has such a close
    }

    fn begin_hibernation(&mut self) -> bool {
        // The rest of a request must not be taken for the next one.
        if self.http.left_unread.get() || self.http.upgrade.borrow().is_some() {
            return false;
        }
        self.keeps_open.set(true);
        self.close_gracefully(); // done at the next poll if hyper is between two requests
        true
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        let polled = Future::poll(Pin::new(&mut self.connection), context);
        self.keeps_open.set(false);
        polled.map_err(|error| {
            if let Some(status) = status_of(&error) {
                self.http.record_bad_request(status, &error);
            }
            error.into()
        })
    }
}

/// The status that hyper has sent because of an error in a request head; `None` if it sent none.
fn status_of(error: &hyper::Error) -> Option<StatusCode> {
    if !error.is_parse() || error.is_parse_version_h2() {
        return None;
    }
    Some(match error.is_parse_too_large() {
        // hyper has no other way to tell the two apart.
        true if error.to_string().contains("URI") => StatusCode::URI_TOO_LONG,
        true => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        false => StatusCode::BAD_REQUEST,
    })
}

/// Returns the connection, and the bytes that HTTP has not consumed: `read`, which hyper has read,
/// then those behind them.
fn into_parts<IO>(stream: Prefixed<KeptOpen<IO>>, read: Bytes) -> (IO, Bytes) {
    let (unread, kept) = stream.into_parts();
    let bytes = match (read.is_empty(), unread.is_empty()) {
        (true, _) => unread,
        (false, true) => read,
        (false, false) => [read, unread].concat().into(),
    };
    (kept.io, bytes)
}

/// A connection that stays open when HTTP ends on it.
struct KeptOpen<IO> {
    io: IO,
    keeps_open: Rc<Cell<bool>>,
    state: Rc<ConnectionState>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for KeptOpen<IO> {
    forward_io!((io) poll_read);
}

impl<IO: ClientIo> AsyncWrite for KeptOpen<IO> {
    forward_io!((io) poll_write, poll_write_vectored, is_write_vectored);

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.close_check.take() && has_closed(self.io.tcp()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.keeps_open.get() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use keygate_wire::io_events::WithIoEvents;
    use tokio::net::TcpStream;

    use super::*;
    use crate::proxy::open_connection::state::ConnectionKind;
    use crate::proxy::open_connection::state::tests::LIMITS;
    use keygate_wire::tls_stream::TlsStream;

    type Io = WithIoEvents<Box<TlsStream<TcpStream>>, ConnectionState>;

    /// Maximum size of a connection's HTTP state while it is awake, in bytes, without hyper's
    /// buffers and the request in flight.
    const AWAKE: usize = 1536;
    /// Maximum size of one request in flight, in bytes, without its header fields.
    const REQUEST: usize = 2816;

    fn size_of_future<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_state_of_a_connection_and_of_a_request_keep_within_their_sizes() {
        type InFlight = (Rc<HttpConnection>, Instant, Request<Incoming>, ClientChannels);
        let awake = size_of_future(|(http, io): (Rc<HttpConnection>, Io)| serve_awake(http, io));
        let awake = awake + size_of::<HttpConnection>();
        let request =
            size_of_future(|(http, began, it, client): InFlight| handle(http, began, it, client));
        assert!(awake <= AWAKE && request <= REQUEST, "{awake}, {request}");
    }

    #[tokio::test]
    async fn bytes_that_were_not_read_follow_those_that_hyper_has_read() {
        use tokio::io::AsyncReadExt;

        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        let sent: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        for taken in [0, 8192, 20_000] {
            let (keeps_open, state) = (Rc::default(), Rc::clone(&state));
            let kept = KeptOpen { io: tokio::io::empty(), keeps_open, state };
            let mut resumed = Prefixed::new(Bytes::from(sent.clone()), kept);
            let mut read = vec![0; taken];
            resumed.read_exact(&mut read).await.unwrap();
            let (_, bytes) = into_parts(resumed, Bytes::from(read));
            assert_eq!(bytes, sent);
        }
    }
}
