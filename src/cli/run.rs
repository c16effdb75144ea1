//! `keygate run`: serve until a signal says otherwise.

use std::path::Path;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use super::{CliError, Exit, log};
use crate::config::Config;
use crate::server::Server;

pub(super) fn run(file: &Path) -> Result<Exit, CliError> {
    let config = Config::read(file)?;
    let _log = log::start(&config.log)?;
    let signals = Handled::install()?;
    let server = Server::start(&config, Some(file))?;
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
            while signals.next().await == Wish::Reload {
                server.reload();
            }
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

    async fn stop(&mut self) {
        while self.next().await != Wish::Stop {}
    }
}
