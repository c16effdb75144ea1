//! Requests on one connection: checked, sanitised, annotated, sent to the upstream.

mod answer;
mod date;
mod http2;
mod leave;
mod prepare;
mod response_body;
mod session;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{debug, warn};

use self::http2::Http2;
use self::prepare::Purpose;
use self::response_body::{RequestInFlight, ResponseBody};
pub(super) use self::session::Session;
use super::activity::{Activity, Order};
use super::incoming::{HttpError, Incoming};
use super::interim::{Follower, WithInterim};
use super::observed::Observed;
use super::request_id;
use super::stream::Duplex;
use super::upstream::{Outgoing, RequestBody, UpstreamError};
use crate::metrics::CodeClass;

/// Serves HTTP on a connection until it ends.
pub(super) async fn serve<IO>(session: Rc<Session>, io: IO, http2: bool)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let limits = session.service.config.limits;
    let activity = Rc::clone(&session.standing.activity);
    session.worker.open.watch(&session.standing);
    let io = Observed::new(io, Rc::clone(&activity));
    if http2 {
        let mut connection = Box::new(Http2::new(io, Rc::clone(&session), &limits));
        drive(&mut *connection, &activity).await;
        return;
    }
    let handled = Rc::clone(&session);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let session = Rc::clone(&handled);
        async move {
            let takes_interim = request.version() == Version::HTTP_11;
            let follower = takes_interim.then(|| session.interim.begin());
            let channels = Channels { follower, stream: None };
            let request = request.map(Incoming::Http1);
            let answer = handle(Rc::clone(&session), request, channels).await;
            session.interim.end();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .header_read_timeout(None) // `Activity` tells a slow head from an idle connection
        .max_header_size(limits.max_header_size.try_into().unwrap_or(usize::MAX));
    if limits.max_headers != HYPERS_MAX_HEADERS {
        builder.max_headers(limits.max_headers);
    }
    let io = TokioIo::new(WithInterim::new(io, session.interim.clone()));
    let mut connection = builder.serve_connection(io, service);
    let ended = drive(&mut connection, &activity).await;
    match (ended, session.tunnel.take()) {
        (Ended::Told(Order::HeadTimedOut), _) => {
            Box::pin(refuse_slow_head(connection.into_parts().io.into_inner().into_inner())).await;
        }
        (Ended::Done, Some(tunnel)) => {
            let parts = connection.into_parts();
            let io = parts.io.into_inner().into_inner();
            Box::pin(leave::connection(io, parts.read_buf, tunnel, &activity)).await;
        }
        (Ended::Done, None) if session.left_unread.get() => {
            Box::pin(end_gently(connection.into_parts().io.into_inner().into_inner())).await;
        }
        (Ended::Failed, _) => {
            Box::pin(end_gently(connection.into_parts().io.into_inner().into_inner())).await;
        }
        (Ended::Done | Ended::Told(_), _) => {}
    }
}

/// hyper keeps room for so many on its stack, and allocates for any other number.
const HYPERS_MAX_HEADERS: usize = 100;

/// How a connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    /// The client broke the protocol, or went away.
    Failed,
    Told(Order),
}

/// Polls a connection to its end, or until it is told to stop at once.
async fn drive<C: Connection>(connection: &mut C, activity: &Activity) -> Ended {
    poll_fn(|context| {
        match activity.take_order(context) {
            Some(Order::Finish) => connection.finish(),
            Some(order @ (Order::Cut | Order::HeadTimedOut)) => {
                return Poll::Ready(Ended::Told(order));
            }
            None => {}
        }
        connection.poll(context).map(|ended| match ended {
            Ok(()) => Ended::Done,
            Err(error) => {
                debug!(%error, "client connection ended");
                Ended::Failed
            }
        })
    })
    .await
}

/// Ends a connection whose client broke the protocol, which it was told (400), or is still sending what
/// nobody wants. That is read for a moment, or the kernel would reset the connection and the answer be
/// lost.
async fn end_gently<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    let said = async {
        let _ = io.shutdown().await; // hyper may have done so
        tokio::io::copy(&mut (&mut io).take(LAST_BYTES), &mut tokio::io::sink()).await
    };
    let _ = timeout(LAST_WORD, said).await; // it is closed either way
}

/// A client's connection, of HTTP/1.1 or HTTP/2.
trait Connection {
    /// Ends it once the requests in flight are answered.
    fn finish(&mut self);

    /// Ready when it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>>;
}

impl<I, S> Connection for hyper::server::conn::http1::Connection<I, S>
where
    Self: Future<Output = hyper::Result<()>> + Unpin,
    S: hyper::service::HttpService<
            hyper::body::Incoming,
            Error = Infallible,
            ResBody = ResponseBody,
        >,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    fn finish(&mut self) {
        Pin::new(self).graceful_shutdown();
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        Future::poll(Pin::new(self), context).map_err(HttpError::from)
    }
}

/// How long a client that was too slow has to take its answer.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How much of what a client sends behind its error is read, in bytes.
const LAST_BYTES: u64 = 64 << 20;

async fn refuse_slow_head<IO: AsyncWrite + Unpin>(mut io: IO) {
    let answer = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let said = async {
        io.write_all(answer).await?;
        io.shutdown().await
    };
    let _ = timeout(LAST_WORD, said).await; // it is closed either way
}

