//! The confirmation task: wires the schedule, the source, the answer book and the publisher.

mod canary;
mod io_tasks;
mod outcome;
mod publisher;
mod source_watch;
mod state_writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use keygate_core::guard::{CurrentAnswers, Guard};
use keygate_core::unix_time;
use tokio::sync::{mpsc, watch};
use tracing::info;

use self::canary::{CanaryCheck, Trust};
use self::io_tasks::{IoEnd, IoTasks, LookedUp};
use self::outcome::{Conclusion, Unanswered};
use self::publisher::Publisher;
use self::source_watch::{SourceChange, SourceWatch};
pub use self::state_writer::AnswerFlusher;
use self::state_writer::{StateDirectory, StateWriter};
use super::TARGET;
use super::answer_book::{AnswerBook, Basis, ProofEffect};
use super::inquiry::Inquiry;
use super::lookup::{CanaryProblem, FoundProof};
use super::report::ConfirmStatus;
use super::schedule::{Job, Stage};
use super::source::{Source, create_directories};
use super::source_files::ConfirmError;
use crate::blocking::BlockingPool;
use crate::config::ConfirmConfig;
use crate::metrics::ControlMetrics;
use crate::resolver::Resolver;
use crate::saved_state::StateLock;
use crate::snapshot::Current;
use crate::sources::Warning;

/// Maximum time for a write in the state directory, and for a look into the directory of proofs,
/// 10 s.
const FILE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time without an event until the task looks for something to do, 10 s.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The state that the confirmation task shares with the rest of the process.
#[derive(Debug)]
pub struct ConfirmationContext {
    /// The queries of all workers.
    pub queries: Inquiry,
    /// The answers that judgements read.
    pub answers: CurrentAnswers,
    /// The series of the control plane.
    pub metrics: ControlMetrics,
    /// Looks up the host of the source.
    pub resolver: Resolver,
    /// The lock on the state directory. Answers are saved while it is held; always if `None`.
    pub state_lock: Option<StateLock>,
}

/// Makes the queries of all workers, and puts the answers in use.
pub struct ConfirmationTask {
    source: Source,
    canary: CanaryCheck,
    io: IoTasks,
    queries: Inquiry,
    book: AnswerBook,
    publisher: Publisher,
    writer: StateWriter,
}

impl ConfirmationTask {
    /// Reads the files of the source and the saved answers. `guard` has the filters in use. Blocks.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used, or a directory cannot be read.
    pub fn new(
        config: &ConfirmConfig,
        state_dir: Option<&Path>,
        guard: &Guard,
        context: ConfirmationContext,
    ) -> Result<Self, ConfirmError> {
        let ConfirmationContext { queries, answers, metrics, resolver, state_lock: lock } = context;
        // Checked before the file is read, so that no answer of another process is missed.
        let owns_state = lock.as_ref().is_none_or(StateLock::is_held);
        let source = Source::new(config, state_dir, resolver)?;
        create_directories(Some(config), state_dir)?; // within a sandbox it exists already
        source.check_directories()?;
        log_exposed(&source);
        let book = saved_answers(&source, state_dir, guard);
        let thread = BlockingPool::new("keygate-confirm", 1);
        let thread = thread.map_err(|error| ConfirmError::thread(&error))?;
        let directory = state_dir.map(|path| StateDirectory {
            path: path.to_owned(),
            proofs: source.directories.clone(),
            lock,
            thread: thread.clone(),
        });
        let failures = metrics.state_write_failures;
        let task = Self {
            canary: CanaryCheck::default(),
            io: IoTasks::new(thread),
            publisher: Publisher::new(&source, &book, queries.clone(), answers, metrics.confirm),
            queries,
            writer: StateWriter::new(directory, owns_state, &book, failures),
            source,
            book,
        };
        task.show();
        Ok(task)
    }

    /// The report of this task.
    #[must_use]
    pub fn status(&self) -> ConfirmStatus {
        self.publisher.status()
    }

    /// Saves the answers at the end of the process.
    #[must_use]
    pub fn flusher(&self) -> AnswerFlusher {
        self.writer.flusher.clone()
    }

    /// Makes queries until the process ends. `judgements` changes when open connections must be
    /// judged again. Must run on a `LocalSet`.
    pub async fn run(self, current: Current, judgements: watch::Sender<u64>) {
        let swaps = judgements.subscribe();
        let watch = SourceWatch::start(&self.source.config, self.io.thread.clone()).await;
        let (sender, changes) = mpsc::channel(1);
        tokio::select! {
            () = watch.run(sender) => {}
            () = self.serve(current, judgements, swaps, changes) => {}
        }
    }

