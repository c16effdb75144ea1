//! One filter file and the last good filter that was read from it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use super::super::RejectionReason;
use super::super::report::{FilterReport, ReloadReport, WaitingReport};
use super::check::{AHEAD_AT_MOST, checked};
use super::mark::Watermark;
use super::{Change, FileState, FilterRejection, LoadError, unix_seconds};
use crate::config::FilterConfig;
use crate::guard::NamedFilter;
use crate::metrics::{FilterMetrics, Label, ReloadResult};
use crate::pkbf::{self, FilterError};
use crate::process::sandbox;

#[derive(Debug)]
pub(super) struct FilterSource {
    config: FilterConfig,
    metrics: FilterMetrics<RejectionReason>,
    named: Arc<NamedFilter>,
    /// The file, its checksum and the canaries when they were last examined.
    seen: Vec<FileState>,
    loaded: u64,
    last_reload: ReloadReport,
    last_refusal: Option<ReloadReport>,
    stale: bool,
    /// An update that was refused, and what may let it through.
    refused: Option<Refused>,
}

#[derive(Debug)]
enum Refused {
    /// The operator has let it through: the update with this SHA-256.
    Accepted([u8; 32]),
    /// Time will, from this one on: in seconds since the Unix epoch.
    Until(u64),
    /// The operator can.
    Waiting(WaitingReport, [u8; 32]),
}

/// Why there is nothing for the operator to let through.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// Another update waits than the one that was looked at.
    #[error("filter {filter:?}: the update that waits has the SHA-256 {waiting}: look at it first")]
    Another {
        /// The filter's name.
        filter: String,
        /// The SHA-256 of the update that waits.
        waiting: String,
    },
    /// No update waits.
    #[error("filter {filter:?}: no update waits to be accepted")]
    Nothing {
        /// The filter's name.
        filter: String,
    },
    /// Something else speaks against it.
    #[error("filter {filter:?}: the update is refused all the same: {error}")]
    Refused {
        /// The filter's name.
        filter: String,
        /// Why.
        error: String,
    },
    /// No filter has this name.
    #[error("there is no filter {filter:?}")]
    Unknown {
        /// The name that was given.
        filter: String,
    },
}

impl FilterSource {
    pub(super) fn load(
        config: FilterConfig,
        metrics: FilterMetrics<RejectionReason>,
        mark: Option<Watermark>,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let seen = see(&config);
        let named = read(&config)
            .map_err(FilterRejection::from)
            .and_then(|file| checked(&config, file, mark, now))
            .map_err(|source| {
                let (name, path) = (config.name.clone(), config.path.clone());
                LoadError::Filter { name, path, source }
            })?;
        let loaded = unix_seconds(now);
        let mut source = Self {
            config,
            metrics,
            named,
            seen,
            loaded,
            last_reload: ReloadReport::done(ReloadResult::Loaded, loaded),
            last_refusal: None,
            stale: false,
            refused: None,
        };
        source.look_at_age(now);
        Ok(source)
    }

    /// Shows the filter that it was made with.
    pub(super) fn announce(&self, now: SystemTime) {
        self.metrics.record_loaded(&self.named, unix_seconds(now) as f64);
    }

    pub(super) fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// Looks at the file. `new_hits` tells how many of the clients seen lately an update would
    /// refuse.
    pub(super) fn refresh(
        &mut self,
        now: SystemTime,
        new_hits: impl Fn(&Arc<NamedFilter>) -> usize,
    ) -> Change {
        self.look_at_age(now);
        let seen = see(&self.config);
        if seen == self.seen && !self.may_pass_now(now) {
            return Change::Same;
        }
        if !seen.iter().all(|seen| seen.is_settled(now)) {
            return Change::Pending;
        }
        let file = match read(&self.config) {
            Err(FilterError::BeingWritten) => return Change::Pending,
            other => other,
        };
        if see(&self.config) != seen {
            return Change::Pending; // changed while it was read: whatever was found, it is over
        }
        self.seen = seen;
        match file {
            Err(error) => self.refuse(&error.into(), now),
            Ok(file) if *file.sha256() == self.named.sha256 => {
                self.refused = None;
                self.metrics.record_unchanged();
                self.last_reload = ReloadReport::done(ReloadResult::Unchanged, unix_seconds(now));
                Change::Same
            }
            Ok(file) => {
                let mark = Some(self.mark());
                let update = checked(&self.config, file, mark, now)
                    .and_then(|update| self.within_new_hit_limit(update, new_hits));
                match update {
                    Ok(update) => self.activate(update, now),
                    Err(refusal) => self.refuse(&refusal, now),
                }
            }
        }
    }

    /// Lets the update with this SHA-256 through at the next look, whomever it refuses.
    pub(super) fn accept(&mut self, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        let filter = || self.config.name.clone();
        match &self.refused {
            Some(Refused::Waiting(_, waiting)) if waiting == sha256 => {
                self.refused = Some(Refused::Accepted(*sha256));
                Ok(())
            }
            Some(Refused::Waiting(report, _)) => {
                Err(AcceptError::Another { filter: filter(), waiting: report.sha256.clone() })
            }
            Some(Refused::Accepted(_) | Refused::Until(_)) | None => {
                Err(AcceptError::Nothing { filter: filter() })
            }
        }
    }

