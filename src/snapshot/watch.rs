//! When to look at the files again: on a change in any of their directories, once it has settled,
//! and every few seconds in any case.
//!
//! Directories are watched and not files, so that a file that is renamed over, deleted and made
//! again, or reached through Kubernetes' `..data` symbolic link, is seen. What no event tells (a
//! link into another directory, a network file system, a directory that was replaced) the poll
//! finds.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tracing::{error, info, warn};

use super::load::SETTLE;
use super::{AcceptError, Current, Loader, Prepare, Report, Trigger};

/// How often all files are looked at without any event: one `stat` for each.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Changes that do not settle for this long are looked at all the same: the directory may be busy
/// with files of others.
const SETTLE_AT_MOST: Duration = Duration::from_secs(2);

/// Who asked for a look at all files is told after this long that it is done, although one is being
/// written to all the time.
const ANSWER_AT_MOST: Duration = Duration::from_secs(5);

/// What somebody wants from the task that watches files.
#[derive(Debug)]
pub enum Command {
    /// An update that waits for the operator is to be let through.
    Accept(AcceptUpdate),
    /// All files are to be looked at now; who asked is told when that is done.
    Reload(oneshot::Sender<()>),
}

/// An update that the operator lets through.
#[derive(Debug)]
pub struct AcceptUpdate {
    /// The name of the filter.
    pub filter: String,
    /// SHA-256 of the file that the operator has looked at.
    pub sha256: [u8; 32],
    /// Told the number of the snapshot in use with it, or why there is none.
    pub answer: oneshot::Sender<Result<u64, AcceptError>>,
}

/// Builds the next snapshot after each change or [`Command`] and swaps it in, until `commands` closes.
/// Handshakes never wait for this task. `judgements` changes when open connections are to be judged
/// again: after a swap, and when an exception ends.
///
/// # Errors
/// The thread that reads files died.
pub async fn run(
    mut loader: Loader,
    current: Current,
    report: Arc<ArcSwap<Report>>,
    mut commands: mpsc::Receiver<Command>,
    judgements: watch::Sender<u64>,
    mut prepare: Prepare,
    poll_interval: Duration,
) -> Result<(), tokio::task::JoinError> {
    let (sender, mut events) = mpsc::channel(1);
    let mut directories = Directories::new(sender);
    // A file that changed between the start and the first watch is looked at soon, not at the poll.
    let mut pending = true;
    let mut asked: Vec<(Instant, oneshot::Sender<()>)> = Vec::new();
    loop {
        directories.watch(&loader.paths());
        let wait = if pending { SETTLE } else { poll_interval };
        let wait = loader.next_end().map_or(wait, |end| wait.min(end));
        let (mut accepted, mut look) = (None, Trigger::Poll);
        tokio::select! {
            wish = commands.recv() => match wish {
                Some(Command::Accept(acceptance)) => {
                    match loader.accept(&acceptance.filter, &acceptance.sha256) {
                        Ok(()) => accepted = Some(acceptance),
                        Err(error) => {
                            let _ = acceptance.answer.send(Err(error)); // nobody waits any more
                            continue;
                        }
                    }
                }
                Some(Command::Reload(answer)) => {
                    look = Trigger::Requested;
                    asked.push((Instant::now(), answer));
                }
                None => return Ok(()),
            },
            Some(()) = events.recv() => settle(&mut events).await,
            () = tokio::time::sleep(wait) => {}
        }
        // Reading a filter takes up to seconds: not on the runtime that serves the metrics.
        let (returned, progress) = tokio::task::spawn_blocking(move || {
            let progress = loader.refresh(look, &mut prepare);
            if let Err(error) = loader.save() {
                error!(%error, "cannot save rollback state");
            }
            ((loader, prepare), progress)
        })
        .await?;
        (loader, prepare) = returned;
        pending = progress.pending;
        let is_news = progress.snapshot.is_some() || progress.exception_ended;
        let generation = progress.snapshot.as_ref().map(|snapshot| snapshot.generation);
        if let Some(snapshot) = progress.snapshot {
            current.store(Arc::new(snapshot));
        }
        if let Some(commit) = progress.commit {
            commit();
        }
        if is_news {
            judgements.send_modify(|count| *count += 1);
        }
        // After the swap: what the report and the log say is in use, is.
        report.store(Arc::new(loader.report()));
        if let Some(generation) = generation {
            info!(generation, "snapshot in use");
        }
        // What is being written to is not looked at before it is whole.
        let is_over = |since: &Instant| !pending || since.elapsed() >= ANSWER_AT_MOST;
        for (_, answer) in asked.extract_if(.., |(since, _)| is_over(since)) {
            let _ = answer.send(()); // nobody waits any more
        }
        if let Some(AcceptUpdate { filter, sha256, answer }) = accepted {
            let outcome = loader.has_accepted(&filter, &sha256);
            let _ = answer.send(outcome.map(|()| report.load().generation)); // or nobody waits
        }
    }
}

/// Waits until nothing has happened for [`SETTLE`], at most [`SETTLE_AT_MOST`].
async fn settle(events: &mut mpsc::Receiver<()>) {
    let latest = Instant::now() + SETTLE_AT_MOST;
    loop {
        let quiet = (Instant::now() + SETTLE).min(latest);
        match timeout_at(quiet, events.recv()).await {
            Ok(Some(())) if Instant::now() < latest => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// The watched directories. Without a watcher (no inotify instance left) the poll does it alone.
struct Directories {
    watcher: Option<RecommendedWatcher>,
    failed: HashSet<PathBuf>,
}

impl Directories {
    fn new(events: mpsc::Sender<()>) -> Self {
        // A full channel holds an event that has not been seen yet: this one adds nothing.
        let notice = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = events.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(notice)
            .inspect_err(|error| warn!(%error, "no file events, files are polled only"))
            .ok();
        Self { watcher, failed: HashSet::new() }
    }

    /// Watches the directories that hold `files` and those that links lead to. Said again after
    /// every look: a directory that was replaced is a new one.
    fn watch(&mut self, files: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else { return };
        let resolved: Vec<PathBuf> =
            files.iter().filter_map(|file| file.canonicalize().ok()).collect();
        let directories: HashSet<&Path> =
            files.iter().chain(&resolved).filter_map(|file| directory_of(file)).collect();
        for directory in directories {
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.failed.remove(directory);
                }
                Err(error) if self.failed.insert(directory.to_owned()) => {
                    let directory = directory.display();
                    warn!(%directory, %error, "directory cannot be watched, it is polled only");
                }
                Err(_) => {} // said before
            }
        }
    }
}

fn directory_of(file: &Path) -> Option<&Path> {
    let directory = file.parent()?;
    Some(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}
