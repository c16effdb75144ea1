//! Escaping of text for terminals and for HTML.

use std::fmt::{self, Write};

use askama::filters::{Escaper, Html};
use keygate_core::printable::is_unprintable;

/// Escapes characters as the text of the log does. A line break in the subject of a certificate
/// would forge a line, and an escape sequence would control the terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain;

impl Escaper for Plain {
    fn write_escaped_str<W: Write>(&self, dest: W, text: &str) -> fmt::Result {
        write_printable(dest, text, |_| false)
    }
}

/// Escapes HTML, and characters that change the order of a text. Line breaks stay.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlainHtml;

impl Escaper for PlainHtml {
    fn write_escaped_str<W: Write>(&self, dest: W, text: &str) -> fmt::Result {
        let mut plain = String::with_capacity(text.len());
        write_printable(&mut plain, text, |it| it == '\n')?;
        Html.write_escaped_str(dest, &plain)
    }
}

fn write_printable(mut dest: impl Write, text: &str, stays: fn(char) -> bool) -> fmt::Result {
    text.chars().try_for_each(|it| match is_unprintable(it) && !stays(it) {
        true => write!(dest, "{}", it.escape_debug()),
        false => dest.write_char(it),
    })
}
