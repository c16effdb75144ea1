//! The first value of a filter source: its file, the filter that was in use under other settings,
//! or the copy in the state directory.

use std::path::Path;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use keygate_core::guard::NamedFilter;
use keygate_core::pkbf::{self, Filter, FilterError, FilterFile, HEADER_SIZE};
use keygate_core::signature::{FileSignature, SignatureError};
use tracing::error;

use crate::config::FilterConfig;
use crate::process::sandbox;
use crate::snapshot::filter_rejection::FilterRejection;
use crate::snapshot::load::check::rollback::Watermark;
use crate::snapshot::load::check::{check_content, check_filter};
use crate::snapshot::load::context::LoadContext;
use crate::snapshot::load::failure::{Failure, ReadError};
use crate::snapshot::load::file::read_with;
use crate::snapshot::load::file_record::FileRecord;
use crate::snapshot::load::saved_filters;
use crate::snapshot::load::signed::{LoadedFilter, ReadFilter, verify_beside, verify_saved};
use crate::snapshot::load::source::gate::Gate;
use crate::snapshot::operator_decision::GuardFile;
use crate::snapshot::report::WaitingReport;

/// The first value of a filter source.
pub(super) struct FirstValue {
    pub(super) filter: LoadedFilter,
    /// Whether `filter` comes from the state directory.
    pub(super) is_last_good: bool,
    /// Why the file is not used.
    pub(super) rejection: Option<FilterRejection>,
}

impl FirstValue {
    fn from_file(filter: LoadedFilter) -> Self {
        Self { filter, is_last_good: false, rejection: None }
    }
}

/// The filter in use under the previous settings.
pub(super) struct InUse<'a> {
    pub(super) filter: &'a LoadedFilter,
    pub(super) gate: &'a Gate,
    /// Whether `filter` comes from the state directory.
    pub(super) is_last_good: bool,
}

/// The value under new settings, while the filter `before` is in use. The file is an update like
/// any other: if it needs the operator, the filter in use stays.
///
/// # Errors
/// Returns an error if the file is rejected for another reason, or if it waits and the filter in
/// use fails a check under the new settings.
pub(super) fn under_new_settings(
    config: &FilterConfig,
    before: InUse<'_>,
    gate: &mut Gate,
    context: LoadContext<'_>,
) -> Result<FirstValue, FilterRejection> {
    let in_use = &before.filter.named;
    let watermark = Some(Watermark::from_header(in_use.filter.header()));
    let update = check_filter(config, read(config)?, watermark, context.now)?;
    if update.named.sha256 == in_use.sha256 {
        return Ok(FirstValue::from_file(update));
    }
    let entries = gate.entries_before(0, context.now);
    let report = report_of(config, &update.named, entries, context);
    match gate.check(report, None, false, context.now) {
        Ok(()) => {
            gate.untried = context.dry_run.untried(None, config.max_new_hits);
            Ok(FirstValue::from_file(update))
        }
        // The filter in use has another name, which the operator knows.
        Err(waits) if *in_use.name != *config.name => Err(waits.without_file_in_use().into()),
        Err(waits) => {
            ensure_size(config, in_use)?;
            let signature = before.filter.signature.as_deref().map(FileSignature::text);
            let signature = verify_filter(config, &config.path, signature, &in_use.filter)?;
            check_content(config, &in_use.filter, watermark, context.now)?;
            let (filter, is_last_good) = (Arc::clone(in_use), before.is_last_good);
            let filter = LoadedFilter { named: filter, signature };
            Ok(FirstValue { filter, is_last_good, rejection: Some(waits.into()) })
        }
    }
}

