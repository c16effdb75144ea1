//! Requests on one connection: checked, sanitised, annotated, sent to the upstream.

mod response_body;

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tracing::{debug, warn};

use self::response_body::{RequestInFlight, ResponseBody};
use super::activity::{Activity, Order, Watched};
use super::headers::{self, Annotations};
use super::standing::Standing;
use super::upstream::{RequestBody, Upstream, UpstreamError};
use super::worker::Worker;
use crate::metrics::{CodeClass, ServiceMetrics};
use crate::snapshot::{Routes, Service};

/// What the requests of one connection share.
pub(super) struct Session {
    pub(super) worker: Rc<Worker>,
    pub(super) service: Arc<Service>,
    pub(super) routes: Arc<Routes>,
    pub(super) annotations: Annotations,
    pub(super) standing: Rc<Standing>,
    /// Removed from every request, and from its trailers.
    pub(super) status_header: Rc<HeaderName>,
    /// The host of the last request that was for this service: most ask for the same again.
    pub(super) host: RefCell<Option<HeaderValue>>,
}

/// Serves HTTP on a connection until it ends.
pub(super) async fn serve<IO>(session: Rc<Session>, io: IO, http2: bool)
where
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let limits = session.service.config.limits;
    let activity = Rc::clone(&session.standing.activity);
    session.worker.open.watch(&session.standing);
    let io = TokioIo::new(Watched::new(io, Rc::clone(&activity)));
    let service = service_fn(move |request| handle(Rc::clone(&session), request));
    if http2 {
        let connection = hyper::server::conn::http2::Builder::new(OnThisThread)
            .max_header_list_size(limits.max_header_size)
            .serve_connection(io, service);
        drive(&mut Box::pin(connection), &activity).await;
    } else {
        let mut connection = hyper::server::conn::http1::Builder::new()
            .header_read_timeout(None) // `Activity` tells a slow head from an idle connection
            .max_header_size(limits.max_header_size.try_into().unwrap_or(usize::MAX))
            .serve_connection(io, service);
        if drive(&mut connection, &activity).await == Some(Order::HeadTimedOut) {
            refuse_slow_head(connection.into_parts().io.into_inner()).await;
        }
    }
}

/// Polls a connection to its end, or until it is told to stop at once.
async fn drive<C: Connection>(connection: &mut C, activity: &Activity) -> Option<Order> {
    poll_fn(|context| {
        match activity.take_order(context) {
            Some(Order::Finish) => connection.finish(),
            Some(order @ (Order::Cut | Order::HeadTimedOut)) => return Poll::Ready(Some(order)),
            None => {}
        }
        Pin::new(&mut *connection).poll(context).map(|ended| {
            if let Err(error) = ended {
                debug!(%error, "client connection ended");
            }
            None
        })
    })
    .await
}

/// A server connection of hyper, HTTP/1.1 or HTTP/2.
trait Connection: Future<Output = hyper::Result<()>> + Unpin {
    /// Ends it once the requests in flight are answered.
    fn finish(&mut self);
}

impl<I, S> Connection for hyper::server::conn::http1::Connection<I, S>
where
    Self: Future<Output = hyper::Result<()>> + Unpin,
    S: hyper::service::HttpService<Incoming, Error = Infallible, ResBody = ResponseBody>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    fn finish(&mut self) {
        Pin::new(self).graceful_shutdown();
    }
}

impl<I, S> Connection for Pin<Box<hyper::server::conn::http2::Connection<I, S, OnThisThread>>>
where
    Self: Future<Output = hyper::Result<()>>,
    S: hyper::service::HttpService<Incoming, Error = Infallible, ResBody = ResponseBody>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    OnThisThread: hyper::rt::bounds::Http2ServerConnExec<S::Future, ResponseBody>,
{
    fn finish(&mut self) {
        self.as_mut().graceful_shutdown();
    }
}

/// Runs hyper's tasks where their connection runs.
#[derive(Debug, Clone, Copy)]
struct OnThisThread;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

/// How long a client that was too slow has to take its answer.
const LAST_WORD: Duration = Duration::from_secs(1);

