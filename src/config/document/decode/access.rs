//! The parts of a value, which serde takes one after another: entries of a table, elements of a
//! list, a word.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::Repairs;
use super::deserializer::{Decoder, Value};
use super::fault::Fault;
use crate::config::document::Document;

/// The entries of a table.
pub(super) struct Entries<'a, 'r> {
    pub(super) entries: VecDeque<(Cow<'a, str>, Range<usize>, Value<'a>)>,
    /// The value of the key that was visited last.
    pub(super) next: Option<Value<'a>>,
    pub(super) document: &'a Document<'a>,
    pub(super) repairs: &'r Repairs,
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
pub(super) struct Elements<'a, 'r> {
    pub(super) elements: VecDeque<Value<'a>>,
    pub(super) document: &'a Document<'a>,
    pub(super) repairs: &'r Repairs,
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
    let decoder = Decoder::new(value, document, repairs);
    seed.deserialize(decoder).map_err(|fault| fault.at(&path, &span))
}

/// A word that selects a variant without content.
pub(super) struct Word<'a>(pub(super) &'a str);

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
