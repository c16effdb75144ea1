//! `keygate run`: loads the configuration and serves until SIGTERM or SIGINT.

use std::path::Path;
use std::pin::pin;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::{CliError, Exit, log};
use crate::config::Config;
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::sandbox::{self, SandboxStatus};
use crate::process::service_manager;
use crate::server::{BoundAddress, Server, ServerError};

pub(super) fn run(file: &Path) -> Result<Exit, CliError> {
    let config = Config::read(file)?;
    // Must run before other threads start: taking the sockets changes the environment, and the
    // sandbox applies to this thread and to threads started later.
    let inherited = InheritedSockets::take().map_err(ServerError::InheritedSockets)?;
    let sandbox = sandbox::enter(&config, file)?;
    let _log = log::start(&config.log)?;
    let signals = SignalHandler::install()?;
    let server = Server::start(&config, Some(file), inherited)?;
    match sandbox {
        SandboxStatus::Full | SandboxStatus::Off | SandboxStatus::Partial => {
            info!(status = sandbox.as_str(), "sandbox");
        }
        SandboxStatus::None => warn!(status = sandbox.as_str(), "sandbox"),
    }
    for BoundAddress { configured, local } in server.addresses() {
        let services = config.services.iter().filter(|service| service.listen == *configured);
        let names: Vec<&str> = services.map(|service| service.name.as_str()).collect();
        info!(address = %local, services = names.join(" "), "listening");
    }
    info!(
        address = server.admin_address(),
        workers = config.workers,
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
    service_manager::ready(&server.summary());
    Ok(signals.serve(server))
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

    /// Serves until SIGTERM or SIGINT, then shuts down; a second signal exits at once. SIGHUP
    /// reloads every changed file.
    pub(super) fn serve(self, server: Server) -> Exit {
        let Self { runtime, mut signals } = self;
        runtime.block_on(async {
            signals.reload_until_stop(&server).await;
            service_manager::stopping();
            tokio::select! {
                () = server.shut_down() => {}
                () = signals.wait_for_stop() => info!("second stop signal, exiting at once"),
            }
        });
        Exit::Done
    }
}

struct Signals {
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
