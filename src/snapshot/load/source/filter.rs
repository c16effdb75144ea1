//! A filter, read again when its file, its checksum file or its canaries change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use crate::config::FilterConfig;
use crate::guard::NamedFilter;
use crate::metrics::{FilterMetrics, Label};
use crate::pkbf::{self, FilterError, FilterFile};
use crate::process::sandbox;
use crate::snapshot::filter_rejection::FilterRejection;
use crate::snapshot::load::check::check_filter;
use crate::snapshot::load::check::rollback::{MAX_CLOCK_SKEW, Watermark};
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::file::read_with;
use crate::snapshot::load::last_good::{Change, LastGood, ReadIf, Reread};
use crate::snapshot::rejection_reason::RejectionReason;
use crate::snapshot::report::{FilterReport, ReloadReport, WaitingReport};
use crate::unix_time;

/// A configured filter and the last good state of its file.
#[derive(Debug)]
pub(crate) struct FilterSource {
    config: FilterConfig,
    metrics: FilterMetrics<RejectionReason>,
    filter: LastGood<Arc<NamedFilter>>,
    is_stale: bool,
    /// The last rejection, unless the file was loaded since.
    rejection: Option<Arc<FilterRejection>>,
    /// The report of the last rejection, kept when the file is loaded.
    last_rejection: Option<ReloadReport>,
    /// The rejected update, if it may be used later without a change of the file.
    held: Option<HeldUpdate>,
}

/// A rejected update that may be used later without a change of the file.
#[derive(Debug)]
enum HeldUpdate {
    /// The operator has accepted the update with this SHA-256.
    Accepted([u8; 32]),
    /// The update needs the operator, because it has too many new hits.
    AwaitsOperator { report: WaitingReport, sha256: [u8; 32] },
    /// The update is dated in the future; it may be used from this time on, in seconds since the
    /// Unix epoch.
    Until(u64),
}

/// Why an update cannot be accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The waiting update is not the one that was inspected.
    #[error(
        "filter {filter:?}: the waiting update has the SHA-256 {waiting}: inspect it, then accept it"
    )]
    Another {
        /// Name of the filter.
        filter: String,
        /// SHA-256 of the update that waits, in hex.
        waiting: String,
    },
    /// The accepted update cannot be read, because it is being written.
    #[error("filter {filter:?}: the update is not used, because the file is being written")]
    BeingWritten {
        /// Name of the filter.
        filter: String,
    },
    /// No update waits.
    #[error("filter {filter:?}: no update waits to be accepted")]
    Nothing {
        /// Name of the filter.
        filter: String,
    },
    /// The accepted update fails another check.
    #[error("filter {filter:?}: the update is still rejected: {source}")]
    Rejected {
        /// Name of the filter.
        filter: String,
        /// The check that it fails.
        source: Arc<FilterRejection>,
    },
    /// No filter has this name.
    #[error("there is no filter {filter:?}")]
    Unknown {
        /// The name that was given.
        filter: String,
    },
}

impl FilterSource {
    /// Reads the filter for the first time. The filter must not be older than the `watermark`.
    ///
    /// # Errors
    /// Returns an error if the filter is rejected.
    pub(crate) fn load(
        config: FilterConfig,
        metrics: FilterMetrics<RejectionReason>,
        watermark: Option<Watermark>,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let checked = || check_filter(&config, read(&config)?, watermark, now);
        let filter = LastGood::load(paths(&config), now, checked).map_err(|source| {
            let (name, path) = (config.name.clone(), config.path.clone());
            LoadError::Filter { name, path, source }
        })?;
        let mut source = Self {
            config,
            metrics,
            filter,
            is_stale: false,
            rejection: None,
            last_rejection: None,
            held: None,
        };
        source.check_age(now);
        Ok(source)
    }

    /// Sets the metrics of the filter that was loaded first.
    pub(crate) fn show_loaded(&self, now: SystemTime) {
        self.metrics.record_loaded(self.filter(), unix_time::seconds(now) as f64);
    }

