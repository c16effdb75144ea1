//! `keygate run`: serve until a signal says otherwise.

use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use super::{CliError, Exit, log};
use crate::config::Config;
use crate::server::Server;

pub(super) fn run(config: &Path) -> Result<Exit, CliError> {
    let config = Config::read(config)?;
    let _log = log::start(&config.log)?;
    let server = Server::start(&config)?;
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
    until_stopped(server)
}

/// Serves until SIGTERM or SIGINT, then shuts down; a second one ends the process at once. SIGHUP
/// looks at every file again.
pub(super) fn until_stopped(server: Server) -> Result<Exit, CliError> {
    let refused = |error| CliError::system("signals", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(refused)?.block_on(async {
        let mut signals = Signals::new().map_err(refused)?;
        while signals.next().await == Wish::Reload {
            server.reload();
        }
        tokio::select! {
            () = server.shut_down() => {}
            () = signals.stop() => info!("stopped at once"),
        }
        Ok(Exit::Done)
    })
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
