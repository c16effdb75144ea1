//! Converts the raw tables into the checked model.

mod allow;
mod authorizer;
mod confirm;
mod fetch;
mod files;
mod list;
mod service;
mod traces;
mod upstream;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use self::fetch::Protection;
use super::document::{Decoded, Document, decode};
use super::units::{self, DurationText};
use super::{
    AccessLogConfig, AccessLogFormat, Config, ConfigError, ConfigProblem, FilterConfig,
    ListenAddress, LogConfig, LogLevel, LogLevelError, ServiceConfig, raw,
};
use crate::guard::Exception;
use crate::spki::{Fingerprint, KeyDigest, RsaExponents};

/// Maximum number of threads; a larger number is a typing error.
const MAX_WORKERS: usize = 1024;
/// Maximum length of the path of a Unix socket, in bytes: `sun_path` of Linux without its NUL
/// (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// Checks the configuration in `text`.
pub(super) fn check(file: &Path, text: &str) -> Result<Config, ConfigError> {
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    let document = Document::parse(text).map_err(invalid)?;
    let mut decoded: Decoded<raw::RawConfig> = decode(&document);
    let Some(raw) = decoded.tables.take() else { return Err(invalid(decoded.problems)) };
    let checker = Checker::new(file, &document);
    let config = checker.config(raw);
    let problems = checker.problems(decoded);
    if problems.is_empty() { Ok(config) } else { Err(invalid(problems)) }
}

/// Checks the admin address in `text`, and nothing else.
///
/// A syntax error on another line does not matter, because the commands for a running process are
/// needed while its file is being edited.
pub(super) fn admin(file: &Path, text: &str) -> Result<ListenAddress, ConfigError> {
    let invalid = |problems| Err(ConfigError::Invalid { file: file.to_owned(), problems });
    let (document, syntax) = Document::parse_recoverable(text);
    let is_intact = match document.value("admin.listen") {
        Some((_, line)) => syntax.iter().all(|problem| problem.line != line),
        // The default address applies, unless the error hides the table.
        None => syntax.is_empty() || !text.lines().any(names_admin),
    };
    if !is_intact {
        return invalid(syntax);
    }
    let mut decoded: Decoded<raw::AdminOnly> = decode(&document);
    let Some(raw) = decoded.tables.take() else { return invalid(decoded.problems) };
    let checker = Checker::new(file, &document);
    let address = checker.admin(&raw.admin.listen);
    let problems = checker.problems(decoded);
    if problems.is_empty() { Ok(address) } else { invalid(problems) }
}