    /// Reads the filter again if a file has changed, or if a held update may be used now.
    ///
    /// `new_hits` returns how many recent clients an update would reject.
    pub(crate) fn refresh(
        &mut self,
        now: SystemTime,
        new_hits: impl Fn(&Arc<NamedFilter>) -> usize,
    ) -> Change {
        self.check_age(now);
        let read_if = if self.may_use_held(now) { ReadIf::Always } else { ReadIf::Changed };
        let read = |_: &_| read(&self.config);
        match self.filter.reread(read_if, now, read) {
            Reread::Pending => Change::Pending,
            Reread::Read(Ok(file)) => self.update(file, now, new_hits),
            Reread::Read(Err(error)) => self.reject(error.into(), now),
            Reread::Unchanged => Change::Same,
        }
    }

    fn update(
        &mut self,
        file: FilterFile,
        now: SystemTime,
        new_hits: impl Fn(&Arc<NamedFilter>) -> usize,
    ) -> Change {
        if *file.sha256() == self.filter().sha256 {
            self.clear_rejection();
            self.filter.record_unchanged(now);
            self.metrics.record_unchanged();
            return Change::Same;
        }
        let update = check_filter(&self.config, file, Some(self.watermark()), now);
        let update = update.and_then(|update| self.within_new_hit_limit(update, new_hits));
        match update {
            Ok(update) => self.activate(update, now),
            Err(rejection) => self.reject(rejection, now),
        }
    }

    /// Returns `update` if it has no more new hits than `max_new_hits`, or if it was accepted.
    fn within_new_hit_limit(
        &mut self,
        update: Arc<NamedFilter>,
        new_hits: impl Fn(&Arc<NamedFilter>) -> usize,
    ) -> Result<Arc<NamedFilter>, FilterRejection> {
        let Some(allowed) = self.config.max_new_hits else { return Ok(update) };
        if matches!(&self.held, Some(HeldUpdate::Accepted(sha256)) if *sha256 == update.sha256) {
            return Ok(update);
        }
        let new_hits = new_hits(&update);
        if new_hits <= allowed {
            return Ok(update);
        }
        let report = WaitingReport::new(&update, new_hits, allowed);
        self.held = Some(HeldUpdate::AwaitsOperator { report, sha256: update.sha256 });
        Err(FilterRejection::NewHits { new_hits, allowed })
    }

    fn activate(&mut self, update: Arc<NamedFilter>, now: SystemTime) -> Change {
        self.clear_rejection();
        self.metrics.record_loaded(&update, unix_time::seconds(now) as f64);
        let header = update.filter.header();
        info!(
            filter = %self.config.name,
            revision = header.revision,
            entries = header.entry_count,
            "filter loaded"
        );
        self.filter.replace(update, now);
        self.check_age(now);
        Change::Replaced
    }

    fn reject(&mut self, rejection: FilterRejection, now: SystemTime) -> Change {
        match rejection {
            FilterRejection::NewHits { .. } => {} // `within_new_hit_limit` has set `held`
            FilterRejection::Future { updated } => {
                self.held = Some(HeldUpdate::Until(updated.saturating_sub(MAX_CLOCK_SKEW)));
            }
            FilterRejection::CanaryFile { .. }
            | FilterRejection::CanaryMissing { .. }
            | FilterRejection::File(_)
            | FilterRejection::Plausibility(_)
            | FilterRejection::RandomHits { .. }
            | FilterRejection::Rollback { .. } => self.held = None,
        }
        let reason = rejection.reason();
        if !self.filter.record_rejection(Some(reason.as_str()), &rejection, now) {
            return Change::Same;
        }
        self.metrics.record_rejected(reason);
        warn!(
            filter = %self.config.name,
            path = %self.config.path.display(),
            reason = reason.as_str(),
            error = %rejection,
            revision_in_use = self.filter().filter.header().revision,
            "filter update rejected, keeping the one in use"
        );
        self.last_rejection = Some(self.filter.last_reload());
        self.rejection = Some(Arc::new(rejection));
        Change::Same
    }

    fn clear_rejection(&mut self) {
        self.rejection = None;
        self.held = None;
    }

