//! The asking task: starts questions, puts their answers in use, and keeps them.

mod keeping;
mod outcome;
mod publishing;
mod refresh;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{error, info};

pub(super) use self::keeping::KEPT_PROOFS;
pub use self::keeping::{AnswerKeeper, create_directories};
use self::keeping::{SAVE_INTERVAL, UnkeptProof, WriteEnd};
use self::outcome::{CanaryCheck, LogLimit};
use self::publishing::JUDGE_INTERVAL;
use super::TARGET;
use super::answer_book::{AnswerBook, Basis};
use super::client::SourceClient;
use super::lookup::{self, LookUp, ProofDirectories};
use super::questions::Questions;
use super::report::{CanaryState, ConfirmReport, ConfirmStatus};
use super::schedule::{Job, Stage};
use super::source_files::{ConfirmError, SourceFiles};
use crate::blocking::BlockingPool;
use crate::config::{CanaryConfig, ConfirmConfig};
use crate::guard::{CurrentAnswers, Guard};
use crate::metrics::ControlMetrics;
use crate::process::sandbox;
use crate::resolver::Resolver;
use crate::snapshot::watch::{Directories, POLL_INTERVAL};
use crate::snapshot::{Current, FileState, SETTLE, StateLock, Warning};
use crate::spki::Fingerprint;
use crate::unix_time;

/// Maximum time for a write in the state directory, and for a look into the directory of proofs,
/// 10 s.
const FILE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the asking task shares with the rest of the process.
#[derive(Debug)]
pub struct AskingLinks {
    /// The questions of all workers.
    pub questions: Questions,
    /// The answers that judgements read.
    pub answers: CurrentAnswers,
    /// The series of the control plane.
    pub metrics: ControlMetrics,
    /// Looks up the host of the source.
    pub resolver: Resolver,
    /// The lock on the state directory. Answers are saved while it is held; always if `None`.
    pub state_lock: Option<StateLock>,
}

/// Puts the questions of all workers to the source, and keeps the answers.
#[derive(Debug)]
pub struct AskingTask {
    config: ConfirmConfig,
    questions: Questions,
    files: SourceFiles,
    directories: ProofDirectories,
    client: Option<Arc<SourceClient>>,
    book: AnswerBook,
    answers: CurrentAnswers,
    metrics: ControlMetrics,
    state_dir: Option<PathBuf>,
    state_lock: Option<StateLock>,
    /// Whether the state file is of this process alone, and its answers are in the book.
    owns_state: bool,
    /// The thread for files.
    thread: BlockingPool,
    status: ConfirmStatus,
    flush: (mpsc::Sender<oneshot::Sender<()>>, mpsc::Receiver<oneshot::Sender<()>>),
    canary: CanaryCheck,
    log: LogLimit,
    directory_log: LogLimit,
    unusable_log: LogLimit,
    /// Questions that were answered since the answers were published.
    answered: Vec<u64>,
    /// Keys that were confirmed or cleared since then. A cleared key has the time at which it is
    /// asked about again.
    learned: Vec<(Fingerprint, Option<u64>)>,
    /// Whether answers have changed since they were published.
    has_news: bool,
    /// Whether open connections must be judged again.
    judge_again: bool,
    judged_at: Option<Instant>,
    /// Whether answers have changed since they were saved.
    is_dirty: bool,
    saved_at: Option<Instant>,
    /// Writes in the state directory that are in progress.
    writes: JoinSet<WriteEnd>,
    /// Proofs whose write has failed.
    unkept: Vec<UnkeptProof>,
    /// The states of the files, and of the directory of proofs, at `looked_at`.
    seen: Vec<FileState>,
    looked_at: Instant,
    /// Clearances were expired up to this time, in seconds since the Unix epoch.
    expired_at: u64,
}

/// How a task of the asking task has ended.
enum TaskEnd {
    Canary(Result<(), lookup::CanaryProblem>),
    LookedUp {
        job: Job,
        began: Instant,
        look_up: LookUp,
        /// The check of the canary after the look into a complete directory without a proof.
        canary: Option<Result<(), lookup::CanaryProblem>>,
    },
    /// Cleared keys with a file in the directory of proofs.
    Named(Vec<Fingerprint>),
    Refreshed(refresh::Refreshed),
}