/// Whether a line may begin the table `admin`, or set a key in it.
fn names_admin(line: &str) -> bool {
    line.trim_start_matches(['[', '"', '\'', ' ', '\t']).starts_with("admin")
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
    fn problems<T>(self, mut decoded: Decoded<T>) -> Vec<ConfigProblem> {
        let mut problems = std::mem::take(&mut decoded.problems);
        let invalid = self.invalid.into_inner().into_iter();
        let invalid = invalid.filter(|(path, _)| !decoded.is_faulty(path));
        problems.extend(invalid.map(|(path, problem)| self.document.problem(&path, problem)));
        if problems.is_empty() {
            let conflicts = self.conflicts.into_inner().into_iter();
            problems.extend(conflicts.map(|(path, problem)| self.document.problem(&path, problem)));
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }

    /// Reports that the value at `path` cannot be used.
    fn invalid(&self, path: impl Into<String>, problem: impl Into<String>) {
        self.invalid.borrow_mut().push((path.into(), problem.into()));
    }

    /// Reports that the value at `path` contradicts another one.
    fn conflict(&self, path: impl Into<String>, problem: impl Into<String>) {
        self.conflicts.borrow_mut().push((path.into(), problem.into()));
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
        self.authorizer_addresses(&authorizers, &services, &admin);
        Config {
            workers: self.workers(raw.workers),
            admin,
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

    /// The file or directory at `path`, which the value at `at` names. A relative path starts at
    /// the directory of the configuration.
    fn path(&self, at: &str, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.invalid(at, "empty; give a path");
        }
        self.file.parent().map_or_else(|| path.to_owned(), |directory| directory.join(path))
    }

    /// The path of a Unix socket.
    fn socket_path(&self, at: &str, path: &Path) -> PathBuf {
        let path = self.path(at, path);
        let length = path.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            let problem = format!(
                "{} has {length} bytes; give a path for the socket with at most {MAX_SOCKET_PATH}",
                path.display()
            );
            self.invalid(at, problem);
        }
        path
    }

    fn paths(&self, at: &str, paths: &[PathBuf]) -> Vec<PathBuf> {
        paths.iter().map(|path| self.path(at, path)).collect()
    }

    /// Checks that no two tables of an array have the same name.
    fn names_once<'n>(&self, array: &str, names: impl Iterator<Item = &'n str>) {
        let mut known = HashSet::new();
        for (index, name) in names.enumerate() {
            if !known.insert(name) {
                let problem =
                    format!("another of the {array} has the name {name:?}; give each its own");
                self.invalid(format!("{array}[{index}].name"), problem);
            }
        }
    }

    /// Checks a name. Its characters need no quoting in metrics, logs and headers.
    fn name(&self, path: &str, name: String) -> String {
        let plain =
            |character: char| character.is_ascii_alphanumeric() || ".-_".contains(character);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            let problem = format!("{name:?}: a name has 1 to 64 letters, digits, '.', '-' and '_'");
            self.invalid(format!("{path}.name"), problem);
        }
        name
    }

    fn workers(&self, workers: usize) -> NonZeroUsize {
        if workers > MAX_WORKERS {
            self.invalid("workers", format!("{workers} is not between 0 and {MAX_WORKERS}"));
        }
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        NonZeroUsize::new(workers).unwrap_or_else(cores)
    }

    fn admin(&self, listen: &str) -> ListenAddress {
        self.listen_address("admin.listen", listen)
    }

    /// A TCP address, or `unix:` and a path.
    fn listen_address(&self, at: &str, listen: &str) -> ListenAddress {
        match listen.strip_prefix("unix:") {
            Some(path) => ListenAddress::Unix(self.socket_path(at, Path::new(path))),
            None => ListenAddress::Tcp(listen.parse().unwrap_or_else(|_| {
                let problem = format!(
                    "{listen:?} is not an address and a port, such as \"127.0.0.1:9191\", or \"unix:/PATH\""
                );
                self.invalid(at, problem);
                SocketAddr::from(([0; 4], 0))
            })),
        }
    }

    fn address(&self, path: &str, listen: &str) -> SocketAddr {
        listen.parse().unwrap_or_else(|_| {
            let problem = format!(
                "{listen:?} is not an address and a port, such as \"0.0.0.0:8443\" or \"[::]:8443\""
            );
            self.invalid(path, problem);
            SocketAddr::from(([0; 4], 0))
        })
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

    fn filter(&self, path: &str, filter: raw::RawFilter) -> FilterConfig {
        FilterConfig {
            name: self.name(path, filter.name),
            path: self.path(&format!("{path}.path"), &filter.path),
            max_size: filter.max_size.0,
            max_age: filter.max_age.map(|age| self.positive(&format!("{path}.max_age"), age)),
            rollback: filter.rollback,
            implausible: filter.implausible,
            canaries: self.paths(&format!("{path}.canaries"), &filter.canaries),
            max_new_hits: filter.max_new_hits,
            related_exponents: self.related_exponents(path, filter.related_exponents.as_deref()),
            source: self.source(
                path,
                filter.source.as_ref(),
                Protection::of(filter.minisign_key.as_ref()),
            ),
            minisign_key: self.minisign_key(path, filter.minisign_key.as_deref()),
        }
    }

    fn minisign_key(&self, path: &str, file: Option<&Path>) -> Option<PathBuf> {
        file.map(|file| self.path(&format!("{path}.minisign_key"), file))
    }

    fn related_exponents(&self, path: &str, numbers: Option<&[u32]>) -> RsaExponents {
        let Some(numbers) = numbers else { return RsaExponents::default() };
        RsaExponents::from_numbers(numbers).unwrap_or_else(|unknown| {
            let problem = format!("{unknown} is none of 3, 5, 17, 35, 37, 257 and 65537");
            self.invalid(format!("{path}.related_exponents"), problem);
            RsaExponents::default()
        })
    }

    fn exception(&self, path: &str, raw: &raw::RawException) -> Exception {
        let key = KeyDigest::parse(&raw.fingerprint).unwrap_or_else(|| {
            let found = &raw.fingerprint;
            let problem = format!(
                "{found:?} is not the SHA-256 of a key, in hex or base64, nor rsa-modulus: or ec-x: and one; `keygate key --lists` prints it"
            );
            self.invalid(format!("{path}.fingerprint"), problem);
            Fingerprint::of(found.as_bytes()).into()
        });
        let until = units::moment(raw.until.0).unwrap_or_else(|| {
            let found = raw.until.0;
            let problem = format!("{found}: write a date, such as 2026-12-31, or a time with an offset, such as 2026-12-31T12:00:00Z");
            self.invalid(format!("{path}.until"), problem);
            UNIX_EPOCH
        });
        if raw.reason.trim().is_empty() {
            self.invalid(format!("{path}.reason"), "empty; give the reason for the exception");
        }
        Exception { key, until, reason: raw.reason.clone() }
    }

    fn fingerprints_once(&self, exceptions: &[Exception]) {
        let mut known = HashSet::new();
        for (index, exception) in exceptions.iter().enumerate() {
            if !known.insert(exception.key) {
                let problem = format!("{} occurs twice; remove one of the two", exception.key);
                self.invalid(format!("exceptions[{index}].fingerprint"), problem);
            }
        }
    }

    fn positive(&self, path: &str, duration: DurationText) -> Duration {
        if duration.0.is_zero() {
            self.invalid(path, "0 would expire at once; give a longer time");
        }
        duration.0
    }

    /// Checks that a number is from `range`.
    fn within<N: PartialOrd + Display + Copy>(
        &self,
        path: &str,
        number: N,
        range: RangeInclusive<N>,
    ) -> N {
        if !range.contains(&number) {
            let problem = format!("{number} is not between {} and {}", range.start(), range.end());
            self.invalid(path, problem);
        }
        number
    }

    /// Checks that services on one address have distinct names, by which connections are routed.
    fn routes(&self, services: &[ServiceConfig]) {
        let mut taken = HashSet::new();
        for (index, service) in services.iter().enumerate() {
            let path = |key: &str| format!("services[{index}].{key}");
            // The PROXY header precedes the ClientHello with the name.
            let mut others = services.iter().filter(|other| other.listen == service.listen);
            if let Some(other) = others.find(|other| other.accept_proxy != service.accept_proxy) {
                let problem = format!(
                    "differs from that of service {:?} on the same address; write the same networks for both, or give one of them another address",
                    other.name
                );
                self.conflict(path("accept_proxy"), problem);
            }
            if service.server_names.is_empty() && !taken.insert((service.listen, "")) {
                let problem = format!(
                    "another service is already the default of {}; give the host names of this one",
                    service.listen
                );
                self.conflict(path("server_names"), problem);
            }
            for name in &service.server_names {
                if !taken.insert((service.listen, name)) {
                    let problem = format!(
                        "{name:?} occurs twice for the address {}; remove one of the two",
                        service.listen
                    );
                    self.conflict(path("server_names"), problem);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
