//! A connection of HTTP/2: each stream is a request, handled on a task of its own.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use hyper::body::Body;
use hyper::header;
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

/// The most that is kept for a client that does not take it, for each request.
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
    let (parts, received) = request.into_parts();
    let (body, stream, bytes) = if parts.method == Method::CONNECT {
        let (opener, opened) = oneshot::channel();
        (Incoming::Empty, Some(opened), Some((opener, received)))
    } else {
        (Incoming::Http2(Received::new(received, &parts.headers)), None, None)
    };
    let interim = BeforeAnswer::default();
    let channels = Channels { follower: Some(Follower::Http2(interim.clone())), stream };
    let response = {
        let mut answer = pin!(handle(session, Request::from_parts(parts, body), channels));
        poll_fn(|context| {
            // A request that its client has reset is not answered.
            if respond.poll_reset(context).is_ready() {
                return Poll::Ready(None);
            }
            let answer = answer.as_mut().poll(context);
            for said in interim.take(context) {
                let said = respond.send_informational(said);
                let _ = said.inspect_err(|error| debug!(%error, "interim answer not sent"));
            }
            answer.map(Some)
        })
        .await
    };
    let Some(response) = response else { return };
    let (mut parts, body) = response.into_parts();
    if !parts.headers.contains_key(header::DATE)
        && let Some(date) = date::now()
    {
        parts.headers.insert(header::DATE, date);
    }
    let opens = bytes.filter(|_| parts.status.is_success());
    // Of the upstream's the end is awaited: it may still have to be read.
    let ends = opens.is_none() && (body.is_end_stream() || is_head && body.is_own());
    if opens.is_none()
        && !body.is_end_stream()
        && let Some(length) = body.size_hint().exact()
    {
        parts.headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    match (respond.send_response(Response::from_parts(parts, ()), ends), opens) {
        (Err(error), _) => {
            debug!(%error, "answer not sent");
            respond.send_reset(Reason::INTERNAL_ERROR);
        }
        (Ok(send), Some((opener, receive))) => drop(opener.send(Duplex::new(send, receive))),
        (Ok(_), None) if ends => {}
        (Ok(send), None) => {
            Sending::<ResponseBody>::new(body, send, Reason::INTERNAL_ERROR).await;
        }
    }
}
