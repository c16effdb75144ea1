//! A filter: its files, their checks, and what the log and the status have of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use keygate_core::guard::NamedFilter;
use keygate_core::pkbf::{self, Filter, FilterError, FilterSummary, HEADER_SIZE};
use keygate_core::signature::{FileSignature, SignatureError};
use keygate_core::unix_time;
use tracing::{error, info};

use super::check::dry_run::{DryRun, NewHits};
use super::check::{canary, check_content, check_filter};
use super::context::LoadContext;
use super::error::LoadError;
use super::filter_rejection::FilterRejection;
use super::guarded::{GuardedFile, GuardedSettings, GuardedSource};
use super::load_errors::LoadErrors;
use super::operator_decision::{GuardFile, WaitCause};
use super::rejection_reason::RejectionReason;
use super::report::{FilterReport, SignatureReport, WaitingReport};
use super::signed::{
    LoadedFilter, ReadFilter, ensure_id, error_of_copy, signature_paths, verify_beside,
    verify_saved,
};
use super::source_set::Source;
use super::warning::Warning;
use crate::config::FilterConfig;
use crate::files::read_with;
use crate::metrics::{ControlMetrics, FilterMetrics};
use crate::process::sandbox;
use crate::saved_state::Watermark;
use crate::saved_state::copies::CopyKind;
use crate::saved_state::file_record::FileRecord;
use crate::saved_state::rollback_state::FileInUse;

/// A configured filter and the last good state of its file.
pub(crate) type FilterSource = GuardedSource<LoadedFilter>;

impl GuardedFile for LoadedFilter {
    const KIND: GuardFile = GuardFile::Filter;
    const COMPARES_WITH_COPY: bool = false;
    type Config = FilterConfig;
    type Content = ReadFilter;
    type Rejection = FilterRejection;
    type Metrics = FilterMetrics<RejectionReason>;

