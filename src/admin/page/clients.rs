//! The rows of rejected and flagged clients: one for each client, whatever services it connected
//! to.

use std::sync::Arc;

use keygate_core::tls::CertificateSummary;
use keygate_core::unix_time::ago;

use crate::admin::recent_hits::by_client;
use crate::recent_hits::RecentHit;

/// Maximum number of clients on the page, most recent first.
const MAX_CLIENTS: usize = 10;
/// Maximum length of a search, in characters; the rest is ignored.
const MAX_SEARCH: usize = 200;

/// The clients on the page.
pub(super) struct Clients<'a> {
    pub(super) rows: Vec<ClientRow<'a>>,
    /// The text that was searched for; empty if every client is meant.
    pub(super) search: String,
    /// Number of clients that the search finds.
    pub(super) found: usize,
    /// Number of clients in memory.
    pub(super) known: usize,
}

/// A client, by its key, or by its address if it has no certificate.
pub(super) struct ClientRow<'a> {
    /// `client-` and the fingerprint, or the address.
    pub(super) id: String,
    /// The last hit.
    pub(super) newest: &'a RecentHit,
    pub(super) last_seen: String,
    pub(super) count: u64,
    /// The addresses that the client was last seen from, without repetition.
    pub(super) addresses: String,
    /// Most recent first.
    pub(super) hits: Vec<HitRow<'a>>,
}

/// The verdict on a client at one service, and the action.
pub(super) struct HitRow<'a> {
    pub(super) hit: &'a RecentHit,
    /// The verdict, or the result if no verdict decides.
    pub(super) verdict: &'static str,
    pub(super) last_seen: String,
    /// The filter or list that has the key, or the check that it fails, after "found"; empty if
    /// there is none.
    pub(super) found: String,
}

impl<'a> Clients<'a> {
    /// The clients with `hits`, which are sorted, last seen first. `search` is looked for in all
    /// texts of a client, without regard to case.
    pub(super) fn new(hits: &'a [Arc<RecentHit>], search: &str, now: u64) -> Self {
        let search: String = search.trim().chars().take(MAX_SEARCH).collect();
        let mut clients = by_client(hits.iter().map(Arc::as_ref));
        let known = clients.len();
        let wanted = search.to_lowercase();
        clients.retain(|hits| wanted.is_empty() || hits.iter().any(|hit| has(hit, &wanted)));
        let found = clients.len();
        let rows = clients.iter().take(MAX_CLIENTS).filter_map(|hits| row(hits, now)).collect();
        Self { rows, search, found, known }
    }
}

fn id(hit: &RecentHit) -> String {
    match (hit.fingerprint(), hit.address) {
        ("", None) => "client-unknown".to_owned(),
        ("", Some(address)) => format!("client-{address}"),
        (fingerprint, _) => format!("client-{fingerprint}"),
    }
}

/// Whether a text of the hit contains `wanted`, which is in lower case.
fn has(hit: &RecentHit, wanted: &str) -> bool {
    let (client, source) = (hit.client.as_ref(), &hit.source);
    let of_client = client.map(|it| [&it.subject, &it.issuer, &it.serial, &it.fingerprint]);
    let of_source = [&source.filter, &source.list, &source.finding, &source.found_subject];
    let alternative_names = client.into_iter().flat_map(CertificateSummary::alternative_names);
    let address = hit.address.map(|address| address.to_string());
    let texts = of_client.into_iter().flatten().chain(of_source.into_iter().flatten());
    let texts =
        texts.chain(alternative_names).chain([&hit.service]).chain(&address).map(String::as_str);
    let mut texts = texts.chain([hit.verdict, hit.action]).chain(hit.result).chain(source.check);
    texts.any(|text| text.to_lowercase().contains(wanted))
}

fn row<'a>(hits: &[&'a RecentHit], now: u64) -> Option<ClientRow<'a>> {
    let newest = *hits.first()?;
    let mut addresses: Vec<String> = Vec::new();
    for address in hits.iter().filter_map(|hit| hit.address) {
        let address = address.to_string();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Some(ClientRow {
        id: id(newest),
        newest,
        last_seen: ago(newest.last_seen, now),
        count: hits.iter().fold(0, |sum, hit| sum.saturating_add(hit.count)),
        addresses: if addresses.is_empty() { "-".to_owned() } else { addresses.join(", ") },
        hits: hits.iter().map(|hit| hit_row(hit, now)).collect(),
    })
}

fn hit_row(hit: &RecentHit, now: u64) -> HitRow<'_> {
    let source = &hit.source;
    let found_in = source.list.as_ref().or(source.filter.as_ref());
    let by_check = source.check.map(|check| format!("by check {check}"));
    let finding = source.finding.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
    let found = found_in.map(|list| format!("in {list}{finding}")).or(by_check);
    let verdict = hit.result.unwrap_or(hit.verdict);
    let (last_seen, found) = (ago(hit.last_seen, now), found.unwrap_or_default());
    HitRow { hit, verdict, last_seen, found }
}
