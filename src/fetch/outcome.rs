//! The outcome of fetching one file, and the numbers that are kept about it.

use keygate_core::unix_time;
use serde::{Deserialize, Serialize};

use super::error::FetchError;
use super::job::FetchJob;
use super::state::FetchState;
use super::update;
use super::work_directory::{WorkDirectory, state_of};
use crate::resolver::Resolver;

/// The outcome of fetching one file.
#[derive(Debug)]
pub enum FetchOutcome {
    /// The file was not fetched. The one in use stays.
    Failed(FetchError),
    /// A new version is in use.
    Installed(FetchedFile),
    /// The version in use is that of the source.
    Unchanged(FetchedFile),
}

/// A file that is in use after a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FetchedFile {
    /// Number of entries; `None` if the file was not read, because it is unchanged.
    pub entries: Option<u64>,
    /// Number of bytes that were downloaded.
    pub bytes: u64,
    /// Number of bytes that an earlier run had downloaded.
    pub resumed: u64,
    /// The text of `deprecated` in the metadata of a blocklist, which may be empty.
    pub deprecation: Option<String>,
}

/// Numbers about the runs for one file, for the metrics. Times are seconds since the Unix epoch; 0
/// before the first time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FetchCounts {
    /// End of the last run without an error.
    pub last_success: u64,
    /// End of the last run that installed a new version.
    pub last_installed: u64,
    /// Number of runs that ended with an error.
    pub failures: u64,
    /// Number of runs that installed a new version.
    pub installed: u64,
    /// Whether the metadata of a blocklist name its format deprecated.
    pub is_deprecated: bool,
}

impl FetchCounts {
    /// The numbers about the file of `job`.
    #[must_use]
    pub fn of(job: &FetchJob) -> Self {
        state_of(job.path()).counts
    }

    fn record(&mut self, outcome: &FetchOutcome) {
        let now = unix_time::now();
        let file = match outcome {
            FetchOutcome::Failed(_) => {
                self.failures = self.failures.saturating_add(1);
                return;
            }
            FetchOutcome::Installed(file) => {
                self.last_installed = now;
                self.installed = self.installed.saturating_add(1);
                file
            }
            FetchOutcome::Unchanged(file) => file,
        };
        self.last_success = now;
        self.is_deprecated = file.deprecation.is_some();
    }
}

impl FetchJob {
    /// Fetches the file, if the source has another version.
    pub async fn run(&self, resolver: &Resolver) -> FetchOutcome {
        let work = match WorkDirectory::open(self.path()) {
            Ok(work) => work,
            Err(error) => return FetchOutcome::Failed(error),
        };
        let mut state = work.state();
        let outcome = match update::update(self, &work, &mut state, resolver).await {
            Ok((true, file)) => FetchOutcome::Installed(file),
            Ok((false, file)) => FetchOutcome::Unchanged(file),
            Err(error) => FetchOutcome::Failed(error),
        };
        state.counts.record(&outcome);
        keep(&work, &state, outcome)
    }
}

/// Keeps `state`. A success that cannot be kept is a failure, because the next run would download
/// the file again.
fn keep(work: &WorkDirectory, state: &FetchState, outcome: FetchOutcome) -> FetchOutcome {
    match (work.save(state), outcome) {
        (Ok(()), outcome) | (Err(_), outcome @ FetchOutcome::Failed(_)) => outcome,
        (Err(error), FetchOutcome::Installed(_) | FetchOutcome::Unchanged(_)) => {
            FetchOutcome::Failed(error)
        }
    }
}
