//! `/report`: every refused and flagged client that is remembered, as one JSON object.

use std::sync::Arc;

use serde::Serialize;

use super::State;
use crate::recent_hits::RecentHit;

#[derive(Serialize)]
struct Clients<'a> {
    /// When this process began to remember, in seconds since the Unix epoch.
    since: u64,
    /// How many were forgotten for others.
    forgotten: u64,
    clients: Vec<&'a RecentHit>,
}

pub(super) fn json(state: &State) -> serde_json::Result<String> {
    let (clients, forgotten) = state.recent_hits.all();
    let clients = clients.iter().map(Arc::as_ref).collect();
    let mut json = serde_json::to_string(&Clients { since: state.since, forgotten, clients })?;
    json.push('\n');
    Ok(json)
}
