//! A filter: its files, their checks, and what the log and the status have of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use keygate_core::guard::NamedFilter;
use keygate_core::pkbf::{self, FilterError, FilterSummary, HEADER_SIZE};
use keygate_core::signature::FileSignature;
use keygate_core::unix_time;
use tracing::info;

use super::check::check_content;
use super::check::dry_run::{DryRun, NewHits};
use super::file_rejection::FileRejection;
use super::guarded::{GuardedFile, GuardedSettings, GuardedSource};
use super::operator_decision::{GuardFile, WaitCause};
use super::rejection_reason::RejectionReason;
use super::report::{FilterReport, SignatureReport, WaitingReport};
use super::signed::{LoadedFilter, signature_paths, verify_beside, verify_saved};
use super::warning::Warning;
use crate::config::FilterConfig;
use crate::files::read_with;
use crate::metrics::{ControlMetrics, FilterMetrics};
use crate::process::sandbox;
use crate::saved_state::Watermark;
use crate::saved_state::copies::{Content, CopyKind, Original};

/// A configured filter and the last good state of its file.
pub(crate) type FilterSource = GuardedSource<LoadedFilter>;

impl GuardedFile for LoadedFilter {
    const KIND: GuardFile = GuardFile::Filter;
    const COMPARES_WITH_COPY: bool = false;
    type Config = FilterConfig;
    type Metrics = FilterMetrics;

    fn settings(config: &FilterConfig) -> GuardedSettings<'_> {
        GuardedSettings {
            name: &config.name,
            path: &config.path,
            max_new_hits: config.max_new_hits,
            may_shrink: false,
            max_age: config.max_age,
            canaries: &config.canaries,
            is_fetched: config.source.is_some(),
        }
    }

    /// The paths of the filter, its checksum file, its signature, the keys and its canaries.
    fn paths(config: &FilterConfig) -> Vec<PathBuf> {
        let own = [config.path.clone(), pkbf::sidecar_of(&config.path)];
        let signed = signature_paths(&config.path, config.minisign_key.as_deref());
        own.into_iter().chain(signed).chain(config.canaries.iter().cloned()).collect()
    }

    fn metrics(metrics: &ControlMetrics, name: &str) -> Self::Metrics {
        metrics.filter(name, RejectionReason::OF_FILTERS)
    }

    fn read(config: &FilterConfig, _: &dyn Fn() -> Option<Self>) -> Result<Self, FileRejection> {
        read(config)
    }

    fn check(
        &self,
        config: &FilterConfig,
        watermark: Option<Watermark>,
        now: SystemTime,
    ) -> Result<(), FileRejection> {
        check_content(config, &self.named.filter, watermark, now)
    }

    fn copy_kind(_: &FilterConfig) -> CopyKind {
        CopyKind::Filter
    }

    fn read_copy(config: &FilterConfig, path: &Path) -> Result<Self, FileRejection> {
        read(&FilterConfig { path: path.to_owned(), ..config.clone() })
    }

    fn under_new_settings(
        &self,
        config: &FilterConfig,
        now: SystemTime,
    ) -> Result<Option<Self>, FileRejection> {
        let filter = &self.named.filter;
        ensure_size(config, &self.named)?;
        let (kept, keys) = (self.signature.as_deref(), config.minisign_key.as_deref());
        let (header, bits) = filter.to_parts();
        let content: &[&[u8]] = &[&header, bits];
        let signature = verify_saved(&config.path, keys, kept.map(FileSignature::text), content)?;
        check_content(config, filter, self.watermark(), now)?;
        Ok(Some(Self { named: Arc::clone(&self.named), signature: signature.map(Arc::new) }))
    }

    fn judges_like(&self, other: &Self) -> bool {
        self.named.sha256 == other.named.sha256
    }

    fn adopt(&mut self, same: Self) {
        self.signature = same.signature;
    }

    fn sha256(&self) -> &[u8; 32] {
        &self.named.sha256
    }

    fn entries(&self) -> u64 {
        self.named.filter.explained_entries()
    }

    fn watermark(&self) -> Option<Watermark> {
        Some(Watermark::from_header(self.named.filter.header()))
    }

    fn age(&self, now: SystemTime) -> Option<Duration> {
        let updated = self.named.filter.header().updated_at;
        Some(Duration::from_secs(unix_time::seconds(now).saturating_sub(updated)))
    }

    fn original(&self) -> Original {
        Original {
            content: Content::Filter(Arc::clone(&self.named)),
            sha256: self.named.sha256,
            signature: self.signature.clone(),
            metadata: None,
        }
    }

    fn lost(&self, _: &Self) -> Option<WaitCause> {
        None
    }

    fn new_hits(&self, dry_run: &DryRun) -> NewHits {
        dry_run.new_hits_of_filter(&self.named)
    }

    fn waiting(&self) -> WaitingReport {
        let header = self.named.filter.header();
        WaitingReport {
            sha256: HEXLOWER.encode(&self.named.sha256),
            revision: header.revision,
            updated: header.updated_at,
            entries: self.entries(),
            ..WaitingReport::default()
        }
    }

    fn faults(&self, config: &FilterConfig, _: SystemTime) -> Vec<Warning> {
        let is_empty = self.named.filter.header().entry_count == 0;
        let empty = is_empty.then(|| {
            Warning::about_guard(
                Self::KIND,
                &config.name,
                "the filter in use has no entries",
                "it has no entries, so no key is a hit; add keys with `keygate filter add`, or \
                 remove the filter",
            )
        });
        empty.into_iter().collect()
    }

    fn log_loaded(&self, _: Option<u64>, untried: Option<&str>) {
        let (header, signature) = (self.named.filter.header(), self.signature.as_deref());
        info!(
            filter = %self.named.name,
            revision = header.revision,
            entries = header.entry_count,
            sha256 = HEXLOWER.encode(&self.named.sha256),
            signed_by = signature.map(FileSignature::key_id),
            comment = signature.map(FileSignature::comment),
            max_new_hits = untried,
            "filter loaded"
        );
    }

    fn count_loaded(&self, metrics: &Self::Metrics, now: SystemTime) {
        metrics.record_loaded(&self.named, unix_time::seconds(now) as f64);
    }
}

