//! The effective value of every key, with its origin: a line of the file, or the default.

use std::fmt::{self, Write};
use std::path::Path;

use serde_json::{Map, Value};
use toml::de::DeValue;

use super::document::Document;
use super::reference::{ReferenceKey, ReferenceTable, tables};
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
///
/// # Errors
/// Returns the errors of [`Config::parse`].
pub(super) fn effective(file: &Path, text: &str) -> Result<Vec<EffectiveTable>, ConfigError> {
    Config::parse(file, text)?;
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    let document = Document::parse(text).map_err(invalid)?;
    let all = tables();
    let mut found = Vec::new();
    for table in all.iter().filter(|table| table.split().0.is_empty()) {
        add(&document, &all, table, table.name, &mut found);
    }
    Ok(found)
}

/// Adds the table at `path`, each table of an array, and the tables inside them.
fn add(
    document: &Document<'_>,
    all: &[ReferenceTable],
    table: &ReferenceTable,
    path: &str,
    found: &mut Vec<EffectiveTable>,
) {
    let paths: Vec<String> = match document.value(path) {
        Some((DeValue::Array(tables), _)) if table.is_array() => {
            (0..tables.len()).map(|index| format!("{path}[{index}]")).collect()
        }
        // A valid configuration lacks no table with a required key, unless the table is optional.
        None if table.is_array() || table.is_optional() || table.has_required_key() => Vec::new(),
        Some(_) | None => vec![path.to_owned()],
    };
    for path in paths {
        let header = match table.name {
            "" => String::new(),
            name if table.is_array() => format!("[[{name}]]"),
            name => format!("[{name}]"),
        };
        let values = table.keys.iter().filter_map(|key| value(document, &path, key)).collect();
        found.push(EffectiveTable { header, values });
        for inner in all.iter().filter(|inner| inner.split().0 == table.name) {
            if !table.name.is_empty() && !inner.name.is_empty() {
                let (_, last) = inner.split();
                add(document, all, inner, &format!("{path}.{last}"), found);
            }
        }
    }
}

fn value(document: &Document<'_>, table: &str, key: &ReferenceKey) -> Option<EffectiveValue> {
    let at = |table: &str| match table {
        "" => key.name.to_owned(),
        table => format!("{table}.{}", key.name),
    };
    let of_file = |path: &str| {
        let (value, line) = document.value(path)?;
        let (toml, value) = (Toml(value).to_string(), json(value));
        Some(EffectiveValue { key: key.name, toml, value, line: Some(line) })
    };
    let inherited = || table.ends_with(".policy").then(|| of_file(&at("policy"))).flatten();
    of_file(&at(table)).or_else(inherited).or_else(|| {
        let toml = default(document, table, key)?.to_owned();
        let text = format!("it = {toml}");
        let value = json(Document::parse(&text).ok()?.value("it")?.0);
        Some(EffectiveValue { key: key.name, toml, value, line: None })
    })
}

/// The default of a key in a table; `None` if it is off or is for other tables only.
fn default(document: &Document<'_>, table: &str, key: &ReferenceKey) -> Option<&'static str> {
    let text_of = |name: &str| {
        let (value, _) = document.value(&format!("{table}.{name}"))?;
        value.as_str().map(str::to_owned)
    };
    if table.starts_with("lists[") && text_of("format").as_deref() != Some("badkeys") {
        match key.name {
            "max_age" | "rollback" => return None,
            "max_size" => return Some("\"16MiB\""),
            _ => {}
        }
    }
    let applies = match key.name {
        "socket_mode" => text_of("listen").is_some_and(|it| it.starts_with("unix:")),
        "cache_for" => text_of("protocol").as_deref() == Some("http"),
        "expired_crl" | "revocation" => text_of("trust_anchors").is_some(),
        _ => true,
    };
    key.default.filter(|_| applies)
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

/// A value in one line of TOML.
struct Toml<'v, 'a>(&'v DeValue<'a>);

impl fmt::Display for Toml<'_, '_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            DeValue::Array(values) => {
                formatter.write_char('[')?;
                for (index, value) in values.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(formatter, "{comma}{}", Toml(value.get_ref()))?;
                }
                formatter.write_char(']')
            }
            DeValue::Boolean(value) => value.fmt(formatter),
            DeValue::Datetime(value) => value.fmt(formatter),
            DeValue::Float(value) => formatter.write_str(value.as_str()),
            DeValue::Integer(value) => value.fmt(formatter),
            DeValue::String(value) => text(formatter, value),
            DeValue::Table(table) => {
                formatter.write_str("{ ")?;
                for (index, (key, value)) in table.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    formatter.write_str(comma)?;
                    text(formatter, key.get_ref())?;
                    write!(formatter, " = {}", Toml(value.get_ref()))?;
                }
                formatter.write_str(" }")
            }
        }
    }
}

/// A basic string of TOML, without control characters.
fn text(formatter: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    formatter.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => formatter.write_str("\\\"")?,
            '\\' => formatter.write_str("\\\\")?,
            control if control.is_control() => write!(formatter, "\\U{:08X}", u32::from(control))?,
            plain => formatter.write_char(plain)?,
        }
    }
    formatter.write_char('"')
}
