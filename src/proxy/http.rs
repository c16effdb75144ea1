//! HTTP on one connection: each request is checked, sanitised, annotated and sent to the upstream.

mod glitches;
mod http1;
mod http2;
pub(crate) mod in_flight;
mod queued_fields;
mod request;
mod resets;
mod response;
mod upgrade;
mod uploads;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, Version, header};
use keygate_wire::client_io::ClientIo;
use keygate_wire::http2::duplex::Http2Duplex;
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::informational::InformationalSender;
use keygate_wire::io_events::WithIoEvents;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::debug;

use self::http2::Http2Server;
use self::in_flight::{AcceptedUpgrade, HttpConnection, RequestInFlight};
use self::request::Purpose;
use self::response::{ResponseBody, ResponseLimits};
use super::message::body::{BodyLimits, OutgoingRequest, RequestBody};
use super::message::headers;
use super::open_connection::OpenConnection;
use super::open_connection::state::{Close, ConnectionKind};
use super::upstream::error::UpstreamError;
use super::upstream::{RequestFailure, UpgradeResponse, Upstream, UpstreamResponse};
use super::worker::Worker;
use super::worker::request_spans::RequestSpans;
use crate::metrics::{CodeClass, ServiceMetrics};

/// Serves HTTP on a connection until it closes.
pub(crate) fn serve<IO>(
    worker: Rc<Worker>,
    metrics: Rc<ServiceMetrics>,
    open: Rc<OpenConnection>,
    io: IO,
) -> Pin<Box<dyn Future<Output = ()>>>
where
    IO: ClientIo,
{
    let io = WithIoEvents::new(io, Rc::clone(&open.state));
    let service = Arc::clone(&open.service());
    if open.state.kind.get() != ConnectionKind::Http2 {
        return Box::pin(http1::serve(worker, metrics, open, service, io));
    }
    let http = HttpConnection::new(&worker, metrics, &open, service);
    let mut connection = Http2Server::new(io, http);
    Box::pin(async move {
        drive(&mut connection, &open).await;
    })
}

/// A client's connection, over HTTP/1.1 or HTTP/2.
trait ClientConnection {
    /// Closes the connection after the requests in flight.
    fn close_gracefully(&mut self);

    /// Closes the connection because its client misuses it.
    fn close_for_misuse(&mut self);

    /// Makes the next poll end HTTP if no request is in flight. The connection stays open. Returns
    /// whether the connection can hibernate.
    fn begin_hibernation(&mut self) -> bool {
        false
    }

    /// Ready when the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HttpError>>;
}

/// How a client's connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    /// The worker closed it at once.
    Closed(Close),
    Done,
    /// The client broke the protocol, or went away.
    Failed,
    /// The connection is idle and open (HTTP/1.1).
    Hibernates,
    /// A response broke off (HTTP/1.1).
    Truncated,
}

