//! `/status.txt`: the status page for a terminal.

use askama::Template;

use super::{StatusPage, with_page};
use crate::admin::AdminState;
use crate::admin::view::View;

#[derive(Template)]
#[template(path = "status.txt", whitespace = "preserve")]
struct StatusText<'a> {
    page: &'a StatusPage<'a>,
}

/// Renders the text with `view`.
pub(in crate::admin) fn render(state: &AdminState, view: &View) -> Result<String, askama::Error> {
    with_page(state, view, None, |page| StatusText { page }.render())
}
