//! `/status`: filters, lists, services and their last reloads, as a JSON object.

use serde::Serialize;

use super::AdminState;
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
    #[serde(flatten)]
    report: &'a Report,
    /// `null` if no source of proofs is configured.
    confirm: Option<&'a ConfirmReport>,
}

pub(super) fn json(state: &AdminState) -> serde_json::Result<String> {
    let (report, confirm) = (state.report.load(), state.confirm.load());
    let not_ready = state.not_ready();
    let mut json = serde_json::to_string_pretty(&StatusBody {
        version: env!("CARGO_PKG_VERSION"),
        ready: not_ready.is_none(),
        not_ready,
        drained: state.drain.report(),
        report: &report,
        confirm: confirm.as_ref(),
    })?;
    json.push('\n');
    Ok(json)
}
