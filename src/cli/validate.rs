//! `keygate validate`: everything that `run` would load, and nothing that it would serve.

use std::path::Path;

use super::{CliError, Exit, say};
use crate::config::Config;
use crate::guard::RecentKeys;
use crate::server::{ServerError, control_metrics};
use crate::snapshot::Loader;

pub(super) fn run(path: &Path) -> Result<Exit, CliError> {
    let config = Config::read(path)?;
    let metrics = control_metrics(&config).map_err(ServerError::Metrics)?;
    let (_, snapshot) = Loader::start(&config, metrics, RecentKeys::default())?;
    for named in snapshot.guard.filters() {
        let header = named.filter.header();
        say(format_args!(
            "filter {}: revision {}, {} entries, 2^{} bits, {:.1} % set, false positives {:.2e}",
            named.name,
            header.revision,
            header.entry_count,
            header.hash_length,
            named.filter.fill_ratio() * 100.0,
            named.filter.false_positive_ratio()
        ))?;
    }
    for list in &config.lists {
        say(format_args!("list {}: {}", list.name, list.path.display()))?;
    }
    for exception in &config.exceptions {
        let until = humantime::format_rfc3339_seconds(exception.until);
        say(format_args!(
            "exception until {until}: {}, {}",
            exception.fingerprint, exception.reason
        ))?;
    }
    for service in &config.services {
        let names = match service.server_names.as_slice() {
            [] => "any name".to_owned(),
            names => names.join(", "),
        };
        say(format_args!(
            "service {}: {} for {names}, to http://{}:{}; listed: {}, probable: {}, unchecked: {}",
            service.name,
            service.listen,
            service.upstream.host,
            service.upstream.port,
            service.policy.on_listed.as_str(),
            service.policy.on_probable.as_str(),
            service.policy.on_unchecked.as_str()
        ))?;
    }
    say(format_args!("{}: valid", path.display()))?;
    Ok(Exit::Done)
}
