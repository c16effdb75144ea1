//! Text that a peer or a file controls, made safe for a terminal.

/// The text without control characters. A line break in it would forge output lines, and an escape
/// sequence would control the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '?' } else { it }).collect()
}