/// The value of a new source: the file, or the copy in the state directory if the file is rejected
/// or needs the operator.
///
/// # Errors
/// Returns an error if the file is rejected and there is no usable copy.
pub(super) fn of_new_source(
    config: &FilterConfig,
    gate: &mut Gate,
    context: LoadContext<'_>,
) -> Result<FirstValue, FilterRejection> {
    let record = record_of(config, context);
    let watermark = record.map(FileRecord::watermark);
    let file = read(config);
    let file = file.and_then(|file| check_filter(config, file, watermark, context.now));
    let update = match file {
        Ok(update) => update,
        // The caller waits for the writer, and then uses the copy.
        Err(rejection) if rejection.failure() == Failure::BeingWritten => return Err(rejection),
        Err(rejection) => return in_place_of_file(config, rejection, context),
    };
    let last_sha256 = record.and_then(|record| record.last_good.as_deref());
    let sha256 = HEXLOWER.encode(&update.named.sha256);
    if last_sha256 == Some(&*sha256) {
        return Ok(FirstValue::from_file(update));
    }
    gate.wait_for(context.rollback.waiting(GuardFile::Filter, &sha256));
    let entries = gate.entries_before(0, context.now);
    let report = report_of(config, &update.named, entries, context);
    match gate.check(report, None, context.is_start, context.now) {
        Ok(()) => {
            let limit = config.max_new_hits.filter(|_| last_sha256.is_some());
            gate.untried = context.dry_run.untried(None, limit);
            Ok(FirstValue::from_file(update))
        }
        Err(waits) => match last_good(config, context) {
            Some(filter) => in_place(filter, waits.into()),
            None => Err(waits.without_file_in_use().into()),
        },
    }
}

/// The copy in the state directory, because the file is rejected.
///
/// # Errors
/// Returns `rejection` if there is no usable copy.
pub(super) fn in_place_of_file(
    config: &FilterConfig,
    rejection: FilterRejection,
    context: LoadContext<'_>,
) -> Result<FirstValue, FilterRejection> {
    match last_good(config, context) {
        Some(filter) => in_place(filter, rejection),
        None => Err(rejection),
    }
}

fn in_place(
    filter: LoadedFilter,
    rejection: FilterRejection,
) -> Result<FirstValue, FilterRejection> {
    let rejection = Some(rejection);
    Ok(FirstValue { is_last_good: true, rejection, ..FirstValue::from_file(filter) })
}

/// The gate of a new source.
pub(super) fn gate(
    config: &FilterConfig,
    before: Option<InUse<'_>>,
    context: LoadContext<'_>,
) -> Gate {
    let before = before.map(|it| (it.gate, it.filter.named.filter.explained_entries()));
    let record = record_of(config, context);
    Gate::of_loaded(GuardFile::Filter, &config.name, before, record, context.now)
}

/// The record of the last filter that was in use under this path or name.
fn record_of<'a>(config: &FilterConfig, context: LoadContext<'a>) -> Option<&'a FileRecord> {
    let found = context.rollback.find(GuardFile::Filter, &config.name, &config.path);
    found.map(|(_, record)| record)
}

/// `update` in place of a filter with this number of entries, tried on the recent clients.
fn report_of(
    config: &FilterConfig,
    update: &Arc<NamedFilter>,
    entries: u64,
    context: LoadContext<'_>,
) -> WaitingReport {
    let new_hits = context.dry_run.new_hits_of_filter(update);
    WaitingReport::of_filter(update, entries, new_hits, config.max_new_hits)
}

/// The copy in the state directory, if there is one that passes every check. Logs why one cannot be
/// used.
fn last_good(config: &FilterConfig, context: LoadContext<'_>) -> Option<LoadedFilter> {
    let record = record_of(config, context)?;
    let (directory, sha256) = (context.rollback.directory()?, record.last_good.as_deref()?);
    let path = saved_filters::path_in(directory, sha256);
    let checked = read_copy(&path, sha256, config.max_size).and_then(|file| {
        let signature = verify_filter(config, &path, record.signature.as_deref(), &file.filter)?;
        let read = ReadFilter { file, signature };
        check_filter(config, read, Some(record.watermark()), context.now)
    });
    checked
        .inspect_err(|error| {
            let (filter, path) = (&config.name, path.display());
            error!(%filter, %path, %error, "the last good filter cannot be used either");
        })
        .ok()
}

fn read_copy(path: &Path, expected: &str, max_size: u64) -> Result<FilterFile, FilterRejection> {
    let file = read_with(path, move |path| pkbf::read(path, max_size))?;
    let found = HEXLOWER.encode(file.sha256());
    if found == expected {
        return Ok(file);
    }
    let (sidecar, expected) = (path.to_owned(), expected.to_owned());
    Err(FilterError::Checksum { sidecar, expected, found }.into())
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
