//! Refreshes the files after each change in their directories, and periodically.
//!
//! Changes without an event are found by the poll: behind a link into another directory, on a
//! network file system, or in a directory that was replaced.

mod directories;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tracing::info;

pub(crate) use self::directories::Directories;
use super::current::Current;
use super::loader::{Loader, RefreshedSnapshot};
use super::report::Report;
use crate::blocking::{BlockingError, BlockingPool};
use crate::files::SETTLE;
use crate::log_writer::LogReopener;
use crate::sources::{AcceptError, GuardFile, Prepare, Trigger};

/// Interval at which files are polled, 10 s. A poll without changes takes one `stat` for each file.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time to wait for changes to settle, 2 s, because other programs may keep the directory
/// busy.
const MAX_SETTLE: Duration = Duration::from_secs(2);
/// Maximum time before a reload request completes, 5 s, because a file may be written without end.
const MAX_RELOAD_WAIT: Duration = Duration::from_secs(5);

/// A command to the [`FileWatcher`].
#[derive(Debug)]
pub enum Command {
    /// Accepts the waiting update of a filter or list.
    Accept(AcceptUpdate),
    /// Refreshes all files now; the sender is used when that is done.
    Reload(oneshot::Sender<ReloadOutcome>),
}

/// How a requested reload ended. The [`Report`] has the result for each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// Whether a file is still being written; it is read when its writer is done.
    pub pending: bool,
}

/// Accepts the waiting update of a filter or list.
#[derive(Debug)]
pub struct AcceptUpdate {
    /// The kind of the file.
    pub file: GuardFile,
    /// Name of the filter or list.
    pub name: String,
    /// SHA-256 of the update that the operator has inspected.
    pub sha256: [u8; 32],
    /// The peer that sent the command, for the log.
    pub peer: String,
    /// Receives the generation of the snapshot with the update, or why the update is not used.
    pub response: oneshot::Sender<Result<u64, AcceptError>>,
}

/// Refreshes the files and swaps snapshots. Handshakes never wait for it.
pub struct FileWatcher {
    /// Builds the snapshots.
    pub loader: Loader,
    /// Prepares the rest of the process for a new configuration.
    pub prepare: Prepare,
    /// The snapshot in use, which is replaced.
    pub current: Current,
    /// The report on the snapshot in use, which is replaced.
    pub report: Arc<ArcSwap<Report>>,
    /// The commands. The watcher ends when this channel closes.
    pub commands: mpsc::Receiver<Command>,
    /// Changes when open connections must be judged again: after a swap, and when an exception
    /// expires.
    pub judgements: watch::Sender<u64>,
    /// Interval of the poll.
    pub poll_interval: Duration,
    /// Opens the access log again with each requested reload.
    pub reopener: LogReopener,
    /// The thread that reads the files.
    pub thread: BlockingPool,
}

/// Why the watcher refreshes the files.
enum Wakeup {
    Command(Command),
    /// A file event, the poll, an expiry, or a file that was being written.
    Files,
}

/// Incomplete reload requests, and when they arrived.
#[derive(Default)]
struct ReloadRequests(Vec<(Instant, oneshot::Sender<ReloadOutcome>)>);

impl FileWatcher {
    /// Runs until the channel of commands closes.
    ///
    /// # Errors
    /// Returns an error if the thread that reads files panicked.
    pub async fn run(mut self) -> Result<(), BlockingError> {
        let mut directories = Directories::new();
        let paths = self.loader.paths();
        directories = watch_directories(&self.thread, directories, paths).await?;
        let mut requests = ReloadRequests::default();
        // The first refresh comes soon, because a file may have changed before it was watched.
        let mut pending = true;
        loop {
            let wait = self.time_to_refresh(pending);
            let Some(wakeup) = self.wakeup(&mut directories, wait).await else { return Ok(()) };
            let (mut trigger, mut accepted) = (Trigger::Poll, None);
            match wakeup {
                Wakeup::Command(Command::Accept(update)) => {
                    let Some(update) = self.begin_accept(update) else { continue };
                    accepted = Some(update);
                }
                Wakeup::Command(Command::Reload(response)) => {
                    trigger = Trigger::Requested;
                    self.reopener.reopen();
                    requests.0.push((Instant::now(), response));
                }
                Wakeup::Files => {}
            }
            let refreshed;
            (self.loader, self.prepare, refreshed) =
                refresh(&self.thread, self.loader, self.prepare, trigger).await?;
            pending = refreshed.pending;
            let generation = self.swap(refreshed);
            self.loader = save(&self.thread, self.loader).await?;
            self.publish_report(generation);
            requests.complete(pending);
            if let Some(update) = accepted {
                self.finish_accept(update);
            }
            let paths = self.loader.paths();
            directories = watch_directories(&self.thread, directories, paths).await?;
        }
    }

