//! The first value of a filter or list: the file, or what is used in its place.

use std::path::Path;

use data_encoding::HEXLOWER;
use tracing::error;

use super::{GuardedFile, GuardedSettings, GuardedSource};
use crate::saved_state::file_record::FileRecord;
use crate::sources::check::canary;
use crate::sources::check::dry_run::DryRun;
use crate::sources::context::LoadContext;
use crate::sources::file_rejection::FileRejection;
use crate::sources::gate::Gate;
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::LoadErrors;
use crate::sources::operator_decision::NeedsOperator;
use crate::sources::report::WaitingReport;
use crate::sources::signed::{ensure_id, error_of_copy};
use crate::sources::source_set::FileSource;

/// The value in the file, if it needs no operator in place of the value in use or of the copy, which
/// `record` is about.
pub(super) fn first_value<F: GuardedFile>(
    config: &F::Config,
    in_use: &dyn Fn() -> Option<F>,
    record: Option<&FileRecord>,
    gate: &mut Gate,
    context: LoadContext<'_>,
) -> Result<F, FileRejection> {
    let update = F::read(config, in_use)?;
    let in_use = in_use();
    let watermark = match &in_use {
        Some(in_use) => in_use.watermark(),
        None => record.map(FileRecord::watermark),
    };
    update.check(config, watermark, context.now)?;
    let sha256 = HEXLOWER.encode(update.sha256());
    let is_known = match &in_use {
        Some(in_use) => in_use.judges_like(&update),
        None => record.is_some_and(|record| record.last_good.as_deref() == Some(&*sha256)),
    };
    if is_known {
        return Ok(update);
    }
    gate.wait_for(context.state.rollback.waiting(F::KIND, &sha256));
    let (dry_run, is_start) = (context.dry_run, context.is_start);
    ensure_may_be_used(config, gate, in_use.as_ref(), &update, dry_run, is_start)?;
    let had_value = in_use.is_some() || record.is_some_and(FileRecord::was_in_use);
    let limit = F::settings(config).max_new_hits.filter(|_| had_value);
    gate.untried = dry_run.untried(None, limit);
    // No client of this process was admitted by another value.
    gate.new_hits = gate.new_hits.filter(|_| in_use.is_some());
    Ok(update)
}

/// The copy in the state directory, if there is one that passes every check. Logs why one cannot be
/// used.
pub(super) fn copy<F: GuardedFile>(
    config: &F::Config,
    record: Option<&FileRecord>,
    context: LoadContext<'_>,
) -> Option<F> {
    let (directory, record) = (context.state.rollback.directory()?, record?);
    let id = record.last_good.as_deref()?;
    let path = F::copy_kind(config).path_in(directory, id);
    let read = || {
        let copy = match F::read_copy(config, &path) {
            Err(FileRejection::Signature(error)) => return Err(error_of_copy(error, &path).into()),
            copy => copy?,
        };
        ensure_id(&copy.original().id(), &path, id)?;
        copy.check(config, Some(record.watermark()), context.now)?;
        Ok(copy)
    };
    read().inspect_err(|error: &FileRejection| {
        let (name, path) = (F::settings(config).name, path.display());
        let [filter, list] = F::KIND.names(name);
        error!(filter, list, %path, %error, "the copy of the last good {} cannot be used", F::KIND.as_str());
    })
    .ok()
}

/// The rejection of the file, and the files of canaries that were not tried because of it.
fn load_errors<F: GuardedFile>(
    config: &F::Config,
    rejection: FileRejection,
    configuration: Option<&Path>,
) -> LoadErrors {
    let GuardedSettings { name, path, canaries, is_fetched, .. } = F::settings(config);
    // The canaries before that file can be used.
    let rejecting = rejection.canary_file();
    let tried = rejecting.and_then(|path| canaries.iter().position(|it| it == path));
    let untried = canaries.get(tried.map_or(0, |tried| tried + 1)..).unwrap_or_default();
    let others = untried.iter().filter_map(|path| canary::ensure_usable(path).err());
    let error = |source: FileRejection| {
        let (file, name, path) = (F::KIND, name.to_owned(), path.to_owned());
        match configuration.filter(|_| is_fetched && source.is_missing()) {
            Some(config) => LoadError::NotFetched { file, name, path, config: config.to_owned() },
            None => LoadError::File { file, name, path, source },
        }
    };
    LoadErrors::new(error(rejection), others.map(|other| error(other.into())))
}

/// The value in place of a file that is rejected because of `error`: the `copy` at a start, and the
/// value in use under new settings while an update waits. The second value is whether it comes from
/// the state directory.
pub(super) fn in_place_of_file<F: GuardedFile>(
    config: &F::Config,
    before: Option<&GuardedSource<F>>,
    copy: impl FnOnce() -> Option<F>,
    error: FileRejection,
    context: LoadContext<'_>,
) -> Result<(F, bool, FileRejection), LoadErrors> {
    let failed = |error| Err(load_errors::<F>(config, error, context.file));
    let Some(before) = before else {
        return match copy() {
            Some(value) => Ok((value, true, error)),
            None => failed(error.without_file_in_use()),
        };
    };
    // The value in use has another name, which the operator knows.
    if before.name() != F::settings(config).name {
        return failed(error.without_file_in_use());
    }
    if error.waits().is_none() {
        return failed(error);
    }
    match before.value().under_new_settings(config, context.now) {
        Ok(Some(value)) => Ok((value, before.is_last_good, error)),
        Ok(None) => failed(error),
        Err(error) => failed(error),
    }
}

/// Checks that `update` may replace the value `before` without an operator, or was accepted by one.
pub(super) fn ensure_may_be_used<F: GuardedFile>(
    config: &F::Config,
    gate: &mut Gate,
    before: Option<&F>,
    update: &F,
    dry_run: &DryRun,
    is_start: bool,
) -> Result<(), NeedsOperator> {
    let settings = F::settings(config);
    let (lost, entries) = if settings.may_shrink {
        gate.allow_shrinking();
        (None, 0)
    } else {
        let entries = gate.entries_before(before.map_or(0, F::entries), dry_run.now);
        (before.and_then(|before| before.lost(update)), entries)
    };
    let hits = update.new_hits(dry_run);
    let update = WaitingReport {
        entries_before: entries,
        new_hits: hits.count,
        max_new_hits: settings.max_new_hits,
        clients: hits.clients,
        ..update.waiting()
    };
    gate.check(update, lost, is_start, dry_run.now)
}
