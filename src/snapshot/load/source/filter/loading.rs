//! A filter is loaded: for the first time, or under new settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keygate_core::pkbf;

use super::{FilterSource, first_value};
use crate::config::FilterConfig;
use crate::snapshot::filter_rejection::FilterRejection;
use crate::snapshot::load::check::canary;
use crate::snapshot::load::context::LoadContext;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::failure::{Failure, ReadError};
use crate::snapshot::load::last_good::LastGood;
use crate::snapshot::load::load_errors::LoadErrors;
use crate::snapshot::load::signed::signature_paths;

impl FilterSource {
    /// Reads the filter for the first time, or under other settings than those of `before`, which
    /// is the source in use with the same name or path.
    ///
    /// # Errors
    /// Returns an error if the filter is rejected, and nothing can be used in its place. The files
    /// of canaries that cannot be read have an error each.
    pub(crate) fn load(
        config: FilterConfig,
        before: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadErrors> {
        let now = context.now;
        let gate_before = first_value::gate(&config, before.map(Self::in_use), context);
        let (mut gate, mut first) = (gate_before.clone(), None);
        let mut choose = || {
            gate.clone_from(&gate_before); // the result of an earlier attempt was dropped
            let value = match before {
                Some(before) => {
                    first_value::under_new_settings(&config, before.in_use(), &mut gate, context)
                }
                None => first_value::of_new_source(&config, &mut gate, context),
            }?;
            Ok(first.insert(value).filter.clone())
        };
        let filter = LastGood::load(paths(&config), now, context.max_wait, &mut choose).or_else(
            |rejection: FilterRejection| {
                // The writer holds its lock for too long.
                let is_torn = rejection.failure() == Failure::BeingWritten;
                if !is_torn || before.is_some() {
                    return Err(rejection);
                }
                let value = first_value::in_place_of_file(&config, rejection, context)?;
                let filter = first.insert(value).filter.clone();
                LastGood::load(paths(&config), now, context.max_wait, || Ok(filter.clone()))
            },
        );
        let filter = filter.map_err(|rejection| errors_of(&config, rejection, context.file))?;
        let (is_last_good, rejection) =
            first.map_or((false, None), |it| (it.is_last_good, it.rejection.map(Arc::new)));
        if rejection.is_none() {
            gate.forget_waiting();
        }
        let metrics = context.metrics.filter(&config.name);
        let mut source = Self {
            config,
            metrics,
            filter,
            is_stale: false,
            is_last_good,
            rejection,
            last_rejection: None,
            gate,
        };
        source.check_age(now);
        Ok(source)
    }
}

/// The rejection of the filter, and the files of canaries that were not tried because of it.
fn errors_of(config: &FilterConfig, rejection: FilterRejection, file: Option<&Path>) -> LoadErrors {
    // The canaries before that file can be used.
    let rejecting = rejection.canary_file();
    let tried = rejecting.and_then(|path| config.canaries.iter().position(|it| it == path));
    let untried = config.canaries.get(tried.map_or(0, |tried| tried + 1)..).unwrap_or_default();
    let others = untried.iter().filter_map(|path| canary::ensure_usable(path).err());
    let error = |source| LoadError::of_filter(config, source, file);
    LoadErrors::of(error(rejection), others.map(|other| error(other.into())))
}

/// The paths of the filter, its checksum file, its signature, the keys and its canaries.
fn paths(config: &FilterConfig) -> Vec<PathBuf> {
    let own = [config.path.clone(), pkbf::sidecar_of(&config.path)];
    let signed = signature_paths(&config.path, config.minisign_key.as_deref());
    own.into_iter().chain(signed).chain(config.canaries.iter().cloned()).collect()
}
