//! The limit of file descriptors (`RLIMIT_NOFILE`).

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

use crate::config::Config;

/// Descriptors for files, workers, logs, health checks and the admin address.
const OTHERS: usize = 256;

/// Raises the soft limit to the hard limit: many systems have a soft limit of 1024, for programs
/// with `select`. Warns if the limit is below the number of connections that `config` permits.
pub(crate) fn raise_limit(config: &Config) {
    let mut limits = getrlimit(Resource::Nofile);
    limits.current = limits.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limits) {
        warn!(%error, "limit of file descriptors not raised");
    }
    let limit = getrlimit(Resource::Nofile).current.and_then(|it| usize::try_from(it).ok());
    let needed = needed(config);
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        warn!(
            limit,
            needed,
            remedy = "raise LimitNOFILE= or ulimit -Hn, or lower max_connections",
            "fewer file descriptors than permitted connections"
        );
    }
}

/// The descriptors that all permitted connections take together.
fn needed(config: &Config) -> usize {
    let services = config.services.iter();
    let services =
        services.map(|it| it.limits.max_connections.saturating_add(it.upstream.max_connections));
    // All askers together have a quarter more than one.
    let askers = config.authorizers.iter().map(|it| it.limits.max_connections);
    let askers = askers.map(|it| it.saturating_add((it / 4).max(1)));
    services.chain(askers).fold(OTHERS, usize::saturating_add)
}
