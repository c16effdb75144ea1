//! Converts a document into typed tables, and reports everything in it that has the wrong form:
//! unknown and missing keys, values of the wrong type, unknown words.
//!
//! serde ends at the first error. The value with the error is then left out, and the conversion is
//! repeated. A required key that is missing gets a placeholder. The tables are therefore complete
//! in any case, and the caller can check the other values in the same pass.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use toml::Spanned;
use toml::de::DeValue;

use super::Document;
use crate::config::ConfigProblem;

/// Maximum number of problems of the form that are collected.
const MAX_PROBLEMS: usize = 100;
/// Maximum number of characters of a value in a message.
const MAX_SHOWN: usize = 60;
/// Similarity from which a known word is suggested for an unknown one that is several letters apart,
/// such as `cert` for `certificate`.
const SIMILAR: f64 = 0.85;

/// The tables of a document, and the problems of its form.
pub(in crate::config) struct Decoded<T> {
    /// The tables; values with a problem are left out. `None` if there are too many problems.
    pub(in crate::config) tables: Option<T>,
    pub(in crate::config) problems: Vec<ConfigProblem>,
    /// Paths of the values that have a problem, or that the document lacks.
    faulty: BTreeSet<String>,
}

impl<T> Decoded<T> {
    /// Whether the value at `path`, one around it or one inside it has a problem of its form.
    pub(in crate::config) fn is_faulty(&self, path: &str) -> bool {
        let is_inside = |inner: &str, outer: &str| {
            inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.faulty.iter().any(|faulty| is_inside(path, faulty) || is_inside(faulty, path))
    }
}

/// Converts `document`.
pub(in crate::config) fn decode<'a, T: Deserialize<'a>>(document: &'a Document<'a>) -> Decoded<T> {
    let mut repairs = Repairs::default();
    let mut problems = Vec::new();
    let tables = loop {
        let root = Value { node: Some(&document.root), span: 0..0, path: String::new() };
        let fault = match T::deserialize(Decoder { value: root, document, repairs: &repairs }) {
            Ok(tables) => break Some(tables),
            Err(fault) => fault,
        };
        let Some(place) = fault.place else {
            problems.push(document.problem("", fault.problem));
            break None;
        };
        if !place.is_known {
            problems.push(document.problem_at(&place.span, &place.path, fault.problem));
        }
        let is_new = match place.repair {
            Repair::Complete => repairs.completed.insert(place.path),
            Repair::LeaveOut => repairs.left_out.insert(place.path),
        };
        if !is_new || problems.len() >= MAX_PROBLEMS {
            break None;
        }
    };
    let Repairs { mut completed, left_out } = repairs;
    completed.extend(left_out);
    Decoded { tables, problems, faulty: completed }
}

/// The values that are treated differently because they have a problem.
#[derive(Default)]
struct Repairs {
    /// Paths of required values that the document lacks. They get a placeholder.
    completed: BTreeSet<String>,
    /// Paths of values that are left out.
    left_out: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy)]
enum Repair {
    Complete,
    LeaveOut,
}

/// A problem of the form.
#[derive(Debug)]
struct Fault {
    problem: String,
    /// The required key that is missing, until its table adds the place.
    missing: Option<&'static str>,
    /// Added by the innermost table or list around the value.
    place: Option<FaultPosition>,
}

#[derive(Debug)]
struct FaultPosition {
    path: String,
    span: Range<usize>,
    repair: Repair,
    /// Whether the problem follows from one that was reported.
    is_known: bool,
}

impl Fault {
    fn new(problem: String) -> Self {
        Self { problem, missing: None, place: None }
    }

    /// Adds the place of the value, unless the fault is in a value inside it.
    fn at(mut self, path: &str, span: &Range<usize>) -> Self {
        self.place.get_or_insert_with(|| FaultPosition {
            path: path.to_owned(),
            span: span.clone(),
            repair: Repair::LeaveOut,
            is_known: false,
        });
        self
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem)
    }
}

impl Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("not {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("not {expected}"))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::new(format!("{word:?} is not {}{}", one_of(known), suggestion(word, known)))
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        let hint = match suggestion(key, known) {
            hint if hint.is_empty() => format!("; the keys here are {}", known.join(", ")),
            hint => hint,
        };
        Self::new(format!("there is no key {key:?}{hint}"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            missing: Some(field),
            ..Self::new("the key is missing; it has no default".to_owned())
        }
    }
}

/// `"a"`, or `one of "a", "b"`.
fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.as_slice() {
        [one] => one.clone(),
        _ => format!("one of {}", quoted.join(", ")),
    }
}

