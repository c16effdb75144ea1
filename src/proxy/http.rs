//! HTTP on one connection: each request is checked, sanitised, annotated and sent to the upstream.

mod http2;
pub(crate) mod in_flight;
mod request;
mod resets;
mod response;
mod upgrade;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper::{Request, Response, StatusCode, Version, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::debug;

use self::http2::Http2Server;
use self::in_flight::{AcceptedUpgrade, HttpConnection, RequestInFlight};
use self::request::Purpose;
use self::response::{ResponseBody, ResponseLimits};
use super::client_socket::{ClientIo, WithCloseCheck, reset_on_close};
use super::io_events::WithIoEvents;
use super::lingering_close;
use super::message::body::{BodyLimits, HttpError, Incoming, OutgoingRequest, RequestBody};
use super::message::h2_duplex::Http2Duplex;
use super::message::headers;
use super::message::informational::{InformationalSender, WithInformational};
use super::open_connection::OpenConnection;
use super::open_connection::state::{Close, ConnectionKind, ConnectionState};
use super::upstream::error::UpstreamError;
use super::upstream::{RequestFailure, UpgradeResponse};
use super::worker::Worker;
use crate::metrics::{CodeClass, ServiceMetrics};

/// Serves HTTP on a connection until it closes.
pub(crate) async fn serve<IO>(
    worker: &Rc<Worker>,
    metrics: Rc<ServiceMetrics>,
    open: &Rc<OpenConnection>,
    io: IO,
) where
    IO: ClientIo,
{
    let http = HttpConnection::new(worker, metrics, open);
    let io = WithIoEvents::new(io, Rc::clone(&open.state));
    if open.state.kind() == ConnectionKind::Http2 {
        let mut connection = Box::new(Http2Server::new(io, Rc::clone(&http)));
        drive(&mut *connection, &open.state).await;
    } else {
        serve_http1(http, io).await;
    }
}

/// The layers between hyper and a client's connection.
type Http1Io<IO> = TokioIo<WithInformational<WithCloseCheck<IO, ConnectionState>>>;

async fn serve_http1<IO>(http: Rc<HttpConnection>, io: IO)
where
    IO: ClientIo,
{
    let limits = http.service.config.limits;
    let state = Rc::clone(&http.open.state);
    let handled = Rc::clone(&http);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let http = Rc::clone(&handled);
        async move {
            http.is_http10.set(request.version() == Version::HTTP_10);
            let takes_informational = request.version() == Version::HTTP_11;
            let informational = takes_informational.then(|| http.informational.begin_request());
            let client = ClientChannels { informational, tunnel: None };
            let response = handle(Rc::clone(&http), request.map(Incoming::Http1), client).await;
            http.informational.begin_response();
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None) // `ConnectionState` has this timeout
        .max_header_size(limits.max_header_size.try_into().unwrap_or(usize::MAX));
    if limits.max_headers != HYPER_MAX_HEADERS {
        builder.max_headers(limits.max_headers);
    }
    let io = WithCloseCheck::new(io, Rc::clone(&state));
    let io = TokioIo::new(WithInformational::new(io, http.informational.clone()));
    let mut connection = builder.serve_connection(io, service);
    let end = drive(&mut connection, &state).await;
    let into_io = |connection: http1::Connection<Http1Io<_>, _>| {
        let parts = connection.into_parts();
        (parts.io.into_inner().into_inner().into_inner(), parts.read_buf)
    };
    match (end, http.upgrade.take()) {
        (ConnectionEnd::Closed(Close::RequestTimeout), _) => {
            Box::pin(respond_408(into_io(connection).0)).await;
        }
        (ConnectionEnd::Done, Some(accepted)) => {
            let (io, early) = into_io(connection);
            Box::pin(upgrade::carry_connection(io, early, accepted, &state)).await;
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
}

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

/// A client's connection, over HTTP/1.1 or HTTP/2.
trait ClientConnection {
    /// Closes the connection after the requests in flight.
    fn close_gracefully(&mut self);

    /// Closes the connection because its client misuses it.
    fn close_for_misuse(&mut self);

    /// Ready when the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>>;
}

impl<I, S> ClientConnection for http1::Connection<I, S>
where
    Self: Future<Output = hyper::Result<()>> + Unpin,
    S: HttpService<hyper::body::Incoming, Error = Infallible, ResBody = ResponseBody>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    fn close_gracefully(&mut self) {
        Pin::new(self).graceful_shutdown();
    }

    fn close_for_misuse(&mut self) {
        self.close_gracefully(); // only HTTP/2 has such a close
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        Future::poll(Pin::new(self), context).map_err(HttpError::from)
    }
}

/// How a client's connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    /// The worker closed it at once.
    Closed(Close),
    Done,
    /// The client broke the protocol, or went away.
    Failed,
    /// A response broke off (HTTP/1.1).
    Truncated,
}

/// Polls a connection until it ends, or until the worker closes it at once.
async fn drive<C: ClientConnection>(connection: &mut C, state: &ConnectionState) -> ConnectionEnd {
    poll_fn(|context| {
        match state.take_close(context) {
            Some(Close::EnhanceYourCalm) => connection.close_for_misuse(),
            Some(Close::Graceful) => connection.close_gracefully(),
            Some(close @ (Close::Abort | Close::RequestTimeout)) => {
                return Poll::Ready(ConnectionEnd::Closed(close));
            }
            None => {}
        }
        connection.poll(context).map(|ended| match ended {
            Ok(()) => ConnectionEnd::Done,
            Err(error) => {
                debug!(%error, "client connection ended");
                if error.is_of_own_body() {
                    ConnectionEnd::Truncated
                } else {
                    ConnectionEnd::Failed
                }
            }
        })
    })
    .await
}

/// The channels to a client besides the response.
struct ClientChannels {
    /// Forwards 1xx responses; `None` for clients of HTTP/1.0.
    informational: Option<InformationalSender>,
    /// The stream of an extended CONNECT, once its response is out.
    tunnel: Option<oneshot::Receiver<Http2Duplex>>,
}

/// Handles one request.
async fn handle(
    http: Rc<HttpConnection>,
    request: Request<Incoming>,
    client: ClientChannels,
) -> Response<ResponseBody> {
    let (mut parts, body) = request.into_parts();
    headers::set_request_id(&mut parts.headers, http.trust_request_id);
    let in_flight = RequestInFlight::begin(Rc::clone(&http), &parts, &body);
    let is_http1 = parts.version < Version::HTTP_2;
    let mut response = if let Some(rejection) = http.open.rejection() {
        Box::pin(in_flight.discard_body(body)).await;
        response::rejection(&parts, rejection, in_flight)
    } else {
        match request::prepare(&http, &mut parts, &body) {
            Ok(purpose) => {
                let limits = &http.service.config.limits;
                let body = RequestBody::new(
                    body,
                    in_flight.upload().cloned(),
                    BodyLimits {
                        max_size: limits.max_body_size,
                        idle_timeout: limits.body_timeout,
                    },
                    http.open.status_header(),
                    client.informational,
                    in_flight.expects_continue,
                );
                let request = Box::new(Request::from_parts(parts, body));
                forward(&http, request, purpose, client.tunnel, in_flight).await
            }
            Err(status) => {
                Box::pin(in_flight.discard_body(body)).await;
                response::plain(status, in_flight)
            }
        }
    };
    if is_http1 && http.worker.connections.announces_close() && !is_switching(&response) {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    let status = response.status().as_u16();
    http.metrics.requests.of(CodeClass::of(status)).inc();
    response.body().record_status(status);
    response
}

fn is_switching(response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Sends a request to the upstream. Returns its response, or an error response of keygate.
async fn forward(
    http: &Rc<HttpConnection>,
    mut request: OutgoingRequest,
    mut purpose: Purpose,
    tunnel_client: Option<oneshot::Receiver<Http2Duplex>>,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    if purpose == Purpose::Upgrade && !http.upstream().can_upgrade() {
        // An upgrade may be ignored (RFC 9110, section 7.8), and h2c servers know none.
        request.headers_mut().remove(header::UPGRADE);
        request.headers_mut().remove(header::CONNECTION);
        purpose = Purpose::Exchange;
    }
    if let Some(delay) = http.resets.delay() {
        Box::pin(sleep(delay)).await; // rare, as the client has reset many streams
    }
    let limit = http.service.config.limits.request_timeout;
    let deadline = limit.map(|limit| Instant::now() + limit);
    let wait = in_flight.wait_for_upstream();
    let outcome = send(http, request, purpose).await;
    drop(wait);
    if let Some(record) = in_flight.record() {
        record.set_upstream_time(in_flight.began().elapsed());
        match &outcome {
            Ok(upgrade) => record.set_upstream(upgrade.response.lease.server()),
            Err(RequestFailure { server: Some(server), .. }) => record.set_upstream(server),
            Err(RequestFailure { server: None, .. }) => {}
        }
    }
    match outcome {
        Ok(UpgradeResponse { response, tunnel: None }) => {
            let idle_timeout = http.service.config.upstream.body_timeout;
            response::from_upstream(response, ResponseLimits { idle_timeout, deadline }, in_flight)
        }
        Ok(UpgradeResponse { response, tunnel: Some(tunnel) }) => match tunnel_client {
            Some(client) => upgrade::begin_stream(http, client, response, tunnel, in_flight),
            None => {
                in_flight.become_tunnel(StatusCode::SWITCHING_PROTOCOLS);
                let record = in_flight.into_record();
                http.upgrade.replace(Some(AcceptedUpgrade { tunnel, record }));
                response::switching(response.response)
            }
        },
        Err(failure) => {
            let is_client_fault = matches!(failure.error, UpstreamError::Client(_));
            http.worker.upstream_log.request_failed(&http.service.config, &failure);
            if !is_client_fault {
                Box::pin(in_flight.discard_rest()).await;
            }
            response::plain(response::status_of(&failure.error), in_flight)
        }
    }
}

/// Sends a request and waits for the head of the response, within `request_timeout`.
async fn send(
    http: &HttpConnection,
    request: OutgoingRequest,
    purpose: Purpose,
) -> Result<UpgradeResponse, RequestFailure> {
    let upstream = http.upstream();
    let without_tunnel = |response| UpgradeResponse { response, tunnel: None };
    // Rare paths are boxed, because their futures would be part of every request.
    match (purpose, http.service.config.limits.request_timeout) {
        (Purpose::Exchange, None) => upstream.send(http.client, request).await.map(without_tunnel),
        (Purpose::Exchange, Some(limit)) => {
            Box::pin(upstream.send_within(limit, http.client, request)).await.map(without_tunnel)
        }
        (Purpose::Connect | Purpose::Upgrade, _) => {
            Box::pin(upstream.send_upgrade(http.client, request)).await
        }
    }
}
