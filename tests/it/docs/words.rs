//! Words of comments and pages: a sentence begins with its subject and repeats its noun.

use std::path::{Path, PathBuf};

use super::pages::pages;

/// Pronouns in the place of a noun.
const PRONOUNS: [&str; 3] = ["that of", "those of", "the one of"];
/// Words that begin a sentence in front of its subject.
const BEGINNINGS: [&str; 8] = ["Nobody", "Of", "That", "Those", "What", "Who", "Whoever", "Whose"];

#[test]
fn sentences_begin_with_their_subject_and_repeat_their_noun() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rooms = ["benches", "crates", "fuzz", "src", "tests", "xtask"];
    let sources = rooms.iter().flat_map(|room| walkdir::WalkDir::new(root.join(room)));
    let sources = sources.map(|entry| entry.unwrap().into_path());
    let sources: Vec<PathBuf> =
        sources.filter(|path| path.extension().is_some_and(|it| it == "rs")).collect();
    assert!(sources.len() > 300, "{}", sources.len());
    let mut problems = Vec::new();
    for path in sources.into_iter().chain(pages()) {
        let is_page = path.extension().is_some_and(|it| it == "md");
        let text = std::fs::read_to_string(&path).unwrap();
        let paragraphs = if is_page { paragraphs(&text) } else { comments(&text) };
        let found = paragraphs.iter().flat_map(|paragraph| problems_of(paragraph));
        problems.extend(found.map(|problem| format!("{}: {problem}", path.display())));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The comments of a source file, each in one line.
fn comments(source: &str) -> Vec<String> {
    joined(source.lines().map(|line| {
        let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
        comment.trim_start_matches(['/', '!']).trim()
    }))
}

/// The paragraphs of a page, each in one line, without its headings and tables. A table may ask
/// the question that a row answers.
fn paragraphs(page: &str) -> Vec<String> {
    joined(page.lines().map(|line| if line.starts_with(['#', '|']) { "" } else { line.trim() }))
}

/// Joins the lines between empty lines.
fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for line in lines {
        match paragraphs.last_mut() {
            Some(last) if !line.is_empty() => last.extend([line, " "]),
            _ => paragraphs.push(String::new()),
        }
    }
    paragraphs
}

fn problems_of(paragraph: &str) -> Vec<String> {
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let has_pronoun = |pronoun: &&&str| {
        words
            .windows(2 + usize::from(pronoun.starts_with("the ")))
            .any(|found| found.join(" ").eq_ignore_ascii_case(pronoun))
    };
    let pronouns = PRONOUNS.iter().filter(has_pronoun).map(|it| (*it).to_owned());
    let begins = |at: usize| at == 0 || words[at - 1].ends_with(['.', '!', '?']);
    let is_sentence =
        |at: usize| words.get(at + 1).is_some_and(|it| it.starts_with(char::is_lowercase));
    let beginnings = words
        .iter()
        .enumerate()
        .filter(|(at, word)| BEGINNINGS.contains(word) && begins(*at) && is_sentence(*at));
    let beginnings = beginnings.map(|(at, _)| words[at..words.len().min(at + 6)].join(" "));
    pronouns.chain(beginnings).collect()
}

#[test]
fn a_sentence_without_its_subject_in_front_is_found() {
    let page = "# Of headings\n\nThe size\nis that\nof a file. Of two files, one\nis read.\n";
    assert_eq!(problems_of(&paragraphs(page).concat()), ["that of", "Of two files, one is read."]);
    let source = "/// Those of a\n/// file.\nstruct Those of;\n";
    assert_eq!(problems_of(&comments(source).concat()), ["those of", "Those of a file."]);
    assert!(problems_of("The size of that file.").is_empty());
}
