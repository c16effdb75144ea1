//! Numbers with their nouns, for text output.

/// `1 key`, `2 keys`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// `1 entry`, `2 entries`.
pub(super) fn counted_entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}