async fn refuse_slow_head<IO: AsyncWrite + Unpin>(mut io: IO) {
    let answer = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let said = async {
        io.write_all(answer).await?;
        io.shutdown().await
    };
    let _ = timeout(LAST_WORD, said).await; // it is closed either way
}

async fn handle(
    session: Rc<Session>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let in_flight = RequestInFlight::begin(Rc::clone(&session));
    let (mut parts, body) = request.into_parts();
    let response = if let Some(why) = session.standing.refusal() {
        refuse(&parts, why, in_flight.keeping(discard(&parts, body).await))
    } else {
        match prepare(&session, &mut parts) {
            Ok(()) => {
                if !body.is_end_stream() && body.size_hint().exact().is_none() {
                    // Said, and not left to hyper: it drops the body of a GET whose length it does
                    // not know.
                    let chunked = HeaderValue::from_static("chunked");
                    parts.headers.insert(header::TRANSFER_ENCODING, chunked);
                }
                let body = RequestBody::new(body, Rc::clone(&session.status_header));
                forward(&session, Request::from_parts(parts, body), in_flight).await
            }
            Err(status) => {
                let unread = discard(&parts, body).await;
                for_client(answer(status, in_flight.keeping(unread)))
            }
        }
    };
    session.metrics().requests.of(CodeClass::of(response.status().as_u16())).inc();
    Ok(response)
}

