//! One filter file and the last good filter that was read from it.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{info, warn};

use super::super::FilterReport;
use super::super::report::ReloadReport;
use super::{Change, LoadError, Seen, unix_seconds};
use crate::config::FilterConfig;
use crate::guard::NamedFilter;
use crate::metrics::{FilterMetrics, Label, RefusalReason, ReloadResult};
use crate::pkbf::{self, FilterError, FilterFile};

#[derive(Debug)]
pub(super) struct FilterSource {
    config: FilterConfig,
    metrics: FilterMetrics,
    named: Arc<NamedFilter>,
    seen: Seen,
    loaded: u64,
    last_reload: ReloadReport,
}

impl FilterSource {
    pub(super) fn load(
        config: FilterConfig,
        metrics: FilterMetrics,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let file = pkbf::read(&config.path, config.max_size).map_err(|source| {
            LoadError::Filter { name: config.name.clone(), path: config.path.clone(), source }
        })?;
        let loaded = unix_seconds(now);
        let seen = Seen::There(file.stamp);
        let named = named(&config, file);
        metrics.loaded(&named, loaded as f64);
        Ok(Self {
            config,
            metrics,
            named,
            seen,
            loaded,
            last_reload: ReloadReport::done(ReloadResult::Loaded, loaded),
        })
    }

    pub(super) fn refresh(&mut self, now: SystemTime) -> Change {
        let seen = Seen::of(&self.config.path);
        if seen == self.seen {
            return Change::Same;
        }
        if !seen.is_settled(now) {
            return Change::Pending;
        }
        match pkbf::read(&self.config.path, self.config.max_size) {
            Err(FilterError::BeingWritten) => Change::Pending,
            Err(error) => {
                self.seen = seen;
                self.refuse(&error, now)
            }
            Ok(file) if *file.sha256() == self.named.sha256 => {
                self.seen = Seen::There(file.stamp);
                self.metrics.unchanged();
                self.last_reload = ReloadReport::done(ReloadResult::Unchanged, unix_seconds(now));
                Change::Same
            }
            Ok(file) => {
                self.seen = Seen::There(file.stamp);
                self.accept(file, now)
            }
        }
    }

    fn accept(&mut self, file: FilterFile, now: SystemTime) -> Change {
        self.named = named(&self.config, file);
        self.loaded = unix_seconds(now);
        self.last_reload = ReloadReport::done(ReloadResult::Loaded, self.loaded);
        self.metrics.loaded(&self.named, self.loaded as f64);
        let header = self.named.filter.header();
        info!(
            filter = %self.config.name,
            revision = header.revision,
            entries = header.entry_count,
            "filter loaded"
        );
        Change::Replaced
    }

    fn refuse(&mut self, error: &FilterError, now: SystemTime) -> Change {
        let reason = reason(error);
        self.metrics.refused(reason);
        warn!(
            filter = %self.config.name,
            path = %self.config.path.display(),
            reason = reason.as_str(),
            %error,
            revision_in_use = self.named.filter.header().revision,
            "filter update refused, the one in use stays"
        );
        self.last_reload =
            ReloadReport::refused(Some(reason), error.to_string(), unix_seconds(now));
        Change::Same
    }

    pub(super) fn named(&self) -> Arc<NamedFilter> {
        Arc::clone(&self.named)
    }

    pub(super) fn path(&self) -> &Path {
        &self.config.path
    }

    pub(super) fn report(&self) -> FilterReport {
        FilterReport::of(&self.named, &self.config.path, self.loaded, self.last_reload.clone())
    }
}

fn named(config: &FilterConfig, file: FilterFile) -> Arc<NamedFilter> {
    let sha256 = *file.sha256();
    Arc::new(NamedFilter { name: config.name.as_str().into(), filter: file.filter, sha256 })
}

fn reason(error: &FilterError) -> RefusalReason {
    match error {
        FilterError::BadMarker { .. } => RefusalReason::Marker,
        FilterError::HashCountZero | FilterError::HashLengthOutOfRange { .. } => {
            RefusalReason::Range
        }
        FilterError::TooLarge { .. }
        | FilterError::TooShort { .. }
        | FilterError::WrongLength { .. } => RefusalReason::Size,
        FilterError::Checksum { .. } | FilterError::ChecksumFile { .. } => RefusalReason::Checksum,
        FilterError::BeingWritten
        | FilterError::Io(_)
        | FilterError::NoParameters { .. }
        | FilterError::OutOfMemory { .. } => RefusalReason::Io,
    }
}
