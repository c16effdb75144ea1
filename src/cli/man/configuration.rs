//! keygate.toml(5), generated from the example configuration, which has every key with its default.

use clap_mangen::roff::{Roff, bold, roman};

use super::text;
use super::title;

const EXAMPLE: &str = include_str!("../../../config/keygate.toml");
const TEXT: &str = include_str!("../../../docs/man/keygate.toml.md");

/// The line that names the schema to editors.
const SCHEMA_LINE: &str = "#:schema keygate.schema.json\n";

/// A line of the example.
#[derive(Debug, PartialEq, Eq)]
enum ExampleLine<'a> {
    Empty,
    Key { setting: &'a str, meaning: &'a str },
    Table { name: &'a str, meaning: &'a str },
    Text(&'a str),
}

pub(super) fn page() -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman("keygate.toml - configuration of keygate(1)")]);
    let sections = text::parse(TEXT);
    let (see_also, description): (Vec<_>, Vec<_>) =
        sections.iter().partition(|section| section.heading == "SEE ALSO");
    description.into_iter().for_each(|section| super::add(section, &mut roff));
    let mut text = Vec::new(); // in the example, the text of a table precedes its name
    let mut is_first = false; // the first paragraph of a section needs no `.PP`
    // The first line is for editors.
    let example = EXAMPLE.trim_start_matches(SCHEMA_LINE);
    let example = join_continuations(example);
    for line in example.iter().map(|line| ExampleLine::parse(line)) {
        if let ExampleLine::Text(line) = line {
            text.push(line);
            continue;
        }
        if let ExampleLine::Table { name, meaning } = line {
            roff.control("SH", [name]);
            is_first = true;
            text.extend((!meaning.is_empty()).then_some(meaning));
        }
        if !text.is_empty() {
            paragraph(&mut roff, &mut is_first).text([roman(text.join(" "))]);
            text.clear();
        }
        match line {
            ExampleLine::Key { setting, meaning: "" } => {
                paragraph(&mut roff, &mut is_first).text([bold(setting)]);
            }
            ExampleLine::Key { setting, meaning } => {
                is_first = false;
                roff.control("TP", []).text([bold(setting)]).text([roman(meaning)]);
            }
            ExampleLine::Empty | ExampleLine::Table { .. } | ExampleLine::Text(_) => {}
        }
    }
    see_also.into_iter().for_each(|section| super::add(section, &mut roff));
    (title("keygate.toml", 5) + &roff.render()).into_bytes()
}

/// Appends each line that continues a comment to the line before it.
///
/// Such a line has only a comment, which begins in the column of the other comments.
fn join_continuations(example: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in example.lines() {
        match (line.strip_prefix(INDENT), lines.last_mut()) {
            (Some(text), Some(last)) => {
                last.push(' ');
                last.push_str(text);
            }
            (Some(_) | None, _) => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Beginning of a line that continues the comment of the line before.
const INDENT: &str = "                                         # ";

fn paragraph<'a>(roff: &'a mut Roff, is_first: &mut bool) -> &'a mut Roff {
    if std::mem::take(is_first) { roff } else { roff.control("PP", []) }
}

impl<'a> ExampleLine<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        match line.strip_prefix("# ") {
            // Keys that are off by default are commented out.
            Some(off) => Self::setting(off).unwrap_or(Self::Text(off)),
            None if line.is_empty() => Self::Empty,
            None => Self::setting(line).unwrap_or(Self::Text(line)),
        }
    }

    fn setting(line: &'a str) -> Option<Self> {
        let (code, meaning) = line.split_once(" # ").unwrap_or((line, ""));
        let (code, meaning) = (code.trim_end(), meaning.trim());
        if code.starts_with('[') {
            return Some(Self::Table { name: code, meaning });
        }
        let (key, _) = code.split_once(" = ")?;
        (!key.contains(' ')).then_some(Self::Key { setting: code, meaning })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_tables_and_text_are_recognized() {
        for (line, expected) in [
            ("", ExampleLine::Empty),
            (
                "workers = 0   # threads",
                ExampleLine::Key { setting: "workers = 0", meaning: "threads" },
            ),
            (
                "# dir = \"/var\"  # off",
                ExampleLine::Key { setting: "dir = \"/var\"", meaning: "off" },
            ),
            ("  [services.tls]", ExampleLine::Table { name: "[services.tls]", meaning: "" }),
            ("# [[lists]]", ExampleLine::Table { name: "[[lists]]", meaning: "" }),
            ("[log]  # on it", ExampleLine::Table { name: "[log]", meaning: "on it" }),
            ("# with a share: { weight = 3 }", ExampleLine::Text("with a share: { weight = 3 }")),
        ] {
            assert_eq!(ExampleLine::parse(line), expected, "{line}");
        }
    }
}
