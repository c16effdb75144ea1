//! Text that a peer or a file controls, made safe for a terminal.

/// The text without control characters. A line break in it would forge output lines, and an escape
/// sequence would control the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '?' } else { it }).collect()
}

/// The text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "/._-+:@%,=".contains(it);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, word) in [
            ("/etc/keygate/keygate.toml", "/etc/keygate/keygate.toml"),
            ("a b.toml", "'a b.toml'"),
            ("it's.toml", r"'it'\''s.toml'"),
            ("$HOME", "'$HOME'"),
            ("~", "'~'"),
        ] {
            assert_eq!(quoted(path), word);
        }
    }
}
