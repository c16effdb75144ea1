//! How the servers of upstreams are: asked by the control thread, known to every worker.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::dial::Dialer;
use crate::config::{HealthCheckConfig, ServerConfig};
use crate::metrics::ControlMetrics;
use crate::snapshot::{Current, Service};

/// What the checks say of one server.
#[derive(Debug)]
pub(super) struct Health(AtomicBool);

impl Health {
    /// Whether it may be sent requests. It may until the checks say otherwise.
    pub(super) fn is_well(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The health of every server of every service.
#[derive(Debug, Clone, Default)]
pub struct HealthBoard(Arc<Mutex<ByServer>>);

/// By the names of service and server.
type ByServer = HashMap<(String, String), Arc<Health>>;

impl HealthBoard {
    /// That of a server of a service.
    pub(super) fn of(&self, service: &str, server: &ServerConfig) -> Arc<Health> {
        let key = (service.to_owned(), server.to_string());
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(board.entry(key).or_insert_with(|| Arc::new(Health(AtomicBool::new(true)))))
    }
}

/// Asks every server of every service how it is, and begins anew with a service whose upstream
/// changes. Runs on the control thread, until `swaps` closes.
pub async fn supervise(
    current: Current,
    mut swaps: watch::Receiver<u64>,
    board: HealthBoard,
    metrics: ControlMetrics,
) {
    let mut asked: HashMap<String, (Arc<Service>, JoinSet<()>)> = HashMap::new();
    loop {
        let snapshot = current.load_full();
        asked.retain(|name, _| snapshot.services().iter().any(|it| it.config.name == *name));
        for service in snapshot.services() {
            let known = asked.get(&service.config.name);
            if !known.is_some_and(|(known, _)| is_same(known, service)) {
                let tasks = ask_all(service, &board, &metrics);
                // What was asked before is dropped, and its tasks with it.
                asked.insert(service.config.name.clone(), (Arc::clone(service), tasks));
            }
            // Another configuration may have made it forgotten, also of a service that is the same.
            show_all(service, &board, &metrics);
        }
        drop(snapshot);
        if swaps.changed().await.is_err() {
            return;
        }
    }
}

fn is_same(one: &Service, other: &Service) -> bool {
    let tls = |service: &Service| service.upstream_tls.as_ref().map(Arc::as_ptr);
    one.config.upstream == other.config.upstream && tls(one) == tls(other)
}

fn show_all(service: &Service, board: &HealthBoard, metrics: &ControlMetrics) {
    let (name, upstream) = (&service.config.name, &service.config.upstream);
    if upstream.health_check.is_some() {
        for server in &upstream.servers {
            metrics.set_upstream_up(name, &server.to_string(), board.of(name, server).is_well());
        }
    }
}

fn ask_all(service: &Service, board: &HealthBoard, metrics: &ControlMetrics) -> JoinSet<()> {
    let upstream = &service.config.upstream;
    let mut tasks = JoinSet::new();
    for server in &upstream.servers {
        let name = service.config.name.clone();
        let health = board.of(&name, server);
        let Some(check) = upstream.health_check.clone() else {
            health.0.store(true, Ordering::Relaxed); // nobody is asked any more
            continue;
        };
        let dialer = Dialer::new(upstream, server, service.upstream_tls.as_ref());
        let metrics = metrics.clone();
        tasks.spawn_local(async move {
            keep_asking(&name, &dialer, &check, &health, &metrics).await;
        });
    }
    tasks
}

async fn keep_asking(
    service: &str,
    dialer: &Dialer,
    check: &HealthCheckConfig,
    health: &Health,
    metrics: &ControlMetrics,
) {
    let server = dialer.server().to_string();
    let mut ticks = interval(check.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut row = 0;
    loop {
        ticks.tick().await;
        let answer = timeout(check.timeout, ask(dialer, check.path.as_deref())).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no answer within {:?}", check.timeout)));
        // Only what speaks against the present state counts.
        row = if answer.is_ok() == health.is_well() { 0 } else { row + 1 };
        let needed = if health.is_well() { check.unhealthy } else { check.healthy };
        if row < needed {
            continue;
        }
        row = 0;
        health.0.store(answer.is_ok(), Ordering::Relaxed);
        metrics.set_upstream_up(service, &server, answer.is_ok());
        match answer {
            Ok(()) => info!(service, server, "upstream server is well again"),
            Err(problem) => warn!(service, server, problem, "upstream server is not well"),
        }
    }
}

/// Connects, and asks for `path` if there is one.
async fn ask(dialer: &Dialer, path: Option<&str>) -> Result<(), String> {
    let (io, is_http2) = dialer.dial().await.map_err(|error| error.to_string())?;
    let Some(path) = path else { return Ok(()) };
    let host = dialer.server().address.to_string();
    let request =
        Request::get(if is_http2 { format!("http://{host}{path}") } else { path.to_owned() })
            .header(header::USER_AGENT, "keygate-health-check");
    let status = if is_http2 {
        let words = |error: h2::Error| error.to_string();
        let request = request.body(()).map_err(|error| error.to_string())?;
        let (sender, connection) = h2::client::handshake(io).await.map_err(words)?;
        tokio::task::spawn_local(connection);
        let (response, _) =
            sender.ready().await.map_err(words)?.send_request(request, true).map_err(words)?;
        response.await.map_err(words)?.status()
    } else {
        let words = |error: hyper::Error| error.to_string();
        let request = request.header(header::HOST, &host).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| error.to_string())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(words)?;
        tokio::task::spawn_local(connection);
        sender.send_request(request).await.map_err(words)?.status()
    };
    let is_good = (StatusCode::OK.as_u16()..400).contains(&status.as_u16());
    if is_good { Ok(()) } else { Err(format!("{path} is answered with {status}")) }
}
