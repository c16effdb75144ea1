//! The known word that a misspelt one may stand for.

/// Similarity from which a known word is suggested for an unknown one that is several letters
/// apart, such as `cert` for `certificate`.
const SIMILAR: f64 = 0.85;

/// A question with the known word that is most similar to `word`. Empty if there is none.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let word = word.to_ascii_lowercase();
    // Such as `403` of `http-403`.
    let is_end = |known: &str| known.rsplit_once('-').is_some_and(|(_, end)| end == word);
    let candidates = known.iter().filter(|known| is_similar(&word, known) || is_end(known));
    let candidates = candidates.map(|known| (strsim::osa_distance(&word, known), known));
    let best = candidates.min_by_key(|(distance, _)| *distance);
    best.map_or_else(String::new, |(_, known)| format!("; did you mean {known:?}?"))
}

/// Whether `word` may be a typing error for `known`.
fn is_similar(word: &str, known: &str) -> bool {
    (word.len() > 2 && strsim::osa_distance(word, known) <= 1.max(known.len() / 4))
        || strsim::jaro_winkler(word, known) >= SIMILAR
}
