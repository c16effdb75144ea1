//! A connection to a server that a request can be sent on: HTTP/1.1, one at a time, or HTTP/2.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use hyper::client::conn::{http1, http2};
use hyper::header::{self, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::sync::{SetOnce, oneshot};

use super::exchange::Failed;
use super::open::Open;
use super::request_body::RequestBody;
use crate::proxy::dial::Io;
use crate::proxy::local::OnThisThread;
use crate::proxy::observed::{Observed, Observer};

/// A connection of HTTP/1.1.
#[derive(Debug)]
pub(super) struct Http1 {
    pub(super) send: http1::SendRequest<RequestBody>,
    /// Whether the server has said anything since the last request.
    pub(super) heard: Rc<Cell<bool>>,
    pub(super) made: Instant,
}

/// A connection of HTTP/2, which everybody shares.
#[derive(Debug, Clone)]
pub(super) struct Http2 {
    pub(super) send: http2::SendRequest<RequestBody>,
    pub(super) made: Instant,
    greeting: Rc<Greeting>,
}

impl Http2 {
    /// Whether it is the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.greeting, &other.greeting)
    }

    /// Whether the server takes extended CONNECT (RFC 8441). It says so in its settings, which are
    /// the first thing that it sends: they are awaited.
    pub(super) async fn takes_extended_connect(&self) -> bool {
        *self.greeting.takes_extended_connect.wait().await
    }
}

/// What is left of a connection once both sides have agreed on another protocol.
#[derive(Debug)]
pub(in crate::proxy) struct Tunnel {
    pub(in crate::proxy) io: Box<dyn Io>,
    /// What was read behind the response head.
    pub(in crate::proxy) read: Bytes,
    /// The connection is open as long as this lives; a stream has none of its own.
    pub(in crate::proxy) open: Option<Open>,
}

/// Speaks HTTP/1.1 on a connection. What is left of it goes to `taker`, if it is to leave HTTP.
pub(super) async fn http1(
    io: Box<dyn Io>,
    open: Open,
    taker: Option<oneshot::Sender<Tunnel>>,
) -> hyper::Result<Http1> {
    let heard = Rc::new(Cell::new(false));
    let io = TokioIo::new(Observed::new(io, Ear(Rc::clone(&heard))));
    let (send, mut connection) = http1::handshake(io).await?;
    tokio::task::spawn_local(async move {
        if let Err(error) = poll_fn(|context| connection.poll_without_shutdown(context)).await {
            tracing::debug!(%error, "upstream connection ended");
        }
        if let Some(taker) = taker {
            let parts = connection.into_parts();
            let tunnel = Tunnel {
                io: parts.io.into_inner().into_inner(),
                read: parts.read_buf,
                open: Some(open),
            };
            let _ = taker.send(tunnel); // or the server did not agree
        }
    });
    Ok(Http1 { send, heard, made: Instant::now() })
}

/// What a server may send ahead for each request. For all of them together there is no limit besides:
/// a client that takes nothing would use it up for the others.
const STREAM_WINDOW: u32 = 256 << 10;
const ALL_STREAMS: u32 = (1 << 31) - 1;

/// Speaks HTTP/2 on a connection.
pub(super) async fn http2(io: Box<dyn Io>, open: Open) -> hyper::Result<Http2> {
    let mut builder = http2::Builder::new(OnThisThread);
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(ALL_STREAMS);
    let greeting = Rc::new(Greeting::default());
    // It is open as long as its socket, whoever still uses that.
    let io = TokioIo::new(Observed::new(io, Host { greeting: Rc::clone(&greeting), _open: open }));
    let (send, mut connection) = builder.handshake(io).await?;
    let greeted = Rc::clone(&greeting);
    tokio::task::spawn_local(async move {
        let ended = poll_fn(|context| {
            let ended = Pin::new(&mut connection).poll(context);
            if greeted.is_new(context) || ended.is_ready() {
                greeted.settle(connection.is_extended_connect_protocol_enabled());
            }
            ended
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "upstream connection ended");
        }
    });
    Ok(Http2 { send, made: Instant::now(), greeting })
}

