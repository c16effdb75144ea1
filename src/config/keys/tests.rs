//! The rows of `docs/configuration.md` equal the table of keys.

use std::collections::BTreeMap;
use std::fmt;

use crate::config::Config;
use crate::config::form::{Form, Key, Table};
use crate::config::input::Takes;
use crate::config::message::size_text;

const PAGE: &str = "docs/configuration.md";

/// The form as `docs/configuration.md` has it, such as `number, 0 to 1024`.
impl fmt::Display for Form {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => formatter.write_str("`true`, `false`"),
            Self::Date => formatter.write_str("date"),
            Self::Duration { is_positive: true } => formatter.write_str("duration, not 0"),
            Self::Duration { is_positive: false } => formatter.write_str("duration"),
            Self::List(items) if matches!(**items, Self::Number { .. }) => {
                formatter.write_str("list of numbers")
            }
            Self::List(items) => write!(formatter, "list of {items}"),
            Self::Number { min, max } => {
                bounds(formatter, "number", *min, *max, |it| it.to_string())
            }
            Self::Size { min, max } => bounds(formatter, "size", *min, *max, size_text),
            Self::Table(_) => formatter.write_str("table"),
            Self::Text => formatter.write_str("text"),
            Self::TextOrTable(_) => formatter.write_str("text or table"),
            Self::Words(words) => {
                for (index, word) in words.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(formatter, "{comma}`{word}`")?;
                }
                Ok(())
            }
        }
    }
}

fn bounds(
    formatter: &mut fmt::Formatter<'_>,
    kind: &str,
    min: u64,
    max: u64,
    shown: impl Fn(u64) -> String,
) -> fmt::Result {
    formatter.write_str(kind)?;
    match (min, max) {
        (0, u64::MAX) => Ok(()),
        (min, max) if max == u64::from(u32::MAX) => write!(formatter, ", from {}", shown(min)),
        (min, max) => write!(formatter, ", {} to {}", shown(min), shown(max)),
    }
}

/// The tables by their names, such as `services.limits`.
fn tables(table: &Table, name: &str, found: &mut BTreeMap<String, Table>) {
    for key in &table.keys {
        let inside =
            if name.is_empty() { key.name.to_owned() } else { format!("{name}.{}", key.name) };
        if let Some(table) = key.form.table() {
            tables(table, &inside, found);
        }
    }
    found.insert(name.to_owned(), table.clone());
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Some(default) => format!("`{}`", default.replace('\n', " ")),
        None if key.is_required() => "required".to_owned(),
        None => "off".to_owned(),
    };
    let (name, reload) = (key.name, key.reload.as_str());
    format!("| `{name}` | {} | {default} | {reload} | {} |", key.form, key.meaning)
}

/// The page with the rows of the table of keys in place of its own.
fn with_rows(page: &str) -> String {
    let mut found = BTreeMap::new();
    tables(Config::form().table().unwrap(), "", &mut found);
    // The page has the keys of all policies once.
    found.retain(|name, _| !name.contains(".policy"));
    let (mut lines, mut table) = (Vec::new(), None);
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = if heading == "Top level" { "" } else { heading.trim_matches('`') };
            table = found.remove(name);
        }
        if table.is_none() || !line.starts_with("| `") {
            lines.push(line.to_owned());
        }
        if line.starts_with("| --- |")
            && let Some(table) = &table
        {
            let keys = table.keys.iter().filter(|key| key.form.table().is_none());
            lines.extend(keys.map(row));
        }
    }
    let missing: Vec<_> = found.keys().collect();
    assert!(missing.is_empty(), "{PAGE} has no section for {missing:?}");
    lines.join("\n") + "\n"
}

/// With `KEYGATE_WRITE=1` the rows of the page are written instead.
#[test]
fn the_page_has_the_rows_of_the_table_of_keys() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let expected = with_rows(&page);
    if std::env::var_os("KEYGATE_WRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    let differing = page.lines().zip(expected.lines()).find(|(page, code)| page != code);
    let remedy = "run: KEYGATE_WRITE=1 cargo test --lib the_page_has_the_rows";
    assert!(page == expected, "{PAGE} differs from the table of keys; {remedy}: {differing:#?}");
}

/// Each default is a value of its key, and each key has a meaning.
#[test]
fn defaults_are_valid() {
    let mut found = BTreeMap::new();
    tables(Config::form().table().unwrap(), "", &mut found);
    for (name, table) in found {
        for key in table.keys.iter().filter(|key| key.form.table().is_none()) {
            let place = format!("{name}.{}", key.name);
            assert!(!key.meaning.is_empty(), "{place}");
            if let Some(default) = key.default {
                assert!(toml::de::DeValue::parse(default).is_ok(), "{place}: {default}");
            }
            if let Form::Words(words) = key.form {
                assert!(!words.is_empty(), "{place}");
            }
        }
    }
}
