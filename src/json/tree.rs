//! A JSON value as a tree, and as a deserializer whose errors have the path of the value.

use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{
    DeserializeOwned, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde_json::Number;

use super::fault::{Fault, Step, shortened};

/// The reason why `tree` is not a `T`.
pub(super) fn fault<T: DeserializeOwned>(tree: &Node) -> Option<Fault> {
    T::deserialize(Place { step: Step::Root, node: tree }).err()
}

/// A value with all its members, of which several may have the same name.
pub(super) enum Node {
    Array(Vec<Self>),
    Bool(bool),
    Null,
    Number(Number),
    Object(Vec<(String, Self)>),
    Text(String),
}

/// The value as it is shown in a problem.
impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(_) => formatter.write_str("an array"),
            Self::Bool(value) => value.fmt(formatter),
            Self::Null => formatter.write_str("null"),
            Self::Number(number) => number.fmt(formatter),
            Self::Object(_) => formatter.write_str("an object"),
            Self::Text(text) => write!(formatter, "{:?}", shortened(text)),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Number::from_f64(value).map_or(Node::Null, Node::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = elements.next_element()? {
            nodes.push(node);
        }
        Ok(Node::Array(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(member) = members.next_entry()? {
            nodes.push(member);
        }
        Ok(Node::Object(nodes))
    }
}

/// A value as a deserializer whose errors have the path of the value.
#[derive(Clone, Copy)]
struct Place<'a> {
    step: Step<'a>,
    node: &'a Node,
}

impl<'a> Place<'a> {
    fn members(
        members: &'a [(String, Node)],
    ) -> MapDeserializer<'a, impl Iterator<Item = (&'a str, Self)>, Fault> {
        let members = members.iter();
        MapDeserializer::new(
            members.map(|(name, node)| (name.as_str(), Self { step: Step::Member(name), node })),
        )
    }

    fn visit<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node {
            Node::Array(nodes) => {
                let nodes = nodes.iter().enumerate();
                let places = nodes.map(|(index, node)| Self { step: Step::Element(index), node });
                visitor.visit_seq(SeqDeserializer::new(places))
            }
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Null => visitor.visit_unit(),
            Node::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Node::Object(members) => visitor.visit_map(Self::members(members)),
            Node::Text(text) => visitor.visit_borrowed_str(text),
        }
    }
}

impl<'a> IntoDeserializer<'a, Fault> for Place<'a> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'a> Deserializer<'a> for Place<'a> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit(visitor).map_err(|fault| fault.inside(self.step, self.node))
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node {
            Node::Null => visitor.visit_none(),
            Node::Array(_) | Node::Bool(_) | Node::Number(_) | Node::Object(_) | Node::Text(_) => {
                visitor.visit_some(self)
            }
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let visited = match self.node {
            Node::Object(members) => {
                visitor.visit_enum(MapAccessDeserializer::new(Self::members(members)))
            }
            Node::Text(text) => visitor.visit_enum(StrDeserializer::new(text)),
            Node::Array(_) | Node::Bool(_) | Node::Null | Node::Number(_) => self.visit(visitor),
        };
        visited.map_err(|fault| fault.inside(self.step, self.node))
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
