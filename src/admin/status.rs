//! `/status`: filters, lists, services and their last reloads, as a JSON object.

use serde::Serialize;

use super::AdminState;
use super::attention::{Attention, attention};
use super::drain::DrainReport;
use crate::confirm::ConfirmReport;
use crate::snapshot::Report;

#[derive(Serialize)]
struct StatusBody<'a> {
    version: &'static str,
    ready: bool,
    /// Why the proxy is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_ready: Option<String>,
    /// `null` unless an operator drains this instance.
    drained: Option<DrainReport>,
    /// The conditions that need attention, worst first.
    attention: Vec<Attention>,
    #[serde(flatten)]
    report: &'a Report,
    /// `null` if no source of proofs is configured.
    confirm: Option<&'a ConfirmReport>,
}

/// The body of `/status` at `now`, in seconds since the Unix epoch.
pub(super) fn json(state: &AdminState, now: u64) -> serde_json::Result<String> {
    let (report, confirm) = (state.report.load(), state.confirm.load());
    let not_ready = state.not_ready();
    let mut json = serde_json::to_string_pretty(&StatusBody {
        version: env!("CARGO_PKG_VERSION"),
        ready: not_ready.is_none(),
        not_ready,
        drained: state.drain.report(),
        attention: attention(state, now),
        report: &report,
        confirm: confirm.as_ref(),
    })?;
    json.push('\n');
    Ok(json)
}