    fn settings(config: &FilterConfig) -> GuardedSettings<'_> {
        let FilterConfig { name, path, max_new_hits, .. } = config;
        GuardedSettings { name, path, max_new_hits: *max_new_hits, may_shrink: false }
    }

    /// The paths of the filter, its checksum file, its signature, the keys and its canaries.
    fn paths(config: &FilterConfig) -> Vec<PathBuf> {
        let own = [config.path.clone(), pkbf::sidecar_of(&config.path)];
        let signed = signature_paths(&config.path, config.minisign_key.as_deref());
        own.into_iter().chain(signed).chain(config.canaries.iter().cloned()).collect()
    }

    fn metrics(metrics: &ControlMetrics, name: &str) -> Self::Metrics {
        metrics.filter(name)
    }

    fn read(
        config: &FilterConfig,
        _: &dyn Fn() -> Option<Self>,
    ) -> Result<ReadFilter, FilterRejection> {
        read(config)
    }

    fn check(
        config: &FilterConfig,
        content: ReadFilter,
        watermark: Option<Watermark>,
        now: SystemTime,
    ) -> Result<Self, FilterRejection> {
        check_filter(config, content, watermark, now)
    }

    fn copy(
        config: &FilterConfig,
        record: Option<(&str, &FileRecord)>,
        context: LoadContext<'_>,
    ) -> Option<Self> {
        let (_, record) = record?;
        let (directory, id) = (context.rollback.directory()?, record.last_good.as_deref()?);
        let path = CopyKind::Filter.path_in(directory, id);
        let copy = read_copy(config, &path, id);
        copy.and_then(|copy| check_filter(config, copy, Some(record.watermark()), context.now))
            .inspect_err(|error| {
                let (filter, path) = (&config.name, path.display());
                error!(%filter, %path, %error, "the last good filter cannot be used either");
            })
            .ok()
    }

    fn under_new_settings(
        &self,
        config: &FilterConfig,
        now: SystemTime,
    ) -> Result<Option<Self>, FilterRejection> {
        let filter = &self.named.filter;
        ensure_size(config, &self.named)?;
        let signature = self.signature.as_deref().map(FileSignature::text);
        let signature = verify_filter(config, &config.path, signature, filter)?;
        check_content(config, filter, self.watermark(), now)?;
        Ok(Some(Self { named: Arc::clone(&self.named), signature }))
    }

    /// The rejection of the filter, and the files of canaries that were not tried because of it.
    fn errors(
        config: &FilterConfig,
        rejection: FilterRejection,
        file: Option<&Path>,
    ) -> LoadErrors {
        // The canaries before that file can be used.
        let rejecting = rejection.canary_file();
        let tried = rejecting.and_then(|path| config.canaries.iter().position(|it| it == path));
        let untried = config.canaries.get(tried.map_or(0, |tried| tried + 1)..).unwrap_or_default();
        let others = untried.iter().filter_map(|path| canary::ensure_usable(path).err());
        let error = |source| LoadError::from_filter(config, source, file);
        LoadErrors::new(error(rejection), others.map(|other| error(other.into())))
    }

    fn has_content(&self, content: &ReadFilter) -> bool {
        *content.file.sha256() == self.named.sha256
    }

    fn judges_like(&self, other: &Self) -> bool {
        self.named.sha256 == other.named.sha256
    }

    fn adopt(&mut self, content: ReadFilter) {
        self.signature = content.signature;
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

    fn lost(&self, _: &Self) -> Option<WaitCause> {
        None
    }

    fn new_hits(&self, dry_run: &DryRun) -> NewHits {
        dry_run.new_hits_of_filter(&self.named)
    }

    fn waiting(&self, entries_before: u64, hits: NewHits, max: Option<usize>) -> WaitingReport {
        WaitingReport::from_filter(&self.named, entries_before, hits, max)
    }

    fn faults(&self, config: &FilterConfig, _: SystemTime) -> Vec<Warning> {
        let is_empty = self.named.filter.header().entry_count == 0;
        is_empty.then(|| Warning::empty_filter(&config.name)).into_iter().collect()
    }

    fn overdue(&self, config: &FilterConfig, now: SystemTime) -> Option<Warning> {
        let updated = self.named.filter.header().updated_at;
        let age = Duration::from_secs(unix_time::seconds(now).saturating_sub(updated));
        let max_age = config.max_age.filter(|max_age| age.as_secs() > max_age.as_secs())?;
        Some(Warning::stale_filter(&config.name, age, max_age))
    }

    fn is_ageless(&self, _: &FilterConfig, _: SystemTime) -> bool {
        false
    }

    fn copy_in_use(config: &FilterConfig, rejection: &FilterRejection) -> Warning {
        Warning::last_good_filter(&config.name, &config.path, rejection)
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

    /// The facts that outlive a restart, and the files that are copied.
    pub(crate) fn saved(&self) -> FileInUse {
        let (header, original) = (self.filter().filter.header(), self.value().original());
        let record = self.gate().record(self.path(), self.value().entries());
        let record = record.with_header(header).with_copy(original.id());
        FileInUse { file: GuardFile::Filter, name: self.name().to_owned(), record, original }
    }

    /// The filter in use, the result of the last attempt to read it, and the waiting update.
    pub(crate) fn report(&self) -> FilterReport {
        let NamedFilter { name, filter, sha256 } = &**self.filter();
        FilterReport {
            name: name.to_string(),
            summary: FilterSummary::new(self.path(), filter, sha256),
            loaded: self.file().loaded_at(),
            stale: self.is_stale(),
            last_good_in_use: self.is_last_good(),
            last_reload: self.file().last_reload(),
            last_rejection: self.last_rejection().cloned(),
            dry_run: self.gate().report(),
            signature: self.value().signature.as_deref().map(SignatureReport::new),
        }
    }
}

fn read_copy(config: &FilterConfig, path: &Path, id: &str) -> Result<ReadFilter, FilterRejection> {
    let copy = match read(&FilterConfig { path: path.to_owned(), ..config.clone() }) {
        Err(FilterRejection::Signature(error)) => return Err(error_of_copy(error, path).into()),
        copy => copy?,
    };
    ensure_id(&HEXLOWER.encode(copy.file.sha256()), path, id)?;
    Ok(copy)
}

/// Checks that the file of a filter is not larger than `max_size`.
fn ensure_size(config: &FilterConfig, filter: &NamedFilter) -> Result<(), FilterRejection> {
    let found = filter.filter.header().data_size().saturating_add(HEADER_SIZE as u64);
    if found > config.max_size {
        return Err(FilterError::TooLarge { found, allowed: config.max_size }.into());
    }
    Ok(())
}

/// Verifies the signature that was kept with a filter, whose place is `path`.
fn verify_filter(
    config: &FilterConfig,
    path: &Path,
    signature: Option<&str>,
    filter: &Filter,
) -> Result<Option<Arc<FileSignature>>, SignatureError> {
    let (header, bits) = filter.to_parts();
    let signature = verify_saved(path, config.minisign_key.as_deref(), signature, &[&header, bits]);
    Ok(signature?.map(Arc::new))
}

/// Reads the file of a filter within the sandbox, and verifies its signature.
pub(crate) fn read(config: &FilterConfig) -> Result<ReadFilter, FilterRejection> {
    let max_size = config.max_size;
    let file = read_with(&config.path, move |path| {
        sandbox::check(path)?;
        pkbf::read(path, max_size)
    })?;
    let (header, bits) = file.filter.to_parts();
    let keys = config.minisign_key.as_deref();
    let signature = verify_beside(&config.path, keys, &[&header, bits])?;
    Ok(ReadFilter { file, signature: signature.map(Arc::new) })
}