/// What else there is between a request and its client.
struct Channels {
    /// Who passes on what the server says before its answer, if the client takes it.
    follower: Option<Follower>,
    /// The stream of bytes that an extended CONNECT becomes, once it is answered.
    stream: Option<oneshot::Receiver<Duplex>>,
}

async fn handle(
    session: Rc<Session>,
    request: Request<Incoming>,
    channels: Channels,
) -> Response<ResponseBody> {
    let (mut parts, body) = request.into_parts();
    request_id::set(&mut parts.headers, session.believes_request_id);
    let in_flight = RequestInFlight::begin(Rc::clone(&session), &parts);
    let is_http1 = parts.version < Version::HTTP_2;
    let mut response = if let Some((status, why)) = session.standing.refusal() {
        let in_flight = Box::pin(answer::discard(body, in_flight)).await;
        answer::refuse(&parts, status, why, in_flight)
    } else {
        match prepare::prepare(&session, &mut parts, &body) {
            Ok(purpose) => {
                let limits = &session.service.config.limits;
                let status_header = session.standing.status_header();
                let body = RequestBody::new(
                    body,
                    in_flight.began(),
                    status_header,
                    limits.max_body_size,
                    limits.body_timeout,
                    (channels.follower, in_flight.asks_first),
                );
                in_flight.following(&body);
                let request = Box::new(Request::from_parts(parts, body));
                forward(&session, request, purpose, channels.stream, in_flight).await
            }
            Err(status) => answer::own(status, Box::pin(answer::discard(body, in_flight)).await),
        }
    };
    if is_http1 && session.worker.open.is_leaving() && !is_switching(&response) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    let status = response.status().as_u16();
    session.metrics.requests.of(CodeClass::of(status)).inc();
    response.body().note_status(status);
    response
}

fn is_switching(response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// The upstream's answer, or why there is none.
async fn forward(
    session: &Rc<Session>,
    mut request: Outgoing,
    purpose: Purpose,
    client: Option<oneshot::Receiver<Duplex>>,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let upstream = session.upstream();
    let purpose = if purpose == Purpose::Upgrade && !upstream.can_upgrade() {
        // Who speaks HTTP/2 only is asked without (RFC 9110, section 7.8: it may be ignored).
        request.headers_mut().remove(header::UPGRADE);
        request.headers_mut().remove(header::CONNECTION);
        Purpose::Exchange
    } else {
        purpose
    };
    let waiting = in_flight.wait_for_upstream();
    let limits = &session.service.config.limits;
    let end = limits.request_timeout.map(|limit| Instant::now() + limit);
    let began = in_flight.began();
    let asked = match (purpose, limits.request_timeout) {
        (Purpose::Exchange, None) => upstream.send(request).await.map(|answer| (answer, None)),
        // What is rare is boxed: a future that has room for it is moved with every request.
        (Purpose::Exchange, Some(limit)) => {
            let late = |_| Err(UpstreamError::ResponseTimeout(limit));
            let answer = Box::pin(timeout(limit, upstream.send(request))).await;
            answer.unwrap_or_else(late).map(|answer| (answer, None))
        }
        (Purpose::Connect | Purpose::Upgrade, _) => Box::pin(upstream.send_upgrade(request)).await,
    };
    drop(waiting);
    if let Some(record) = in_flight.record() {
        record.upstream_seconds.set(Some(began.elapsed().as_secs_f64()));
        if let Ok(((_, lease), _)) = &asked {
            let _ = record.upstream.set(lease.server().to_string()); // it was not set before
        }
    }
    match asked {
        Ok(((response, lease), None)) => {
            let patience = session.service.config.upstream.body_timeout;
            answer::from_upstream(
                response.map(|incoming| {
                    ResponseBody::upstream(incoming, lease, in_flight, patience, end)
                }),
            )
        }
        Ok(((response, lease), Some(tunnel))) if let Some(client) = client => {
            leave::stream(session, client, (response.map(drop), lease), tunnel, in_flight)
        }
        Ok(((response, _), Some(tunnel))) => {
            session.tunnel.replace(Some((tunnel, in_flight.leaving())));
            answer::switching(response.map(|_| ResponseBody::nothing()))
        }
        Err(error) => {
            let service = &session.service.config.name;
            if matches!(error, UpstreamError::Client(_)) {
                debug!(%service, %error, "request ended by its client");
            } else {
                warn!(%service, %error, "upstream failed");
            }
            // Of a client that sends nothing there is nothing to wait for.
            let is_clients = matches!(error, UpstreamError::Client(_));
            // Over HTTP/2 it is read behind the answer.
            let is_read = !is_clients && !in_flight.is_http2;
            let rest = if is_read { in_flight.take_rest() } else { None };
            let in_flight = match rest {
                // That of a stream may be long in coming.
                Some(rest) if rest.size_hint().exact().is_none() => in_flight.keeping(rest),
                Some(rest) => Box::pin(answer::discard(rest, in_flight)).await,
                None => in_flight,
            };
            answer::own(answer::status_of(&error), in_flight)
        }
    }
}
