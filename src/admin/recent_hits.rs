//! `/report` and `/report.txt`: every recent client whose key was not clean, as a JSON object and
//! for a terminal.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use keygate_core::unix_time::utc;
use serde::Serialize;

use super::AdminState;
use crate::recent_hits::{AllHits, RecentHit, SERVER_AUTH};

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

#[derive(Template)]
#[template(path = "report.txt", whitespace = "preserve")]
struct ReportText<'a> {
    groups: Vec<HitGroup<'a>>,
    /// The first moment that the text covers.
    began: String,
    /// Number of clients that were evicted from memory since the start.
    forgotten: u64,
}

/// Clients with the same outcome.
struct HitGroup<'a> {
    outcome: &'static str,
    clients: Vec<Vec<HitText<'a>>>,
}

/// The verdict on a client at one service.
struct HitText<'a> {
    hit: &'a RecentHit,
    reason: String,
    first_seen: String,
    last_seen: String,
}

/// The body of `/report.txt`: the clients that were seen since `from`, in seconds since the Unix
/// epoch.
pub(super) fn text(state: &AdminState, from: u64) -> Result<String, askama::Error> {
    let AllHits { mut hits, evicted: forgotten } = state.sources.recent_hits.all();
    hits.retain(|hit| hit.last_seen >= from);
    let hits = hits.iter().map(Arc::as_ref);
    let (by_servers, hits): (Vec<_>, Vec<_>) =
        hits.partition(|hit| hit.result == Some(SERVER_AUTH));
    let (rejected, admitted): (Vec<_>, Vec<_>) =
        hits.into_iter().partition(|hit| hit.action == "reject");
    let mut groups = vec![
        HitGroup::new("rejected", rejected),
        HitGroup::new("would have been rejected by \"reject\"", admitted),
    ];
    // Otherwise no service accepts such certificates.
    if !by_servers.is_empty() {
        groups.push(HitGroup::new("admitted with certificates for servers only", by_servers));
    }
    ReportText { groups, began: utc(state.since.max(from)), forgotten }.render()
}

impl<'a> HitGroup<'a> {
    fn new(outcome: &'static str, hits: Vec<&'a RecentHit>) -> Self {
        let clients = by_client(hits).into_iter();
        let clients = clients.map(|hits| hits.into_iter().map(HitText::new).collect());
        Self { outcome, clients: clients.collect() }
    }
}

impl<'a> HitText<'a> {
    fn new(hit: &'a RecentHit) -> Self {
        let (verdict, source) = (hit.verdict, &hit.source);
        let list = source.list.as_ref().or(source.filter.as_ref()).map_or("-", String::as_str);
        let finding = source.finding.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
        let reason = match (hit.result, source.check) {
            (Some(result), _) => format!("{result}, key {verdict}"),
            (None, Some(check)) => format!("{verdict} (check {check})"),
            (None, None) => format!("{verdict} (in {list}{finding})"),
        };
        Self { hit, reason, first_seen: utc(hit.first_seen), last_seen: utc(hit.last_seen) }
    }
}

/// The hits of each client, in the order of `hits`. A client is a key, or an address without a
/// certificate.
pub(super) fn by_client<'a>(
    hits: impl IntoIterator<Item = &'a RecentHit>,
) -> Vec<Vec<&'a RecentHit>> {
    let mut clients: Vec<Vec<&RecentHit>> = Vec::new();
    let mut places: HashMap<_, usize> = HashMap::new();
    for hit in hits {
        let fingerprint = hit.fingerprint();
        let address = hit.address.filter(|_| fingerprint.is_empty());
        let place = *places.entry((fingerprint, address)).or_insert(clients.len());
        match clients.get_mut(place) {
            Some(client) => client.push(hit),
            None => clients.push(vec![hit]),
        }
    }
    clients
}
