//! The state and channels that connect the threads of a server.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use super::Metrics;
use super::control::{Control, HealthChecks, ProofQueries};
use crate::admin::{AdminListeners, AdminSources, AdminState, Drain};
use crate::blocking::BlockingPool;
use crate::config::{AdminCommands, Config};
use crate::confirm::{ConfirmStatus, ConfirmationTask, Inquiry};
use crate::key_uses::KeyUses;
use crate::listen::AddressLoads;
use crate::log_writer::{LogReopener, LogWriter};
use crate::metrics::Exposition;
use crate::process::heartbeat::Heartbeats;
use crate::process::lifecycle::Lifecycle;
use crate::proxy::{ServerStates, WorkerContext};
use crate::recent_hits::RecentHits;
use crate::resolver::Resolver;
use crate::snapshot::watch::{Command, FileWatcher, POLL_INTERVAL};
use crate::snapshot::{Current, Loader, Report, Snapshot};
use crate::sources::Prepare;
use crate::traces::{ExportTask, SpanQueue};

/// The state and channels that connect the threads.
pub(super) struct ServerContext {
    /// The snapshot in use, replaced by the control thread.
    current: Current,
    /// The report on the snapshot in use, replaced by the control thread.
    pub(super) report: Arc<ArcSwap<Report>>,
    /// The lifecycle of the process, which ends the workers.
    pub(super) lifecycle: watch::Sender<Lifecycle>,
    /// Changes when workers must judge open connections again.
    judgements: watch::Sender<u64>,
    /// Commands to the control thread.
    pub(super) commands: mpsc::Sender<Command>,
    /// Health of the upstream servers, found by the control thread.
    servers: ServerStates,
    /// Looks up the names of upstream servers.
    resolver: Resolver,
    recent_hits: RecentHits,
    key_uses: KeyUses,
    heartbeats: Heartbeats,
    /// The workers that hang, as the control thread finds them.
    hanging: watch::Sender<Vec<usize>>,
    /// Opens the access log again.
    pub(super) reopener: LogReopener,
}

impl ServerContext {
    /// Returns the context and the receiver of the commands.
    pub(super) fn new(
        config: &Config,
        first: Snapshot,
        loader: &Loader,
        resolver: Resolver,
    ) -> (Self, mpsc::Receiver<Command>) {
        let (commands, received) = mpsc::channel(1);
        let context = Self {
            current: Arc::new(ArcSwap::from_pointee(first)),
            report: Arc::new(ArcSwap::from_pointee(loader.report())),
            lifecycle: watch::Sender::new(Lifecycle::Serving),
            judgements: watch::Sender::new(0),
            commands,
            servers: ServerStates::default(),
            resolver,
            recent_hits: RecentHits::default(),
            key_uses: KeyUses::default(),
            heartbeats: Heartbeats::new(config.workers.get()),
            hanging: watch::Sender::default(),
            reopener: LogReopener::default(),
        };
        (context, received)
    }

    /// The part that all workers share.
    pub(super) fn worker_context(
        &self,
        access_log: LogWriter,
        inquiry: Inquiry,
        spans: Option<SpanQueue>,
    ) -> WorkerContext {
        WorkerContext {
            current: Arc::clone(&self.current),
            servers: self.servers.clone(),
            resolver: self.resolver.clone(),
            access_log,
            spans,
            recent_hits: self.recent_hits.clone(),
            key_uses: self.key_uses.clone(),
            lifecycle: self.lifecycle.subscribe(),
            judgements: self.judgements.subscribe(),
            inquiry,
            heartbeats: self.heartbeats.clone(),
        }
    }

    /// Watches files and swaps snapshots.
    pub(super) fn watcher(
        &self,
        loader: Loader,
        prepare: Prepare,
        commands: mpsc::Receiver<Command>,
        thread: BlockingPool,
    ) -> FileWatcher {
        FileWatcher {
            loader,
            prepare,
            current: Arc::clone(&self.current),
            report: Arc::clone(&self.report),
            commands,
            judgements: self.judgements.clone(),
            poll_interval: POLL_INTERVAL,
            reopener: self.reopener.clone(),
            thread,
        }
    }

    /// The tasks of the control thread.
    pub(super) fn control(
        &self,
        watcher: FileWatcher,
        (admin, commands_from): (AdminListeners, AdminCommands),
        metrics: Metrics,
        confirmation: Option<ConfirmationTask>,
        exporting: Option<ExportTask>,
        loads: AddressLoads,
    ) -> Control {
        let drain = Drain::new(self.lifecycle.clone(), metrics.control.drained.clone());
        let health = HealthChecks {
            current: Arc::clone(&self.current),
            servers: self.servers.clone(),
            resolver: self.resolver.clone(),
            metrics: metrics.control,
            swaps: self.judgements.subscribe(),
        };
        let confirm = confirmation.as_ref().map(ConfirmationTask::status).unwrap_or_default();
        let confirmation = confirmation.map(|task| ProofQueries {
            task,
            current: Arc::clone(&self.current),
            judgements: self.judgements.clone(),
        });
        let state = self.admin_state(metrics.exposition, confirm, drain, loads, commands_from);
        let (heartbeats, hanging) = (self.heartbeats.clone(), self.hanging.clone());
        Control { watcher, health, confirmation, exporting, heartbeats, hanging, admin, state }
    }

    /// The part that the admin server shows and controls.
    fn admin_state(
        &self,
        exposition: Exposition,
        confirm: ConfirmStatus,
        drain: Drain,
        loads: AddressLoads,
        commands_from: AdminCommands,
    ) -> AdminState {
        AdminState::new(AdminSources {
            exposition,
            report: Arc::clone(&self.report),
            confirm,
            recent_hits: self.recent_hits.clone(),
            key_uses: self.key_uses.clone(),
            servers: self.servers.clone(),
            loads,
            drain,
            hanging: self.hanging.subscribe(),
            commands: self.commands.clone(),
            commands_from,
        })
    }
}
