//! The state of everything as one JSON object.

use serde::Serialize;

use super::State;
use crate::proxy::Stage;
use crate::snapshot::Report;

#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    ready: bool,
    #[serde(flatten)]
    report: &'a Report,
}

pub(super) fn json(state: &State) -> serde_json::Result<String> {
    let report = state.report.load();
    let mut json = serde_json::to_string_pretty(&Status {
        version: env!("CARGO_PKG_VERSION"),
        ready: *state.stage.borrow() == Stage::Serving,
        report: &report,
    })?;
    json.push('\n');
    Ok(json)
}
