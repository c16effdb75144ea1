//! The whole proxy in one process, as `keygate run` and `keygate demo` start it.
//!
//! Workers serve connections. One control thread watches files, checks upstream servers and serves
//! the admin address. This module only connects the other modules.

mod context;
mod control;
mod error;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use keygate_core::guard::{CurrentAnswers, RecentClients};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{error, info};

use self::context::ServerContext;
pub use self::error::ServerError;
use crate::admin::AdminListeners;
use crate::blocking::BlockingPool;
use crate::config::{Config, ListenAddress, LogLevel, ShutdownConfig};
use crate::confirm::{AnswerFlusher, ConfirmationContext, ConfirmationTask, Inquiry};
use crate::listen::{self, Addresses, Listener};
use crate::log_writer::{LogFile, LogReopener, LogWriter, LogWriterGuard};
use crate::metrics::{ControlMetrics, Exposition, LogMetrics, WorkerMetrics};
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::lifecycle::Lifecycle;
use crate::process::supervision::Supervisor;
use crate::resolver::Resolver;
use crate::snapshot::watch::Command;
use crate::snapshot::{Loader, Report, Snapshot};
use crate::sources::{JudgementContext, LoadErrors, Prepare};
use crate::traces::{ExportTask, SpanQueue, TraceFlusher, TracesError};
use crate::workers::{self, Workers};

/// A running proxy.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<BoundAddress>,
    admin_address: String,
    readers_address: Option<String>,
    lifecycle: watch::Sender<Lifecycle>,
    commands: mpsc::Sender<Command>,
    report: Arc<ArcSwap<Report>>,
    workers: Workers,
    supervisor: Supervisor,
    shutdown: ShutdownConfig,
    /// Saves the answers about keys; `None` without a source of proofs.
    answer_flusher: Option<AnswerFlusher>,
    /// Exports the rest of the spans; `None` if nothing is traced.
    flusher: Option<TraceFlusher>,
    /// Writes the rest of the access log when it is dropped.
    _access_log: LogWriterGuard,
}

/// Maximum time until the workers have closed all connections and ended, 5 s. The process then ends
/// without a worker that hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Parts of the process that exist before the server.
pub struct Prerequisites {
    /// Sockets from the service manager.
    pub inherited: InheritedSockets,
    /// The thread that reads files.
    pub loader: BlockingPool,
    /// The series of the logs.
    pub logs: LogMetrics,
    /// Sets the level of the log after a reload.
    pub set_log_level: SetLogLevel,
}

/// Sets the level of the log.
pub type SetLogLevel = Box<dyn Fn(&LogLevel) + Send + Sync>;

impl Prerequisites {
    /// Starts the thread that reads files.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses the thread.
    pub fn new(
        inherited: InheritedSockets,
        logs: LogMetrics,
        set_log_level: SetLogLevel,
    ) -> Result<Self, ServerError> {
        let loader = BlockingPool::new("keygate-loader", 1).map_err(ServerError::Loader)?;
        Ok(Self { inherited, loader, logs, set_log_level })
    }
}

/// An address that a service or an authorizer listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundAddress {
    /// The address in the configuration; its port may be 0.
    pub configured: ListenAddress,
    /// The address of the socket.
    pub local: ListenAddress,
}

