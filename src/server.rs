//! The whole proxy in one process: what `keygate run` and `keygate demo` start.
//!
//! Workers serve; a control thread watches files and answers the admin address. This room only puts
//! the others together.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::{error, info};
use tracing_appender::non_blocking::WorkerGuard;

use crate::admin;
use crate::config::{Config, ShutdownConfig};
use crate::guard::RecentKeys;
use crate::metrics::{ControlMetrics, Exposition, WorkerMetrics};
use crate::process::inherited_sockets::{InheritedSockets, InheritedSocketsError};
use crate::process::service_manager::{self, Heartbeats};
use crate::proxy::{self, Addresses, HealthBoard, Stage, Workers};
use crate::recent_hits::RecentHits;
use crate::snapshot::watch::{self as files, Command};
use crate::snapshot::{self, Current, LoadError, Loader, Prepare, Report};

/// A running proxy.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<(SocketAddr, SocketAddr)>,
    admin_address: String,
    stage: watch::Sender<Stage>,
    commands: mpsc::Sender<Command>,
    report: Arc<ArcSwap<Report>>,
    workers: Workers,
    shutdown: ShutdownConfig,
    /// Writes what is left when it is dropped.
    _access_log: WorkerGuard,
}

/// Why the proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The admin address.
    #[error(transparent)]
    Admin(#[from] admin::AdminBindError),
    /// A service's address.
    #[error(transparent)]
    Bind(#[from] proxy::BindError),
    /// The thread that watches files and serves metrics.
    #[error("cannot start the control thread: {0}")]
    Control(#[source] io::Error),
    /// The sockets that the service manager handed over.
    #[error(transparent)]
    InheritedSockets(#[from] InheritedSocketsError),
    /// A file that the configuration names.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Series that cannot be registered.
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A worker thread.
    #[error(transparent)]
    Worker(#[from] proxy::StartError),
}

impl Server {
    /// Loads everything, binds every address that is not among the `inherited`, and starts serving.
    /// The configuration is read again when `file`, which it came from, changes.
    ///
    /// # Errors
    /// A file cannot be used, an address cannot be bound, or the system refuses a thread.
    pub fn start(
        config: &Config,
        file: Option<&Path>,
        inherited: InheritedSockets,
    ) -> Result<Self, ServerError> {
        inherited.check(config)?;
        let names = config.services.iter().map(|service| service.name.as_str());
        let services: Vec<&str> = names.collect();
        let workers = (0..config.workers.get())
            .map(|_| WorkerMetrics::new(&services))
            .collect::<Result<Vec<_>, _>>()?;
        let control = ControlMetrics::new()?;
        let exposition = Exposition::new(&control, &workers);

        let recent = recent_keys(config);
        let (mut loader, first) = Loader::start(config, control.clone(), recent.clone())?;
        if let Some(file) = file {
            loader.follow(file);
        }
        loader.save()?;
        let listeners = proxy::bind(config, &inherited)?;
        let admin = admin::AdminListener::bind(&config.admin, &inherited)?;
        let admin_address = admin.local_address();
        let addresses = listeners
            .iter()
            .map(|listener| (listener.configured_address(), listener.local_address()))
            .collect();

        let current: Current = Arc::new(ArcSwap::from_pointee(first));
        let (stage, stages) = watch::channel(Stage::Serving);
        let (judgements, judged) = watch::channel(0);
        let board = HealthBoard::default();
        let recent_hits = RecentHits::default();
        let heartbeats = Heartbeats::new(workers.len());
        let (access_log, guard) = tracing_appender::non_blocking(io::stdout());
        let shared = proxy::Shared {
            current: Arc::clone(&current),
            board: board.clone(),
            access_log,
            recent_hits: recent_hits.clone(),
            stage: stages.clone(),
            judgements: judged.clone(),
            heartbeats: heartbeats.clone(),
        };
        let workers = proxy::start(config, (listeners, inherited), &workers, &recent, &shared)?;
        let (commands, received) = mpsc::channel(1);
        let report = Arc::new(ArcSwap::from_pointee(loader.report()));
        let state = admin::AdminState::new(
            exposition,
            Arc::clone(&report),
            recent_hits,
            stages,
            commands.clone(),
        );
        let listening = Arc::clone(workers.addresses());
        let prepare: Prepare = Box::new(move |config| {
            let bound =
                Addresses::prepare(&listening, config).map_err(|error| error.to_string())?;
            Ok(Box::new(bound))
        });
        let health = Health { board, metrics: control, swaps: judged };
        let control = Control {
            loader,
            prepare,
            current,
            report: Arc::clone(&report),
            received,
            judgements,
            health,
            heartbeats,
            admin,
            state,
        };
        std::thread::Builder::new()
            .name("keygate-control".to_owned())
            .spawn(move || control.run())
            .map_err(ServerError::Control)?;
        Ok(Self {
            addresses,
            admin_address,
            stage,
            commands,
            report,
            workers,
            shutdown: config.shutdown,
            _access_log: guard,
        })
    }

    /// The addresses of the services: as configured, and with the port that they really have.
    #[must_use]
    pub fn addresses(&self) -> &[(SocketAddr, SocketAddr)] {
        &self.addresses
    }

    /// The admin address with the port that it really has.
    #[must_use]
    pub fn admin_address(&self) -> &str {
        &self.admin_address
    }

    /// What is in use, in a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        let report = self.report.load();
        let (services, generation) = (report.services.len(), report.generation);
        format!("serving, snapshot {generation}, services: {services}")
    }

    /// Looks at every file again, now, and returns when what is good is in use.
    pub async fn reload(&self) {
        let (answer, done) = oneshot::channel();
        if self.commands.send(Command::Reload(answer)).await.is_ok() {
            let _ = done.await; // or files are not read any more
        }
    }

    /// Fails readiness, waits `readiness_delay`, stops accepting, and gives open connections up to
    /// `drain_timeout` to finish what they have in flight.
    pub async fn shut_down(mut self) {
        self.stage.send_replace(Stage::Leaving);
        info!(delay = ?self.shutdown.readiness_delay, "no longer ready");
        tokio::time::sleep(self.shutdown.readiness_delay).await;
        self.stage.send_replace(Stage::Draining);
        info!(at_most = ?self.shutdown.drain_timeout, "draining");
        if timeout(self.shutdown.drain_timeout, self.workers.ended()).await.is_err() {
            info!("drain timeout reached, closing open connections");
        }
        self.stage.send_replace(Stage::Ended);
        self.workers.ended().await;
        info!("stopped");
    }
}

/// Room for the keys of the clients seen lately, if any filter is tried on them.
fn recent_keys(config: &Config) -> RecentKeys {
    let is_asked_for = config.filters.iter().any(|filter| filter.max_new_hits.is_some());
    RecentKeys::new(if is_asked_for { config.workers.get() } else { 0 })
}

/// What the control thread needs.
struct Control {
    loader: Loader,
    prepare: Prepare,
    current: snapshot::Current,
    report: Arc<ArcSwap<Report>>,
    received: mpsc::Receiver<Command>,
    judgements: watch::Sender<u64>,
    health: Health,
    heartbeats: Heartbeats,
    admin: admin::AdminListener,
    state: admin::AdminState,
}

/// What is needed to ask upstreams how they are.
struct Health {
    board: HealthBoard,
    metrics: ControlMetrics,
    swaps: watch::Receiver<u64>,
}

impl Control {
    /// Runs until the process ends.
    fn run(self) {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return error!(%error, "no control runtime: no metrics, no reloads"),
        };
        runtime.block_on(async move {
            let admin = admin::serve(self.admin, self.state);
            let admin = tokio::task::spawn_local(async move {
                let Err(error) = admin.await;
                error!(%error, "the admin server ended");
            });
            tokio::task::spawn_local(service_manager::keep_alive(self.heartbeats));
            let Health { board, metrics, swaps } = self.health;
            let current = Arc::clone(&self.current);
            tokio::task::spawn_local(proxy::supervise_health(current, swaps, board, metrics));
            let watching = files::run(
                self.loader,
                self.current,
                self.report,
                self.received,
                self.judgements,
                self.prepare,
                files::POLL_INTERVAL,
            );
            if let Err(error) = watching.await {
                error!(%error, "reading files ended: no more reloads, restart the process");
                let _ = admin.await; // metrics go on
            }
        });
    }
}