/// Polls a connection until it ends, or until the worker closes it at once.
async fn drive<C: ClientConnection>(connection: &mut C, open: &OpenConnection) -> ConnectionEnd {
    let state = &open.state;
    poll_fn(|context| {
        match state.take_close(context) {
            Some(Close::EnhanceYourCalm) => connection.close_for_misuse(),
            Some(Close::Graceful) => connection.close_gracefully(),
            Some(close @ (Close::Abort | Close::RequestTimeout)) => {
                return Poll::Ready(ConnectionEnd::Closed(close));
            }
            None => {}
        }
        let hibernates = state.take_hibernation(|| connection.begin_hibernation());
        connection.poll(context).map(|ended| match ended {
            Ok(()) if hibernates => ConnectionEnd::Hibernates,
            Ok(()) => ConnectionEnd::Done,
            Err(error) => {
                let (peer, service) = (open.identity.peer(), open.service());
                debug!(%peer, service = service.config.name, %error, "client connection ended");
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

/// The channels to a client other than the response.
struct ClientChannels {
    /// Forwards 1xx responses; `None` for clients of HTTP/1.0.
    informational: Option<InformationalSender>,
    /// The stream of an extended CONNECT, once its response is out.
    tunnel: Option<oneshot::Receiver<Http2Duplex>>,
}

/// Handles one request that was received at `began`. The head is checked at once and not when the
/// future is polled, so that the future does not contain it.
fn handle(
    http: Rc<HttpConnection>,
    began: Instant,
    request: Request<Incoming>,
    client: ClientChannels,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + use<> {
    let is_http1 = request.version() < Version::HTTP_2;
    let checked = check(&http, began, request, client);
    async move {
        let mut response = match checked {
            CheckedRequest::Forwarded { upstream, request, purpose, tunnel, in_flight } => {
                forward(&http, &upstream, request, purpose, tunnel, in_flight).await
            }
            CheckedRequest::Rejected(responding) => responding.await,
        };
        if is_http1 {
            let is_drained =
                http.worker.connections.announces_close.get() && !is_switching(&response);
            if is_drained || response::ends_connection(&response) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            http.informational.begin_response();
        }
        let status = response.status().as_u16();
        http.metrics.requests.of(CodeClass::from_status(status)).inc();
        response.body().record_status(status);
        Ok(response)
    }
}

/// A request whose head was checked.
enum CheckedRequest {
    Forwarded {
        upstream: Rc<Upstream>,
        request: OutgoingRequest,
        purpose: Purpose,
        tunnel: Option<oneshot::Receiver<Http2Duplex>>,
        in_flight: RequestInFlight,
    },
    /// keygate responds itself.
    Rejected(Pin<Box<dyn Future<Output = Response<ResponseBody>>>>),
}

/// Begins a request, checks its head, and rewrites it for the upstream.
fn check(
    http: &Rc<HttpConnection>,
    began: Instant,
    request: Request<Incoming>,
    client: ClientChannels,
) -> CheckedRequest {
    let (mut parts, body) = request.into_parts();
    let id = headers::request_id(&parts.headers, http.trust_request_id);
    let tracer = http.worker.tracer.as_ref();
    let trusted = http.trust_trace_context.then_some(&parts.headers);
    let (trace, spans) =
        tracer.map(|it| RequestSpans::begin(it, trusted, http.open.client, began)).unzip();
    let mut in_flight =
        RequestInFlight::begin(Rc::clone(http), began, &parts, &body, id.as_ref(), spans.flatten());
    if let Some(rejection) = http.open.rejection.get() {
        return CheckedRequest::Rejected(Box::pin(async move {
            in_flight.discard_body(body).await;
            response::rejection(&parts, rejection, in_flight)
        }));
    }
    let upstream = http.upstream();
    if !in_flight.take_share(parts.method == Method::CONNECT, upstream.may_speak_http2()) {
        return CheckedRequest::Rejected(Box::pin(async move {
            in_flight.discard_body(body).await;
            response::over_share(in_flight)
        }));
    }
    let (purpose, own_fields) = match request::prepare(http, &mut parts, &body, id) {
        Ok(prepared) => prepared,
        Err(status) => {
            return CheckedRequest::Rejected(Box::pin(async move {
                in_flight.discard_body(body).await;
                response::plain(status, in_flight)
            }));
        }
    };
    if let Some(trace) = trace {
        trace.set_fields(&mut parts.headers);
    }
    let limits = &http.service.config.limits;
    let body = RequestBody::new(
        body,
        in_flight.upload().cloned(),
        BodyLimits { max_size: limits.max_body_size, idle_timeout: limits.body_timeout },
        http.open.own_names(),
        client.informational,
        in_flight.expects_continue,
    );
    let attempts = in_flight.record().and_then(|record| record.failed_attempts());
    let request = Box::new(Request::from_parts(parts, body.with(own_fields, attempts)));
    CheckedRequest::Forwarded { upstream, request, purpose, tunnel: client.tunnel, in_flight }
}

fn is_switching(response: &Response<ResponseBody>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Sends a request to the upstream. Returns its response, or an error response of keygate.
async fn forward(
    http: &Rc<HttpConnection>,
    upstream: &Upstream,
    mut request: OutgoingRequest,
    mut purpose: Purpose,
    tunnel_client: Option<oneshot::Receiver<Http2Duplex>>,
    mut in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    if let Some(delay) = http.resets.delay() {
        Box::pin(sleep(delay)).await; // rare, as the client has reset many streams
    }
    if purpose == Purpose::Upgrade && !upstream.can_upgrade() {
        // An upgrade may be ignored (RFC 9110, section 7.8), and h2c servers know none.
        request.headers_mut().remove(header::UPGRADE);
        request.headers_mut().remove(header::CONNECTION);
        purpose = Purpose::Exchange;
    }
    let limit = http.service.config.limits.request_timeout;
    let deadline = limit.map(|limit| Instant::now() + limit);
    let wait = in_flight.wait_for_upstream();
    if let Some(record) = in_flight.record() {
        record.begin_exchange();
    }
    let outcome = send(http, upstream, request, purpose).await;
    drop(wait);
    if let Some(record) = in_flight.record() {
        record.set_upstream_time(in_flight.began.elapsed());
        match &outcome {
            Ok(UpgradeResponse { response: UpstreamResponse { response, lease }, .. }) => {
                record.record_response(lease.server.config(), response.status());
            }
            Err(failure) => record.record_failure(failure),
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
    upstream: &Upstream,
    request: OutgoingRequest,
    purpose: Purpose,
) -> Result<UpgradeResponse, RequestFailure> {
    if upstream.isolation.take_report(http.open.client) {
        http.record_isolation();
    }
    let without_tunnel = |response| UpgradeResponse { response, tunnel: None };
    // Rare paths are boxed, because their futures would be part of every request.
    match (purpose, http.service.config.limits.request_timeout) {
        (Purpose::Exchange, None) => {
            upstream.send(http.open.client, request).await.map(without_tunnel)
        }
        (Purpose::Exchange, Some(limit)) => {
            Box::pin(upstream.send_within(limit, http.open.client, request))
                .await
                .map(without_tunnel)
        }
        (Purpose::Connect | Purpose::Upgrade, _) => {
            Box::pin(upstream.send_upgrade(http.open.client, request)).await
        }
    }
}
