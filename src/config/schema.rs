//! The JSON Schema of the configuration, generated from the table of keys.

use serde_json::{Map, Value, json};

use super::Config;
use super::effective::default_json;
use super::form::{Form, Key, Table};
use super::input::Takes;
use super::message::SIZE_UNITS;

/// Returns the JSON Schema (draft 7, which editors with TOML support read) of the configuration.
#[must_use]
pub fn schema() -> Value {
    let mut root = form_schema(&Config::form());
    if let Value::Object(members) = &mut root {
        let one_of = json!([{"required": ["services"]}, {"required": ["authorizers"]}]);
        members.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
        members.insert("title".to_owned(), json!("Configuration of keygate"));
        members.insert("anyOf".to_owned(), one_of);
    }
    root
}

fn table_schema(table: &Table) -> Value {
    let properties = table.keys.iter().map(|key| (key.name.to_owned(), key_schema(key)));
    let required = table.keys.iter().filter(|key| key.is_required()).map(|key| key.name);
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties.collect::<Map<_, _>>(),
        "required": required.collect::<Vec<_>>(),
    })
}

fn key_schema(key: &Key) -> Value {
    let mut schema = form_schema(&key.form);
    let (text, default) = match key.form.table() {
        Some(table) => (plain(table.text), None),
        None if key.meaning.is_empty() => (String::new(), None),
        None => {
            let text = format!("{} Changed: {}.", plain(key.meaning), key.reload.as_str());
            (text, key.default.and_then(default_json))
        }
    };
    if let Value::Object(members) = &mut schema {
        if !text.is_empty() {
            members.insert("description".to_owned(), Value::String(text));
        }
        members.extend(default.map(|default| ("default".to_owned(), default)));
    }
    schema
}

fn form_schema(form: &Form) -> Value {
    match form {
        Form::Boolean => json!({"type": "boolean"}),
        // A number and a unit.
        Form::Duration { .. } => json!({"type": "string", "pattern": "^ *[0-9].*[a-zA-Z] *$"}),
        Form::List(items) => json!({"type": "array", "items": form_schema(items)}),
        Form::Number { min, max } if *max >= u32::MAX.into() => {
            json!({"type": "integer", "minimum": min})
        }
        Form::Number { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Form::Size { .. } => json!({"type": "string", "pattern": size_pattern()}),
        Form::Table(table) => table_schema(table),
        // The date and time of TOML count as text, too.
        Form::Date | Form::Text => json!({"type": "string"}),
        Form::TextOrTable(table) => json!({"anyOf": [{"type": "string"}, table_schema(table)]}),
        Form::Words(words) => json!({"type": "string", "enum": words}),
    }
}

/// A number and one of the units.
fn size_pattern() -> String {
    format!("^ *[0-9]+(\\.[0-9]+)? *({}) *$", SIZE_UNITS.join("|"))
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
    fn links_become_their_text() {
        let markdown = "a [b](c.md#d), `[[e]]` ([f](g))  h";
        assert_eq!(plain(markdown), "a b, `[[e]]` (f) h");
    }
}