impl AskingTask {
    /// Reads the files of the source and the kept answers. `guard` has the filters in use. Blocks.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used, or a directory cannot be read.
    pub fn new(
        config: &ConfirmConfig,
        state_dir: Option<&Path>,
        guard: &Guard,
        links: AskingLinks,
    ) -> Result<Self, ConfirmError> {
        let AskingLinks { questions, answers, metrics, resolver, state_lock } = links;
        // Checked before the file is read, so that no answer of another process is missed.
        let owns_state = state_lock.as_ref().is_none_or(StateLock::is_held);
        let files = SourceFiles::read(config)?;
        create_directories(Some(config), state_dir)?; // within a sandbox it exists already
        let kept = state_dir.map(|directory| directory.join(KEPT_PROOFS));
        let directories = ProofDirectories { kept, configured: config.proofs.clone() };
        let configured = directories.configured.iter().map(|it| ("confirm.proofs", it));
        let used = directories.kept.iter().map(|it| ("state.dir", it)).chain(configured);
        for (key, path) in used {
            let readable = sandbox::check(path).and_then(|()| std::fs::read_dir(path));
            let unusable = |source| ConfirmError::Directory { key, path: path.clone(), source };
            readable.map_err(unusable)?;
        }
        let basis = Basis { source: source_of(config), filters: filters_of(config, guard) };
        let mut book = AnswerBook::new(basis, config.cleared_ttl, config.stale_for);
        match state_dir {
            Some(directory) => book.add_kept(directory, &directories, unix_time::now()),
            None => {
                info!(target: TARGET, "answers about keys are lost at a restart, because there is no state.dir");
            }
        }
        if let Some(exposed) = &files.exposed {
            Warning::UnsafePermissions(exposed.clone()).log();
        }
        let timeout = config.timeout;
        let client = config.url.clone().map(|url| SourceClient::new(url, timeout, resolver));
        if let Some(mut schedule) = questions.schedule() {
            for (fingerprint, clearance) in book.cleared() {
                schedule.set_cleared(*fingerprint, system_time(clearance.due));
            }
            for fingerprint in book.confirmed() {
                schedule.set_confirmed(*fingerprint);
            }
        }
        answers.replace(Arc::new(book.answers().clone()));
        let canary = if clears(config) { CanaryState::Unchecked } else { CanaryState::Off };
        let report = ConfirmReport::new(source_of(config), config.filters.clone(), canary);
        let thread = BlockingPool::new("keygate-confirm", 1).map_err(ConfirmError::Thread)?;
        let mut task = Self {
            config: config.clone(),
            questions,
            files,
            directories,
            client: client.map(Arc::new),
            book,
            answers,
            metrics,
            state_dir: state_dir.map(Path::to_owned),
            state_lock,
            owns_state,
            thread,
            status: ConfirmStatus::new(report),
            flush: mpsc::channel(1),
            canary: CanaryCheck::default(),
            log: LogLimit::default(),
            directory_log: LogLimit::default(),
            unusable_log: LogLimit::default(),
            answered: Vec::new(),
            learned: Vec::new(),
            has_news: false,
            judge_again: false,
            judged_at: None,
            is_dirty: false,
            saved_at: None,
            writes: JoinSet::new(),
            unkept: Vec::new(),
            seen: Vec::new(),
            looked_at: Instant::now(),
            expired_at: unix_time::now(),
        };
        task.show();
        Ok(task)
    }

    /// The report of this task.
    #[must_use]
    pub fn status(&self) -> ConfirmStatus {
        self.status.clone()
    }

    /// Saves the answers at the end of the process.
    #[must_use]
    pub fn keeper(&self) -> AnswerKeeper {
        AnswerKeeper(self.flush.0.clone())
    }

