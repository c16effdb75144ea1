//! Converts the raw tables into the checked model.

mod service;
mod upstream;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::units::{self, DurationText};
use super::{
    AdminAddress, Config, ConfigError, FilterConfig, ListConfig, LogConfig, LogLevelError,
    ServiceConfig, raw,
};
use crate::guard::Exception;
use crate::spki::Fingerprint;

/// Maximum number of threads; a larger number is a typing error.
const MAX_WORKERS: usize = 1024;

pub(super) fn check(file: &Path, raw: raw::RawConfig) -> Result<Config, ConfigError> {
    let checker = Checker { file };
    if raw.filters.is_empty() {
        return Err(checker.invalid(
            "filters",
            "none is configured; add a [[filters]] table with a name and the path of a .pkbf file",
        ));
    }
    if raw.services.is_empty() {
        return Err(checker.invalid("services", "none is configured; add a [[services]] table"));
    }
    let filters =
        checker.each_once(raw.filters, "filters", |it| checker.filter(it), |it| &it.name)?;
    let lists = checker.each_once(raw.lists, "lists", |it| checker.list(&it), |it| &it.name)?;
    let exceptions = raw.exceptions.iter().map(|exception| checker.exception(exception));
    let exceptions = checker.distinct(exceptions.collect::<Result<_, _>>()?)?;
    let policy = raw.policy;
    let service = |it| checker.service(it, &policy);
    let services = checker.each_once(raw.services, "services", service, |it| &it.name)?;
    checker.routes(&services)?;
    Ok(Config {
        workers: checker.workers(raw.workers)?,
        admin: checker.admin(&raw.admin.listen)?,
        log: checker.log(raw.log)?,
        access_log: raw.access_log.requests,
        filters,
        lists,
        exceptions,
        services,
        state_dir: raw.state.dir.map(|directory| checker.path(&directory)),
        shutdown: raw.shutdown,
        sandbox: raw.sandbox,
    })
}

pub(super) fn admin(file: &Path, raw: &raw::Admin) -> Result<AdminAddress, ConfigError> {
    Checker { file }.admin(&raw.listen)
}

/// Checks one configuration. The file is the base of relative paths and part of every error.
#[derive(Clone, Copy)]
struct Checker<'a> {
    file: &'a Path,
}