    async fn serve(
        mut self,
        current: Current,
        judgements: watch::Sender<u64>,
        mut swaps: watch::Receiver<u64>,
        mut changes: mpsc::Receiver<SourceChange>,
    ) {
        self.check_canary();
        loop {
            let has_due = self.book.expire(unix_time::now());
            if has_due {
                self.publisher.judge_again(); // the clients of due keys cause new queries
            }
            self.start_jobs();
            self.publisher.publish(&self.book, &judgements, Instant::now());
            self.writer.save(&self.book);
            self.show();
            let wake = self.next_wake();
            tokio::select! {
                mut ended = self.io.next() => {
                    while let Some(end) = ended {
                        self.end(end);
                        ended = self.io.try_next();
                    }
                }
                Some(ended) = self.writer.writes.join_next() => {
                    self.writer.end(ended, &mut self.book);
                }
                () = self.queries.changed() => {}
                Some(change) = changes.recv() => self.apply(change),
                changed = swaps.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let filters = filters_of(&self.source, &current.load().guard);
                    self.book.set_filters(filters, unix_time::now());
                }
                Some(done) = self.writer.flushes.recv() => {
                    self.writer.flush(&mut self.book).await;
                    let _ = done.send(()); // the caller may have stopped to wait
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    if self.canary.is_retry_due(Instant::now()) {
                        self.check_canary();
                    }
                }
            }
        }
    }

    /// Starts the queries that may start now.
    fn start_jobs(&mut self) {
        while let Some(job) = self.queries.with_schedule(|it| it.next(Instant::now())) {
            self.io.look_up(job, &self.source);
        }
    }

    fn end(&mut self, end: IoEnd) {
        match end {
            IoEnd::Canary(outcome) if self.canary.end() => self.record_canary(outcome),
            IoEnd::Canary(_) => self.check_canary(),
            IoEnd::LookedUp(looked_up) => self.end_look_up(looked_up),
            IoEnd::Named(named) => self.book.make_due(unix_time::now(), |it| named.contains(it)),
        }
    }

    fn end_look_up(&mut self, looked_up: LookedUp) {
        let LookedUp { job, began, outcome, canary } = looked_up;
        if let Some(outcome) = canary {
            self.record_canary(outcome);
        }
        if job.stage == Stage::Url || self.source.client.is_none() {
            self.publisher.record_response(&outcome, &self.source);
        }
        self.publisher.log_unusable(&outcome);
        let conclusion = Conclusion::new(&job, outcome, &self.source);
        if !matches!(conclusion, Conclusion::ToUrl(_)) {
            self.publisher.metrics.duration.observe(began.elapsed().as_secs_f64());
        }
        match conclusion {
            Conclusion::Confirmed(found) => self.confirm(&job, &found),
            Conclusion::ToUrl(end) => {
                self.queries.with_schedule(|it| it.finish(job.number, end, Instant::now()));
            }
            Conclusion::Unanswered(why) => self.publisher.end_unanswered(&job, &why),
            Conclusion::Unknown => self.clear_if_trusted(job),
        }
    }

    fn confirm(&mut self, job: &Job, found: &FoundProof) {
        let effect = self.book.confirm(found.fingerprint, found.spki.clone());
        if effect == ProofEffect::NoRoom {
            return self.publisher.end_without_room(job, found.fingerprint);
        }
        let proof_file = self.writer.save_proof(found);
        self.publisher.record_confirmed(job, found, effect, proof_file);
    }

    fn end_untrusted(&mut self, job: &Job, error: impl Into<String>) {
        self.publisher.end_unanswered(job, &Unanswered::untrusted(error));
    }

    /// Clears the key of a query if the source knew its canary lately; otherwise after a check.
    fn clear_if_trusted(&mut self, job: Job) {
        let now = Instant::now();
        match self.canary.trust(self.source.paused_until(now), now) {
            Trust::Failed => self.end_untrusted(&job, "the check of the canary failed"),
            Trust::Known => self.clear(&job),
            Trust::Unchecked => {
                self.canary.waiting.push(job);
                self.check_canary();
            }
        }
    }

    fn clear(&mut self, job: &Job) {
        let now = unix_time::now();
        let mut until = None;
        for (fingerprint, _) in &job.query.encodings {
            until = Some(self.book.clear(*fingerprint, now));
        }
        self.publisher.record_cleared(job, until);
    }

    /// Checks the canary, unless the source clears no key anyway. During a pause of the source, the
    /// check is made after it.
    fn check_canary(&mut self) {
        let now = Instant::now();
        if let Some(until) = self.source.paused_until(now)
            && self.canary.postpone(until)
        {
            for job in self.canary.take_waiting() {
                self.end_untrusted(&job, "the source has paused the check of its canary");
            }
        } else if self.source.clears() && self.canary.begin() {
            if self.source.client.is_some() {
                let requests = self.source.files.canaries.len();
                self.queries.with_schedule(|it| it.pace.take_tokens(requests, now));
            }
            self.io.check_canary(&self.source);
        }
    }

    /// Puts the outcome of a check of the canary in use, and ends the queries that wait for it.
    fn record_canary(&mut self, outcome: Result<(), CanaryProblem>) {
        let now = Instant::now();
        self.book.set_can_clear(outcome.is_ok());
        self.publisher.record_canary(&outcome);
        self.canary.record(&outcome, now);
        let waiting = self.canary.take_waiting();
        let Err(CanaryProblem { error, pause, .. }) = outcome else {
            return waiting.iter().for_each(|job| self.clear(job));
        };
        if let Some(pause) = pause {
            self.queries.with_schedule(|it| it.pause(pause, now));
        }
        let error = format!("the check of the canary failed: {error}");
        waiting.iter().for_each(|job| self.end_untrusted(job, error.as_str()));
    }

    /// Uses files that have changed, and looks for new proofs if the directory has changed: of keys
    /// that wait for an answer, of cleared keys, and of probable keys of connected clients.
    fn apply(&mut self, change: SourceChange) {
        let SourceChange { files, is_directory_changed } = change;
        let is_complete = self.source.config.directory_is_complete;
        let checks_canary = files.is_some() || is_directory_changed && is_complete;
        if let Some(files) = files {
            self.source.files = files;
            log_exposed(&self.source);
            info!(target: TARGET, "files of the source of proofs loaded");
        }
        if is_directory_changed {
            self.queries.with_schedule(|it| it.retry_directory());
            let cleared = self.book.cleared.keys().copied().collect();
            self.io.find_named(cleared, &self.source);
            self.publisher.judge_again();
            self.canary.forget();
        }
        if checks_canary {
            self.canary.outdate();
            self.check_canary();
        }
    }

    /// The next time at which there is something to do without an event.
    fn next_wake(&self) -> Instant {
        let (now, seconds) = (Instant::now(), unix_time::now());
        let until = |event: u64| now + Duration::from_secs(event.saturating_sub(seconds));
        let times = [
            self.queries.with_schedule(|it| it.next_wake(now)),
            self.canary.retry_at(),
            self.publisher.next_judgement(),
            self.writer.next_save(&self.book),
            self.book.next_event().map(until),
        ];
        times.into_iter().flatten().fold(now + MAX_WAIT, Instant::min)
    }

    fn show(&self) {
        let pending = self.queries.with_schedule(|it| it.pending());
        self.publisher.show(&self.book, pending, self.source.config.cleared_ttl);
    }
}

fn log_exposed(source: &Source) {
    if let Some(exposed) = &source.files.exposed {
        Warning::unsafe_permissions(exposed).log();
    }
}

/// The answers in the state directory.
fn saved_answers(source: &Source, state_dir: Option<&Path>, guard: &Guard) -> AnswerBook {
    let basis = Basis { source: source.name(), filters: filters_of(source, guard) };
    let now = unix_time::now();
    let mut book = AnswerBook::new(basis, &source.config, now);
    book.set_can_clear(source.clears());
    match state_dir {
        Some(directory) => book.add_saved(directory, &source.directories, now),
        None => {
            info!(target: TARGET, "answers about keys are lost at a restart, because there is no state.dir");
        }
    }
    book
}

/// SHA-256 of the filters that the source answers for, in hex, by name.
fn filters_of(source: &Source, guard: &Guard) -> BTreeMap<String, String> {
    let hash = |name: &String| {
        let filter = guard.filters().iter().find(|filter| *filter.name == **name);
        filter.map(|filter| data_encoding::HEXLOWER.encode(&filter.sha256)).unwrap_or_default()
    };
    source.config.filters.iter().map(|name| (name.clone(), hash(name))).collect()
}