    /// Accepts the waiting update with this SHA-256. The next refresh uses the update and ignores
    /// `max_new_hits`.
    ///
    /// # Errors
    /// Returns an error if no update waits, or if the waiting update has another SHA-256.
    pub(crate) fn accept(&mut self, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        let filter = || self.config.name.clone();
        match &self.held {
            Some(HeldUpdate::AwaitsOperator { sha256: waiting, .. }) if waiting == sha256 => {
                self.held = Some(HeldUpdate::Accepted(*sha256));
                Ok(())
            }
            Some(HeldUpdate::AwaitsOperator { report, .. }) => {
                Err(AcceptError::Another { filter: filter(), waiting: report.sha256.clone() })
            }
            Some(HeldUpdate::Accepted(_) | HeldUpdate::Until(_)) | None => {
                Err(AcceptError::Nothing { filter: filter() })
            }
        }
    }

    /// Checks that the accepted update with this SHA-256 is in use.
    ///
    /// # Errors
    /// Returns an error if the update was rejected for another reason, or if its file is being
    /// written.
    pub(crate) fn ensure_in_use(&self, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        if self.filter().sha256 == *sha256 {
            return Ok(());
        }
        let filter = self.config.name.clone();
        Err(match &self.rejection {
            Some(source) => AcceptError::Rejected { filter, source: Arc::clone(source) },
            None => AcceptError::BeingWritten { filter },
        })
    }

    /// Whether the held update may be used now although its file has not changed.
    fn may_use_held(&self, now: SystemTime) -> bool {
        match &self.held {
            Some(HeldUpdate::Accepted(_)) => true,
            Some(HeldUpdate::Until(time)) => unix_time::seconds(now) >= *time,
            Some(HeldUpdate::AwaitsOperator { .. }) | None => false,
        }
    }

    /// Logs once when the filter in use becomes older than `max_age`, and sets its metric.
    fn check_age(&mut self, now: SystemTime) {
        let Some(max_age) = self.config.max_age else {
            self.metrics.set_stale(false); // a previous configuration may have set `max_age`
            return;
        };
        let updated = self.filter().filter.header().updated_at;
        let age = unix_time::seconds(now).saturating_sub(updated);
        let is_stale = age > max_age.as_secs();
        self.metrics.set_stale(is_stale);
        if is_stale && !self.is_stale {
            warn!(
                filter = %self.config.name,
                age = %humantime::format_duration(Duration::from_secs(age)),
                max_age = %humantime::format_duration(max_age),
                "the filter in use is stale: keys that leaked since are not in it"
            );
        }
        self.is_stale = is_stale;
    }

    /// The configuration of the filter.
    pub(crate) fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// The filter in use.
    pub(crate) fn filter(&self) -> &Arc<NamedFilter> {
        self.filter.get()
    }

    /// Name of the filter.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// The watermark of the filter in use.
    pub(crate) fn watermark(&self) -> Watermark {
        Watermark::from_header(self.filter().filter.header())
    }

    /// Paths of the filter, its checksum file and its canaries.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.filter.paths()
    }

    /// The filter in use, the result of the last attempt to read it, and the waiting update.
    pub(crate) fn report(&self) -> FilterReport {
        let waiting = match &self.held {
            Some(HeldUpdate::AwaitsOperator { report, .. }) => Some(report.clone()),
            Some(HeldUpdate::Accepted(_) | HeldUpdate::Until(_)) | None => None,
        };
        let loaded = self.filter.loaded_at();
        let last_reload = self.filter.last_reload();
        FilterReport {
            stale: self.is_stale,
            last_rejection: self.last_rejection.clone(),
            waiting,
            ..FilterReport::new(self.filter(), &self.config.path, loaded, last_reload)
        }
    }
}

/// The paths of the filter, its checksum file and its canaries.
fn paths(config: &FilterConfig) -> Vec<PathBuf> {
    let own = [config.path.clone(), pkbf::sidecar_of(&config.path)];
    own.into_iter().chain(config.canaries.iter().cloned()).collect()
}

fn read(config: &FilterConfig) -> Result<FilterFile, FilterError> {
    let max_size = config.max_size;
    read_with(&config.path, move |path| {
        sandbox::check(path)?;
        pkbf::read(path, max_size)
    })
}
