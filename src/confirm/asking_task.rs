//! The asking task: starts questions, puts their answers in use, and keeps them.

mod canary;
mod keeping;
mod logs;
mod outcome;
mod publishing;
mod refresh;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use keygate_core::guard::{CurrentAnswers, Guard};
use keygate_core::spki::Fingerprint;
use keygate_core::unix_time;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{error, info};

use self::canary::CanaryCheck;
pub use self::keeping::AnswerKeeper;
use self::keeping::Keeping;
use self::logs::QuestionLogs;
use self::publishing::News;
use super::TARGET;
use super::answer_book::{AnswerBook, Basis};
use super::client::SourceClient;
use super::lookup::{self, LookUpOutcome, ProofDirectories};
use super::questions::Questions;
use super::report::{CanaryState, ConfirmReport, ConfirmStatus};
use super::schedule::{Job, Schedule, Stage};
use super::source::{clears, create_directories, open_directories, source_of};
use super::source_files::{ConfirmError, SourceFiles};
use crate::blocking::BlockingPool;
use crate::config::ConfirmConfig;
use crate::metrics::ControlMetrics;
use crate::resolver::Resolver;
use crate::snapshot::watch::{Directories, POLL_INTERVAL};
use crate::snapshot::{Current, FileState, SETTLE, StateLock, Warning};

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
    /// The thread for files.
    thread: BlockingPool,
    status: ConfirmStatus,
    flush: (mpsc::Sender<oneshot::Sender<()>>, mpsc::Receiver<oneshot::Sender<()>>),
    canary: CanaryCheck,
    logs: QuestionLogs,
    news: News,
    keeping: Keeping,
    /// The states of the files, and of the directory of proofs, at `looked_at`.
    seen: Vec<FileState>,
    looked_at: Instant,
}

/// How a task of the asking task has ended.
enum TaskEnd {
    Canary(Result<(), lookup::CanaryProblem>),
    LookedUp {
        job: Job,
        began: Instant,
        look_up: LookUpOutcome,
        /// The check of the canary after the look into a complete directory without a proof.
        canary: Option<Result<(), lookup::CanaryProblem>>,
    },
    /// Cleared keys with a file in the directory of proofs.
    Named(Vec<Fingerprint>),
    Refreshed(refresh::RefreshedFiles),
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
        let directories = open_directories(config, state_dir)?;
        if let Some(exposed) = &files.exposed {
            Warning::unsafe_permissions(exposed).log();
        }
        let book = kept_answers(config, state_dir, guard, &directories);
        if let Some(mut schedule) = questions.schedule() {
            add_known_answers(&mut schedule, &book);
        }
        answers.replace(Arc::new(book.answers().clone()));
        let canary = if clears(config) { CanaryState::Unchecked } else { CanaryState::Off };
        let report = ConfirmReport::new(source_of(config), config.filters.clone(), canary);
        let timeout = config.timeout;
        let client = config.url.clone().map(|url| SourceClient::new(url, timeout, resolver));
        let mut task = Self {
            config: config.clone(),
            questions,
            files,
            directories,
            client: client.map(Arc::new),
            book,
            answers,
            metrics,
            thread: BlockingPool::new("keygate-confirm", 1).map_err(ConfirmError::Thread)?,
            status: ConfirmStatus::new(report),
            flush: mpsc::channel(1),
            canary: CanaryCheck::default(),
            logs: QuestionLogs::default(),
            news: News::new(unix_time::now()),
            keeping: Keeping::new(state_dir, state_lock, owns_state),
            seen: Vec::new(),
            looked_at: Instant::now(),
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
                Some(ended) = self.keeping.writes.join_next() => self.end_write(ended),
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
                        let failed =
                            |error| LookUpOutcome::DirectoryFailed(std::io::Error::other(error));
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
        at_latest(self.news.next_judgement());
        at_latest(self.keeping.next_save());
        // An event since the last call of `expire` is due at once.
        let (seconds, event) = (unix_time::now(), self.book.next_event(self.news.expired_at));
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

/// The answers in the state directory.
fn kept_answers(
    config: &ConfirmConfig,
    state_dir: Option<&Path>,
    guard: &Guard,
    directories: &ProofDirectories,
) -> AnswerBook {
    let basis = Basis { source: source_of(config), filters: filters_of(config, guard) };
    let mut book = AnswerBook::new(basis, config.cleared_ttl, config.stale_for);
    book.set_can_clear(clears(config));
    match state_dir {
        Some(directory) => book.add_kept(directory, directories, unix_time::now()),
        None => {
            info!(target: TARGET, "answers about keys are lost at a restart, because there is no state.dir");
        }
    }
    book
}

fn add_known_answers(schedule: &mut Schedule, book: &AnswerBook) {
    for (fingerprint, clearance) in book.cleared() {
        schedule.set_cleared(*fingerprint, system_time(clearance.due));
    }
    for fingerprint in book.confirmed() {
        schedule.set_confirmed(*fingerprint);
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

fn system_time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
