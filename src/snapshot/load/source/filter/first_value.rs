//! The first value of a filter source: its file, the filter that was in use under other settings,
//! or the copy in the state directory.

use std::path::Path;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use tracing::error;

use super::held::HeldUpdate;
use crate::config::FilterConfig;
use crate::guard::NamedFilter;
use crate::pkbf::{self, Filter, FilterError, FilterFile, HEADER_SIZE};
use crate::process::sandbox;
use crate::signature::{FileSignature, SignatureError};
use crate::snapshot::filter_rejection::FilterRejection;
use crate::snapshot::load::check::needs_operator::{
    ensure_needs_no_operator, ensure_needs_no_operator_at_start,
};
use crate::snapshot::load::check::rollback::Watermark;
use crate::snapshot::load::check::{check_content, check_filter};
use crate::snapshot::load::context::LoadContext;
use crate::snapshot::load::failure::{Failure, ReadError};
use crate::snapshot::load::file::read_with;
use crate::snapshot::load::kept_filters;
use crate::snapshot::load::rollback_state::FilterRecord;
use crate::snapshot::load::signed::{LoadedFilter, ReadFilter, verify_beside, verify_kept};
use crate::snapshot::report::WaitingReport;

/// The first value of a filter source.
pub(super) struct FirstValue {
    pub(super) filter: LoadedFilter,
    /// Whether `filter` comes from the state directory.
    pub(super) is_last_good: bool,
    /// Why the file is not used.
    pub(super) rejection: Option<FilterRejection>,
    /// The update in the file, if it waits for the operator.
    pub(super) held: Option<HeldUpdate>,
    /// Whether the file has changed since the last run and `max_new_hits` could not be checked.
    pub(super) is_untried: bool,
}

impl FirstValue {
    fn from_file(filter: LoadedFilter) -> Self {
        Self { filter, is_last_good: false, rejection: None, held: None, is_untried: false }
    }

    /// The filter in use `before`, because the update in the file waits.
    fn waiting(
        filter: LoadedFilter,
        is_last_good: bool,
        sha256: [u8; 32],
        (rejection, report): (FilterRejection, WaitingReport),
    ) -> Self {
        let held = Some(HeldUpdate::AwaitsOperator { report, sha256 });
        Self { filter, is_last_good, rejection: Some(rejection), held, is_untried: false }
    }
}

/// The filter in use under the previous settings.
pub(super) struct InUse<'a> {
    pub(super) filter: &'a LoadedFilter,
    pub(super) held: Option<&'a HeldUpdate>,
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
    context: LoadContext<'_>,
) -> Result<FirstValue, FilterRejection> {
    let in_use = &before.filter.named;
    let watermark = Some(Watermark::from_header(in_use.filter.header()));
    let update = check_filter(config, read(config)?, watermark, context.now)?;
    let sha256 = update.named.sha256;
    let is_accepted = before.held.is_some_and(|held| held.has_accepted(&sha256));
    if sha256 == in_use.sha256 || is_accepted {
        return Ok(FirstValue::from_file(update));
    }
    let entries = in_use.filter.header().entry_count;
    let waiting = before.held.and_then(|held| held.waiting_with(&sha256));
    match ensure_needs_no_operator(config, &update.named, entries, waiting, context.trial) {
        Ok(()) => Ok(FirstValue::from_file(update)),
        Err(waits) => {
            ensure_size(config, in_use)?;
            let signature = before.filter.signature.as_deref().map(FileSignature::text);
            let signature = verify_filter(config, &config.path, signature, &in_use.filter)?;
            check_content(config, &in_use.filter, watermark, context.now)?;
            let in_use = LoadedFilter { named: Arc::clone(in_use), signature };
            Ok(FirstValue::waiting(in_use, before.is_last_good, sha256, *waits))
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
    context: LoadContext<'_>,
) -> Result<FirstValue, FilterRejection> {
    let record = context.rollback.filter(&config.name);
    let watermark = record.map(FilterRecord::watermark);
    let file = read(config);
    let file = file.and_then(|file| check_filter(config, file, watermark, context.now));
    let update = match file {
        Ok(update) => update,
        // The caller waits for the writer, and then uses the copy.
        Err(rejection) if rejection.failure() == Failure::BeingWritten => return Err(rejection),
        Err(rejection) => return in_place_of_file(config, rejection, context),
    };
    let last_sha256 = record.and_then(FilterRecord::last_good);
    let sha256 = update.named.sha256;
    if last_sha256 == Some(HEXLOWER.encode(&sha256).as_str()) {
        return Ok(FirstValue::from_file(update));
    }
    let entries = record.map_or(0, FilterRecord::entries);
    let waiting = record.and_then(FilterRecord::waiting);
    match ensure_needs_no_operator_at_start(config, &update.named, entries, waiting, context.trial)
    {
        Ok(()) => {
            let is_untried = last_sha256.is_some() && config.max_new_hits.is_some();
            Ok(FirstValue { is_untried, ..FirstValue::from_file(update) })
        }
        Err(waits) => match last_good(config, context) {
            Some(filter) => Ok(FirstValue::waiting(filter, true, sha256, *waits)),
            None => {
                let (rejection, _) = *waits;
                Err(rejection.without_filter_in_use())
            }
        },
    }
}

/// The copy in the state directory, because the file is rejected. An update that waited still
/// waits, because the file may have it again.
///
/// # Errors
/// Returns `rejection` if there is no usable copy.
pub(super) fn in_place_of_file(
    config: &FilterConfig,
    rejection: FilterRejection,
    context: LoadContext<'_>,
) -> Result<FirstValue, FilterRejection> {
    let Some(filter) = last_good(config, context) else { return Err(rejection) };
    let waiting = context.rollback.filter(&config.name).and_then(FilterRecord::waiting);
    let held = waiting.and_then(HeldUpdate::awaits_operator);
    let rejection = Some(rejection);
    Ok(FirstValue { is_last_good: true, rejection, held, ..FirstValue::from_file(filter) })
}

/// The copy in the state directory, if there is one that passes every check. Logs why one cannot be
/// used.
fn last_good(config: &FilterConfig, context: LoadContext<'_>) -> Option<LoadedFilter> {
    let record = context.rollback.filter(&config.name)?;
    let (directory, sha256) = (context.rollback.directory()?, record.last_good()?);
    let path = kept_filters::path_in(directory, sha256);
    let checked = read_copy(&path, sha256, config.max_size).and_then(|file| {
        let signature = verify_filter(config, &path, record.signature(), &file.filter)?;
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
    let signature = verify_kept(path, config.minisign_key.as_deref(), signature, &[&header, bits]);
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