    fn time_to_refresh(&self, pending: bool) -> Duration {
        let wait = if pending { SETTLE } else { self.poll_interval };
        self.loader.next_expiry().map_or(wait, |expiry| wait.min(expiry))
    }

    /// Waits for a command, a file event or the end of `wait`. `None` if the channel of commands
    /// has closed.
    async fn wakeup(&mut self, directories: &mut Directories, wait: Duration) -> Option<Wakeup> {
        tokio::select! {
            command = self.commands.recv() => command.map(Wakeup::Command),
            () = directories.changed() => {
                settle(directories).await;
                Some(Wakeup::Files)
            }
            () = tokio::time::sleep(wait) => Some(Wakeup::Files),
        }
    }

    /// Passes `update` to the loader. `None` if it cannot be accepted; the error has been sent.
    fn begin_accept(&mut self, update: AcceptUpdate) -> Option<AcceptUpdate> {
        match self.loader.accept(update.file, &update.name, &update.sha256, &update.peer) {
            Ok(()) => Some(update),
            Err(error) => {
                let _ = update.response.send(Err(error)); // the client may have gone
                None
            }
        }
    }

    fn finish_accept(&mut self, update: AcceptUpdate) {
        let AcceptUpdate { file, name, sha256, response, peer: _ } = update;
        let outcome = self.loader.ensure_in_use(file, &name, &sha256);
        let outcome = outcome.map(|()| self.report.load().generation);
        let _ = response.send(outcome); // the client may have gone
    }

    /// Swaps in the next snapshot, if there is one, and has open connections judged again. Returns
    /// the number of the snapshot.
    fn swap(&self, refreshed: RefreshedSnapshot) -> Option<u64> {
        let RefreshedSnapshot { snapshot, exception_expired, commit, pending: _ } = refreshed;
        let judge_again = snapshot.is_some() || exception_expired;
        let generation = snapshot.as_ref().map(|snapshot| snapshot.generation);
        if let Some(snapshot) = snapshot {
            self.current.store(Arc::new(snapshot));
        }
        if let Some(commit) = commit {
            commit();
        }
        if judge_again {
            self.judgements.send_modify(|count| *count += 1);
        }
        generation
    }

    /// Reports what is in use. The report and the log line follow the swap, so that both are true
    /// when they are read. They also follow the save, so that what they show outlives a restart.
    fn publish_report(&self, generation: Option<u64>) {
        self.report.store(Arc::new(self.loader.report()));
        if let Some(generation) = generation {
            info!(generation, "snapshot in use");
        }
    }
}

impl ReloadRequests {
    /// Completes all requests, or, if a file is `pending`, those older than [`MAX_RELOAD_WAIT`].
    fn complete(&mut self, pending: bool) {
        let is_due = |since: &Instant| !pending || since.elapsed() >= MAX_RELOAD_WAIT;
        for (_, response) in self.0.extract_if(.., |(since, _)| is_due(since)) {
            let _ = response.send(ReloadOutcome { pending }); // the caller may have gone
        }
    }
}

/// Refreshes the files on a separate thread, because reading a large filter takes seconds and
/// metrics are served meanwhile.
async fn refresh(
    thread: &BlockingPool,
    mut loader: Loader,
    mut prepare: Prepare,
    trigger: Trigger,
) -> Result<(Loader, Prepare, RefreshedSnapshot), BlockingError> {
    let refresh = move || {
        let refreshed = loader.refresh(trigger, &mut prepare);
        (loader, prepare, refreshed)
    };
    thread.run(refresh).await
}

/// Watches the directories of `files` from the thread that reads files, because a call on a file
/// system that hangs would block the control thread.
async fn watch_directories(
    thread: &BlockingPool,
    mut directories: Directories,
    files: Vec<PathBuf>,
) -> Result<Directories, BlockingError> {
    let watch = move || {
        directories.watch(&files);
        directories
    };
    thread.run(watch).await
}

/// Saves the state of the filters on a separate thread, after the swap, because a copy of a large
/// filter takes seconds. The loader logs a failure.
async fn save(thread: &BlockingPool, mut loader: Loader) -> Result<Loader, BlockingError> {
    thread
        .run(move || {
            let _ = loader.save(); // logged and counted
            loader
        })
        .await
}

/// Waits until no event has arrived for [`SETTLE`], at most [`MAX_SETTLE`].
async fn settle(directories: &mut Directories) {
    let latest = Instant::now() + MAX_SETTLE;
    loop {
        let quiet = (Instant::now() + SETTLE).min(latest);
        match timeout_at(quiet, directories.changed()).await {
            Ok(()) if Instant::now() < latest => {}
            Ok(()) | Err(_) => return,
        }
    }
}
