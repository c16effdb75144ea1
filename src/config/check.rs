//! Converts the raw tables into the checked model.

mod admin;
mod allow;
mod authorizer;
mod confirm;
mod exception;
mod fetch;
mod files;
mod filter;
mod list;
mod routes;
mod service;
mod traces;
mod upstream;
mod values;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::Path;

pub(super) use self::admin::admin;
use super::document::Document;
use super::form::{MAX_PROBLEMS, decode};
use super::{
    AccessLogConfig, AccessLogFormat, Config, ConfigError, ConfigProblem, ListenAddress, LogConfig,
    LogLevel, LogLevelError, raw,
};

/// Checks the configuration in `text`.
pub(super) fn check(file: &Path, text: &str) -> Result<Config, ConfigError> {
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    let document = Document::parse(text).map_err(|problem| invalid(vec![problem]))?;
    let raw: raw::RawConfig = decode(&document, "").map_err(invalid)?;
    let checker = Checker::new(file, &document);
    let config = checker.config(raw);
    let problems = checker.problems();
    if problems.is_empty() { Ok(config) } else { Err(invalid(problems)) }
}

/// Checks one configuration and collects its problems.
///
/// A value that is not valid becomes a placeholder in the model, so that the values after it are
/// checked in the same pass. A model with a placeholder is never returned, because there is a
/// problem then. Values are named by their path in the document, such as `services[0].listen`.
struct Checker<'a> {
    /// The configuration file, the base of relative paths.
    file: &'a Path,
    document: &'a Document<'a>,
    /// Paths and problems of single values.
    invalid: RefCell<Vec<(String, String)>>,
    /// Paths and problems of values that are valid, but not together with others.
    conflicts: RefCell<Vec<(String, String)>>,
}

impl<'a> Checker<'a> {
    fn new(file: &'a Path, document: &'a Document<'a>) -> Self {
        Self { file, document, invalid: RefCell::default(), conflicts: RefCell::default() }
    }

    /// All problems, in the order of their lines. Conflicts are reported only if every value is
    /// valid by itself, because a placeholder could cause them.
    fn problems(self) -> Vec<ConfigProblem> {
        let (invalid, conflicts) = (self.invalid.into_inner(), self.conflicts.into_inner());
        let found = if invalid.is_empty() { conflicts } else { invalid };
        let problems = found.into_iter();
        let problems = problems.map(|(path, problem)| self.document.problem(&path, problem));
        let mut problems: Vec<_> = problems.collect();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }

    /// Reports that the value at `path` cannot be used.
    fn invalid(&self, path: impl Into<String>, problem: impl Into<String>) {
        add(&self.invalid, path.into(), problem.into());
    }

    /// Reports that the value at `path` contradicts another one.
    fn conflict(&self, path: impl Into<String>, problem: impl Into<String>) {
        add(&self.conflicts, path.into(), problem.into());
    }

    fn config(&self, raw: raw::RawConfig) -> Config {
        if raw.filters.is_empty() && raw.lists.is_empty() {
            self.invalid(
                "filters",
                "neither a filter nor a list is configured; add a [[filters]] table with a name and the path of a .pkbf file, or a [[lists]] table",
            );
        }
        if raw.services.is_empty() && raw.authorizers.is_empty() {
            self.invalid(
                "services",
                "neither a service nor an authorizer is configured; add a [[services]] or an [[authorizers]] table",
            );
        }
        let filters = raw.filters.into_iter().enumerate();
        let filters =
            filters.map(|(index, filter)| self.filter(&format!("filters[{index}]"), filter));
        let filters: Vec<_> = filters.collect();
        let lists = raw.lists.iter().enumerate();
        let lists = lists.map(|(index, list)| self.list(&format!("lists[{index}]"), list));
        let lists: Vec<_> = lists.collect();
        let exceptions = raw.exceptions.iter().enumerate();
        let exceptions = exceptions
            .map(|(index, exception)| self.exception(&format!("exceptions[{index}]"), exception));
        let exceptions: Vec<_> = exceptions.collect();
        let policy = raw.policy;
        let services = raw.services.into_iter().enumerate();
        let services = services
            .map(|(index, service)| self.service(&format!("services[{index}]"), service, &policy));
        let services: Vec<_> = services.collect();
        self.names_once("filters", filters.iter().map(|it| it.name.as_str()));
        self.names_once("lists", lists.iter().map(|it| it.name.as_str()));
        self.files_once(&filters, &lists);
        let authorizers = raw.authorizers.into_iter().enumerate();
        let authorizers = authorizers.map(|(index, authorizer)| {
            self.authorizer(&format!("authorizers[{index}]"), authorizer, &policy)
        });
        let authorizers: Vec<_> = authorizers.collect();
        self.names_once("services", services.iter().map(|it| it.name.as_str()));
        self.authorizer_names(&authorizers, &services);
        self.fingerprints_once(&exceptions);
        self.routes(&services);
        let admin = self.admin(&raw.admin.listen);
        self.admin_address(&admin, &services);
        self.authorizer_addresses(&authorizers, &services, &admin);
        Config {
            workers: thread_count(raw.workers),
            max_buffered: raw.max_buffered.map(|size| size.0),
            admin,
            admin_commands: raw.admin.commands,
            log: self.log(raw.log),
            access_log: self.access_log(raw.access_log),
            confirm: raw.confirm.map(|confirm| self.confirm(confirm, &filters)),
            filters,
            lists,
            weak_checks: raw.weak_keys.checks.into_iter().collect(),
            exceptions,
            services,
            authorizers,
            traces: raw.traces.and_then(|it| self.traces(it, traces::CAN_EXPORT)),
            state_dir: raw.state.dir.map(|directory| self.path("state.dir", &directory)),
            shutdown: raw.shutdown,
            sandbox: raw.sandbox,
        }
    }

    fn admin(&self, listen: &str) -> ListenAddress {
        self.listen_address("admin.listen", listen)
    }

    fn access_log(&self, log: raw::RawAccessLog) -> AccessLogConfig {
        if log.fields.as_ref().is_some_and(Vec::is_empty) {
            self.invalid("access_log.fields", "empty; name at least one field, or remove the key");
        }
        if log.fields.is_some() && log.format == AccessLogFormat::Common {
            let problem = "has no effect with format = \"common\"; remove it";
            self.conflict("access_log.fields", problem);
        }
        AccessLogConfig {
            requests: log.requests,
            format: log.format,
            fields: log.fields,
            path: log.path.map(|path| self.path("access_log.path", &path)),
        }
    }

    fn log(&self, log: raw::Log) -> LogConfig {
        let level = log.level.parse().unwrap_or_else(|error: LogLevelError| {
            self.invalid("log.level", error.to_string());
            LogLevel::default()
        });
        LogConfig { format: log.format, level, repeat_after: log.repeat_after.0 }
    }
}

/// Adds a problem, up to the maximum of a report.
fn add(problems: &RefCell<Vec<(String, String)>>, path: String, problem: String) {
    let mut problems = problems.borrow_mut();
    if problems.len() < MAX_PROBLEMS {
        problems.push((path, problem));
    }
}

/// The number of threads, one for each core if none is set.
fn thread_count(workers: raw::Workers) -> NonZeroUsize {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    NonZeroUsize::new(workers.0).unwrap_or_else(cores)
}

#[cfg(test)]
mod tests;
