//! Active health checks: made by the control thread, read by every worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use keygate_wire::incoming::HttpError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use super::dial::{DialError, Dialed, Dialer, HttpVersion, Io, Offer};
use super::server_state::{ServerState, ServerStates};
use crate::config::HealthCheckConfig;
use crate::metrics::ControlMetrics;
use crate::resolver::Resolver;
use crate::snapshot::{Current, Service};

/// Checks every server of every service, and starts again for a service whose upstream changes.
/// Runs on the control thread until `swaps` closes.
pub async fn supervise(
    current: Current,
    mut swaps: watch::Receiver<u64>,
    states: ServerStates,
    resolver: Resolver,
    metrics: ControlMetrics,
) {
    let mut checked: HashMap<String, (Arc<Service>, JoinSet<()>)> = HashMap::new();
    loop {
        let snapshot = current.load_full();
        checked.retain(|name, _| snapshot.services().iter().any(|it| it.config.name == *name));
        for service in snapshot.services() {
            let known = checked.get(&service.config.name);
            if !known.is_some_and(|(known, _)| is_same_upstream(known, service)) {
                let tasks = start_checks(service, &states, &resolver, &metrics);
                // Replacing an entry aborts its tasks.
                checked.insert(service.config.name.clone(), (Arc::clone(service), tasks));
            }
            // A reload drops the series of every service, also of one that stays the same.
            set_metrics(service, &states, &metrics);
        }
        drop(snapshot);
        if swaps.changed().await.is_err() {
            return;
        }
    }
}

fn is_same_upstream(one: &Service, other: &Service) -> bool {
    let tls = |service: &Service| service.upstream_tls.as_ref().map(Arc::as_ptr);
    one.config.upstream == other.config.upstream && tls(one) == tls(other)
}

fn set_metrics(service: &Service, states: &ServerStates, metrics: &ControlMetrics) {
    let (name, upstream) = (&service.config.name, &service.config.upstream);
    if upstream.health_check.is_some() {
        for server in &upstream.servers {
            let is_healthy = states.of(name, server).is_healthy();
            metrics.set_upstream_up(name, &server.to_string(), is_healthy);
        }
    }
}

fn start_checks(
    service: &Service,
    states: &ServerStates,
    resolver: &Resolver,
    metrics: &ControlMetrics,
) -> JoinSet<()> {
    let upstream = &service.config.upstream;
    let mut tasks = JoinSet::new();
    for server in &upstream.servers {
        let name = service.config.name.clone();
        let state = states.of(&name, server);
        let Some(check) = upstream.health_check.clone() else {
            state.set_healthy(true); // no check is configured any more
            continue;
        };
        let dialer = Dialer::new(&service.config, server, service.upstream_tls.as_ref(), resolver);
        let metrics = metrics.clone();
        tasks.spawn_local(async move {
            check_forever(&name, &dialer, &check, &state, &metrics).await;
        });
    }
    tasks
}

/// Checks a server at every interval. Its health changes after `healthy` or `unhealthy` consecutive
/// results that contradict it.
async fn check_forever(
    service: &str,
    dialer: &Dialer,
    settings: &HealthCheckConfig,
    state: &ServerState,
    metrics: &ControlMetrics,
) {
    let server = dialer.server().to_string();
    let mut ticks = interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut contradicting = 0;
    loop {
        ticks.tick().await;
        let checked = timeout(settings.timeout, check(dialer, settings.path.as_deref())).await;
        let result = checked.unwrap_or(Err(CheckError::Timeout(settings.timeout)));
        if let Err(CheckError::Dial(error)) = &result
            && !error.is_of_server()
        {
            debug!(service, server, %error, "health check without a result");
            continue;
        }
        state.record_check(result.as_ref().err().map(ToString::to_string));
        let is_healthy = state.is_healthy();
        contradicting = if result.is_ok() == is_healthy { 0 } else { contradicting + 1 };
        let needed = if is_healthy { settings.unhealthy } else { settings.healthy };
        if contradicting < needed {
            continue;
        }
        contradicting = 0;
        state.set_healthy(result.is_ok());
        metrics.set_upstream_up(service, &server, result.is_ok());
        match result {
            Ok(()) => info!(service, server, "upstream server healthy"),
            Err(error) => warn!(service, server, %error, "upstream server unhealthy"),
        }
    }
}

/// The reason why a health check failed.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the health check request failed: {0}")]
    Http(#[from] HttpError),
    #[error("the path of the health check is not valid: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("{path} returned {status}")]
    Status { path: String, status: StatusCode },
    #[error("no response within {0:?}")]
    Timeout(Duration),
}

/// Connects, and requests `path` if there is one.
async fn check(dialer: &Dialer, path: Option<&str>) -> Result<(), CheckError> {
    let Dialed { io, version, .. } = dialer.dial(Offer::AnyVersion).await?;
    let Some(path) = path else { return Ok(()) };
    let host = dialer.server().address.to_string();
    let status = match version {
        HttpVersion::Http1 => status_over_http1(io, path, &host).await?,
        HttpVersion::Http2 => status_over_http2(io, path, &host).await?,
    };
    if status.is_success() || status.is_redirection() {
        return Ok(());
    }
    Err(CheckError::Status { path: path.to_owned(), status })
}

const USER_AGENT: &str = "keygate-health-check";
/// Maximum bytes that a health check reads, 64 KiB. A server that sends informational responses
/// without end would keep the control thread busy.
const MAX_READ: u64 = 64 << 10;

/// A connection that ends after [`MAX_READ`] bytes.
fn bounded(io: Box<dyn Io>) -> impl AsyncRead + AsyncWrite + Unpin {
    let (reader, writer) = tokio::io::split(io);
    tokio::io::join(reader.take(MAX_READ), writer)
}

async fn status_over_http1(
    io: Box<dyn Io>,
    path: &str,
    host: &str,
) -> Result<StatusCode, CheckError> {
    let request = Request::get(path)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::HOST, host)
        .body(Empty::<Bytes>::new())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(bounded(io))).await.map_err(HttpError::from)?;
    tokio::task::spawn_local(connection);
    Ok(sender.send_request(request).await.map_err(HttpError::from)?.status())
}

async fn status_over_http2(
    io: Box<dyn Io>,
    path: &str,
    host: &str,
) -> Result<StatusCode, CheckError> {
    let request = Request::get(format!("http://{host}{path}"))
        .header(header::USER_AGENT, USER_AGENT)
        .body(())?;
    let (sender, connection) = h2::client::handshake(bounded(io)).await.map_err(HttpError::from)?;
    tokio::task::spawn_local(connection);
    let mut sender = sender.ready().await.map_err(HttpError::from)?;
    let (response, _) = sender.send_request(request, true).map_err(HttpError::from)?;
    Ok(response.await.map_err(HttpError::from)?.status())
}