    /// Whether the update that was let through is in use by now.
    pub(super) fn has_accepted(&self, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        if self.named.sha256 == *sha256 {
            return Ok(());
        }
        let error = self.last_reload.error().unwrap_or("the file is being written to").to_owned();
        Err(AcceptError::Refused { filter: self.config.name.clone(), error })
    }

    /// Whether a file that was refused may be used now although nothing in it has changed.
    fn may_pass_now(&self, now: SystemTime) -> bool {
        match &self.refused {
            Some(Refused::Accepted(_)) => true,
            Some(Refused::Until(time)) => unix_seconds(now) >= *time,
            Some(Refused::Waiting(..)) | None => false,
        }
    }

    /// `update`, unless it would refuse more of the clients seen lately than it may.
    fn within_new_hit_limit(
        &mut self,
        update: Arc<NamedFilter>,
        new_hits: impl Fn(&Arc<NamedFilter>) -> usize,
    ) -> Result<Arc<NamedFilter>, FilterRejection> {
        let Some(allowed) = self.config.max_new_hits else { return Ok(update) };
        if matches!(&self.refused, Some(Refused::Accepted(sha256)) if *sha256 == update.sha256) {
            return Ok(update);
        }
        let new_hits = new_hits(&update);
        if new_hits <= allowed {
            return Ok(update);
        }
        let report = WaitingReport::of(&update, new_hits, allowed);
        self.refused = Some(Refused::Waiting(report, update.sha256));
        Err(FilterRejection::NewHits { new_hits, allowed })
    }

    fn activate(&mut self, update: Arc<NamedFilter>, now: SystemTime) -> Change {
        self.refused = None;
        self.named = update;
        self.loaded = unix_seconds(now);
        self.last_reload = ReloadReport::done(ReloadResult::Loaded, self.loaded);
        self.metrics.record_loaded(&self.named, self.loaded as f64);
        let header = self.named.filter.header();
        info!(
            filter = %self.config.name,
            revision = header.revision,
            entries = header.entry_count,
            "filter loaded"
        );
        self.look_at_age(now);
        Change::Replaced
    }

    fn refuse(&mut self, refusal: &FilterRejection, now: SystemTime) -> Change {
        match refusal {
            FilterRejection::NewHits { .. } => {} // it waits
            FilterRejection::Future { updated } => {
                self.refused = Some(Refused::Until(updated.saturating_sub(AHEAD_AT_MOST)));
            }
            FilterRejection::CanaryFile { .. }
            | FilterRejection::CanaryMissing { .. }
            | FilterRejection::File(_)
            | FilterRejection::Plausibility(_)
            | FilterRejection::RandomHits { .. }
            | FilterRejection::Rollback { .. } => self.refused = None,
        }
        let reason = refusal.reason();
        self.metrics.record_rejected(reason);
        warn!(
            filter = %self.config.name,
            path = %self.config.path.display(),
            reason = reason.as_str(),
            error = %refusal,
            revision_in_use = self.named.filter.header().revision,
            "filter update rejected, keeping the one in use"
        );
        self.last_reload =
            ReloadReport::refused(Some(reason), refusal.to_string(), unix_seconds(now));
        self.last_refusal = Some(self.last_reload.clone());
        Change::Same
    }

    /// Says once when the filter in use has become too old, and once when that is over.
    fn look_at_age(&mut self, now: SystemTime) {
        let Some(max_age) = self.config.max_age else {
            self.metrics.set_stale(false); // it may have had one, in another configuration
            return;
        };
        let age = unix_seconds(now).saturating_sub(self.named.filter.header().updated_at);
        let stale = age > max_age.as_secs();
        self.metrics.set_stale(stale);
        if stale && !self.stale {
            warn!(
                filter = %self.config.name,
                age = %humantime::format_duration(Duration::from_secs(age)),
                max_age = %humantime::format_duration(max_age),
                "the filter in use is stale: keys that leaked since are not in it"
            );
        }
        self.stale = stale;
    }

    pub(super) fn named(&self) -> &Arc<NamedFilter> {
        &self.named
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn mark(&self) -> Watermark {
        Watermark::of(self.named.filter.header())
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        paths(&self.config)
    }

    pub(super) fn report(&self) -> FilterReport {
        let waiting = match &self.refused {
            Some(Refused::Waiting(report, _)) => Some(report.clone()),
            Some(Refused::Accepted(_) | Refused::Until(_)) | None => None,
        };
        let last_reload = self.last_reload.clone();
        let mut report = FilterReport::of(&self.named, &self.config.path, self.loaded, last_reload);
        report.stale = self.stale;
        report.last_refusal = self.last_refusal.clone();
        report.waiting = waiting;
        report
    }
}

/// Every file that decides about the filter.
fn paths(config: &FilterConfig) -> Vec<PathBuf> {
    let own = [config.path.clone(), pkbf::sidecar_of(&config.path)];
    own.into_iter().chain(config.canaries.iter().cloned()).collect()
}

fn read(config: &FilterConfig) -> Result<pkbf::FilterFile, FilterError> {
    sandbox::check(&config.path)?;
    pkbf::read(&config.path, config.max_size)
}

fn see(config: &FilterConfig) -> Vec<FileState> {
    paths(config).iter().map(|path| FileState::of(path)).collect()
}