impl Server {
    /// Loads all files, binds every address that is not inherited, and starts to serve.
    /// The configuration is read again when `file`, which it came from, changes.
    ///
    /// # Errors
    /// Returns an error if files cannot be used, an address cannot be bound, or a thread cannot be
    /// started.
    pub fn start(
        config: &Config,
        file: Option<&Path>,
        prerequisites: Prerequisites,
    ) -> Result<Self, ServerError> {
        let Prerequisites { inherited, loader: thread, logs, set_log_level } = prerequisites;
        inherited.check(config)?;
        let metrics = Metrics::new(config, &logs)?;
        let recent = recent_clients(config);
        let answers = CurrentAnswers::default();
        let inquiry = Inquiry::new(config, answers.clone(), &metrics.control.confirm);
        let judgement = JudgementContext {
            recent: recent.clone(),
            answers: answers.clone(),
            deferral: inquiry.deferral(),
        };
        let (loader, first) = load(config, file, &metrics.control, judgement)?;
        let listeners = listen::bind(config, &inherited)?;
        let admin = AdminListeners::bind(&config.admin, loader.readers_tls(), &inherited)?;
        let addresses = listeners.iter().map(BoundAddress::new).collect();
        let (admin_address, readers_address) = admin.local_addresses();

        let resolver = Resolver::start().map_err(ServerError::Resolver)?;
        let confirmation = config.confirm.as_ref().map(|confirm| {
            let (metrics, resolver) = (metrics.control.clone(), resolver.clone());
            let state_lock = loader.state_lock();
            let queries = inquiry.clone();
            let context = ConfirmationContext { queries, answers, metrics, resolver, state_lock };
            ConfirmationTask::new(confirm, config.state.dir.as_deref(), &first.guard, context)
        });
        let confirmation = confirmation.transpose()?;
        let answer_flusher = confirmation.as_ref().map(ConfirmationTask::flusher);
        let (exporting, spans) = export_task(config, &metrics, &resolver)?.unzip();
        let flusher = exporting.as_ref().map(ExportTask::flusher);
        let (server_context, commands) = ServerContext::new(config, first, &loader, resolver);
        let access_log = start_access_log(config, &logs, &server_context.reopener);
        let (access_log, access_log_guard) = access_log?;
        let context = server_context.worker_context(access_log, inquiry, spans);
        let sockets = workers::Sockets { listeners, inherited };
        let supervisor = Supervisor::default();
        let workers =
            workers::start(config, sockets, &metrics.workers, &recent, &context, &supervisor)?;
        let watcher =
            server_context.watcher(loader, prepare(&workers, set_log_level), commands, thread);
        let control = server_context.control(
            watcher,
            (admin, config.admin.commands),
            metrics,
            confirmation,
            exporting,
            workers.loads(),
        );
        control.spawn(&supervisor).map_err(ServerError::Control)?;
        Ok(Self {
            addresses,
            admin_address,
            readers_address,
            lifecycle: server_context.lifecycle,
            commands: server_context.commands,
            report: server_context.report,
            workers,
            supervisor,
            shutdown: config.shutdown,
            answer_flusher,
            flusher,
            _access_log: access_log_guard,
        })
    }

    /// The addresses of the services and authorizers.
    #[must_use]
    pub fn addresses(&self) -> &[BoundAddress] {
        &self.addresses
    }

    /// The admin address, with the port of its socket.
    #[must_use]
    pub fn admin_address(&self) -> &str {
        &self.admin_address
    }

    /// The address for readers, with the port of its socket; `None` without one.
    #[must_use]
    pub fn readers_address(&self) -> Option<&str> {
        self.readers_address.as_deref()
    }

    /// A summary of what is in use, for the service manager.
    #[must_use]
    pub fn summary(&self) -> String {
        let report = self.report.load();
        let (services, generation) = (report.services.len(), report.generation);
        format!("serving, snapshot {generation}, services: {services}")
    }

    /// Reads changed files again, and returns when every usable file is in use.
    pub async fn reload(&self) {
        let (response, done) = oneshot::channel();
        if self.commands.send(Command::Reload(response)).await.is_ok() {
            let _ = done.await; // an error means that files are no longer read
        }
    }

    /// Fails readiness, waits `readiness_delay`, stops accepting, and drains open connections.
    /// After `drain_timeout`, closes the connections that are left.
    pub async fn shut_down(mut self) {
        self.lifecycle.send_replace(Lifecycle::NotReady);
        info!(delay = ?self.shutdown.readiness_delay, "no longer ready");
        sleep(self.shutdown.readiness_delay).await;
        self.lifecycle.send_replace(Lifecycle::Draining);
        self.workers.close_addresses();
        info!(timeout = ?self.shutdown.drain_timeout, "draining");
        if timeout(self.shutdown.drain_timeout, self.workers.ended()).await.is_err() {
            info!("drain timeout reached, closing open connections");
        }
        self.lifecycle.send_replace(Lifecycle::Stopped);
        if timeout(STOP_TIMEOUT, self.workers.ended()).await.is_err() {
            error!("a worker does not end, exiting without it");
        }
        if let Some(flusher) = &self.answer_flusher {
            flusher.flush().await;
        }
        if let Some(flusher) = &self.flusher {
            flusher.flush().await;
        }
        info!("stopped");
    }

