//! A connection of HTTP/2 to a server, which requests share: each is a stream.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use hyper::body::Body;
use hyper::header;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, Response, Uri, Version};
use tokio::sync::{Semaphore, SetOnce};

use super::exchange::Unanswered;
use super::open::Open;
use super::request_body::{Outgoing, RequestBody};
use crate::proxy::dial::Io;
use crate::proxy::incoming::{HttpError, Incoming};
use crate::proxy::interim::Follower;
use crate::proxy::observed::{Observed, Observer};
use crate::proxy::stream::{Duplex, Received, Upload};

/// What a server may send ahead for each request. For all of them together there is no limit besides:
/// a client that takes nothing would use it up for the others.
const STREAM_WINDOW: u32 = 256 << 10;
const ALL_STREAMS: u32 = (1 << 31) - 1;
/// The most that the fields of an answer may take, in bytes.
const HEADERS: u32 = 64 << 10;
/// How many requests a server gets before it has said how many it takes.
const FIRST_STREAMS: usize = 100;
/// And how many if it says that there is no limit.
const MOST_STREAMS: usize = 1 << 20;
/// What is kept for a server that does not take it, for each request.
const SEND_BUFFER: usize = 64 << 10;

/// A connection of HTTP/2, which everybody shares. It ends with the last who has it.
#[derive(Debug, Clone)]
pub(super) struct Http2 {
    send: SendRequest<Bytes>,
    pub(super) made: Instant,
    state: Rc<State>,
}

/// What is known of a connection.
#[derive(Debug)]
struct State {
    greeting: Greeting,
    has_ended: Cell<bool>,
    /// As many as the server takes streams at a time, less those that are open.
    places: Semaphore,
    allowed: Cell<usize>,
    /// How many more are open than the server takes by now.
    owed: Cell<usize>,
}

impl Http2 {
    /// Speaks HTTP/2 on a connection.
    pub(super) async fn start(io: Box<dyn Io>, open: Open) -> Result<Self, h2::Error> {
        let state = Rc::new(State::new());
        // It is open as long as its socket, whoever still uses that.
        let io = Observed::new(io, Host { state: Rc::clone(&state), _open: open });
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(FIRST_STREAMS)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(ALL_STREAMS)
            .max_header_list_size(HEADERS)
            .max_send_buffer_size(SEND_BUFFER)
            .handshake(io)
            .await?;
        let known = Rc::clone(&state);
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|context| {
                let ended = Pin::new(&mut connection).poll(context);
                known.has_ended.set(ended.is_ready());
                if known.greeting.has_come_unread() || ended.is_ready() {
                    let _ = known.greeting.is_read.set(()); // the first word counts
                }
                known.allow(connection.max_concurrent_send_streams());
                if ended.is_ready() {
                    known.places.close();
                }
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "upstream connection ended");
            }
        });
        Ok(Self { send, made: Instant::now(), state })
    }

    /// Whether it is the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.state, &other.state)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.has_ended.get()
    }

    /// Whether the server takes extended CONNECT (RFC 8441). It says so in its settings, which are
    /// the first thing that it sends: they are awaited.
    pub(super) async fn takes_extended_connect(&self) -> bool {
        self.state.greeting.is_read.wait().await;
        self.send.is_extended_connect_protocol_enabled()
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn ask(
        mut self,
        request: Outgoing,
        place: Place,
    ) -> Result<(Response<Incoming>, Rc<Place>), Unanswered> {
        let place = Rc::new(place);
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let ends = body.is_end_stream();
        let (follower, outlives_answer) = (body.follower(), body.outlives_answer());
        let (mut answer, stream) = self.send.send_request(head, ends).map_err(Unanswered::sent)?;
        let upload = if ends {
            None
        } else {
            Upload::start(body, stream, outlives_answer, Rc::clone(&place)).await
        };
        let answer = head_of(&mut answer, follower).await.map_err(Unanswered::sent)?;
        let (head, stream) = answer.into_parts();
        let body = Received::new(stream, &head.headers).along(upload);
        Ok((Response::from_parts(head, Incoming::Http2(body)), place))
    }

    /// Sends an extended CONNECT and waits for the head of its answer, and the stream that follows if
    /// the server agrees.
    pub(super) async fn open(
        mut self,
        request: Outgoing,
    ) -> Result<(Response<Incoming>, Option<Duplex>), Unanswered> {
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let (mut answer, send) = self.send.send_request(head, false).map_err(Unanswered::sent)?;
        let answer = head_of(&mut answer, body.follower()).await.map_err(Unanswered::sent)?;
        let (head, receive) = answer.into_parts();
        if head.status.is_success() {
            let answer = Response::from_parts(head, Incoming::Empty);
            return Ok((answer, Some(Duplex::new(send, receive))));
        }
        let body = Received::new(receive, &head.headers);
        Ok((Response::from_parts(head, Incoming::Http2(body)), None))
    }

    /// Waits until the server takes another stream: until then nothing is sent, and who waits no
    /// longer leaves nothing behind.
    pub(super) async fn place(&mut self) -> Result<Place, HttpError> {
        self.check().await?;
        if let Ok(permit) = self.state.places.acquire().await {
            permit.forget(); // `Place` gives it back
        }
        let place = Place(Rc::clone(&self.state));
        self.check().await.map(|()| place)
    }

    /// Whether there is a place at once.
    pub(super) fn has_room(&self) -> bool {
        !self.state.places.is_closed() && self.state.places.available_permits() > 0
    }

    /// That the server still takes requests; otherwise whoever waits is told.
    async fn check(&mut self) -> Result<(), HttpError> {
        poll_fn(|context| self.send.poll_ready(context)).await.map_err(|error| {
            self.state.places.close();
            error.into()
        })
    }
}

