//! The JSON Schema of the configuration, generated from the reference of all keys.

use serde_json::{Map, Value, json};

use super::reference::{ReferenceKey, ReferenceTable, tables};
use super::units::SIZE_UNITS;

/// Keys that another key makes required: the certificate of a question, with `protocol = "http"`.
const REQUIRED_AT_TIMES: [&str; 1] = ["certificate_from"];

/// Returns the JSON Schema (draft 7, which editors with TOML support read) of the configuration.
#[must_use]
pub fn schema() -> Value {
    let tables = tables();
    let mut root = object("", &tables);
    if let Value::Object(members) = &mut root {
        let one_of = json!([{"required": ["services"]}, {"required": ["authorizers"]}]);
        members.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
        members.insert("title".to_owned(), json!("Configuration of keygate"));
        members.insert("anyOf".to_owned(), one_of);
    }
    root
}

/// The schema of the table with this name, with the tables inside it.
fn object(name: &str, tables: &[ReferenceTable]) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    let own = tables.iter().find(|table| table.name == name);
    for key in own.iter().flat_map(|table| &table.keys) {
        properties.insert(key.name.to_owned(), key_schema(key));
        let is_required = key.is_required && !REQUIRED_AT_TIMES.contains(&key.name);
        required.extend(is_required.then_some(key.name));
    }
    for table in tables.iter().filter(|table| !table.name.is_empty()) {
        let (around, last) = table.split();
        if around != name {
            continue;
        }
        let is_required = table.has_required_key() && !table.is_optional();
        let inner = object(table.name, tables);
        let inner = if table.is_array() {
            json!({"type": "array", "items": inner})
        } else {
            required.extend(is_required.then_some(last));
            inner
        };
        properties.insert(last.to_owned(), inner);
    }
    let mut schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": required,
    });
    let text = own.map(|table| plain(&table.text)).filter(|text| !text.is_empty());
    if let (Some(text), Value::Object(members)) = (text, &mut schema) {
        members.insert("description".to_owned(), Value::String(text));
    }
    schema
}

fn key_schema(key: &ReferenceKey) -> Value {
    let mut schema = type_schema(key.takes);
    if let Value::Object(members) = &mut schema {
        members.insert("description".to_owned(), Value::String(plain(key.meaning)));
        if let Some(default) = key.default.and_then(json_of) {
            members.insert("default".to_owned(), default);
        }
    }
    schema
}

/// The schema of a type as the page names it.
fn type_schema(takes: &str) -> Value {
    let (kind, bounds) = match takes.split_once(", ") {
        Some((kind, bounds)) if !takes.contains('`') => (kind, bounds),
        Some(_) | None => (takes, ""),
    };
    if let Some(items) = kind.strip_prefix("list of ") {
        let items = match items {
            "numbers" => json!({"type": "integer", "minimum": 0}),
            "servers" => json!({"anyOf": [{"type": "string"}, {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "url": {"type": "string"},
                    "weight": {"type": "integer", "minimum": 1, "maximum": 1000},
                },
                "required": ["url"],
            }]}),
            words => type_schema(words),
        };
        return json!({"type": "array", "items": items});
    }
    match kind {
        "number" => number(bounds),
        // A number and a unit.
        "duration" => json!({"type": "string", "pattern": "^ *[0-9].*[a-zA-Z] *$"}),
        "size" => json!({"type": "string", "pattern": size_pattern()}),
        "text or table" => json!({"type": ["string", "object"]}),
        "`true`, `false`" => json!({"type": "boolean"}),
        words if words.starts_with('`') => {
            let words: Vec<_> = words.split(", ").map(|word| word.trim_matches('`')).collect();
            json!({"type": "string", "enum": words})
        }
        // Text; the date and time of TOML count as text, too.
        _ => json!({"type": "string"}),
    }
}

/// A number and one of the units.
fn size_pattern() -> String {
    format!("^ *[0-9]+(\\.[0-9]+)? *({}) *$", SIZE_UNITS.join("|"))
}

fn number(bounds: &str) -> Value {
    let parsed = |text: &str| text.parse::<u64>().ok();
    let (least, most) = match bounds.split_once(" to ") {
        Some((least, most)) => (parsed(least), parsed(most)),
        None => (bounds.strip_prefix("from ").and_then(parsed), None),
    };
    let least = least.unwrap_or_default();
    match most {
        Some(most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        None => json!({"type": "integer", "minimum": least}),
    }
}

/// A value of TOML as JSON.
fn json_of(toml: &str) -> Option<Value> {
    let table: Map<String, Value> = toml::from_str(&format!("it = {toml}")).ok()?;
    table.get("it").cloned()
}

/// Text without the links and the emphasis of Markdown.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text += before;
        rest = match link.split_once("](").and_then(|(label, after)| {
            let (_, after) = after.split_once(')')?;
            (!label.contains(']')).then_some((label, after))
        }) {
            Some((label, after)) => {
                text += label;
                after
            }
            None => {
                text.push('[');
                link
            }
        };
    }
    text += rest;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_of_the_page_becomes_a_schema() {
        for (takes, expected) in [
            ("text", json!({"type": "string"})),
            ("number, 1 to 9", json!({"type": "integer", "minimum": 1, "maximum": 9})),
            ("number, from 2", json!({"type": "integer", "minimum": 2})),
            ("number", json!({"type": "integer", "minimum": 0})),
            ("`true`, `false`", json!({"type": "boolean"})),
            ("`a`, `b`", json!({"type": "string", "enum": ["a", "b"]})),
            ("list of `a`", json!({"type": "array", "items": {"type": "string", "enum": ["a"]}})),
            ("list of text", json!({"type": "array", "items": {"type": "string"}})),
        ] {
            assert_eq!(type_schema(takes), expected, "{takes}");
        }
    }

    #[test]
    fn links_become_their_text() {
        let markdown = "a [b](c.md#d), `[[e]]` ([f](g))  h";
        assert_eq!(plain(markdown), "a b, `[[e]]` (f) h");
    }
}
