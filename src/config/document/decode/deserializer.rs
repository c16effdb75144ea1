//! The values of a document as a serde deserializer, whose errors have the place of the value.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, Expected, Visitor};
use toml::Spanned;
use toml::de::DeValue;

use super::Repairs;
use super::access::{Elements, Entries, Word};
use super::fault::{Fault, FaultPosition, Repair, one_of};
use crate::config::document::Document;
use crate::config::suggestion::suggestion;

/// Maximum number of characters of a value in a message.
const MAX_SHOWN: usize = 60;

/// A value of the document, or the placeholder for a required one that is missing.
#[derive(Clone)]
pub(super) struct Value<'a> {
    /// `None`: a placeholder.
    node: Option<&'a DeValue<'a>>,
    pub(super) span: Range<usize>,
    pub(super) path: String,
}

impl<'a> Value<'a> {
    /// The document as one value.
    pub(super) fn root(document: &'a Document<'a>) -> Self {
        Self { node: Some(&document.root), span: 0..0, path: String::new() }
    }
}

/// Converts one value.
pub(super) struct Decoder<'a, 'r> {
    value: Value<'a>,
    document: &'a Document<'a>,
    repairs: &'r Repairs,
}

impl<'a, 'r> Decoder<'a, 'r> {
    /// Converts `value` of `document`, except for what has a repair.
    pub(super) fn new(value: Value<'a>, document: &'a Document<'a>, repairs: &'r Repairs) -> Self {
        Self { value, document, repairs }
    }

    /// The error that the value is not what is `expected`.
    fn unlike(&self, expected: impl fmt::Display) -> Fault {
        let found = match self.value.node {
            Some(DeValue::Table(_)) => Cow::Borrowed("a table"),
            Some(DeValue::Array(_)) => Cow::Borrowed("a list"),
            Some(_) | None => self.shown(),
        };
        Fault::new(format!("{found} is not {expected}"))
    }

    /// The error that the value is not text, with the value in quotes if it is a simple one.
    fn unlike_text(&self) -> Fault {
        match self.value.node {
            Some(DeValue::Array(_) | DeValue::Table(_)) | None => self.unlike("text in quotes"),
            Some(_) => self.unlike(format_args!("text in quotes; write {:?}", self.shown())),
        }
    }

    /// The error that the value is none of `words`, with the one that it is similar to.
    fn unlike_word(&self, words: &[&str]) -> Fault {
        let shown = self.shown();
        let hint = if words.contains(&shown.as_ref()) {
            format!("; write {shown:?}")
        } else {
            suggestion(&shown, words)
        };
        self.unlike(format_args!("{}{hint}", one_of(words)))
    }

    /// The name in the header of a table at the place of the value.
    fn header(&self) -> String {
        let keys = self.value.path.split('.').map(|key| key.split('[').next().unwrap_or_default());
        keys.collect::<Vec<_>>().join(".")
    }

