//! `keygate run`: loads the configuration and serves until SIGTERM or SIGINT.

use std::io::IsTerminal;
use std::path::Path;
use std::pin::pin;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::{CliError, Exit, log, print_error};
use crate::config::{Config, ListenAddress};
use crate::confirm;
use crate::metrics::LogMetrics;
use crate::process::descriptors;
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::sandbox::{self, SandboxStatus};
use crate::process::service_manager;
use crate::server::{BoundAddress, Prerequisites, Server, ServerError};

pub(super) fn run(file: &Path) -> Result<Exit, CliError> {
    // Commands in the report must have the same meaning in every directory.
    let file = &std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let config = Config::read(file)?;
    // Must run before other threads start: taking the sockets changes the environment, and the
    // sandbox applies to this thread and to threads started later.
    let inherited = InheritedSockets::take().map_err(ServerError::InheritedSockets)?;
    let state_dir = config.state.dir.as_deref();
    confirm::create_directories(config.confirm.as_ref(), state_dir)
        .map_err(|source| CliError::start(file, source))?;
    let sandbox = sandbox::enter(&config, file)
        .map_err(|source| CliError::Sandbox { configuration: file.to_owned(), source })?;
    let logs = LogMetrics::new().map_err(ServerError::Metrics)?;
    let (_log, set_log_level) = log::start(&config.log, &logs)?;
    descriptors::raise_limit(&config);
    let mut signals = SignalHandler::install()?;
    let prerequisites = Prerequisites::new(inherited, logs, set_log_level)?;
    let Some(server) = start(&config, file, prerequisites, &mut signals)? else {
        info!("stopped during the start");
        return Ok(Exit::Done);
    };
    match sandbox {
        SandboxStatus::Full | SandboxStatus::Off | SandboxStatus::Partial => {
            info!(status = sandbox.as_str(), "sandbox");
        }
        SandboxStatus::None => warn!(status = sandbox.as_str(), "sandbox"),
    }
    for BoundAddress { configured, local } in server.addresses() {
        let services = config.services.iter();
        let services = services.filter(|service| ListenAddress::Tcp(service.listen) == *configured);
        let names: Vec<&str> = services.map(|service| service.name.as_str()).collect();
        let mut authorizers = config.authorizers.iter();
        match authorizers.find(|authorizer| authorizer.listen == *configured) {
            None => info!(address = %local, services = names.join(" "), "listening"),
            Some(authorizer) => {
                info!(address = %local, authorizer = %authorizer.name, "listening");
            }
        }
    }
    if let Some(address) = server.readers_address() {
        info!(address, "listening for readers");
    }
    info!(
        address = server.admin_address(),
        workers = config.workers,
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
    service_manager::ready(&server.summary());
    signals.serve(server)
}

/// Starts the server on the thread that reads files. `None` if a stop signal arrives meanwhile.
fn start(
    config: &Config,
    file: &Path,
    prerequisites: Prerequisites,
    signals: &mut SignalHandler,
) -> Result<Option<Server>, CliError> {
    let (config, path) = (config.clone(), file.to_owned());
    let thread = prerequisites.loader.clone();
    let start = thread.run(move || Server::start(&config, Some(&path), prerequisites));
    match signals.unless_stopped(start) {
        None => Ok(None),
        Some(Ok(Ok(server))) => Ok(Some(server)),
        Some(Ok(Err(source))) => Err(CliError::start(file, source)),
        Some(Err(error)) => Err(CliError::system("cannot start", error)),
    }
}

/// Handles SIGHUP, SIGINT and SIGTERM from before the server starts.
pub(super) struct SignalHandler {
    runtime: Runtime,
    signals: Signals,
}

impl SignalHandler {
    pub(super) fn install() -> Result<Self, CliError> {
        let failed = |error| CliError::system("cannot handle signals", error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let entered = runtime.enter();
        let signals = Signals::new().map_err(failed)?;
        drop(entered);
        Ok(Self { runtime, signals })
    }

    /// Waits for `work`; `None` if SIGTERM or SIGINT arrives first. SIGHUP takes effect later.
    fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let Self { runtime, signals } = self;
        let Signals { interrupt, terminate, .. } = signals;
        runtime.block_on(async {
            tokio::select! {
                done = work => Some(done),
                _ = interrupt.recv() => None,
                _ = terminate.recv() => None,
            }
        })
    }

    /// Serves until SIGTERM or SIGINT, then shuts down; a second signal exits at once. SIGHUP
    /// reloads every changed file.
    ///
    /// # Errors
    /// Returns an error if a thread of the server failed. Connections have drained by then.
    pub(super) fn serve(self, server: Server) -> Result<Exit, CliError> {
        let Self { runtime, mut signals } = self;
        runtime.block_on(async {
            let outcome = tokio::select! {
                () = signals.reload_until_stop(&server) => Ok(Exit::Done),
                failed = server.failed() => {
                    error!(error = %failed, "a thread failed, shutting down");
                    Err(failed.into())
                }
            };
            service_manager::stopping();
            if std::io::stderr().is_terminal() {
                print_error(&"stopping; press Ctrl-C again to stop at once");
            }
            tokio::select! {
                () = server.shut_down() => {}
                () = signals.wait_for_stop() => info!("second stop signal, exiting at once"),
            }
            outcome
        })
    }
}

struct Signals {
    /// Without a handler, a write beyond RLIMIT_FSIZE (`LimitFSIZE=`) ends the process. With one it
    /// is an error, and the line of the log is counted as lost.
    _file_size: Signal,
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

#[derive(Debug, PartialEq, Eq)]
enum SignalAction {
    Reload,
    Stop,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            _file_size: signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.terminate.recv() => SignalAction::Stop,
        }
    }

    /// Reloads on SIGHUP until a stop signal arrives.
    ///
    /// A SIGHUP during a reload starts another one afterwards, because the running reload may have
    /// read the file before it changed.
    async fn reload_until_stop(&mut self, server: &Server) {
        let mut action = self.next().await;
        while action == SignalAction::Reload {
            service_manager::reloading();
            let mut reload = pin!(server.reload());
            let mut again = false;
            loop {
                tokio::select! {
                    () = &mut reload => break,
                    action = self.next() => match action {
                        SignalAction::Reload => again = true,
                        SignalAction::Stop => return,
                    },
                }
            }
            service_manager::ready(&server.summary());
            action = if again { SignalAction::Reload } else { self.next().await };
        }
    }

    async fn wait_for_stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }
}
