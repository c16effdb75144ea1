//! The admin server: metrics, liveness, readiness, status, and the one thing that an operator may
//! want of a running proxy. Never on the data path: it runs on the control runtime.

mod accept;
mod chart;
mod history;
mod page;
mod report;
mod status;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{debug, warn};

use self::history::{History, Hour};
use crate::config::AdminAddress;
use crate::metrics::Exposition;
use crate::process::inherited_sockets::InheritedSockets;
use crate::proxy::Stage;
use crate::recent_hits::RecentHits;
use crate::snapshot::Report;
use crate::snapshot::watch::Command;
use crate::unix_time::now;

/// Scrapers and probes are few; more than this wait.
const MAX_CONNECTIONS: usize = 64;
/// How often what has happened is noted.
const NOTED_EVERY: Duration = Duration::from_secs(60);
const ONLY_OURS: &str = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; \
    img-src data:; script-src 'self'; style-src 'self'";
/// A request head that takes longer is not a scraper's.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the admin server shows.
#[derive(Debug, Clone)]
pub struct State {
    /// All series.
    pub exposition: Exposition,
    /// What is in use and what became of the last changes.
    pub report: Arc<ArcSwap<Report>>,
    /// Who was refused or flagged.
    pub recent_hits: RecentHits,
    /// Ready while serving.
    pub stage: watch::Receiver<Stage>,
    /// To the task that watches files.
    pub commands: mpsc::Sender<Command>,
    /// When the process began to count, in seconds since the Unix epoch.
    since: u64,
    /// Only programs of this machine can ask, and pages in its browsers.
    is_loopback: bool,
    history: Arc<Mutex<History>>,
}

impl State {
    /// What there is to show, from now on.
    #[must_use]
    pub fn new(
        exposition: Exposition,
        report: Arc<ArcSwap<Report>>,
        recent_hits: RecentHits,
        stage: watch::Receiver<Stage>,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        let (since, history) = (now(), Arc::default());
        let is_loopback = false;
        Self { exposition, report, recent_hits, stage, commands, since, is_loopback, history }
    }

    /// Verdicts and actions by the hour, up to `now`.
    fn hours(&self, now: u64) -> Vec<Hour> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.note(&self.exposition, now);
        history.hours().cloned().collect()
    }
}

/// A bound admin address.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// Why the admin address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the admin address {address}: {source}")]
pub struct BindError {
    address: String,
    source: io::Error,
}

impl Listener {
    /// Binds the admin address, or takes its socket out of those that were handed over. A socket file
    /// that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// The address is in use, not ours, or needs a privilege.
    pub fn bind(address: &AdminAddress, inherited: &InheritedSockets) -> Result<Self, BindError> {
        let bound = match address {
            AdminAddress::Tcp(address) => bind_tcp(*address, inherited).map(Self::Tcp),
            AdminAddress::Unix(path) => bind_unix(path, inherited).map(Self::Unix),
        };
        bound.map_err(|source| BindError { address: address.to_string(), source })
    }

    fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|at| at.ip().is_loopback()),
            Self::Unix(_) => false, // no browser gets there
        }
    }

    /// The address with the port that it really has.
    #[must_use]
    pub fn local_address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string())
            }
            Self::Unix(listener) => listener
                .local_addr()
                .ok()
                .and_then(|at| at.as_pathname().map(|path| format!("unix:{}", path.display())))
                .unwrap_or_else(|| "unix:".to_owned()),
        }
    }
}

fn bind_tcp(
    address: SocketAddr,
    inherited: &InheritedSockets,
) -> io::Result<std::net::TcpListener> {
    if let Some(listener) = inherited.tcp(address, 1)?.into_iter().flatten().next() {
        return Ok(listener);
    }
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn bind_unix(
    path: &Path,
    inherited: &InheritedSockets,
) -> io::Result<std::os::unix::net::UnixListener> {
    if let Some(listener) = inherited.unix(path)? {
        return Ok(listener);
    }
    let is_stale = || {
        UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if path.exists() && is_stale() {
        std::fs::remove_file(path)?; // left over by a process that was killed
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until the task is dropped.
///
/// # Errors
/// The listener cannot be used by this runtime.
pub async fn serve(listener: Listener, mut state: State) -> io::Result<Infallible> {
    state.is_loopback = listener.is_loopback();
    let noted = state.clone();
    tokio::task::spawn_local(async move {
        let mut minutes = tokio::time::interval(NOTED_EVERY);
        loop {
            minutes.tick().await;
            noted.hours(now()); // so that an hour has what happened in it
        }
    });
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    match listener {
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            accept(permits, state, || async { Ok(listener.accept().await?.0) }).await
        }
        Listener::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            accept(permits, state, || async { Ok(listener.accept().await?.0) }).await
        }
    }
}

async fn accept<IO: AsyncRead + AsyncWrite + Unpin + 'static>(
    permits: Arc<Semaphore>,
    state: State,
    next: impl AsyncFn() -> io::Result<IO>,
) -> io::Result<Infallible> {
    loop {
        let io = match next().await {
            Ok(io) => io,
            Err(error) => {
                warn!(%error, "accept failed on the admin address");
                tokio::time::sleep(Duration::from_secs(1)).await; // descriptors may come back
                continue;
            }
        };
        let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
        let state = state.clone();
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| {
                let state = state.clone();
                async move { Ok::<_, Infallible>(answer(&state, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(io), service);
            if let Err(error) = connection.await {
                debug!(%error, "admin connection ended");
            }
            drop(permit);
        });
    }
}

async fn answer(state: &State, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if state.is_loopback && !is_for_loopback(request.headers()) {
        return text(StatusCode::MISDIRECTED_REQUEST, "ask for it by its address, or as localhost");
    }
    if let Some(filter) = accept::filter_of(request.uri().path()) {
        let filter = filter.to_owned();
        return accept::answer(state, filter, request).await;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match request.uri().path() {
        "/livez" => text(StatusCode::OK, "alive"),
        "/metrics" => {
            rendered("text/plain; version=0.0.4; charset=utf-8", state.exposition.render())
        }
        "/readyz" => match *state.stage.borrow() {
            Stage::Serving => text(StatusCode::OK, "ready"),
            Stage::Leaving | Stage::Draining | Stage::Ended => {
                text(StatusCode::SERVICE_UNAVAILABLE, "shutting down")
            }
        },
        "/" => rendered("text/html; charset=utf-8", page::render(state, now())),
        "/page.css" => typed("text/css; charset=utf-8", include_str!("admin/page.css").to_owned()),
        "/page.js" => {
            typed("text/javascript; charset=utf-8", include_str!("admin/page.js").to_owned())
        }
        "/report" => rendered("application/json", report::json(state)),
        "/status" => rendered("application/json", status::json(state)),
        _ => {
            let paths = "there are /, /livez, /metrics, /readyz, /report and /status";
            text(StatusCode::NOT_FOUND, paths)
        }
    }
}

/// Whether a request is for an address or for `localhost`. A page of another host whose name was made
/// to resolve to this one says that name.
fn is_for_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Some(host) = host.to_str().ok().and_then(|host| Authority::from_str(host).ok()) else {
        return false;
    };
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

fn rendered(
    content_type: &'static str,
    body: Result<String, impl std::fmt::Display>,
) -> Response<Full<Bytes>> {
    match body {
        Ok(body) => typed(content_type, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut answer = typed("text/plain; charset=utf-8", format!("{text}\n"));
    *answer.status_mut() = status;
    answer
}

fn typed(content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Names in it are the issuers' choice: whatever they are, nothing but our own files is run.
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(ONLY_OURS));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
