//! `/status`: everything in use, its last reloads and its traffic, as a JSON object.

use std::collections::BTreeMap;

use serde::Serialize;

use super::attention::{Attention, attention};
use super::drain::DrainReport;
use super::servers::ServerReport;
use super::traffic::ServiceTraffic;
use super::view::View;
use super::{AdminState, COMMIT};
use crate::confirm::ConfirmReport;
use crate::snapshot::Report;

#[derive(Serialize)]
struct StatusBody<'a> {
    version: &'static str,
    /// The commit, or `unknown`.
    commit: &'static str,
    /// Name of the machine.
    host: &'a str,
    /// Start of the process, in seconds since the Unix epoch.
    since: u64,
    ready: bool,
    /// Why the proxy is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_ready: Option<&'a str>,
    /// `null` unless an operator drains this instance.
    drained: Option<DrainReport>,
    /// The conditions that need attention, worst first.
    attention: Vec<Attention>,
    #[serde(flatten)]
    report: &'a Report,
    /// Traffic of the last five minutes, by service.
    traffic: &'a BTreeMap<String, ServiceTraffic>,
    /// Handshakes that failed before a service was selected in the last five minutes, by result.
    unrouted_handshakes: &'a BTreeMap<String, f64>,
    /// The upstream servers of all services.
    servers: Vec<ServerReport<'a>>,
    /// `null` if no source of proofs is configured.
    confirm: Option<&'a ConfirmReport>,
}

pub(super) fn json(state: &AdminState, view: &View) -> serde_json::Result<String> {
    let mut json = serde_json::to_string_pretty(&StatusBody {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT,
        host: &state.host,
        since: state.since,
        ready: view.not_ready.is_none(),
        not_ready: view.not_ready.as_deref(),
        drained: state.sources.drain.report(),
        attention: attention(view),
        report: &view.report,
        traffic: &view.traffic.services,
        unrouted_handshakes: &view.traffic.unrouted_handshakes,
        servers: view.servers(),
        confirm: view.confirm.as_ref(),
    })?;
    json.push('\n');
    Ok(json)
}
