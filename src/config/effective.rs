//! The effective value of every key, with its origin: a line of the file, or the default.

use std::path::Path;

use keygate_core::printable::is_unprintable;
use serde_json::{Map, Value};
use toml::de::DeValue;

use super::document::Document;
use super::form::{Form, Key, Table};
use super::input::Takes;
use super::list::MAX_FINGERPRINTS_SIZE;
use super::message::size_text;
use super::{Config, ConfigError};

/// A table of the configuration in use.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EffectiveTable {
    /// Header as in the file, such as `[[services]]`; empty for the keys at the top.
    pub header: String,
    /// The keys, in the order of the reference. Keys that are off are left out.
    pub values: Vec<EffectiveValue>,
}

/// The effective value of a key.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EffectiveValue {
    /// Name of the key in its table.
    pub key: &'static str,
    /// The value as TOML.
    #[serde(skip)]
    pub toml: String,
    /// The value as JSON, with a date as text.
    pub value: Value,
    /// Line of the file, counted from 1; `None` for the default.
    pub line: Option<usize>,
}

/// The effective values of the configuration in `text`.
pub(super) fn effective(file: &Path, text: &str) -> Result<Vec<EffectiveTable>, ConfigError> {
    Config::parse(file, text)?;
    let invalid = |problem| ConfigError::Invalid { file: file.to_owned(), problems: vec![problem] };
    let document = Document::parse(text, &Config::form()).map_err(invalid)?;
    let mut found = Vec::new();
    if let Form::Table(root) = Config::form() {
        add(&document, &root, String::new(), "", &mut found);
    }
    Ok(found)
}

/// Adds the table at `path`, and the tables inside it.
fn add(
    document: &Document<'_>,
    table: &Table,
    header: String,
    path: &str,
    found: &mut Vec<EffectiveTable>,
) {
    let name = header.trim_matches(['[', ']']).to_owned();
    let (tables, keys): (Vec<_>, Vec<_>) =
        table.keys.iter().partition(|key| key.form.table().is_some());
    let values = keys.into_iter().filter_map(|key| value(document, path, key)).collect();
    found.push(EffectiveTable { header, values });
    for (key, inner) in tables.into_iter().filter_map(|key| Some((key, key.form.table()?))) {
        let inside = |outer: &str| match outer {
            "" => key.name.to_owned(),
            outer => format!("{outer}.{}", key.name),
        };
        let applies = applies(document, path, key);
        let (name, path) = (inside(&name), inside(path));
        match document.value(&path) {
            Some((DeValue::Array(tables), _)) => {
                for index in 0..tables.len() {
                    add(document, inner, format!("[[{name}]]"), &format!("{path}[{index}]"), found);
                }
            }
            // A list without tables, or a table that is off.
            None if key.default != Some("{}") || !applies => {}
            Some(_) | None => add(document, inner, format!("[{name}]"), &path, found),
        }
    }
}

fn value(document: &Document<'_>, table: &str, key: &Key) -> Option<EffectiveValue> {
    let at = |table: &str| match table {
        "" => key.name.to_owned(),
        table => format!("{table}.{}", key.name),
    };
    let of_file = |path: &str| {
        let (value, line) = document.value(path)?;
        let (toml, value) = (one_line(value), json(value));
        Some(EffectiveValue { key: key.name, toml, value, line: Some(line) })
    };
    let inherited = || table.ends_with(".policy").then(|| of_file(&at("policy"))).flatten();
    of_file(&at(table)).or_else(inherited).or_else(|| {
        let toml = default(document, table, key)?;
        let value = default_json(&toml)?;
        Some(EffectiveValue { key: key.name, toml, value, line: None })
    })
}

/// The default of a key in a table; `None` if it is off or is for other tables only.
fn default(document: &Document<'_>, table: &str, key: &Key) -> Option<String> {
    if table.starts_with("lists[") && text(document, table, "format") != Some("badkeys") {
        match key.name {
            "max_age" | "rollback" => return None,
            "max_size" => return Some(format!("{:?}", size_text(MAX_FINGERPRINTS_SIZE))),
            _ => {}
        }
    }
    // `stringify!` breaks a long default into lines.
    key.default.filter(|_| applies(document, table, key)).map(|it| it.replace('\n', " "))
}

/// Whether a key that is not set, or a table, has an effect in the table at `path`.
fn applies(document: &Document<'_>, path: &str, key: &Key) -> bool {
    match key.name {
        "socket_mode" => text(document, path, "listen").is_some_and(|it| it.starts_with("unix:")),
        "cache_for" => text(document, path, "protocol") == Some("http"),
        "client_auth" => !matches!(text(document, path, "protocol"), Some("admission" | "step-ca")),
        "expired_crl" | "revocation" => {
            let has_cas = |key| document.value(&format!("{path}.{key}")).is_some();
            has_cas("trust_anchors") || has_cas("cas")
        }
        _ => true,
    }
}

/// The text of a key of the file.
fn text<'a>(document: &'a Document<'_>, table: &str, name: &str) -> Option<&'a str> {
    document.value(&format!("{table}.{name}")).and_then(|(value, _)| value.as_str())
}

/// A default as JSON.
pub(super) fn default_json(toml: &str) -> Option<Value> {
    Some(json(DeValue::parse(toml).ok()?.get_ref()))
}

/// A value of TOML as JSON, with a date as text.
fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::Array(values) => values.iter().map(|it| json(it.get_ref())).collect(),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(value) => Value::String(value.to_string()),
        DeValue::Float(value) => value.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Integer(value) => {
            i64::from_str_radix(value.as_str(), value.radix()).map_or(Value::Null, Value::from)
        }
        DeValue::String(value) => Value::String(value.to_string()),
        DeValue::Table(table) => {
            let members = table.iter();
            let members = members.map(|(key, value)| (key.to_string(), json(value.get_ref())));
            Value::Object(members.collect::<Map<_, _>>())
        }
    }
}

/// A value in one line of TOML, without characters that act on a terminal.
fn one_line(value: &DeValue<'_>) -> String {
    let escaped = |it: char| match is_unprintable(it) {
        true => format!("\\U{:08X}", u32::from(it)),
        false => it.to_string(),
    };
    toml(value).chars().map(escaped).collect()
}

fn toml(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Array(values) => {
            let values: Vec<_> = values.iter().map(|it| toml(it.get_ref())).collect();
            format!("[{}]", values.join(", "))
        }
        DeValue::Table(table) => {
            let key = |key: &str| Value::from(key).to_string();
            let keys = table.iter();
            let keys = keys
                .map(|(it, value)| format!("{} = {}", key(it.get_ref()), toml(value.get_ref())));
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
        DeValue::Datetime(value) => value.to_string(),
        DeValue::Float(value) => value.as_str().to_owned(),
        DeValue::Boolean(_) | DeValue::Integer(_) | DeValue::String(_) => json(value).to_string(),
    }
}