impl Checker<'_> {
    fn invalid(self, field: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError::Invalid {
            file: self.file.to_owned(),
            field: field.into(),
            problem: problem.into(),
        }
    }

    fn path(self, path: &Path) -> PathBuf {
        self.file.parent().map_or_else(|| path.to_owned(), |directory| directory.join(path))
    }

    /// Converts all tables of an array and rejects a second table with the same name.
    fn each_once<R, T>(
        self,
        tables: Vec<R>,
        field: &str,
        convert: impl Fn(R) -> Result<T, ConfigError>,
        name: impl Fn(&T) -> &str,
    ) -> Result<Vec<T>, ConfigError> {
        let checked = tables.into_iter().map(convert).collect::<Result<Vec<_>, _>>()?;
        let mut names = HashSet::new();
        match checked.iter().map(name).find(|name| !names.insert(*name)) {
            None => Ok(checked),
            Some(twice) => Err(self.invalid(
                format!("{field}.{twice}"),
                "two tables have this name; give each its own",
            )),
        }
    }

    /// Checks a name. Its characters need no quoting in metrics, logs and headers.
    fn name(self, table: &str, name: &str) -> Result<String, ConfigError> {
        let plain =
            |character: char| character.is_ascii_alphanumeric() || ".-_".contains(character);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(self.invalid(
                format!("{table}.name"),
                format!("{name:?}: a name has 1 to 64 letters, digits, '.', '-' and '_'"),
            ));
        }
        Ok(name.to_owned())
    }

    fn workers(self, workers: usize) -> Result<NonZeroUsize, ConfigError> {
        if workers > MAX_WORKERS {
            return Err(self.invalid("workers", format!("{workers} is more than {MAX_WORKERS}")));
        }
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Ok(NonZeroUsize::new(workers).unwrap_or_else(cores))
    }

    fn admin(self, listen: &str) -> Result<AdminAddress, ConfigError> {
        if let Some(path) = listen.strip_prefix("unix:") {
            return Ok(AdminAddress::Unix(self.path(Path::new(path))));
        }
        self.address("admin.listen", listen).map(AdminAddress::Tcp)
    }

    fn address(self, field: &str, listen: &str) -> Result<SocketAddr, ConfigError> {
        listen.parse().map_err(|_| {
            let problem = format!(
                "{listen:?} is not an address and a port, such as \"0.0.0.0:8443\" or \"[::]:8443\""
            );
            self.invalid(field, problem)
        })
    }

    fn log(self, log: raw::Log) -> Result<LogConfig, ConfigError> {
        let level = log
            .level
            .parse()
            .map_err(|error: LogLevelError| self.invalid("log.level", error.to_string()))?;
        Ok(LogConfig { format: log.format, level, repeat_after: log.repeat_after.0 })
    }

    fn filter(self, filter: raw::RawFilter) -> Result<FilterConfig, ConfigError> {
        Ok(FilterConfig {
            name: self.name("filters", &filter.name)?,
            path: self.path(&filter.path),
            max_size: filter.max_size.0,
            max_age: match filter.max_age {
                Some(age) => Some(self.positive("filters.max_age", age)?),
                None => None,
            },
            rollback: filter.rollback,
            implausible: filter.implausible,
            canaries: filter.canaries.iter().map(|path| self.path(path)).collect(),
            max_new_hits: filter.max_new_hits,
        })
    }

    fn list(self, list: &raw::List) -> Result<ListConfig, ConfigError> {
        Ok(ListConfig { name: self.name("lists", &list.name)?, path: self.path(&list.path) })
    }

    fn exception(self, raw: &raw::RawException) -> Result<Exception, ConfigError> {
        let invalid =
            |key: &str, problem: String| self.invalid(format!("exceptions.{key}"), problem);
        let fingerprint = Fingerprint::parse(&raw.fingerprint).ok_or_else(|| {
            let found = &raw.fingerprint;
            let problem = format!("{found:?} is not the SHA-256 of a key, in hex or base64");
            invalid("fingerprint", problem)
        })?;
        let until = units::moment(raw.until).ok_or_else(|| {
            let found = raw.until;
            let problem = format!("{found}: write a date, such as 2026-12-31, or a time with an offset, such as 2026-12-31T12:00:00Z");
            invalid("until", problem)
        })?;
        if raw.reason.trim().is_empty() {
            return Err(invalid("reason", "empty; give the reason for the exception".to_owned()));
        }
        Ok(Exception { fingerprint, until, reason: raw.reason.clone() })
    }

    fn distinct(self, exceptions: Vec<Exception>) -> Result<Vec<Exception>, ConfigError> {
        let mut known = HashSet::new();
        match exceptions.iter().find(|exception| !known.insert(exception.fingerprint)) {
            None => Ok(exceptions),
            Some(twice) => {
                let problem = format!("{} occurs twice", twice.fingerprint);
                Err(self.invalid("exceptions.fingerprint", problem))
            }
        }
    }

    fn positive(self, field: &str, duration: DurationText) -> Result<Duration, ConfigError> {
        if duration.0.is_zero() {
            return Err(self.invalid(field, "0 would expire at once; give a longer time"));
        }
        Ok(duration.0)
    }

    /// Checks that services on one address have distinct names, by which connections are routed.
    fn routes(self, services: &[ServiceConfig]) -> Result<(), ConfigError> {
        let mut taken = HashSet::new();
        for service in services {
            let field = || format!("services.{}.server_names", service.name);
            // The PROXY header precedes the ClientHello with the name.
            let others = services.iter().filter(|other| other.listen == service.listen);
            if let Some(other) =
                others.into_iter().find(|other| other.accept_proxy != service.accept_proxy)
            {
                return Err(self.invalid(
                    format!("services.{}.accept_proxy", service.name),
                    format!("differs from that of service {:?} on the same address", other.name),
                ));
            }
            if service.server_names.is_empty() && !taken.insert((service.listen, "")) {
                return Err(self.invalid(
                    field(),
                    format!(
                        "another service is already the default of {}; give the host names of this one",
                        service.listen
                    ),
                ));
            }
            for name in &service.server_names {
                if !taken.insert((service.listen, name)) {
                    return Err(self.invalid(
                        field(),
                        format!("{name:?} occurs twice for the address {}", service.listen),
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Decision;

    const MINIMAL: &str = r#"
[[filters]]
name = "lost"
path = "lost.pkbf"

[[services]]
name = "orders"
listen = "127.0.0.1:8443"
tls = { certificate = "s.pem", private_key = "s.key" }
client_auth = { trust_anchors = "ca.pem" }
upstream = { servers = ["http://127.0.0.1:8080"] }
"#;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("/etc/keygate/keygate.toml"), text)
    }

    fn problem(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    /// [`MINIMAL`] with one piece replaced by another.
    fn changed(from: &str, to: &str) -> String {
        assert!(MINIMAL.contains(from), "{from} is not in the example");
        MINIMAL.replacen(from, to, 1)
    }

    #[test]
    fn the_shortest_configuration_has_safe_defaults_and_paths_relative_to_the_file() {
        let config = parse(MINIMAL).unwrap();
        let service = &config.services[0];
        assert_eq!(config.filters[0].path, Path::new("/etc/keygate/lost.pkbf"));
        assert_eq!(service.policy.on_probable, Decision::Reject);
        assert_eq!(service.policy.on_unchecked, Decision::Reject);
        assert_eq!(service.status_header, "client-key-status");
        assert_eq!(service.upstream.servers[0].to_string(), "http://127.0.0.1:8080");
        assert_eq!(config.admin, AdminAddress::Tcp("127.0.0.1:9464".parse().unwrap()));
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line() {
        let message =
            problem(&changed("path = \"lost.pkbf\"", "path = \"lost.pkbf\"\nmax_sice = 1"));
        assert!(message.starts_with("/etc/keygate/keygate.toml:5:"), "{message}");
        assert!(message.contains("unknown field `max_sice`"), "{message}");
    }

    #[test]
    fn a_service_overrides_single_keys_of_the_policy() {
        let text = format!(
            "{MINIMAL}policy = {{ on_probable = \"header\" }}\n[policy]\non_unchecked = \"flag\"\nheader = \"X-Key\""
        );
        let service = parse(&text).unwrap().services.remove(0);
        assert_eq!(service.policy.on_probable, Decision::Annotate);
        assert_eq!(service.policy.on_unchecked, Decision::Flag);
        assert_eq!(service.status_header, "x-key");
    }

    #[test]
    fn an_error_names_the_field_of_the_invalid_value() {
        for (from, to, field, found) in [
            ("[[filters]]", "[[ignored]]", ":2:", "unknown field `ignored`"),
            ("name = \"lost\"", "name = \"a b\"", "filters.name", "\"a b\""),
            ("127.0.0.1:8443", "localhost", "services.orders.listen", "\"localhost\""),
            ("http://127", "https://127", "services.orders.upstream.tls", "https://127"),
            ("http://127", "ftp://127", "services.orders.upstream.servers", "ftp://127"),
            ("http://127", "127", "services.orders.upstream.servers", "\"127"),
            ("8080\"", "8080/path\"", "services.orders.upstream.servers", "/path"),
        ] {
            let message = problem(&changed(from, to));
            assert!(message.contains(field) && message.contains(found), "{message}");
        }
        for (extra, field) in [
            ("limits = { idle_timeout = \"0s\" }", "services.orders.limits.idle_timeout"),
            ("limits = { idle_timeout = \"5 parsecs\" }", "5 parsecs"),
            ("limits = { max_header_size = \"1B\" }", "services.orders.limits.max_header_size"),
            ("limits = { max_connections = 0 }", "services.orders.limits.max_connections"),
            ("policy = { header = \"a b\" }", "services.orders.policy.header"),
            ("policy = { header = \"Host\" }", "services.orders.policy.header"),
            ("policy = { on_probable = \"admit\" }", "unknown variant `admit`"),
            ("limits = { max_streams = 0 }", "services.orders.limits.max_streams"),
            ("protocol = \"tcp\"", "services.orders.upstream.servers"),
            ("accept_proxy = { from = [\"10.0.0.0/33\"] }", "services.orders.accept_proxy.from"),
            ("forward = { send_proxy = \"v2\" }", "services.orders.forward.send_proxy"),
            ("server_names = [\"a b\"]", "services.orders.server_names"),
            ("server_names = [\"a.b\", \"A.b\"]", "\"a.b\" occurs twice"),
        ] {
            let message = problem(&format!("{MINIMAL}{extra}"));
            assert!(message.contains(field), "{extra} gave {message}");
        }
    }

    #[test]
    fn two_services_cannot_both_be_the_default_of_an_address() {
        let second = MINIMAL.split_once("[[services]]").unwrap().1.replace("orders", "billing");
        let message = problem(&format!("{MINIMAL}[[services]]{second}"));
        assert!(message.contains("services.billing.server_names"), "{message}");
        let named = format!("{MINIMAL}[[services]]{second}server_names = [\"b.example\"]");
        assert!(parse(&named).is_ok());
    }
}