    /// Waits until a thread of the server has failed, which only a defect of keygate causes.
    pub async fn failed(&self) -> ServerError {
        ServerError::Thread(self.supervisor.failed().await)
    }
}

impl BoundAddress {
    fn new(listener: &Listener) -> Self {
        let configured = listener.configured_address().clone();
        Self { configured, local: listener.local_address().clone() }
    }
}

/// The metrics of all threads.
struct Metrics {
    workers: Vec<WorkerMetrics>,
    control: ControlMetrics,
    exposition: Exposition,
}

impl Metrics {
    fn new(config: &Config, logs: &LogMetrics) -> Result<Self, prometheus::Error> {
        let services: Vec<&str> = config.services.iter().map(|it| it.name.as_str()).collect();
        let authorizers =
            config.authorizers.iter().map(|it| (it.name.as_str(), it.protocol.stage()));
        let authorizers: Vec<_> = authorizers.collect();
        let workers = 0..config.workers.get();
        let workers = workers.map(|_| WorkerMetrics::new(&services, &authorizers));
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let control = ControlMetrics::new()?.with_logs(logs)?;
        let exposition = Exposition::new(&control, &workers);
        Ok(Self { workers, control, exposition })
    }
}

/// The recent clients, which are recorded only for dry runs of updates.
fn recent_clients(config: &Config) -> RecentClients {
    RecentClients::new(if config.records_clients() { config.workers.get() } else { 0 })
}

/// Loads all files, and saves the rollback state.
fn load(
    config: &Config,
    file: Option<&Path>,
    metrics: &ControlMetrics,
    judgement: JudgementContext,
) -> Result<(Loader, Snapshot), LoadErrors> {
    let (mut loader, first) = Loader::start_locked(config, file, metrics.clone(), judgement)?;
    loader.save()?;
    Ok((loader, first))
}

/// The task that exports traces, and the queue of the workers; `None` if nothing is traced.
fn export_task(
    config: &Config,
    metrics: &Metrics,
    resolver: &Resolver,
) -> Result<Option<(ExportTask, SpanQueue)>, TracesError> {
    let (Some(traces), Some(worker)) = (&config.traces, metrics.workers.first()) else {
        return Ok(None);
    };
    ExportTask::new(traces, worker.traces.clone(), resolver.clone()).map(Some)
}

/// Starts the access log, to its file or to standard output.
fn start_access_log(
    config: &Config,
    logs: &LogMetrics,
    reopener: &LogReopener,
) -> Result<(LogWriter, LogWriterGuard), ServerError> {
    let metrics = logs.access_log();
    let started = match &config.access_log.path {
        None => LogWriter::start("access", io::stdout(), metrics),
        Some(path) => {
            let file = LogFile::open(path, reopener.clone())
                .map_err(|source| ServerError::AccessLogFile { path: path.clone(), source })?;
            LogWriter::start("access", file, metrics)
        }
    };
    started.map_err(ServerError::AccessLog)
}

/// Checks that the file of the access log can be opened, without creating it.
///
/// # Errors
/// Returns an error if the file cannot be appended to, or if there is no directory for it.
pub fn check_access_log(config: &Config) -> Result<(), ServerError> {
    let Some(path) = &config.access_log.path else { return Ok(()) };
    LogFile::check(path).map_err(|source| ServerError::AccessLogFile { path: path.clone(), source })
}

/// Binds the addresses of a new configuration before it is in use, and then sets the level of the
/// log.
fn prepare(workers: &Workers, set_log_level: SetLogLevel) -> Prepare {
    let addresses = Arc::clone(workers.addresses());
    let set_log_level = Arc::new(set_log_level);
    Box::new(move |config| {
        let commit = Addresses::prepare(&addresses, config).map_err(|error| error.placed())?;
        let (level, set_log_level) = (config.log.level.clone(), Arc::clone(&set_log_level));
        Ok(Box::new(move || {
            commit();
            set_log_level(&level);
        }))
    })
}