    /// Asks and answers until the process ends. `judgements` changes when open connections must be
    /// judged again. Must run on a `LocalSet`.
    pub async fn run(mut self, current: Current, judgements: watch::Sender<u64>) {
        let mut swaps = judgements.subscribe();
        let mut directories = Some(self.watch_first().await);
        // The end of the time in which changes of a directory settle.
        let mut settled_at: Option<Instant> = None;
        let mut tasks = JoinSet::new();
        self.check_canary(&mut tasks);
        loop {
            self.expire();
            self.start_jobs(&mut tasks);
            self.publish(&judgements);
            self.save();
            self.show();
            let wake = self.next_wake();
            let wake = tokio::time::Instant::from_std(settled_at.map_or(wake, |at| at.min(wake)));
            tokio::select! {
                Some(ended) = tasks.join_next() => {
                    directories = self.end(ended, &mut tasks).or(directories);
                    while let Some(ended) = tasks.try_join_next() {
                        directories = self.end(ended, &mut tasks).or(directories);
                    }
                }
                Some(ended) = self.writes.join_next() => self.end_write(ended),
                () = self.questions.changed() => {}
                () = refresh::changed(&mut directories), if settled_at.is_none() => {
                    settled_at = Some(Instant::now() + SETTLE);
                }
                changed = swaps.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.compare_filters(&current.load().guard);
                }
                Some(done) = self.flush.1.recv() => {
                    self.write_now().await;
                    let _ = done.send(()); // the caller may have stopped to wait
                }
                () = tokio::time::sleep_until(wake) => {
                    let now = Instant::now();
                    let has_settled = settled_at.is_some_and(|at| at <= now);
                    if has_settled || now >= self.looked_at + POLL_INTERVAL {
                        (self.looked_at, settled_at) = (now, None);
                        // Without them, a refresh is in progress.
                        if let Some(directories) = directories.take() {
                            self.start_refresh(directories, &mut tasks);
                        }
                    }
                    if self.canary.is_retry_due(Instant::now()) {
                        self.check_canary(&mut tasks);
                    }
                }
            }
        }
    }

    /// Records how a task has ended. Returns the directories that a refresh has watched.
    fn end(
        &mut self,
        ended: Result<TaskEnd, tokio::task::JoinError>,
        tasks: &mut JoinSet<TaskEnd>,
    ) -> Option<Directories> {
        match ended {
            Ok(TaskEnd::Refreshed(refreshed)) => return Some(self.end_refresh(refreshed, tasks)),
            Ok(TaskEnd::Named(named)) => self.ask_again(|fingerprint| named.contains(fingerprint)),
            Ok(TaskEnd::Canary(outcome)) => self.end_canary(outcome, tasks),
            Ok(TaskEnd::LookedUp { job, began, look_up, canary }) => {
                if let Some(outcome) = canary {
                    self.record_canary(outcome);
                }
                self.end_look_up(job, began, look_up, tasks);
            }
            Err(error) => error!(target: TARGET, %error, "a question about a key has failed"),
        }
        None
    }

    /// Starts the questions that may be asked now.
    fn start_jobs(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        loop {
            let job = self.questions.schedule().and_then(|mut it| it.next(Instant::now()));
            let Some(job) = job else { return };
            let began = Instant::now();
            match (job.stage, &self.client) {
                (Stage::Url, Some(client)) => {
                    let (client, files) = (Arc::clone(client), self.files.clone());
                    let extra = job.question.encodings.len().saturating_sub(1);
                    if let Some(mut schedule) = self.questions.schedule() {
                        schedule.take_tokens(extra as f64, began);
                    }
                    tasks.spawn_local(async move {
                        let look_up =
                            lookup::ask_url(&client, &files, &job.question.encodings).await;
                        TaskEnd::LookedUp { job, began, look_up, canary: None }
                    });
                }
                (Stage::Directory | Stage::Url, _) => {
                    let (directories, thread) = (self.directories.clone(), self.thread.clone());
                    let (question, timeout) = (Arc::clone(&job.question), self.config.timeout);
                    let is_complete = self.client.is_none() && clears(&self.config);
                    let canaries = is_complete.then(|| self.files.canaries.clone());
                    tasks.spawn_local(async move {
                        let look_up = move || match canaries {
                            Some(canaries) => {
                                directories.look_up_complete(&question.encodings, &canaries)
                            }
                            None => (directories.look_up(&question.encodings), None),
                        };
                        let look_up = thread.run_within(timeout, look_up).await;
                        let failed = |error| LookUp::DirectoryFailed(std::io::Error::other(error));
                        let (look_up, canary) =
                            look_up.unwrap_or_else(|error| (failed(error), None));
                        TaskEnd::LookedUp { job, began, look_up, canary }
                    });
                }
            }
        }
    }

    /// The next time at which there is something to do without an event.
    fn next_wake(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = self.looked_at + POLL_INTERVAL;
        let mut at_latest = |at: Option<Instant>| wake = wake.min(at.unwrap_or(wake));
        let schedule = self.questions.schedule().map(|it| it.next_wake(now));
        at_latest(schedule.flatten());
        at_latest(self.canary.retry_at());
        if self.judge_again {
            at_latest(self.judged_at.map(|at| at + JUDGE_INTERVAL));
        }
        if self.is_dirty {
            at_latest(self.saved_at.map(|at| at + SAVE_INTERVAL));
        }
        let seconds = unix_time::now();
        let event = self.book.next_event(seconds);
        at_latest(event.map(|at| now + Duration::from_secs(at.saturating_sub(seconds))));
        wake
    }

    /// Shows the state in the metrics and the status.
    fn show(&mut self) {
        let (confirmed, cleared) = (self.book.confirmed().len(), self.book.cleared().len());
        let pending = self.questions.schedule().map_or(0, |schedule| schedule.pending());
        self.metrics.confirm.set_answers(confirmed, cleared);
        self.metrics.confirm.set_pending(pending);
        let days = self.config.cleared_ttl.as_secs_f64() / 86_400.0;
        self.status.update(|report| {
            (report.confirmed, report.cleared, report.pending) = (confirmed, cleared, pending);
            report.questions_per_day = cleared as f64 / days;
            report.count(&self.metrics.confirm);
        });
    }
}

/// The URL or the directory of the source, as logs and the status name it.
pub(super) fn source_of(config: &ConfirmConfig) -> String {
    match (&config.url, &config.proofs) {
        (Some(url), _) => url.to_string(),
        (None, Some(directory)) => directory.display().to_string(),
        (None, None) => String::new(),
    }
}

/// SHA-256 of the filters that the source answers for, in hex, by name.
fn filters_of(config: &ConfirmConfig, guard: &Guard) -> BTreeMap<String, String> {
    let hash = |name: &String| {
        let filter = guard.filters().iter().find(|filter| *filter.name == **name);
        filter.map(|filter| data_encoding::HEXLOWER.encode(&filter.sha256)).unwrap_or_default()
    };
    config.filters.iter().map(|name| (name.clone(), hash(name))).collect()
}

/// Whether a key that the source does not know can be cleared.
pub(super) fn clears(config: &ConfirmConfig) -> bool {
    let is_trusted = match &config.url {
        Some(url) => url.is_authenticated(),
        None => config.directory_is_complete,
    };
    is_trusted && config.canary != CanaryConfig::Off
}

fn system_time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