impl FilterSource {
    /// The filter in use.
    pub(crate) fn filter(&self) -> &Arc<NamedFilter> {
        &self.value().named
    }

    /// The filter in use, the result of the last attempt to read it, and the waiting update.
    pub(crate) fn report(&self) -> FilterReport {
        let NamedFilter { name, filter, sha256 } = &**self.filter();
        FilterReport {
            name: name.to_string(),
            summary: FilterSummary::new(self.path(), filter, sha256),
            loaded: self.file.loaded_at(),
            stale: self.is_stale,
            last_good_in_use: self.is_last_good,
            last_reload: self.file.last_reload(),
            last_rejection: self.last_rejection.clone(),
            dry_run: self.gate.report(),
            signature: self.value().signature.as_deref().map(SignatureReport::new),
        }
    }
}

/// Checks that the file of a filter is not larger than `max_size`.
fn ensure_size(config: &FilterConfig, filter: &NamedFilter) -> Result<(), FileRejection> {
    let found = filter.filter.header().data_size().saturating_add(HEADER_SIZE as u64);
    if found > config.max_size {
        return Err(FilterError::TooLarge { found, allowed: config.max_size }.into());
    }
    Ok(())
}

/// Reads the file of a filter within the sandbox, and verifies its signature.
pub(crate) fn read(config: &FilterConfig) -> Result<LoadedFilter, FileRejection> {
    let max_size = config.max_size;
    let file = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        pkbf::read(path, max_size)
    })?;
    let (header, bits) = file.filter.to_parts();
    let keys = config.minisign_key.as_deref();
    let signature = verify_beside(&config.path, keys, &[&header, bits])?;
    let (name, sha256) = (config.name.as_str().into(), *file.sha256());
    let named = Arc::new(NamedFilter { name, filter: file.filter, sha256 });
    Ok(LoadedFilter { named, signature: signature.map(Arc::new) })
}
