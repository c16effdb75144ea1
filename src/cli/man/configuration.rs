//! keygate.toml(5): the example configuration, which has every key with its default, line by line.

use clap_mangen::roff::{Roff, bold, roman};

use super::{title, words};

const EXAMPLE: &str = include_str!("../../../config/keygate.toml");

/// A line of the example.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Empty,
    Key { setting: &'a str, meaning: &'a str },
    Table { name: &'a str, meaning: &'a str },
    Text(&'a str),
}

pub(super) fn page() -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman("keygate.toml - configuration of keygate(1)")]);
    roff.control("SH", ["DESCRIPTION"]).text(words(DESCRIPTION));
    let mut text = Vec::new(); // of a table: it stands before its name in the example
    let mut is_first = false; // below a heading, where no paragraph has to begin
    for line in EXAMPLE.lines().map(Line::of) {
        if let Line::Text(line) = line {
            text.push(line);
            continue;
        }
        if let Line::Table { name, meaning } = line {
            roff.control("SH", [name]);
            is_first = true;
            text.extend((!meaning.is_empty()).then_some(meaning));
        }
        if !text.is_empty() {
            paragraph(&mut roff, &mut is_first).text([roman(text.join(" "))]);
            text.clear();
        }
        match line {
            Line::Key { setting, meaning: "" } => {
                paragraph(&mut roff, &mut is_first).text([bold(setting)]);
            }
            Line::Key { setting, meaning } => {
                is_first = false;
                roff.control("TP", []).text([bold(setting)]).text([roman(meaning)]);
            }
            Line::Empty | Line::Table { .. } | Line::Text(_) => {}
        }
    }
    roff.control("SH", ["SEE ALSO"]).text([roman("keygate(1), keygate-validate(1)")]);
    (title("keygate.toml", 5) + &roff.render()).into_bytes()
}

const DESCRIPTION: &str = "The configuration is TOML. `keygate run` reads \
    /etc/keygate/keygate.toml unless it is given another file; `keygate validate` tells whether it \
    can be used. The shortest useful one has a `[[filters]]` and a `[[services]]` table.";

fn paragraph<'a>(roff: &'a mut Roff, is_first: &mut bool) -> &'a mut Roff {
    if std::mem::take(is_first) { roff } else { roff.control("PP", []) }
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        match line.strip_prefix("# ") {
            // What is off by default stands behind the sign of a comment.
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
    fn lines_are_told_apart() {
        for (line, expected) in [
            ("", Line::Empty),
            ("workers = 0   # threads", Line::Key { setting: "workers = 0", meaning: "threads" }),
            ("# dir = \"/var\"  # off", Line::Key { setting: "dir = \"/var\"", meaning: "off" }),
            ("  [services.tls]", Line::Table { name: "[services.tls]", meaning: "" }),
            ("# [[lists]]", Line::Table { name: "[[lists]]", meaning: "" }),
            ("[log]  # on it", Line::Table { name: "[log]", meaning: "on it" }),
            ("# with a share: { weight = 3 }", Line::Text("with a share: { weight = 3 }")),
        ] {
            assert_eq!(Line::of(line), expected, "{line}");
        }
    }
}
