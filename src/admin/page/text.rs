//! `/status.txt`: the status page for a terminal.

use askama::Template;

use super::time::ago;
use super::{ClientRow, StatusPage, with_page};
use crate::admin::AdminState;

/// Maximum number of clients, most recent first.
const MAX_CLIENTS: usize = 10;

#[derive(Template)]
#[template(path = "status.txt", whitespace = "preserve")]
struct StatusText<'a> {
    page: &'a StatusPage<'a>,
    started: String,
    clients: &'a [ClientRow<'a>],
}

/// Renders the text at `now`, in seconds since the Unix epoch.
pub(in crate::admin) fn render(state: &AdminState, now: u64) -> Result<String, askama::Error> {
    with_page(state, now, |page| {
        let clients = page.clients.get(..MAX_CLIENTS).unwrap_or(&page.clients);
        StatusText { page, started: ago(state.since, now), clients }.render()
    })
}