/// A question with the known word that is most similar to `word`, if any is similar.
fn suggestion(word: &str, known: &[&str]) -> String {
    let word = word.to_ascii_lowercase();
    let candidates = known.iter().filter_map(|known| {
        let distance = strsim::osa_distance(&word, known);
        let is_similar = (word.len() > 2 && distance <= 1.max(known.len() / 4))
            || strsim::jaro_winkler(&word, known) >= SIMILAR;
        is_similar.then_some((distance, known))
    });
    let best = candidates.min_by_key(|(distance, _)| *distance);
    best.map_or_else(String::new, |(_, known)| format!("; did you mean {known:?}?"))
}

/// A value of the document, or the placeholder for a required one that is missing.
#[derive(Clone)]
struct Value<'a> {
    /// `None`: a placeholder.
    node: Option<&'a DeValue<'a>>,
    span: Range<usize>,
    path: String,
}

/// Converts one value.
struct Decoder<'a, 'r> {
    value: Value<'a>,
    document: &'a Document<'a>,
    repairs: &'r Repairs,
}

impl<'a, 'r> Decoder<'a, 'r> {
    /// The error that the value is not what is `expected`.
    fn unlike(&self, expected: impl fmt::Display) -> Fault {
        let found = match self.value.node {
            Some(DeValue::Table(_)) => Cow::Borrowed("a table"),
            Some(DeValue::Array(_)) => Cow::Borrowed("a list"),
            Some(_) | None => self.shown(),
        };
        Fault::new(format!("{found} is not {expected}"))
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

    /// The value as a whole number from `min` to `max`.
    fn number(&self, min: i128, max: i128) -> Result<i128, Fault> {
        let expected = || match (min, max) {
            (0, max) if max >= i128::from(u64::MAX) => "a whole number, 0 or more".to_owned(),
            (min, max) => format!("a whole number from {min} to {max}"),
        };
        match self.value.node {
            None => Ok(1),
            Some(DeValue::Integer(integer)) => {
                let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
                let number = number.filter(|number| (min..=max).contains(number));
                number.ok_or_else(|| self.unlike(expected()))
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
                "a string" | "path string" | "a borrowed string" => self.unlike("text in quotes"),
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
            Some(_) => return Err(self.unlike("a table")),
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

/// The entries of a table.
struct Entries<'a, 'r> {
    entries: VecDeque<(Cow<'a, str>, Range<usize>, Value<'a>)>,
    /// The value of the key that was visited last.
    next: Option<Value<'a>>,
    document: &'a Document<'a>,
    repairs: &'r Repairs,
}

impl<'a> MapAccess<'a> for Entries<'a, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some((key, span, value)) = self.entries.pop_front() else { return Ok(None) };
        let key: StrDeserializer<'_, Fault> = key.as_ref().into_deserializer();
        let key = seed.deserialize(key).map_err(|fault| fault.at(&value.path, &span))?;
        self.next = Some(value);
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let value = self.next.take().ok_or_else(|| Fault::new("a key has no value".to_owned()))?;
        decode_value(seed, value, self.document, self.repairs)
    }
}

/// The elements of a list.
struct Elements<'a, 'r> {
    elements: VecDeque<Value<'a>>,
    document: &'a Document<'a>,
    repairs: &'r Repairs,
}

impl<'a> SeqAccess<'a> for Elements<'a, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'a>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some(value) = self.elements.pop_front() else { return Ok(None) };
        decode_value(seed, value, self.document, self.repairs).map(Some)
    }
}

fn decode_value<'a, T: DeserializeSeed<'a>>(
    seed: T,
    value: Value<'a>,
    document: &'a Document<'a>,
    repairs: &Repairs,
) -> Result<T::Value, Fault> {
    let (path, span) = (value.path.clone(), value.span.clone());
    let decoder = Decoder { value, document, repairs };
    seed.deserialize(decoder).map_err(|fault| fault.at(&path, &span))
}

/// A method for a type of numbers.
macro_rules! number {
    ($method:ident, $visit:ident, $type:ty) => {
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
            let number = self.number(<$type>::MIN.into(), <$type>::MAX.into())?;
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
            Some(_) => Err(self.unlike(one_of(words))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'a>>
        byte_buf char f32 f64 i128 identifier tuple tuple_struct u128 unit unit_struct
    }
}

/// A word that selects a variant without content.
struct Word<'a>(&'a str);

impl<'a> EnumAccess<'a> for Word<'a> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'a>>(self, seed: V) -> Result<(V::Value, Self), Fault> {
        let word: StrDeserializer<'_, Fault> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'a> VariantAccess<'a> for Word<'a> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'a>>(self, _: T) -> Result<T::Value, Fault> {
        Err(Fault::new("not a table".to_owned()))
    }

    fn tuple_variant<V: Visitor<'a>>(self, _: usize, _: V) -> Result<V::Value, Fault> {
        Err(Fault::new("not a table".to_owned()))
    }

    fn struct_variant<V: Visitor<'a>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Fault> {
        Err(Fault::new("not a table".to_owned()))
    }
}
