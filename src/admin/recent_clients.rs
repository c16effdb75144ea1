//! `/clients`: the public keys of the clients that were admitted recently, as lines of text.

use std::fmt::Write;

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use keygate_core::guard::RecentKeys;
use keygate_core::printable::printable;
use keygate_core::spki;

use super::response::{text, typed};

/// Maximum number of clients in a response, of which each has a key of at most 1.5 KB.
const MAX_CLIENTS: usize = 1 << 16;

/// The response: for each key a comment with the subject, and a line with its
/// SubjectPublicKeyInfo in base64.
pub(super) fn respond(recent: &RecentKeys) -> Response<Full<Bytes>> {
    if !recent.is_recording() {
        let problem = "clients are not recorded: set max_new_hits of a filter, list or service";
        return text(StatusCode::NOT_FOUND, problem);
    }
    let clients = recent.matching(MAX_CLIENTS, |_, _| true);
    let mut lines = String::new();
    for (_, client) in &clients.clients {
        let leaf = client.presented().first().and_then(|leaf| spki::of_certificate(leaf).ok());
        let Some(spki) = leaf else { continue };
        let subject = printable(&client.subject);
        let _ = writeln!(lines, "# {subject}\n{}", BASE64.encode(spki)); // a String has room
    }
    if let more @ 1.. = clients.count.saturating_sub(MAX_CLIENTS) {
        let _ = writeln!(lines, "# {more} more");
    }
    typed("text/plain; charset=utf-8", lines)
}
