//! The admin server: metrics, liveness, readiness, status, and commands to the running proxy.
//!
//! Runs on the control runtime, never on the data path.

mod accept;
mod attention;
mod chart;
mod command;
mod connections;
mod drain;
mod history;
mod listener;
mod page;
mod plain;
mod recent_hits;
mod reload;
mod servers;
mod status;
mod traffic;
mod view;

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

use self::command::AdminCommand;
use self::connections::Connections;
pub use self::drain::Drain;
pub use self::listener::{AdminBindError, AdminListener};
use self::view::{Memory, View};
use crate::confirm::ConfirmStatus;
use crate::metrics::Exposition;
use crate::permit::network_of;
use crate::process::heartbeat::HangingWorkers;
use crate::process::lifecycle::Lifecycle;
use crate::proxy::ServerStates;
use crate::recent_hits::RecentHits;
use crate::snapshot::Report;
use crate::snapshot::watch::Command;
use crate::unix_time::now;

/// The commit that `--version` prints; `build.rs` sets it.
const COMMIT: &str = env!("KEYGATE_COMMIT");
/// Interval at which the counters are remembered.
const MEMORY_INTERVAL: Duration = Duration::from_secs(30);
/// Content-Security-Policy of every response: only files of this server, no inline script or style.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; \
    img-src data:; script-src 'self'; style-src 'self'";
/// Maximum time to receive a request head; a slower connection is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a connection is closed between two requests, 60 s, also if the peer reads
/// slowly or not at all.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Maximum time to finish the request in progress after [`MAX_AGE`], 10 s. A command, such as the
/// acceptance of a filter update, may take longer.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of requests and of responses that a connection buffers, 64 KiB.
const MAX_BUFFER: usize = 64 << 10;

/// The state that the admin server shows, and the commands that it sends.
#[derive(Debug, Clone)]
pub struct AdminSources {
    /// All metrics.
    pub exposition: Exposition,
    /// Loaded files and the results of the last reloads.
    pub report: Arc<ArcSwap<Report>>,
    /// The source of proofs and its answers.
    pub confirm: ConfirmStatus,
    /// Recent clients whose keys were not clean.
    pub recent_hits: RecentHits,
    /// The states of the upstream servers.
    pub servers: ServerStates,
    /// The stage of the proxy, and the drain by an operator; `/readyz` responds 200 while it serves.
    pub drain: Drain,
    /// Workers that hang; `/livez` and `/readyz` respond 503 while there is one.
    pub hanging: HangingWorkers,
    /// Commands to the task that watches files.
    pub commands: mpsc::Sender<Command>,
}

/// The sources, and what the admin server remembers.
#[derive(Debug, Clone)]
pub struct AdminState {
    sources: AdminSources,
    /// Start of the process, in seconds since the Unix epoch.
    since: u64,
    /// The address is on loopback, where pages in local browsers may send requests.
    is_loopback: bool,
    /// Name of the machine.
    host: String,
    memory: Arc<Mutex<Memory>>,
}

impl AdminState {
    /// Creates the state; its history begins now.
    #[must_use]
    pub fn new(sources: AdminSources) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { sources, since: now(), is_loopback: false, host, memory: Arc::default() }
    }

    /// Why the process does not live; `None` if it does.
    fn hang(&self) -> Option<String> {
        let hanging = self.sources.hanging.borrow();
        let workers: Vec<String> = hanging.iter().map(ToString::to_string).collect();
        (!workers.is_empty()).then(|| format!("worker {} hangs", workers.join(", ")))
    }

    /// Why the proxy is not ready; `None` if it is.
    fn not_ready(&self) -> Option<String> {
        match self.sources.drain.stage() {
            Lifecycle::DrainedByOperator => Some("drained by an operator".to_owned()),
            Lifecycle::Serving => self.hang(),
            Lifecycle::NotReady | Lifecycle::Draining | Lifecycle::Stopped => {
                Some("shutting down".to_owned())
            }
        }
    }
}

/// Serves until the task is dropped.
///
/// # Errors
/// Returns an error if the runtime cannot register the listener.
pub async fn serve(listener: AdminListener, mut state: AdminState) -> io::Result<Infallible> {
    state.is_loopback = listener.is_loopback_tcp();
    let counted = state.clone();
    tokio::task::spawn_local(async move {
        let mut ticks = tokio::time::interval(MEMORY_INTERVAL);
        loop {
            ticks.tick().await;
            drop(View::of(&counted)); // so that counters are remembered without page views
        }
    });
    let connections = Rc::default();
    match listener {
        AdminListener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            let next = async || {
                let (io, peer) = listener.accept().await?;
                Ok((io, Some(network_of(peer.ip())), peer.to_string()))
            };
            accept(&connections, state, next).await
        }
        AdminListener::Unix(listener, _file) => {
            let listener = UnixListener::from_std(listener)?;
            let next = async || {
                let (io, _) = listener.accept().await?;
                let name = unix_peer(&io);
                Ok((io, None, name))
            };
            accept(&connections, state, next).await
        }
    }
}

