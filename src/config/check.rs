//! Checks of a configuration: what keys say together.
//!
//! The checks of single values are in `values`, `servers`, and beside this room in `texts` and
//! `urls`. Each check reports all of its problems. A
//! value that has one never reaches the checks of others.

mod admin;
mod authorizer;
mod fetch;
mod files;
mod routes;
mod servers;
mod service;
mod values;

use std::collections::HashSet;
use std::path::Path;

use keygate_core::guard::Exception;

pub(super) use self::admin::admin;
use super::document::Document;
use super::input::{Input, Taken, Takes, take};
use super::message::quoted;
use super::{AccessLogConfig, AccessLogFormat, Config, ConfigError, ConfirmConfig, FilterConfig};

/// Checks the configuration in `text`.
pub(super) fn check(file: &Path, text: &str) -> Result<Config, ConfigError> {
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    let document = Document::parse(text, &Config::form()).map_err(|it| invalid(vec![it]))?;
    take::<Config>(file, &document, "").map_err(invalid)
}

impl Config {
    /// Checks that the tables agree with each other.
    pub(in crate::config) fn check(&mut self, input: &Input<'_>) {
        if input.is_fine() {
            presence(self, input);
        }
        names_once(input, "filters", self.filters.iter().map(|it| &it.name));
        names_once(input, "lists", self.lists.iter().map(|it| &it.name));
        names_once(input, "services", self.services.iter().map(|it| &it.name));
        names_once(input, "authorizers", self.authorizers.iter().map(|it| &it.name));
        for (index, authorizer) in self.authorizers.iter().enumerate() {
            let name = &authorizer.name;
            if self.services.iter().any(|service| service.name == *name) {
                let problem = format!("a service has the name {name:?} too; give each its own");
                input.report_at(&format!("authorizers[{index}].name"), problem);
            }
        }
        fingerprints_once(input, &self.exceptions);
        files::once(input, self);
        routes::check(input, self);
        if let Some(confirm) = &mut self.confirm {
            confirmed_filters(input, confirm, &self.filters);
        }
    }
}

/// Checks that there is something to do.
fn presence(config: &Config, input: &Input<'_>) {
    if config.filters.is_empty() && config.lists.is_empty() {
        let problem = "neither a filter nor a list is configured; add a [[filters]] table with a name and the path of a .pkbf file, or a [[lists]] table";
        input.report_at("filters", problem);
    }
    if config.services.is_empty() && config.authorizers.is_empty() {
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
fn confirmed_filters(input: &Input<'_>, confirm: &mut ConfirmConfig, filters: &[FilterConfig]) {
    let known: Vec<_> = filters.iter().map(|it| it.name.clone()).collect();
    for (index, name) in confirm.filters.iter().enumerate().filter(|(_, it)| !known.contains(it)) {
        let (name, known) = (quoted(name), known.iter().map(|it| format!("{it:?}")));
        let known = known.collect::<Vec<_>>().join(", ");
        let problem = format!("{name} is not the name of a filter in [[filters]]; give {known}");
        input.report_at(&format!("confirm.filters[{index}]"), problem);
    }
    if !confirm.filters.is_empty() {
        return;
    }
    match known.len() {
        0 => {
            let problem = "there is no filter, and a source answers for hits in filters only; add a [[filters]] table, or remove [confirm]";
            input.report_at("confirm", problem);
        }
        1 => confirm.filters = known,
        _ => {
            let problem = "there are several filters; name those that the source answers for, because it must not clear the hits of others";
            input.report_at("confirm.filters", problem);
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