    /// The value as it is written.
    fn shown(&self) -> Cow<'a, str> {
        let text = self.document.text.get(self.value.span.clone()).unwrap_or_default();
        let text = text.lines().next().unwrap_or_default();
        match text.char_indices().nth(MAX_SHOWN) {
            None => Cow::Borrowed(text),
            Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
        }
    }

    /// The value as a whole number from `min` to `max`, the bounds of its type.
    fn number(&self, min: i128, max: i128, visitor: &dyn Expected) -> Result<i128, Fault> {
        let expected = || match (visitor.to_string(), min, max) {
            // A visitor with bounds of its own. The others name a type.
            (bounded, ..) if bounded.starts_with("a whole number ") => bounded,
            (_, 0, max) if max >= i128::from(u64::MAX) => {
                "a whole number without quotes, 0 or more".to_owned()
            }
            (_, min, max) => format!("a whole number without quotes, from {min} to {max}"),
        };
        match self.value.node {
            None => Ok(1),
            Some(DeValue::Integer(integer)) => {
                match i128::from_str_radix(integer.as_str(), integer.radix()) {
                    Ok(number) if (min..=max).contains(&number) => Ok(number),
                    Ok(number) if min == 0 && number < 0 && max >= i128::from(u64::MAX) => {
                        Err(Fault::new(format!("{number}; give 0 or more")))
                    }
                    Ok(number) => {
                        Err(Fault::new(format!("{number} is not between {min} and {max}")))
                    }
                    Err(_) => Err(self.unlike(expected())),
                }
            }
            Some(_) => Err(self.unlike(expected())),
        }
    }

    fn text(&self, expected: &dyn Expected) -> Result<Option<&'a str>, Fault> {
        match self.value.node {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(text)),
            // The visitors of `String` and `PathBuf` use names of types.
            Some(_) => Err(match expected.to_string().as_str() {
                "a string" | "path string" | "a borrowed string" => self.unlike_text(),
                expected => self.unlike(expected),
            }),
        }
    }

    fn table<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        let entries = match self.value.node {
            None => VecDeque::new(),
            Some(DeValue::Table(table)) => {
                let place = |key: &str| match self.value.path.as_str() {
                    "" => key.to_owned(),
                    path => format!("{path}.{key}"),
                };
                table.iter().map(|(key, value)| (place(key.get_ref()), key, value)).collect()
            }
            Some(_) => {
                let header = self.header();
                let expected =
                    format!("a table; write [{header}] above its keys, or braces around them");
                return Err(self.unlike(expected));
            }
        };
        let Self { value, document, repairs } = self;
        let mut entries: VecDeque<_> = entries
            .into_iter()
            .filter(|(path, ..)| !repairs.left_out.contains(path))
            .map(
                |(path, key, node): (
                    String,
                    &'a Spanned<Cow<'a, str>>,
                    &'a Spanned<DeValue<'a>>,
                )| {
                    let value = Value { node: Some(node.get_ref()), span: node.span(), path };
                    (Cow::Borrowed(key.get_ref().as_ref()), key.span(), value)
                },
            )
            .collect();
        // The placeholders of keys of this table.
        let inside = |path: &str| {
            let rest = path.strip_prefix(&value.path)?;
            let key = if value.path.is_empty() { rest } else { rest.strip_prefix('.')? };
            (!key.contains(['.', '['])).then(|| key.to_owned())
        };
        for path in &repairs.completed {
            if let Some(key) = inside(path) {
                let absent = Value { node: None, span: value.span.clone(), path: path.clone() };
                entries.push_back((Cow::Owned(key), value.span.clone(), absent));
            }
        }
        let entries = Entries { entries, next: None, document, repairs };
        visitor.visit_map(entries).map_err(|mut fault| {
            if let (Some(key), None) = (fault.missing, &fault.place) {
                let path = if value.path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{}.{key}", value.path)
                };
                // Left out because of its own problem, or inside of a placeholder.
                let is_known = value.node.is_none() || repairs.left_out.contains(&path);
                let (span, repair) = (value.span.clone(), Repair::Complete);
                fault.place = Some(FaultPosition { path, span, repair, is_known });
            }
            fault
        })
    }

    fn list<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        let nodes: &[Spanned<DeValue<'a>>] = match self.value.node {
            None => &[],
            Some(DeValue::Array(nodes)) => nodes,
            // The lists at the top have tables.
            Some(DeValue::Table(_)) if !self.value.path.contains('.') => {
                let header = self.header();
                let expected =
                    format!("a list in brackets; write [[{header}]] above the keys of each");
                return Err(self.unlike(expected));
            }
            Some(_) => return Err(self.unlike("a list in brackets")),
        };
        let Self { value, document, repairs } = self;
        let elements = nodes.iter().enumerate().map(|(index, node)| Value {
            node: Some(node.get_ref()),
            span: node.span(),
            path: format!("{}[{index}]", value.path),
        });
        let elements = elements.filter(|it| !repairs.left_out.contains(&it.path)).collect();
        visitor.visit_seq(Elements { elements, document, repairs })
    }
}

/// A method for a type of numbers.
macro_rules! number {
    ($method:ident, $visit:ident, $type:ty) => {
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
            let number = self.number(<$type>::MIN.into(), <$type>::MAX.into(), &visitor)?;
            let number = <$type>::try_from(number).map_err(|_| self.unlike("a whole number"))?;
            visitor.$visit(number)
        }
    };
}

impl<'a> Deserializer<'a> for Decoder<'a, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value.node {
            None => visitor.visit_borrowed_str(""),
            Some(DeValue::String(text)) => visitor.visit_borrowed_str(text),
            Some(DeValue::Array(_)) => self.list(visitor),
            Some(DeValue::Table(_)) => self.table(visitor),
            Some(
                DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Float(_)
                | DeValue::Integer(_),
            ) => Err(self.unlike(&visitor as &dyn Expected)),
        }
    }

    number!(deserialize_i8, visit_i8, i8);
    number!(deserialize_i16, visit_i16, i16);
    number!(deserialize_i32, visit_i32, i32);
    number!(deserialize_i64, visit_i64, i64);
    number!(deserialize_i128, visit_i128, i128);
    number!(deserialize_u8, visit_u8, u8);
    number!(deserialize_u16, visit_u16, u16);
    number!(deserialize_u32, visit_u32, u32);
    number!(deserialize_u64, visit_u64, u64);

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value.node {
            None => visitor.visit_bool(false),
            Some(DeValue::Boolean(value)) => visitor.visit_bool(*value),
            Some(_) => Err(self.unlike("true or false, without quotes")),
        }
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        let text = self.text(&visitor)?.unwrap_or_default();
        visitor.visit_borrowed_str(text)
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    /// A date. TOML has no bytes of its own, so that its text is visited as bytes.
    fn deserialize_bytes<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value.node {
            None => visitor.visit_bytes(b"2000-01-01"),
            Some(DeValue::Datetime(date)) => visitor.visit_bytes(date.to_string().as_bytes()),
            Some(_) => Err(self.unlike(&visitor as &dyn Expected)),
        }
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.list(visitor)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.table(visitor)
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.table(visitor)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.value.node {
            None => visitor.visit_enum(Word(words.first().copied().unwrap_or_default())),
            Some(DeValue::String(word)) => visitor.visit_enum(Word(word)),
            Some(_) => Err(self.unlike_word(words)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'a>>
        byte_buf char f32 f64 identifier tuple tuple_struct u128 unit unit_struct
    }
}