async fn accept<IO: AsyncRead + AsyncWrite + Unpin + 'static>(
    connections: &Rc<Connections>,
    state: AdminState,
    next: impl AsyncFn() -> io::Result<(IO, Option<IpAddr>, String)>,
) -> io::Result<Infallible> {
    loop {
        let (io, peer, name) = match next().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "accept failed on the admin address");
                tokio::time::sleep(Duration::from_secs(1)).await; // file descriptors may become free
                continue;
            }
        };
        let place = connections.enter(peer).await;
        let (id, state) = (place.id(), state.clone());
        let task = tokio::task::spawn_local(async move {
            serve_connection(io, name, state).await;
            drop(place);
        });
        connections.set_task(id, task.abort_handle());
    }
}

/// Serves one connection of `peer` for [`MAX_AGE`] at most.
async fn serve_connection(
    io: impl AsyncRead + AsyncWrite + Unpin,
    peer: String,
    state: AdminState,
) {
    let is_commanding = Cell::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let (state, peer, is_commanding) = (state.clone(), peer.clone(), &is_commanding);
        async move {
            // Peers that pipeline requests take turns with the others.
            tokio::task::yield_now().await;
            is_commanding.set(AdminCommand::at(request.uri().path()).is_some());
            let response = respond(&state, peer, request).await;
            is_commanding.set(false);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let ended = match timeout(MAX_AGE, connection.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            loop {
                match timeout(LAST_REQUEST_TIMEOUT, connection.as_mut()).await {
                    Ok(ended) => break ended,
                    // Files are read before the response: minutes on a slow disk.
                    Err(_) if is_commanding.get() => {}
                    Err(_) => break Ok(()), // the peer does not read
                }
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "admin connection failed");
    }
}

/// The process at the other end of a Unix socket, for the log.
fn unix_peer(io: &UnixStream) -> String {
    let Ok(credentials) = io.peer_cred() else { return "unix".to_owned() };
    let process = credentials.pid().map(|pid| format!(", process {pid}")).unwrap_or_default();
    format!("unix: user {}{process}", credentials.uid())
}

/// Responds to a request of `peer`.
async fn respond(
    state: &AdminState,
    peer: String,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    if state.is_loopback && !is_for_loopback(request.headers()) {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "the Host header must be an IP address or localhost",
        );
    }
    if let Some(command) = AdminCommand::at(request.uri().path()) {
        return command.respond(state, peer, request).await;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/livez" => match state.hang() {
            None => text(StatusCode::OK, "alive"),
            Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason),
        },
        "/metrics" => {
            rendered("text/plain; version=0.0.4; charset=utf-8", state.sources.exposition.render())
        }
        "/readyz" => match state.not_ready() {
            None => text(StatusCode::OK, "ready"),
            Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason),
        },
        "/" => rendered(
            "text/html; charset=utf-8",
            page::render(state, &View::of(state), request.uri().query()),
        ),
        "/page.css" => typed("text/css; charset=utf-8", include_str!("admin/page.css").to_owned()),
        "/page.js" => {
            typed("text/javascript; charset=utf-8", include_str!("admin/page.js").to_owned())
        }
        "/report" => rendered("application/json", recent_hits::json(state)),
        "/status" => rendered("application/json", status::json(state, &View::of(state))),
        "/status.txt" => {
            rendered("text/plain; charset=utf-8", page::text::render(state, &View::of(state)))
        }
        _ => {
            let paths = "not found; the paths are /, /livez, /metrics, /readyz, /report, /status and /status.txt";
            text(StatusCode::NOT_FOUND, paths)
        }
    }
}

/// Whether the `Host` of a request is an IP address or `localhost`.
///
/// Prevents DNS rebinding, in which the name of another site resolves to this address. Requests
/// from pages of that site have its name in `Host`.
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
    let mut response = typed("text/plain; charset=utf-8", format!("{text}\n"));
    *response.status_mut() = status;
    response
}

fn typed(content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Pages show names that issuers chose. The header is a second defence against script injection.
    headers
        .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc::Receiver;
    use tokio::sync::watch;
    use tokio::time::sleep;

    use super::*;
    use crate::metrics::ControlMetrics;

    fn state() -> (AdminState, Receiver<Command>) {
        let (commands, received) = mpsc::channel(1);
        let control = ControlMetrics::new().unwrap();
        let drain = Drain::new(watch::Sender::new(Lifecycle::Serving), control.drained.clone());
        let exposition = Exposition::new(&control, &[]);
        let hanging = watch::Sender::default().subscribe();
        let (report, confirm) = (Arc::default(), ConfirmStatus::default());
        let sources = AdminSources {
            exposition,
            report,
            confirm,
            recent_hits: RecentHits::default(),
            servers: ServerStates::default(),
            drain,
            hanging,
            commands,
        };
        (AdminState::new(sources), received)
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_is_accepted_although_its_filter_is_read_for_minutes() {
        let (state, mut received) = state();
        let (mut peer, io) = tokio::io::duplex(4096);
        let connection = serve_connection(io, "peer".to_owned(), state);
        let body = format!("{{\"sha256\":\"{}\"}}", "0".repeat(64));
        let length = body.len();
        let request = format!(
            "POST /filters/lost/accept HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let peer = async {
            peer.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            peer.read_to_string(&mut response).await.unwrap();
            response
        };
        let loader = async {
            let Some(Command::Accept(update)) = received.recv().await else { panic!("no update") };
            sleep(3 * (MAX_AGE + LAST_REQUEST_TIMEOUT)).await;
            update.response.send(Ok(7)).unwrap();
        };
        let ((), response, ()) = tokio::join!(connection, peer, loader);
        assert!(response.contains("\"generation\":7"), "{response}");
    }
}
