//! Checks of a configuration: what keys say together, and the conversion into the model.
//!
//! The checks of single values are in `texts` and `urls`. Each check reports all of its problems. A
//! value that has one never reaches the checks of others.

mod admin;
mod authorizer;
mod fetch;
mod files;
mod routes;
mod service;
mod texts;
mod urls;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;

use keygate_core::guard::Exception;

pub(super) use self::admin::admin;
pub(super) use self::fetch::{CrlSource, MAX_FINGERPRINTS_SIZE};
pub(super) use self::texts::*;
pub(super) use self::urls::*;
use super::document::Document;
use super::input::{Input, Taken, take};
use super::keys::Form;
use super::units::quoted;
use super::{
    AccessLogConfig, AccessLogFormat, Config, ConfigError, ConfirmConfig, FilterConfig, raw,
};

/// Checks the configuration in `text`.
pub(super) fn check(file: &Path, text: &str) -> Result<Config, ConfigError> {
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    let document = Document::parse(text).map_err(|problem| invalid(vec![problem]))?;
    take::<raw::RawConfig, _>(file, &document, "", config).map_err(invalid)
}

/// The model, if the tables agree with each other.
fn config(raw: raw::RawConfig, input: &Input<'_>) -> Taken<Config> {
    if input.is_fine() {
        presence(&raw, input);
    }
    names_once(input, "filters", raw.filters.iter().map(|it| &it.name));
    names_once(input, "lists", raw.lists.iter().map(|it| &it.name));
    names_once(input, "services", raw.services.iter().map(|it| &it.name));
    names_once(input, "authorizers", raw.authorizers.iter().map(|it| &it.name));
    for (index, authorizer) in raw.authorizers.iter().enumerate() {
        let name = &authorizer.name;
        if raw.services.iter().any(|service| service.name == *name) {
            let problem = format!("a service has the name {name:?} too; give each its own");
            input.report_at(&format!("authorizers[{index}].name"), problem);
        }
    }
    fingerprints_once(input, &raw.exceptions);
    files::once(input, &raw);
    routes::check(input, &raw);
    let confirm = raw.confirm.map(|it| confirmed_filters(input, it, &raw.filters)).transpose();
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    Ok(Config {
        workers: NonZeroUsize::new(raw.workers).unwrap_or_else(cores),
        max_buffered: raw.max_buffered,
        admin: raw.admin.listen,
        admin_commands: raw.admin.commands,
        log: raw.log,
        access_log: raw.access_log,
        confirm: confirm?,
        filters: raw.filters,
        lists: raw.lists,
        weak_checks: raw.weak_keys.checks.into_iter().collect(),
        exceptions: raw.exceptions,
        services: raw.services,
        authorizers: raw.authorizers,
        traces: raw.traces,
        state_dir: raw.state.dir,
        shutdown: raw.shutdown,
        sandbox: raw.sandbox,
    })
}

/// Checks that there is something to do.
fn presence(raw: &raw::RawConfig, input: &Input<'_>) {
    if raw.filters.is_empty() && raw.lists.is_empty() {
        let problem = "neither a filter nor a list is configured; add a [[filters]] table with a name and the path of a .pkbf file, or a [[lists]] table";
        input.report_at("filters", problem);
    }
    if raw.services.is_empty() && raw.authorizers.is_empty() {
        let problem = "neither a service nor an authorizer is configured; add a [[services]] or an [[authorizers]] table";
        input.report_at("services", problem);
    }
}

/// Checks that no two tables of an array have the same name.
fn names_once<'n>(input: &Input<'_>, array: &str, names: impl Iterator<Item = &'n String>) {
    let mut known = HashSet::new();
    for (index, name) in names.enumerate() {
        if !known.insert(name) {
            let problem =
                format!("another of the {array} has the name {name:?}; give each its own");
            input.report_at(&format!("{array}[{index}].name"), problem);
        }
    }
}

fn fingerprints_once(input: &Input<'_>, exceptions: &[Exception]) {
    let mut known = HashSet::new();
    for (index, exception) in exceptions.iter().enumerate() {
        if !known.insert(exception.key) {
            let problem = format!("{} occurs twice; remove one of the two", exception.key);
            input.report_at(&format!("exceptions[{index}].fingerprint"), problem);
        }
    }
}

/// Checks the names of the filters of `confirm`. Without names, the only filter is meant.
fn confirmed_filters(
    input: &Input<'_>,
    confirm: ConfirmConfig,
    filters: &[FilterConfig],
) -> Taken<ConfirmConfig> {
    let known: Vec<_> = filters.iter().map(|it| it.name.clone()).collect();
    let mut result = Ok(());
    for (index, name) in confirm.filters.iter().enumerate().filter(|(_, it)| !known.contains(it)) {
        let (name, known) = (quoted(name), known.iter().map(|it| format!("{it:?}")));
        let known = known.collect::<Vec<_>>().join(", ");
        let problem = format!("{name} is not the name of a filter in [[filters]]; give {known}");
        result = Err(input.report_at(&format!("confirm.filters[{index}]"), problem));
    }
    match (confirm.filters.is_empty(), known.len()) {
        (false, _) => result.map(|()| confirm),
        (true, 1) => Ok(ConfirmConfig { filters: known, ..confirm }),
        (true, 0) => {
            let problem = "there is no filter, and a source answers for hits in filters only; add a [[filters]] table, or remove [confirm]";
            Err(input.report_at("confirm", problem))
        }
        (true, _) => {
            let problem = "there are several filters; name those that the source answers for, because it must not clear the hits of others";
            Err(input.report_at("confirm.filters", problem))
        }
    }
}

impl AccessLogConfig {
    /// Checks that `fields` name some and have an effect.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        if self.fields.as_ref().is_some_and(Vec::is_empty) {
            input.report_at("fields", "empty; name at least one field, or remove the key");
        }
        if self.fields.is_some() && self.format == AccessLogFormat::Common {
            input.report_at("fields", "has no effect with format = \"common\"; remove it");
        }
    }
}

#[cfg(test)]
mod tests;