/// Makes a request what HTTP/1.1 sends: `TE` is for one connection only and says so.
pub(super) fn for_http1(request: &mut Request<RequestBody>) {
    if request.headers().contains_key(header::TE) {
        let connection = request.headers_mut().entry(header::CONNECTION);
        connection.or_insert(HeaderValue::from_static("te"));
    }
}

/// Makes a request what HTTP/2 sends: an absolute target for `Host`. `None` if the host is no
/// authority.
pub(super) fn for_http2(request: &mut Request<RequestBody>, scheme: &Scheme) -> Option<()> {
    let host = request.headers_mut().remove(header::HOST)?;
    request.headers_mut().remove(header::TRANSFER_ENCODING);
    request.headers_mut().remove(header::CONNECTION);
    let authority = Authority::try_from(host.as_bytes()).ok()?;
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(scheme.clone());
    parts.authority = Some(authority);
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    *request.version_mut() = Version::HTTP_2;
    Some(())
}

/// A request for HTTP/2 that nobody has read is again what it was.
pub(super) fn undo_unsent_http2(failed: Failed) -> Failed {
    let Failed::Unsent(mut request, error) = failed else { return failed };
    undo_http2(&mut request);
    Failed::Unsent(request, error)
}

fn undo_http2(request: &mut Request<RequestBody>) {
    let parts = std::mem::take(request.uri_mut()).into_parts();
    let host = parts.authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    host.map(|host| request.headers_mut().insert(header::HOST, host));
    *request.uri_mut() = parts.path_and_query.map(Uri::from).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
}

/// The first words of a server of HTTP/2: a frame with its settings, and not always in one piece.
#[derive(Debug, Default)]
struct Greeting {
    /// How many bytes have come, and the first three: the length of the frame.
    read: Cell<usize>,
    length: Cell<[u8; 3]>,
    /// Of the task that looks at it.
    waker: RefCell<Option<Waker>>,
    takes_extended_connect: SetOnce<bool>,
}

impl Greeting {
    /// Whether all of it has come and nobody has looked at what it says.
    fn is_new(&self, context: &Context<'_>) -> bool {
        if !self.has_come() {
            self.waker.replace(Some(context.waker().clone()));
        }
        self.has_come() && !self.takes_extended_connect.initialized()
    }

    fn has_come(&self) -> bool {
        let [high, middle, low] = self.length.get().map(usize::from);
        self.read.get() >= FRAME_HEADER + (high << 16 | middle << 8 | low)
    }

    fn settle(&self, takes_extended_connect: bool) {
        let _ = self.takes_extended_connect.set(takes_extended_connect); // the first word counts
    }
}

/// Of HTTP/2, in bytes (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;

/// The server's end of a connection.
#[derive(Debug)]
struct Host {
    greeting: Rc<Greeting>,
    _open: Open,
}

impl Observer for Host {
    fn has_read(&self, bytes: &[u8]) {
        let greeting = &self.greeting;
        if greeting.takes_extended_connect.initialized() {
            return;
        }
        let mut length = greeting.length.get();
        let before = greeting.read.get();
        length.iter_mut().skip(before).zip(bytes).for_each(|(place, byte)| *place = *byte);
        greeting.length.set(length);
        greeting.read.set(before.saturating_add(bytes.len()));
        // hyper reads on a task of its own; the other is woken, and finds what was read understood.
        if greeting.has_come()
            && let Some(waker) = greeting.waker.take()
        {
            waker.wake();
        }
    }
}

/// Notes that the server has said something.
#[derive(Debug)]
struct Ear(Rc<Cell<bool>>);

impl Observer for Ear {
    fn has_read(&self, _bytes: &[u8]) {
        self.0.set(true);
    }
}
