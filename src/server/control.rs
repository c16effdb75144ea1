//! The control thread: watches files, checks upstream servers and serves the admin address.

use std::io;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tracing::error;

use crate::admin::{self, AdminListener, AdminState};
use crate::metrics::ControlMetrics;
use crate::process::heartbeat::{self, Heartbeats};
use crate::process::service_manager;
use crate::process::supervision::Supervisor;
use crate::proxy::{self, HealthRegistry, Resolver};
use crate::snapshot::Current;
use crate::snapshot::watch::FileWatcher;

/// The tasks of the control thread.
pub(super) struct Control {
    pub(super) watcher: FileWatcher,
    pub(super) health: HealthChecks,
    pub(super) heartbeats: Heartbeats,
    /// The workers that hang, as the monitor finds them.
    pub(super) hanging: watch::Sender<Vec<usize>>,
    pub(super) admin: AdminListener,
    pub(super) state: AdminState,
}

/// Checks the health of the upstream servers.
pub(super) struct HealthChecks {
    pub(super) current: Current,
    pub(super) health: HealthRegistry,
    pub(super) resolver: Resolver,
    pub(super) metrics: ControlMetrics,
    /// Changes when the services may have changed.
    pub(super) swaps: watch::Receiver<u64>,
}

impl Control {
    /// Starts the control thread, which runs until the process ends.
    pub(super) fn spawn(self, supervisor: &Supervisor) -> io::Result<()> {
        supervisor.spawn("keygate-control".to_owned(), move || self.run()).map(|_| ())
    }

    fn run(self) {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(self.serve()),
            Err(error) => error!(%error, "no control runtime: no metrics, no reloads"),
        }
    }

    async fn serve(self) {
        let admin = admin::serve(self.admin, self.state);
        let admin = tokio::task::spawn_local(async move {
            let Err(error) = admin.await;
            error!(%error, "the admin server failed: no more metrics, restart the process");
        });
        tokio::task::spawn_local(service_manager::keep_alive(self.hanging.subscribe()));
        tokio::task::spawn_local(heartbeat::monitor(self.heartbeats, self.hanging));
        let HealthChecks { current, health, resolver, metrics, swaps } = self.health;
        let checks = proxy::supervise_health(current, swaps, health, resolver, metrics);
        tokio::task::spawn_local(checks);
        if let Err(error) = self.watcher.run().await {
            error!(%error, "the file watcher failed: no more reloads, restart the process");
            let _ = admin.await; // metrics are still served
        }
    }
}
