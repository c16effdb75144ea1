//! Escaping of text for terminals.

use std::fmt::{self, Write};

use askama::filters::Escaper;

/// Replaces control characters by `?`. A line break in the subject of a certificate would forge a
/// line, and an escape sequence would control the terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain;

impl Escaper for Plain {
    fn write_escaped_str<W: Write>(&self, mut dest: W, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            let plain = piece.trim_end_matches(char::is_control);
            dest.write_str(plain)?;
            if plain.len() < piece.len() {
                dest.write_char('?')?;
            }
        }
        Ok(())
    }
}
