//! The upstream servers of each service, for `/status` and the status page.

use serde::Serialize;

use crate::proxy::{Failing, ServerStates};
use crate::sources::ServiceReport;

/// The state of a server that gets requests.
const HEALTHY: &str = "healthy";
/// The state of a server that may get requests, and of which nothing is known.
const UNUSED: &str = "unused";
/// The state of a server that gets requests although the last ones have failed.
const FAILING: &str = "failing";
/// Time after the last failure for which a server is [`FAILING`], in seconds: five minutes. Later,
/// nothing is known about it.
const FAILING_FOR: u64 = 300;

/// A server of a service.
#[derive(Debug, Serialize)]
pub(super) struct ServerReport<'a> {
    /// Position among the servers of all services.
    #[serde(skip)]
    index: usize,
    pub(super) service: &'a str,
    /// The address as configured.
    pub(super) server: &'a str,
    /// `healthy`; `unhealthy` by its health checks; `ejected` by a worker; or `failing`, if the
    /// last requests of a worker failed, `max_failures` of them, and it is not ejected. A server
    /// without health checks whose requests do not fail is `healthy`, and `unused` before the first.
    pub(super) state: &'static str,
    /// When the last health check ended, in seconds since the Unix epoch; `null` without checks.
    pub(super) last_check: Option<u64>,
    /// Why the last health check failed, or else the last request of a server that is ejected or
    /// failing; `null` if it succeeded.
    pub(super) error: Option<String>,
    /// Since when a server is unhealthy, or since when the requests of one that is ejected or
    /// failing fail, in seconds since the Unix epoch; `null` for other servers.
    pub(super) since: Option<u64>,
    /// Open connections, pooled ones included.
    pub(super) connections: usize,
    /// Ejections by all workers since the start.
    pub(super) ejections: u64,
}

impl ServerReport<'_> {
    /// Whether the server gets requests.
    pub(super) fn is_up(&self) -> bool {
        self.state == HEALTHY || self.state == UNUSED
    }

    /// Whether the server gets requests although the last ones have failed.
    pub(super) fn is_failing(&self) -> bool {
        self.state == FAILING
    }

    /// Id of the row on the status page.
    pub(super) fn row(&self) -> String {
        format!("server-{}", self.index)
    }
}

/// The servers of `services` at `now`, in seconds since the Unix epoch.
pub(super) fn servers<'a>(
    services: &'a [ServiceReport],
    states: &ServerStates,
    now: u64,
) -> Vec<ServerReport<'a>> {
    let names = services.iter().flat_map(|service| {
        service.upstream.iter().map(|server| (service.name.as_str(), server.as_str()))
    });
    names.enumerate().map(|(index, names)| report(index, names, states, now)).collect()
}

fn report<'a>(
    index: usize,
    (service, server): (&'a str, &'a str),
    states: &ServerStates,
    now: u64,
) -> ServerReport<'a> {
    let state = states.get(service, server).unwrap_or_default();
    let check = state.last_check();
    let is_ejected = state.ejected_until() > now;
    let is_recent = |failing: &Failing| now.saturating_sub(failing.at) < FAILING_FOR;
    let failing = state.failing().filter(|it| is_ejected || is_recent(it));
    ServerReport {
        index,
        service,
        server,
        state: match (state.is_healthy(), &failing) {
            (false, _) => "unhealthy",
            (true, _) if is_ejected => "ejected",
            (true, Some(_)) => FAILING,
            (true, None) if state.is_known() => HEALTHY,
            (true, None) => UNUSED,
        },
        last_check: check.as_ref().map(|check| check.at),
        since: state.unhealthy_since().or(failing.as_ref().map(|failing| failing.since)),
        error: (check.and_then(|check| check.error)).or(failing.map(|failing| failing.error)),
        connections: state.connections(),
        ejections: state.ejections(),
    }
}
