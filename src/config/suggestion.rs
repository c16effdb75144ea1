//! The known word that a misspelt one may stand for.

/// Similarity from which a known word is suggested for an unknown one that is several letters
/// apart, such as `cert` for `certificate`.
const SIMILAR: f64 = 0.85;

/// A question with the known word that is most similar to `word`, or that has its meaning in other
/// programs. Empty if there is none.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let word = word.to_ascii_lowercase();
    // Such as `403` of `http-403`.
    let is_end = |known: &str| known.rsplit_once('-').is_some_and(|(_, end)| end == word);
    let candidates = known.iter().filter(|known| is_similar(&word, known) || is_end(known));
    let candidates = candidates.map(|known| (strsim::osa_distance(&word, known), known));
    let mut same = SYNONYMS.iter().filter(|(other, _)| *other == word);
    let same = same.find_map(|(_, name)| known.iter().find(|known| *known == name));
    let best = same.or_else(|| Some(candidates.min_by_key(|(distance, _)| *distance)?.1));
    best.map_or_else(String::new, |known| format!("; did you mean {known:?}?"))
}

/// Words of nginx, HAProxy, Ghostunnel and others, with the names here.
const SYNONYMS: [(&str, &str); 28] = [
    ("addr", "listen"),
    ("address", "listen"),
    ("backend", "upstream"),
    ("bind", "listen"),
    ("block", "reject"),
    ("ca", "trust_anchors"),
    ("ca_file", "trust_anchors"),
    ("cacert", "trust_anchors"),
    ("cert", "certificate"),
    ("cert_file", "certificate"),
    ("deny", "reject"),
    ("drop", "reject"),
    ("hostname", "server_names"),
    ("hosts", "server_names"),
    ("key", "private_key"),
    ("key_file", "private_key"),
    ("port", "listen"),
    ("proxy_pass", "upstream"),
    ("proxy_protocol", "accept_proxy"),
    ("server", "servers"),
    ("ssl", "tls"),
    ("ssl_certificate", "tls"),
    ("ssl_certificate_key", "tls"),
    ("ssl_client_certificate", "client_auth"),
    ("ssl_verify_client", "client_auth"),
    ("target", "upstream"),
    ("tlsv1.2", "1.2"),
    ("tlsv1.3", "1.3"),
];

/// Whether `word` may be a typing error for `known`.
pub(super) fn is_similar(word: &str, known: &str) -> bool {
    (word.len() > 2 && strsim::osa_distance(word, known) <= 1.max(known.len() / 4))
        || strsim::jaro_winkler(word, known) >= SIMILAR
}
