//! The result of `keygate validate --json`: one object, whether the configuration is valid or not.

use std::path::Path;

use serde::Serialize;

use super::Checked;
use crate::cli::{CliError, authorizer_hosts, print_json};
use crate::config::{ConfigError, ConfigProblem};
use crate::snapshot::Report;

#[derive(Serialize)]
struct Validation<'a> {
    file: String,
    valid: bool,
    errors: Vec<ErrorRow<'a>>,
    /// `[]` if nothing was loaded; a report has its own `warnings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<[(); 0]>,
    /// The state that `run` would have, as `/status` shows it, and its warnings.
    #[serde(flatten)]
    report: Option<&'a Report>,
    /// The lines for the hosts of the authorizers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<HostRow<'a>>,
}

/// An error. Only a problem of the configuration file has a position and a field.
#[derive(Serialize)]
struct ErrorRow<'a> {
    line: Option<usize>,
    column: Option<usize>,
    field: Option<&'a str>,
    problem: String,
}

/// The configuration of the host of an authorizer.
#[derive(Serialize)]
struct HostRow<'a> {
    authorizer: &'a str,
    host: String,
    text: String,
}

/// Prints the result of checking the configuration in `file`.
pub(super) fn print(
    file: &Path,
    checked: Option<&Checked>,
    errors: &[CliError],
) -> Result<(), CliError> {
    let errors: Vec<_> = errors.iter().flat_map(rows).collect();
    let authorizers = checked.iter().flat_map(|it| &it.config.authorizers);
    let hosts = authorizers.flat_map(|authorizer| {
        authorizer_hosts::snippets(authorizer).into_iter().map(|(host, text)| HostRow {
            authorizer: &authorizer.name,
            host: host.to_string(),
            text: text.to_string(),
        })
    });
    print_json(&Validation {
        file: file.display().to_string(),
        valid: errors.is_empty(),
        errors,
        warnings: checked.is_none().then_some([]),
        report: checked.map(|it| &it.report),
        hosts: hosts.collect(),
    })
}

fn rows(error: &CliError) -> Vec<ErrorRow<'_>> {
    if let CliError::Config(ConfigError::Invalid { problems, .. }) = error {
        return problems.iter().map(problem_row).collect();
    }
    let row = |line, problem| ErrorRow { line, column: None, field: None, problem };
    match error.located() {
        located if located.is_empty() => {
            error.lines().into_iter().map(|problem| row(None, problem)).collect()
        }
        located => located.into_iter().map(|it| row(it.line, it.problem)).collect(),
    }
}

fn problem_row(problem: &ConfigProblem) -> ErrorRow<'_> {
    ErrorRow {
        line: Some(problem.line),
        column: Some(problem.column),
        field: (!problem.field.is_empty()).then_some(problem.field.as_str()),
        problem: problem.problem.clone(),
    }
}
