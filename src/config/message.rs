//! Parts of messages: a text of the file, a size, and the word that a misspelt one may stand for.

use keygate_core::printable::printable;

/// Maximum number of characters of a text of the file in a message.
const MAX_QUOTED: usize = 120;

/// The beginning of a text of the file, in quotes and escaped, for a message.
pub(super) fn quoted(text: &str) -> String {
    let end = text.char_indices().nth(MAX_QUOTED).map(|(end, _)| end);
    let shown = end.and_then(|end| text.get(..end)).unwrap_or(text);
    if end.is_some() { format!("{shown:?}...") } else { format!("{shown:?}") }
}

/// The beginning of a text of the file as it is written, without control characters.
pub(super) fn brief(text: &str) -> String {
    let end = text.char_indices().nth(MAX_QUOTED).map(|(end, _)| end);
    let shown = printable(end.and_then(|end| text.get(..end)).unwrap_or(text));
    if end.is_some() { shown + "..." } else { shown }
}

/// The units of a size.
pub(super) const SIZE_UNITS: [&str; 9] = ["B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"];

/// A bound in the form of a configuration, in the largest unit of which it is a multiple.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let mut fitting =
        units.into_iter().filter(|(size, _)| bytes > 0 && bytes.is_multiple_of(*size));
    fitting
        .next()
        .map_or_else(|| format!("{bytes}B"), |(size, unit)| format!("{}{unit}", bytes / size))
}

/// Similarity from which a known word is suggested for an unknown one that is several letters
/// apart, such as `cert` for `certificate`.
const SIMILAR: f64 = 0.85;

/// A question with the known word that is most similar to `word`. Empty if there is none.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let word = word.to_ascii_lowercase();
    // Such as `403` of `http-403`.
    let is_end = |known: &str| known.rsplit_once('-').is_some_and(|(_, end)| end == word);
    let in_lower_case = known.iter().map(|known| (known.to_ascii_lowercase(), known));
    let candidates = in_lower_case.filter(|(known, _)| is_similar(&word, known) || is_end(known));
    let candidates = candidates.map(|(lower, known)| (strsim::osa_distance(&word, &lower), known));
    let best = candidates.min_by_key(|(distance, _)| *distance);
    best.map_or_else(String::new, |(_, known)| format!("; did you mean {known:?}?"))
}

/// Whether `word` may be a typing error for `known`.
fn is_similar(word: &str, known: &str) -> bool {
    (word.len() > 2 && strsim::osa_distance(word, known) <= 1.max(known.len() / 4))
        || strsim::jaro_winkler(word, known) >= SIMILAR
}
