//! Every key that a configuration may have. The keys come from the code that reads configurations:
//! each table gets an unknown key, and the error names the known ones.

use std::collections::BTreeMap;
use std::path::Path;

use ::keygate::config::Config;
use toml::{Table, Value};

/// The type of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Boolean,
    Date,
    Duration,
    Integer,
    /// An array of whole numbers.
    Integers,
    /// An array of strings, or of one of these strings.
    List(Vec<String>),
    /// Servers, or files with CRLs: strings, or tables with a share or with sources.
    Servers,
    Size,
    /// A name, or a table with a header.
    Source,
    Text,
    /// One of these strings.
    Word(Vec<String>),
}

/// No table has it.
const UNKNOWN: &str = "no-such-key";

/// The keys by their places, such as `services.limits.max_headers`.
pub fn keys(example: &Table) -> BTreeMap<String, Kind> {
    let mut found = BTreeMap::new();
    collect(example, "", &mut found);
    found
}

fn collect(example: &Table, place: &str, found: &mut BTreeMap<String, Kind>) {
    let inside =
        |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
    let problem = problem_with(example, &inside(UNKNOWN), Value::Boolean(true));
    assert!(problem.contains(&format!("no key {UNKNOWN:?}; the keys here are")), "{problem}");
    let (_, known) = problem.split_once("the keys here are ").unwrap();
    for key in known.split("; ").next().unwrap().split(", ") {
        let key = inside(key);
        match kind(example, &key) {
            Some(kind) => {
                found.insert(key, kind);
            }
            None => collect(example, &key, found),
        }
    }
}

/// The words between quotes after `is not`, which precedes the valid words.
fn words(problem: &str) -> Vec<String> {
    let (_, known) = problem.split_once(" is not ").unwrap();
    let known = known.split("; ").next().unwrap();
    known.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The type of a key, `None` for a table. An invalid value makes the error name the valid ones.
fn kind(example: &Table, key: &str) -> Option<Kind> {
    let given = |value: Value| problem_with(example, key, value);
    let table = Value::Table(Table::from_iter([(UNKNOWN.to_owned(), Value::Boolean(true))]));
    let array = Value::Array(vec![table.clone()]);
    let is_table = |problem: &str| problem.contains(&format!("no key {UNKNOWN:?}"));
    let item = given(Value::Array(vec![Value::Boolean(true)]));
    if given(Value::Boolean(true)).contains("text in quotes, or a table with header and encoding") {
        return Some(Kind::Source);
    }
    if ["url and weight", "path and source"]
        .iter()
        .any(|keys| item.contains(&format!("text in quotes, or a table with {keys}")))
    {
        return Some(Kind::Servers);
    }
    if is_table(&given(table.clone())) || is_table(&given(array)) {
        return None;
    }
    let text = given(Value::String("no such word".to_owned()));
    let problem = given(table);
    let is_word = |problem: &str| problem.contains(" is not one of \"");
    Some(match () {
        () if is_word(&text) => Kind::Word(words(&text)),
        () if text.contains("is not a duration") => Kind::Duration,
        () if text.contains("is not a size") => Kind::Size,
        () if problem.contains("is not a list in brackets") => {
            assert!(!item.is_empty(), "{key} takes anything");
            let item = given(Value::Array(vec![Value::String("no such word".to_owned())]));
            if item.contains("is not a whole number") {
                return Some(Kind::Integers);
            }
            Kind::List(if is_word(&item) { words(&item) } else { Vec::new() })
        }
        () if problem.contains("is not true or false") => Kind::Boolean,
        () if problem.contains("is not a whole number") => Kind::Integer,
        () if text.contains("is not a date") => Kind::Date,
        () if problem.contains("is not text in quotes") => Kind::Text,
        () => panic!("{key} takes what? {problem} {text}"),
    })
}

/// The error that a value causes; empty if it is valid.
fn problem_with(example: &Table, key: &str, value: Value) -> String {
    let text = written(&with(example, key, Some(value)));
    let read = Config::parse(Path::new("/etc/keygate/keygate.toml"), &text);
    read.map_or_else(|problem| problem.to_string(), |_| String::new())
}

/// The example with another value for a key, or without it. In an array of tables it is the first
/// that is meant.
pub fn with(example: &Table, key: &str, value: Option<Value>) -> Table {
    let mut changed = example.clone();
    let (tables, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = &mut changed;
    for name in tables.split('.').filter(|name| !name.is_empty()) {
        let inner = table.entry(name).or_insert_with(|| match name {
            "cas" | "signing_keys" | "webhooks" => Value::Array(Vec::new()),
            _ => Value::Table(Table::new()),
        });
        if let Value::Array(tables) = &mut *inner
            && tables.is_empty()
        {
            let first = match name {
                "signing_keys" => "file = \"a.key\"",
                "webhooks" => "id = \"a\"\nsecret = \"a.secret\"",
                _ => "file = \"ca.pem\"\nspiffe = [\"example.org\"]",
            };
            tables.push(Value::Table(first.parse().unwrap()));
        }
        let table_inside = if inner.is_array() {
            inner.as_array_mut().unwrap()[0].as_table_mut()
        } else {
            inner.as_table_mut()
        };
        table = table_inside.unwrap_or_else(|| panic!("{name} of {key} is no table"));
    }
    match value {
        Some(value) => table.insert(last.to_owned(), value),
        None => table.remove(last),
    };
    changed
}

/// Adds `more` to a table: tables are merged, arrays of tables appended, other values replaced. A
/// table for an array of tables is merged with the first of them.
pub fn merge(table: &mut Table, more: Table) {
    for (key, value) in more {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(more)) => merge(inner, more),
            (Some(Value::Array(items)), Value::Table(more)) => {
                merge(items[0].as_table_mut().unwrap(), more);
            }
            (Some(Value::Array(items)), Value::Array(more)) if more.iter().all(Value::is_table) => {
                items.extend(more);
            }
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

/// The TOML of a table, with inline values.
pub fn written(table: &Table) -> String {
    table.iter().map(|(key, value)| format!("{key} = {}\n", value_of(value))).collect()
}

fn value_of(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(value_of).collect::<Vec<_>>().join(", "))
        }
        Value::Boolean(is) => is.to_string(),
        Value::Datetime(date) => date.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Integer(number) => number.to_string(),
        // JSON's escapes are TOML's, too.
        Value::String(text) => serde_json::to_string(text).unwrap(),
        Value::Table(table) => {
            let pairs = table.iter().map(|(key, value)| format!("{key} = {}", value_of(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}
