//! The control thread: watches files, checks upstream servers, exports traces and serves the admin
//! address.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tracing::error;

use crate::admin::{self, AdminListeners, AdminState};
use crate::confirm::ConfirmationTask;
use crate::metrics::ControlMetrics;
use crate::process::heartbeat::{self, Heartbeats};
use crate::process::service_manager;
use crate::process::supervision::Supervisor;
use crate::proxy::{self, ServerStates};
use crate::resolver::Resolver;
use crate::snapshot::Current;
use crate::snapshot::watch::FileWatcher;
use crate::traces::ExportTask;

/// The tasks of the control thread.
pub(super) struct Control {
    pub(super) watcher: FileWatcher,
    pub(super) health: HealthChecks,
    /// `None` without a source of proofs.
    pub(super) confirmation: Option<ProofQueries>,
    /// `None` if nothing is traced.
    pub(super) exporting: Option<ExportTask>,
    pub(super) heartbeats: Heartbeats,
    /// The workers that hang, as the monitor finds them.
    pub(super) hanging: watch::Sender<Vec<usize>>,
    pub(super) admin: AdminListeners,
    pub(super) state: AdminState,
}

/// Checks the health of the upstream servers.
pub(super) struct HealthChecks {
    pub(super) current: Current,
    pub(super) servers: ServerStates,
    pub(super) resolver: Resolver,
    pub(super) metrics: ControlMetrics,
    /// Changes when the services may have changed.
    pub(super) swaps: watch::Receiver<u64>,
}

/// Queries the source of proofs.
pub(super) struct ProofQueries {
    pub(super) task: ConfirmationTask,
    pub(super) current: Current,
    /// Changes when open connections must be judged again.
    pub(super) judgements: watch::Sender<u64>,
}

impl Control {
    /// Starts the control thread, which runs until the process ends.
    pub(super) fn spawn(self, supervisor: &Supervisor) -> io::Result<()> {
        let (ready, started) = sync_channel(1);
        let of_thread = supervisor.clone();
        let run = move || self.run(&ready, &of_thread);
        supervisor.spawn(NAME.to_owned(), run)?;
        started.recv().map_err(io::Error::other)?
    }

    fn run(self, ready: &SyncSender<io::Result<()>>, supervisor: &Supervisor) {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => {
                let _ = ready.send(Ok(())); // the starting thread waits for it
                runtime.block_on(self.serve());
                supervisor.report(NAME.to_owned()); // it serves until the process ends
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    }

    /// Serves until the files or the admin address can no longer be served, which is logged.
    async fn serve(self) {
        tokio::task::spawn_local(service_manager::keep_alive(self.hanging.subscribe()));
        tokio::task::spawn_local(heartbeat::monitor(self.heartbeats, self.hanging));
        let HealthChecks { current, servers, metrics, swaps, resolver } = self.health;
        tokio::task::spawn_local(proxy::supervise_health(
            current, swaps, servers, resolver, metrics,
        ));
        if let Some(ProofQueries { task, current, judgements }) = self.confirmation {
            tokio::task::spawn_local(task.run(current, judgements));
        }
        if let Some(task) = self.exporting {
            tokio::task::spawn_local(task.run());
        }
        tokio::select! {
            Err(error) = admin::serve(self.admin, self.state) => {
                error!(%error, "the admin server failed");
            }
            watched = self.watcher.run() => {
                if let Err(error) = watched {
                    error!(%error, "the file watcher failed");
                }
            }
        }
    }
}

/// The name of the control thread.
const NAME: &str = "keygate-control";
