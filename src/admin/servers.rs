//! The upstream servers of each service, for `/status` and the status page.

use serde::Serialize;

use crate::proxy::ServerStates;
use crate::snapshot::ServiceReport;

/// The state of a server that gets requests.
const HEALTHY: &str = "healthy";

/// A server of a service.
#[derive(Debug, Serialize)]
pub(super) struct ServerReport<'a> {
    /// Position among the servers of all services.
    #[serde(skip)]
    index: usize,
    pub(super) service: &'a str,
    /// The address as configured.
    pub(super) server: &'a str,
    /// `healthy`, `unhealthy`, or `ejected` by a worker. A server without health checks that is not
    /// ejected is `healthy`.
    pub(super) state: &'static str,
    /// When the last health check ended, in seconds since the Unix epoch; `null` without checks.
    pub(super) last_check: Option<u64>,
    /// Why the last health check failed; `null` if it succeeded.
    pub(super) error: Option<String>,
    /// Open connections, pooled ones included.
    pub(super) connections: usize,
    /// Ejections by all workers since the start.
    pub(super) ejections: u64,
}

impl ServerReport<'_> {
    /// Whether the server gets requests.
    pub(super) fn is_up(&self) -> bool {
        self.state == HEALTHY
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
    ServerReport {
        index,
        service,
        server,
        state: match state.is_healthy() {
            false => "unhealthy",
            true if state.ejected_until() > now => "ejected",
            true => HEALTHY,
        },
        last_check: check.as_ref().map(|check| check.at),
        error: check.and_then(|check| check.error),
        connections: state.connections(),
        ejections: state.ejections(),
    }
}
