//! A connection of HTTP/2: each stream is a request, handled on a task of its own.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use hyper::body::Body;
use hyper::header;
use hyper::http::response::Parts;
use hyper::{Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tracing::debug;

use super::response_body::ResponseBody;
use super::{Channels, Session, date, handle};
use crate::config::LimitsConfig;
use crate::proxy::incoming::{HttpError, Incoming};
use crate::proxy::interim::{BeforeAnswer, Follower};
use crate::proxy::stream::{Duplex, Received, Sending};

/// What is kept for a client that does not take it, for each request, besides the last piece.
const SEND_BUFFER: usize = 64 << 10;
/// The most that a client may send ahead, for each request and in all.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// A client's connection of HTTP/2.
pub(super) struct Http2<IO> {
    state: State<IO>,
    session: Rc<Session>,
    is_finishing: bool,
}

enum State<IO> {
    Greeting(Handshake<IO, Bytes>),
    Open(Connection<IO, Bytes>),
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Http2<IO> {
    pub(super) fn new(io: IO, session: Rc<Session>, limits: &LimitsConfig) -> Self {
        let greeting = h2::server::Builder::new()
            .max_header_list_size(limits.max_header_size)
            .max_concurrent_streams(limits.max_streams)
            .max_send_buffer_size(SEND_BUFFER)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_connect_protocol()
            .handshake(io);
        Self { state: State::Greeting(greeting), session, is_finishing: false }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> super::Connection for Http2<IO> {
    fn finish(&mut self) {
        self.is_finishing = true;
        if let State::Open(connection) = &mut self.state {
            connection.graceful_shutdown();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        loop {
            match &mut self.state {
                State::Greeting(greeting) => {
                    let mut connection = ready!(Pin::new(greeting).poll(context))?;
                    if self.is_finishing {
                        connection.graceful_shutdown();
                    }
                    self.state = State::Open(connection);
                }
                State::Open(connection) => {
                    let Some(accepted) = ready!(connection.poll_accept(context)).transpose()?
                    else {
                        return Poll::Ready(Ok(()));
                    };
                    let (request, respond) = accepted;
                    let session = Rc::clone(&self.session);
                    tokio::task::spawn_local(serve(session, request, respond));
                }
            }
        }
    }
}

/// Answers one request.
async fn serve(
    session: Rc<Session>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let is_head = request.method() == Method::HEAD;
    let interim = BeforeAnswer::default();
    let (request, channels, to_open) = take_apart(request, &interim);
    let handling = handle(session, request, channels);
    let Some(answer) = answer_of(handling, &mut respond, &interim).await else { return };
    let (mut head, body) = answer.into_parts();
    if !head.headers.contains_key(header::DATE)
        && let Some(date) = date::now()
    {
        head.headers.insert(header::DATE, date);
    }
    if let Some((opener, receive)) = to_open.filter(|_| head.status.is_success()) {
        if let Some(send) = send_head(&mut respond, head, false) {
            let _ = opener.send(Duplex::new(send, receive)); // or nobody waits for it any more
        }
        return;
    }
    if !body.is_end_stream()
        && let Some(length) = body.size_hint().exact()
    {
        head.headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    // Of the upstream's the end is awaited: it may still have to be read.
    let ends = body.is_end_stream() || (is_head && body.is_own());
    if let Some(send) = send_head(&mut respond, head, ends)
        && !ends
    {
        Sending::new(body, send, Reason::INTERNAL_ERROR).await;
    }
}

/// What an extended CONNECT becomes once it is answered, and for whom.
type ToOpen = (oneshot::Sender<Duplex>, RecvStream);

/// The request as every other, what else it is handled with, and what it may become.
fn take_apart(
    request: Request<RecvStream>,
    interim: &BeforeAnswer,
) -> (Request<Incoming>, Channels, Option<ToOpen>) {
    let follower = Some(Follower::Http2(interim.clone()));
    let (head, received) = request.into_parts();
    if head.method == Method::CONNECT {
        let (opener, opened) = oneshot::channel();
        let channels = Channels { follower, stream: Some(opened) };
        return (Request::from_parts(head, Incoming::Empty), channels, Some((opener, received)));
    }
    let body = Incoming::Http2(Received::new(received, &head.headers));
    (Request::from_parts(head, body), Channels { follower, stream: None }, None)
}

/// The answer to a request, once all that is said before it is on its way. `None` if the client has
/// reset the stream.
async fn answer_of(
    handling: impl Future<Output = Response<ResponseBody>>,
    respond: &mut SendResponse<Bytes>,
    interim: &BeforeAnswer,
) -> Option<Response<ResponseBody>> {
    let mut handling = pin!(handling);
    poll_fn(|context| {
        if respond.poll_reset(context).is_ready() {
            return Poll::Ready(None);
        }
        let answer = handling.as_mut().poll(context);
        for said in interim.take(context) {
            if let Err(error) = respond.send_informational(said) {
                debug!(%error, "interim answer not sent");
            }
        }
        answer.map(Some)
    })
    .await
}

/// Sends the head of an answer; what comes after it can be sent on the stream.
fn send_head(
    respond: &mut SendResponse<Bytes>,
    head: Parts,
    ends: bool,
) -> Option<SendStream<Bytes>> {
    let sent = respond.send_response(Response::from_parts(head, ()), ends);
    sent.inspect_err(|error| {
        debug!(%error, "answer not sent");
        respond.send_reset(Reason::INTERNAL_ERROR);
    })
    .ok()
}
