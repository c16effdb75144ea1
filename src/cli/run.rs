//! `keygate run`: serve until a signal says otherwise.

use std::path::Path;
use std::pin::pin;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::{CliError, Exit, log};
use crate::config::Config;
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::sandbox::{self, Status};
use crate::process::service_manager;
use crate::server::{Server, ServerError};

pub(super) fn run(file: &Path) -> Result<Exit, CliError> {
    let config = Config::read(file)?;
    // Before there is another thread: this changes the environment, and the sandbox this thread.
    let inherited = InheritedSockets::take().map_err(ServerError::InheritedSockets)?;
    let sandbox = sandbox::enter(&config, file)?;
    let _log = log::start(&config.log)?;
    let signals = Handled::install()?;
    let server = Server::start(&config, Some(file), inherited)?;
    match sandbox {
        Status::Full | Status::Off | Status::Partial => info!(status = sandbox.as_str(), "sandbox"),
        Status::None => warn!(status = sandbox.as_str(), "sandbox"),
    }
    for (configured, local) in server.addresses() {
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

/// Signals that no longer end the process: handled from before it loads anything.
pub(super) struct Handled {
    runtime: Runtime,
    signals: Signals,
}

impl Handled {
    pub(super) fn install() -> Result<Self, CliError> {
        let refused = |error| CliError::system("signals", error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let entered = runtime.enter();
        let signals = Signals::new().map_err(refused)?;
        drop(entered);
        Ok(Self { runtime, signals })
    }

    /// Serves until SIGTERM or SIGINT, then shuts down; a second one ends the process at once.
    /// SIGHUP looks at every file again.
    pub(super) fn serve(self, server: Server) -> Exit {
        let Self { runtime, mut signals } = self;
        runtime.block_on(async {
            signals.until_stop(&server).await;
            service_manager::stopping();
            tokio::select! {
                () = server.shut_down() => {}
                () = signals.stop() => info!("stopped at once"),
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
enum Wish {
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

    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.hangup.recv() => Wish::Reload,
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.terminate.recv() => Wish::Stop,
        }
    }

    /// Reloads until it is time to stop. A wish that comes during a reload is carried out after it:
    /// what changed meanwhile may have been looked at already.
    async fn until_stop(&mut self, server: &Server) {
        let mut wish = self.next().await;
        while wish == Wish::Reload {
            service_manager::reloading();
            let mut reload = pin!(server.reload());
            let mut again = false;
            loop {
                tokio::select! {
                    () = &mut reload => break,
                    wish = self.next() => match wish {
                        Wish::Reload => again = true,
                        Wish::Stop => return,
                    },
                }
            }
            service_manager::ready(&server.summary());
            wish = if again { Wish::Reload } else { self.next().await };
        }
    }

    async fn stop(&mut self) {
        while self.next().await != Wish::Stop {}
    }
}
