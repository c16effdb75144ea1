//! Each error of the checker: `tests/vectors/configuration-errors.txt` has mistakes with the whole
//! messages, and no message in the source is without a mistake.

use std::path::{Path, PathBuf};

use keygate::config::{Config, ConfigError};

use super::mistakes::assert_plain;
use crate::support::MINIMAL;

const VECTORS: &str = include_str!("../../vectors/configuration-errors.txt");

/// The configuration that the mistakes change.
fn base() -> String {
    let tables = MINIMAL.replace("\n\n", "\n").replace("\"server.", "\"s.");
    format!("workers = 2\n{tables}")
}

/// A mistake: text that replaces a piece of [`base`] or is appended, and the messages.
struct Mistake {
    text: String,
    messages: Vec<String>,
}

/// The mistakes in the vectors: lines with `-` are replaced by lines with `+`, lines with `=` are
/// the whole text, the others are the messages.
fn mistakes() -> Vec<Mistake> {
    let base = base();
    let blocks = VECTORS.split("\n\n").map(|block| {
        let lines = || block.lines().filter(|line| !line.starts_with('#'));
        let of = |mark: &str| {
            let lines = lines().filter_map(|line| line.strip_prefix(mark));
            lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
        };
        let (from, to, whole) = (of("-"), of("+"), of("="));
        let messages =
            lines().filter(|line| !line.starts_with(['-', '+', '=']) && !line.is_empty());
        let text = if !whole.is_empty() {
            format!("{whole}\n")
        } else if from.is_empty() {
            format!("{base}{to}\n")
        } else {
            assert!(base.contains(&from), "{from} is not in the configuration");
            base.replacen(&from, &to, 1)
        };
        let text = text.replace("<BEL>", "\u{7}").replace("<CR>", "\r");
        Mistake { text, messages: messages.map(str::to_owned).collect() }
    });
    blocks.filter(|mistake| !mistake.messages.is_empty()).collect()
}

#[test]
fn each_mistake_is_reported_with_the_whole_message() {
    Config::parse(Path::new("keygate.toml"), &base()).unwrap();
    for Mistake { text, messages } in mistakes() {
        let error = Config::parse(Path::new("keygate.toml"), &text).unwrap_err();
        assert!(matches!(error, ConfigError::Invalid { .. }), "{error}");
        assert_eq!(error.lines(), messages, "{text}");
        // The words of the parser.
        let is_plain = |message: &&String| !message.contains("not valid TOML: ");
        messages.iter().filter(is_plain).for_each(|message| assert_plain(message));
    }
}

/// Messages that no text of a configuration causes.
const WITHOUT_MISTAKE: [&str; 2] = [
    // Files that are not UTF-8, below.
    "not valid TOML: a character is not UTF-8; save the file as UTF-8",
    // For builds without the cargo feature.
    "this build of keygate cannot export traces; build it with the cargo feature opentelemetry, which packages have, or remove the table",
];

#[test]
fn a_file_that_is_not_utf_8_is_named_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keygate.toml");
    for (content, place) in
        [(&b"\xff\xfew\x00"[..], "1:1"), (b"workers = 2\nlog = \"\xe4\"\n", "2:8")]
    {
        std::fs::write(&path, content).unwrap();
        let lines = Config::read(&path).unwrap_err().lines();
        assert_eq!(lines, [format!("{}:{place}: {}", path.display(), WITHOUT_MISTAKE[0])]);
    }
}

#[test]
fn every_message_of_the_checker_has_a_mistake() {
    let messages: Vec<String> = mistakes().into_iter().flat_map(|it| it.messages).collect();
    let mut seen = 0;
    for file in sources() {
        let source = std::fs::read_to_string(&file).unwrap();
        for text in texts(&source) {
            let parts = parts(&text);
            if text == "-----BEGIN " || WITHOUT_MISTAKE.contains(&text.as_str()) {
                continue;
            }
            let has_parts = |message: &String| {
                let mut rest = message.as_str();
                parts.iter().all(|part| match rest.split_once(part.as_str()) {
                    Some((_, after)) => {
                        rest = after;
                        true
                    }
                    None => false,
                })
            };
            let file = file.display();
            assert!(messages.iter().any(has_parts), "{file}: no mistake causes {text:?}");
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen}");
}

/// The files of the checker.
fn sources() -> Vec<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directories = ["src/config/check"];
    let files = [
        "src/config/check.rs",
        "src/config/document.rs",
        "src/config/input.rs",
        "src/config/log_level.rs",
        "src/config/message.rs",
        "src/config/texts.rs",
        "src/config/units.rs",
        "src/config/urls.rs",
        "crates/core/src/guard/allow.rs",
    ];
    let inside = directories.iter().flat_map(|it| walkdir::WalkDir::new(source.join(it)));
    let inside = inside.map(|entry| entry.unwrap().into_path()).filter(|path| path.is_file());
    let inside = inside.filter(|path| !path.to_str().unwrap().contains("check/tests"));
    inside.chain(files.map(|file| source.join(file))).collect()
}

/// The texts of several words in a source file, without comments, attributes of lints and tests.
fn texts(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let code = source.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with("//") && !line.starts_with("reason = ")
    });
    let code = code.collect::<Vec<_>>().join("\n");
    let (mut texts, mut characters) = (Vec::new(), code.chars().peekable());
    while let Some(character) = characters.next() {
        match character {
            // A character in quotes. A lifetime has no second quote.
            '\'' => {
                let rest: Vec<char> = characters.clone().take(3).collect();
                let length = match rest[..] {
                    ['\\', _, '\''] => 3,
                    [_, '\'', ..] => 2,
                    _ => 0,
                };
                characters.by_ref().take(length).for_each(drop);
            }
            '"' => {
                let mut text = String::new();
                while let Some(character) = characters.next().filter(|it| *it != '"') {
                    match character {
                        '\\' => match characters.next().unwrap() {
                            '\n' => while characters.next_if(|it| it.is_whitespace()).is_some() {},
                            escaped => text.push(escaped),
                        },
                        other => text.push(other),
                    }
                }
                // The patterns are descriptions of the parser.
                let rest = characters.clone().skip_while(|it| it.is_whitespace());
                let rest: String = rest.take(3).collect();
                if !["=>", "|", "if "].iter().any(|pattern| rest.starts_with(pattern)) {
                    texts.push(text);
                }
            }
            _ => {}
        }
    }
    texts.retain(|text| text.contains(' '));
    texts
}

/// The parts of a format between its placeholders.
fn parts(text: &str) -> Vec<String> {
    let text = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let parts = text.split('{').enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.split_once('}').map_or(part, |(_, part)| part),
    });
    let parts = parts.map(|part| part.replace('\u{1}', "{").replace('\u{2}', "}"));
    parts.filter(|part| !part.trim().is_empty()).collect()
}
