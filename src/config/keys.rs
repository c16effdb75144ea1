//! The table of keys: each key with its type, its bounds, its default, the effect of a reload and its
//! meaning. The tables below `raw` declare them. The check of a file, the JSON Schema, `config show`
//! and the rows of `docs/configuration.md` come from here.

use std::path::PathBuf;

use keygate_core::guard::{Depth, RejectWith, WeakCheck};
use serde::de::{Deserializer, Error, Visitor, value};
use toml::value::Datetime;

use super::*;

/// The values that a key takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    Boolean,
    Date,
    Duration {
        is_positive: bool,
    },
    List(Box<Self>),
    Number {
        min: u64,
        max: u64,
    },
    /// A size in bytes.
    Size {
        min: u64,
        max: u64,
    },
    Table(Table),
    Text,
    /// Text, or a table with these keys.
    TextOrTable(Table),
    Words(&'static [&'static str]),
}

/// The keys of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// Meaning of the table, in Markdown.
    pub(super) text: &'static str,
    pub(super) keys: Vec<Key>,
}

/// A key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// The default in TOML. Without one, the key is off by default, or required.
    pub(super) default: Option<&'static str>,
    /// Whether the key may be absent from the typed table, where another default may apply.
    pub(super) is_optional: bool,
    pub(super) reload: Reload,
    /// Meaning, in Markdown with links relative to `docs`.
    pub(super) meaning: &'static str,
}

/// The time at which a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reload {
    AtOnce,
    NewConnections,
    NextRequest,
    Restart,
}

impl Key {
    pub(super) fn is_required(&self) -> bool {
        self.default.is_none() && !self.is_optional
    }

    /// Gives all keys of a table that is used twice the effect of a reload of this place.
    pub(super) fn with(mut self, reload: Reload) -> Self {
        if let Form::Table(table) = &mut self.form {
            table.keys.iter_mut().for_each(|key| key.reload = reload);
        }
        Self { reload, ..self }
    }

    /// Gives the key, or a table that is used twice, the meaning of this place.
    pub(super) fn meaning(mut self, meaning: &'static str) -> Self {
        if let Form::Table(table) = &mut self.form {
            table.text = meaning;
        }
        Self { meaning, ..self }
    }
}

impl Form {
    /// The table, or text.
    pub(super) fn or_text(self) -> Self {
        if let Self::Table(table) = self { Self::TextOrTable(table) } else { Self::Text }
    }

    /// The keys of the table, or of each table of the array.
    pub(super) fn table(&self) -> Option<&Table> {
        let form = if let Self::List(items) = self { items.as_ref() } else { self };
        if let Self::Table(table) = form { Some(table) } else { None }
    }
}

/// A type of values, with their form.
pub(super) trait Takes {
    /// Whether the value may be absent.
    const IS_OPTIONAL: bool = false;

    fn form() -> Form;
}

/// Declares a typed table with its keys: `key: Type = DEFAULT => RELOAD "MEANING"`. A key of the type
/// `Option` is optional, also if another place has its default.
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $text:literal {
        $($(#[$attribute:meta])* $key_vis:vis $key:ident: $type:ty $(= $default:tt)?
            $(=> $($reload:ident)? $meaning:literal)?,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize)]
        $vis struct $name { $($(#[$attribute])* $key_vis $key: $type,)+ }

        impl $crate::config::keys::Takes for $name {
            fn form() -> $crate::config::keys::Form {
                use $crate::config::keys::{Form, Key, Reload, Table, Takes};
                let keys = vec![$(
                    Key {
                        name: stringify!($key),
                        form: <$type as Takes>::form(),
                        default: [$(stringify!($default),)? ""].into_iter().find(|it| !it.is_empty()),
                        is_optional: <$type as Takes>::IS_OPTIONAL,
                        reload: Reload::AtOnce,
                        meaning: "",
                    }
                    $($(.with(Reload::$reload))? .meaning($meaning))?,
                )+];
                Form::Table(Table { text: $text, keys })
            }
        }
    };
}
pub(super) use table;

/// Declares that types have this form.
macro_rules! takes {
    ($($type:ty => $form:expr,)+) => {
        $(impl Takes for $type {
            fn form() -> Form {
                $form
            }
        })+
    };
}

/// Declares that types are words.
macro_rules! words {
    ($($type:ty,)+) => {
        takes! { $($type => Form::Words(words::<$type>()),)+ }
    };
}

takes! {
    bool => Form::Boolean,
    Datetime => Form::Date,
    PathBuf => Form::Text,
    String => Form::Text,
    u32 => Form::Number { min: 0, max: u32::MAX.into() },
    usize => Form::Number { min: 0, max: u64::MAX },
}

words! {
    AccessLogField, AccessLogFormat, AdminCommands, AlpnProtocol, AuthorizerProtocol, Balance,
    ClientAuthMode, Depth, ExpiredCrl, Forwarded, HeaderEncoding, Implausible, LogFormat,
    LoggedRequests, Protocol, RejectWith, Reuse, RevocationDepth, Rollback, SandboxMode,
    SandboxPorts, SendProxy, Shrink, TlsVersion, UpstreamHttp, WeakCheck, raw::Action,
    raw::ClearedAction, raw::RawListFormat,
}

impl<T: Takes> Takes for Option<T> {
    const IS_OPTIONAL: bool = true;

    fn form() -> Form {
        T::form()
    }
}

impl<T: Takes> Takes for Vec<T> {
    fn form() -> Form {
        Form::List(Box::new(T::form()))
    }
}

/// The words of an enum, which serde passes to the deserializer.
fn words<T: serde::de::DeserializeOwned>() -> &'static [&'static str] {
    let mut words: &[&str] = &[];
    let _ = T::deserialize(WordProbe(&mut words)); // it always fails
    words
}

struct WordProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for WordProbe<'_> {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        Err(Error::custom("no enum"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, value::Error> {
        *self.0 = words;
        Err(Error::custom("no value"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl Reload {
    /// The word in `docs/configuration.md`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at once",
            Self::NewConnections => "new connections",
            Self::NextRequest => "next request",
            Self::Restart => "restart",
        }
    }
}

#[cfg(test)]
mod tests;
