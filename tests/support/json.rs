//! JSON without repeated members: readers differ in which of two they use (RFC 8259, section 4).

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Parses one value.
///
/// # Panics
/// Panics if `text` is not JSON, or if an object has two members with one name.
pub fn strict(text: &str) -> Value {
    let checked: Result<Strict, _> = serde_json::from_str(text);
    checked.unwrap_or_else(|error| panic!("{error} in {text}"));
    serde_json::from_str(text).unwrap()
}

/// A value whose objects have no member twice.
struct Strict;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        let mut names = std::collections::BTreeSet::new();
        while let Some((name, _)) = object.next_entry::<String, Self>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("the member {name:?} occurs twice")));
            }
        }
        Ok(self)
    }
}