/// One of the streams that a server takes at a time. It is taken as long as its answer has not been
/// read to its end, or its request is still being sent.
#[derive(Debug)]
pub(super) struct Place(Rc<State>);

impl Drop for Place {
    fn drop(&mut self) {
        match self.0.owed.get() {
            0 => self.0.places.add_permits(1),
            owed => self.0.owed.set(owed - 1),
        }
    }
}

impl State {
    fn new() -> Self {
        Self {
            greeting: Greeting::default(),
            has_ended: Cell::new(false),
            places: Semaphore::new(FIRST_STREAMS),
            allowed: Cell::new(FIRST_STREAMS),
            owed: Cell::new(0),
        }
    }

    /// The server takes so many streams at a time.
    fn allow(&self, streams: usize) {
        let streams = streams.min(MOST_STREAMS);
        let before = self.allowed.replace(streams);
        let (more, less) = (streams.saturating_sub(before), before.saturating_sub(streams));
        let paid = more.min(self.owed.get());
        self.places.add_permits(more - paid);
        let owed = less - self.places.forget_permits(less);
        self.owed.set(self.owed.get() - paid + owed);
    }
}

/// The head of an answer; what comes before it is passed on.
async fn head_of(
    answer: &mut ResponseFuture,
    follower: Option<Follower>,
) -> Result<Response<RecvStream>, h2::Error> {
    poll_fn(|context| {
        while let Poll::Ready(Some(Ok(said))) = answer.poll_informational(context) {
            if let Some(follower) = &follower {
                let (head, ()) = said.into_parts();
                follower.pass_on(head.status, head.headers);
            }
        }
        Pin::new(&mut *answer).poll(context)
    })
    .await
}

/// Makes a request what HTTP/2 sends: an absolute target for `Host`. `None` if the host is no
/// authority.
pub(super) fn prepare(request: &mut Request<RequestBody>, scheme: &Scheme) -> Option<()> {
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

/// The first words of a server of HTTP/2: a frame with its settings, and not always in one piece.
#[derive(Debug, Default)]
struct Greeting {
    /// How many bytes have come, and the first three: the length of the frame.
    read: Cell<usize>,
    length: Cell<[u8; 3]>,
    /// h2 has made sense of it.
    is_read: SetOnce<()>,
}

impl Greeting {
    fn has_come_unread(&self) -> bool {
        let [high, middle, low] = self.length.get().map(usize::from);
        !self.is_read.initialized()
            && self.read.get() >= FRAME_HEADER + (high << 16 | middle << 8 | low)
    }
}

/// Of HTTP/2, in bytes (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;

/// The server's end of a connection.
#[derive(Debug)]
struct Host {
    state: Rc<State>,
    _open: Open,
}

impl Observer for Host {
    fn has_read(&self, bytes: &[u8]) {
        let greeting = &self.state.greeting;
        if greeting.is_read.initialized() {
            return;
        }
        let mut length = greeting.length.get();
        let before = greeting.read.get();
        length.iter_mut().skip(before).zip(bytes).for_each(|(place, byte)| *place = *byte);
        greeting.length.set(length);
        greeting.read.set(before.saturating_add(bytes.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(state: &Rc<State>) -> Option<Place> {
        state.places.try_acquire().ok()?.forget();
        Some(Place(Rc::clone(state)))
    }

    #[test]
    fn there_are_as_many_places_as_the_server_takes_whatever_it_said_before() {
        let state = Rc::new(State::new());
        state.allow(2);
        let (first, second) = (take(&state).unwrap(), take(&state).unwrap());
        assert!(take(&state).is_none());
        state.allow(1);
        drop(first);
        assert!(take(&state).is_none(), "one is open, and one is all that it takes");
        drop(second);
        let only = take(&state).unwrap();
        assert!(take(&state).is_none());
        state.allow(0);
        state.allow(3);
        let more = (take(&state).unwrap(), take(&state).unwrap());
        assert!(take(&state).is_none());
        drop((only, more));
        assert_eq!(state.places.available_permits(), 3);
        state.allow(usize::MAX); // no limit
        assert_eq!(state.places.available_permits(), MOST_STREAMS);
    }
}
