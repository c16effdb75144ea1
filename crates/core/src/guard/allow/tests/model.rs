//! The specification of the rules, in the most literal way.

fn label(text: &str) -> bool {
    let letters: Vec<char> = text.chars().collect();
    let known = "abcdefghijklmnopqrstuvwxyz0123456789-_";
    !letters.is_empty()
        && letters.len() < 64
        && letters.iter().all(|letter| known.contains(*letter))
        && letters[0] != '-'
        && letters[letters.len() - 1] != '-'
}

fn host(text: &str) -> bool {
    let labels: Vec<&str> = text.split('.').collect();
    let number = labels[labels.len() - 1].chars().all(|letter| "0123456789".contains(letter));
    text.len() < 254 && labels.iter().all(|it| label(it)) && !number
}

pub(super) fn dns(rule: &str, name: &str) -> bool {
    let (rule, name) = (rule.to_ascii_lowercase(), name.to_ascii_lowercase());
    let rule = rule.trim_end_matches('.');
    if name.len() > 253 {
        return false;
    }
    match name.split_once('.') {
        Some(("*", parent)) => host(parent) && rule == name,
        _ if !host(&name) => false,
        Some((_, parent)) if rule == format!("*.{parent}") => true,
        Some(_) | None => rule == name,
    }
}

pub(super) fn email(rule: &str, address: &str) -> bool {
    let split = |text: &str| {
        let at = text.rfind('@')?;
        let (local, domain) = text.split_at(at);
        let (local, domain) = (local.to_owned(), domain.split_at(1).1.to_ascii_lowercase());
        let printable = local.chars().all(|letter| ('!'..='~').contains(&letter));
        (printable && !local.is_empty() && local.len() < 65 && host(&domain))
            .then_some((local, domain))
    };
    split(address).is_some_and(|address| Some(address) == split(rule))
}

fn id(text: &str) -> Option<Vec<String>> {
    if text.len() > 2048 || !text.to_ascii_lowercase().starts_with("spiffe://") {
        return None;
    }
    let mut parts: Vec<String> = text.split_at(9).1.split('/').map(str::to_owned).collect();
    parts[0].make_ascii_lowercase();
    Some(parts)
}

pub(super) fn uri(rule: &str, name: &str) -> bool {
    let (Some(rule), Some(name)) = (id(rule), id(name)) else { return false };
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let part = |part: &String| !part.is_empty() && part.chars().all(letter);
    let dots = name[1..].iter().any(|segment| segment == "." || segment == "..");
    if !name.iter().all(part) || dots || name[0].len() > 255 {
        return false;
    }
    let (length, open) = match rule.last() {
        Some(last) if last == "**" => (rule.len() - 1, true),
        Some(_) | None => (rule.len(), false),
    };
    (if open { name.len() > length } else { name.len() == length })
        && (0..length).all(|index| rule[index] == "*" || rule[index] == name[index])
}