/// How much of a body that nobody wants is read, in bytes and in time.
const DISCARDED_AT_MOST: usize = 8 << 20;
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// Reads what there is of a body, and drops it: clients that still send when the answer and
/// the end come, some do not read the answer. Returns what is left.
async fn discard(parts: &Parts, mut body: Incoming) -> Incoming {
    // Who asks first is not to be encouraged.
    if body.is_end_stream() || parts.headers.contains_key(header::EXPECT) {
        return body;
    }
    let reading = async {
        let mut read = 0;
        while read < DISCARDED_AT_MOST
            && let Some(Ok(frame)) = body.frame().await
        {
            read += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    let _ = timeout(DISCARDED_WITHIN, reading).await; // it is answered either way
    body
}

/// The upstream's answer, or why there is none.
async fn forward(
    session: &Rc<Session>,
    request: Request<RequestBody>,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    for_client(match session.upstream().send(request).await {
        Ok((response, sender)) => {
            response.map(|incoming| ResponseBody::upstream(incoming, sender, in_flight))
        }
        Err(error) => {
            let service = &session.service.config.name;
            warn!(%service, %error, "upstream failed");
            answer(status_of(&error), in_flight)
        }
    })
}

/// Makes the head of a request what the upstream gets, or says why it gets none.
fn prepare(session: &Rc<Session>, parts: &mut Parts) -> Result<(), StatusCode> {
    if parts.method == Method::CONNECT {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let host = session.host_of(parts)?;
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        parts.headers.remove(header::CONTENT_LENGTH); // the length is what was read, not what was said
    }
    headers::remove_hop_by_hop(&mut parts.headers);
    headers::remove_identity(&mut parts.headers, &session.status_header);
    parts.headers.remove(header::EXPECT); // hyper answers it as soon as the body is asked for
    headers::join_cookies(&mut parts.headers);
    session.annotations.set(&mut parts.headers, &host);
    if let Some(status) = session.standing.key_status() {
        parts.headers.insert(&*session.status_header, status);
    }
    parts.headers.insert(header::HOST, host);
    parts.uri = origin_form(std::mem::take(&mut parts.uri));
    parts.version = Version::HTTP_11;
    Ok(())
}

impl Session {
    pub(super) fn metrics(&self) -> &ServiceMetrics {
        self.worker.service_metrics(self.service.index)
    }

    pub(super) fn upstream(&self) -> &Rc<Upstream> {
        self.worker.upstream(self.service.index)
    }

    /// The host that a request is for. It must belong to the service whose policy admitted the
    /// client: otherwise a client could be judged by one service and served by another.
    fn host_of(&self, parts: &Parts) -> Result<HeaderValue, StatusCode> {
        let host = match (parts.uri.authority(), only_host(parts)?) {
            // Of an absolute target, Host is ignored (RFC 9112, section 3.2.2). HTTP/2 may carry
            // both, and they must agree (RFC 9113, section 8.3.1).
            (Some(authority), Some(host))
                if parts.version == Version::HTTP_2 && host != authority.as_str() =>
            {
                return Err(StatusCode::BAD_REQUEST);
            }
            (Some(authority), _) => {
                HeaderValue::from_str(authority.as_str()).map_err(|_| StatusCode::BAD_REQUEST)?
            }
            (None, Some(host)) => host.clone(),
            (None, None) if parts.version == Version::HTTP_10 => {
                return self.upstream().host().ok_or(StatusCode::BAD_REQUEST);
            }
            (None, None) => return Err(StatusCode::BAD_REQUEST),
        };
        let mut last = self.host.borrow_mut();
        if last.as_ref() != Some(&host) {
            let name = host.to_str().ok().and_then(name_of).ok_or(StatusCode::BAD_REQUEST)?;
            let listen = self.service.config.listen;
            if self.routes.index_of(listen, Some(name)) != Some(self.service.index) {
                return Err(StatusCode::MISDIRECTED_REQUEST);
            }
            *last = Some(host.clone());
        }
        Ok(host)
    }
}

/// The `Host` field; that there is more than one is an error.
fn only_host(parts: &Parts) -> Result<Option<&HeaderValue>, StatusCode> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() { Err(StatusCode::BAD_REQUEST) } else { Ok(host) }
}

/// The name in `name`, `name:port` or `[address]:port`; `None` if it is none of them.
fn name_of(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    let port_is_number = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    (!name.is_empty() && name.bytes().all(plain) && port_is_number).then_some(name)
}

/// The target as an origin server expects it: path and query, or `*`.
fn origin_form(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    uri.into_parts().path_and_query.map(Uri::from).unwrap_or_default()
}

fn status_of(error: &UpstreamError) -> StatusCode {
    match error {
        UpstreamError::Connect(_) | UpstreamError::Protocol(_) => StatusCode::BAD_GATEWAY,
        UpstreamError::ConnectTimeout(_) | UpstreamError::ResponseTimeout(_) => {
            StatusCode::GATEWAY_TIMEOUT
        }
    }
}

/// An answer of keygate's own: the status in words.
fn answer(status: StatusCode, in_flight: RequestInFlight) -> Response<ResponseBody> {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut response = Response::new(ResponseBody::own(Bytes::from(text), in_flight));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// Why a client is refused, as JSON for one that asks for it and as text for others; and the end of
/// its connection.
fn refuse(parts: &Parts, why: &'static str, in_flight: RequestInFlight) -> Response<ResponseBody> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (content_type, text) = if accept.is_some_and(|accept| accept.contains("application/json")) {
        ("application/json", format!("{{\"status\":403,\"error\":\"{why}\"}}\n"))
    } else {
        ("text/plain; charset=utf-8", format!("403 Forbidden: {why}\n"))
    };
    let mut response = Response::new(ResponseBody::own(Bytes::from(text), in_flight));
    *response.status_mut() = StatusCode::FORBIDDEN;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    if parts.version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn for_client(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    headers::remove_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11; // an upstream's HTTP/1.0 is between it and us
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_an_authority_is_found_or_refused() {
        for (authority, name) in [
            ("a.example", Some("a.example")),
            ("a.example:8443", Some("a.example")),
            ("[::1]:8443", Some("::1")),
            ("127.0.0.1", Some("127.0.0.1")),
            ("a.example:", Some("a.example")),
            ("", None),
            (":8443", None),
            ("user@a.example", None),
            ("a.example:https", None),
            ("a.example/..", None),
            ("[::1", None),
            ("a b", None),
        ] {
            assert_eq!(name_of(authority), name, "{authority:?}");
        }
    }

    #[test]
    fn an_absolute_target_becomes_its_path() {
        for (target, origin) in [
            ("https://a.example/path?query", "/path?query"),
            ("https://a.example", "/"),
            ("/path", "/path"),
            ("*", "*"),
        ] {
            assert_eq!(origin_form(target.parse().unwrap()), origin, "{target}");
        }
    }
}
