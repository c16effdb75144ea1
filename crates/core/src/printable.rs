//! Characters that a terminal or a browser must not get from a certificate.

/// Whether a terminal may act on a character, or show text in another order because of it: control
/// and format characters (Unicode, general categories Cc and Cf), and separators of lines.
pub fn is_unprintable(it: char) -> bool {
    it.is_control()
        || matches!(
            it,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with such characters escaped, as the text of the log has them.
pub fn printable(text: &str) -> String {
    let escaped = |it: char| match is_unprintable(it) {
        true => it.escape_debug().to_string(),
        false => it.to_string(),
    };
    text.chars().map(escaped).collect()
}
