//! `/report`: every recent client whose key was not clean, as a JSON object.

use std::sync::Arc;

use serde::Serialize;

use super::AdminState;
use crate::recent_hits::{AllHits, RecentHit};

#[derive(Serialize)]
struct RecentHitsBody<'a> {
    /// Start of the process, in seconds since the Unix epoch.
    since: u64,
    /// Number of clients that were evicted from memory since the start.
    forgotten: u64,
    clients: Vec<&'a RecentHit>,
}

/// The body of `/report`.
pub(super) fn json(state: &AdminState) -> serde_json::Result<String> {
    let AllHits { hits, evicted: forgotten } = state.sources.recent_hits.all();
    let clients = hits.iter().map(Arc::as_ref).collect();
    let mut json =
        serde_json::to_string(&RecentHitsBody { since: state.since, forgotten, clients })?;
    json.push('\n');
    Ok(json)
}
