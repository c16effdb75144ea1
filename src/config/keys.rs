//! The table of keys: each key with its type, its bounds, its default, the effect of a reload and
//! its meaning. `table!` declares typed tables and their keys at once. The check of a file, the JSON
//! Schema, `config show` and the rows of `docs/configuration.md` come from here.

use keygate_core::guard::{Depth, RejectWith, WeakCheck};
use keygate_core::tls::{AlpnProtocol, ExpiredCrl, KeyExchange, RevocationDepth, TlsVersion};

use super::input::{Input, Taken};

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
    /// Whether the key may be absent without a default.
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
        if let Some(table) = self.form.table_mut() {
            table.keys.iter_mut().for_each(|key| key.reload = reload);
        }
        Self { reload, ..self }
    }

    /// Gives the key, or a table that is used twice, the meaning of this place.
    pub(super) fn meaning(mut self, meaning: &'static str) -> Self {
        if let Some(table) = self.form.table_mut() {
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

    fn table_mut(&mut self) -> Option<&mut Table> {
        let form = if let Self::List(items) = self { items.as_mut() } else { self };
        if let Self::Table(table) = form { Some(table) } else { None }
    }
}

/// A kind of values: their form, and the conversion of one.
pub(super) trait Takes {
    /// Whether the value may be absent.
    const IS_OPTIONAL: bool = false;

    /// The type in the model.
    type Value;

    fn form() -> Form;

    /// Converts a value, or reports each of its problems.
    fn take(input: &Input<'_>) -> Taken<Self::Value>;

    /// The value of a key that is absent and has no default.
    fn absent(table: &Input<'_>, key: &str) -> Taken<Self::Value> {
        Err(table.report_missing(key))
    }
}

/// Declares a typed table with its keys: `key: Type as Kind = DEFAULT => RELOAD "MEANING"`.
///
/// `Type` is the type in the model. `Kind` converts the value, and is left out if it is the same
/// type. A key of the type `Option` is optional. `check` calls the method of the table that
/// reports keys that contradict each other, and sets a default that depends on another key.
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $text:literal $(, $check:ident)? {
        $($(#[$attribute:meta])* $key_vis:vis $key:ident: $type:ty $(as $kind:ty)? $(= $default:tt)?
            $(=> $($reload:ident)? $meaning:literal)?,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$attribute])* $(#[doc = $meaning])?
            $(#[doc = concat!("\n\nDefault: `", stringify!($default), "`.")])?
            $key_vis $key: $type,)+
        }

        impl $crate::config::keys::Takes for $name {
            type Value = Self;

            fn form() -> $crate::config::keys::Form {
                use $crate::config::keys::{Form, Key, Reload, Table, Takes, kind};
                let keys = vec![$(
                    Key {
                        name: stringify!($key),
                        form: <kind!($type $(, $kind)?) as Takes>::form(),
                        default: [$(stringify!($default),)? ""].into_iter().find(|it| !it.is_empty()),
                        is_optional: <kind!($type $(, $kind)?) as Takes>::IS_OPTIONAL,
                        reload: Reload::AtOnce,
                        meaning: "",
                    }
                    $($(.with(Reload::$reload))? .meaning($meaning))?,
                )+];
                Form::Table(Table { text: $text, keys })
            }

            fn take(
                input: &$crate::config::input::Input<'_>,
            ) -> $crate::config::input::Taken<Self> {
                input.ensure_table::<Self>()?;
                input.ensure_known(&[$(stringify!($key),)+]);
                Self::take_keys(input)
            }
        }

        impl $name {
            /// Takes the keys of a table, whose names are known.
            fn take_keys(
                input: &$crate::config::input::Input<'_>,
            ) -> $crate::config::input::Taken<Self> {
                use $crate::config::keys::kind;
                $(let $key = input.key::<kind!($type $(, $kind)?)>(
                    stringify!($key),
                    [$(stringify!($default),)? ""].into_iter().find(|it| !it.is_empty()),
                );)+
                let table = Self { $($key: $key?,)+ };
                $(let mut table = table;
                table.$check(input);)?
                Ok(table)
            }
        }
    };
}
pub(super) use table;

/// The kind of a key: that after `as`, or else its type.
macro_rules! kind {
    ($type:ty) => {
        $type
    };
    ($type:ty, $kind:ty) => {
        $kind
    };
}
pub(super) use kind;

/// Declares enums whose variants are the words of a key. `impl` declares the words of an enum of
/// another crate.
macro_rules! words {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$attribute:meta])* $variant:ident = $word:literal,)+
    })+) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$attribute])* $variant,)+ }

        impl $name {
            /// The word in the configuration.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        $crate::config::keys::words! { impl $name { $($variant = $word,)+ } }
    )+ };
    ($(impl $name:ty { $($variant:ident = $word:literal,)+ })+) => { $(
        impl $crate::config::keys::Takes for $name {
            type Value = Self;

            fn form() -> $crate::config::keys::Form {
                const _: fn($name) = |it| match it { $(<$name>::$variant => {})+ };
                $crate::config::keys::Form::Words(&[$($word,)+])
            }

            fn take(
                input: &$crate::config::input::Input<'_>,
            ) -> $crate::config::input::Taken<Self> {
                input.word::<Self>(&[$(($word, <$name>::$variant),)+])
            }
        }
    )+ };
}
pub(super) use words;

words! {
    impl AlpnProtocol { H2 = "h2", Http11 = "http/1.1", }
    impl Depth { Chain = "chain", Leaf = "leaf", }
    impl ExpiredCrl { Accept = "accept", Reject = "reject", }
    impl KeyExchange {
        X25519MlKem768 = "X25519MLKEM768", X25519 = "x25519", Secp256r1 = "secp256r1",
        Secp384r1 = "secp384r1",
    }
    impl RejectWith { Alert = "alert", Http403 = "http-403", }
    impl RevocationDepth { Leaf = "leaf", Path = "path", }
    impl TlsVersion { V1_2 = "1.2", V1_3 = "1.3", }
    impl WeakCheck {
        Fermat = "fermat", Invalid = "invalid", Roca = "roca", Rsapoly = "rsapoly",
        SharedPrimes = "shared-primes", SmallFactors = "small-factors", Wiener = "wiener",
    }
}

impl<T: Takes> Takes for Option<T> {
    const IS_OPTIONAL: bool = true;

    type Value = Option<T::Value>;

    fn form() -> Form {
        T::form()
    }

    fn take(input: &Input<'_>) -> Taken<Self::Value> {
        T::take(input).map(Some)
    }

    fn absent(_: &Input<'_>, _: &str) -> Taken<Self::Value> {
        Ok(None)
    }
}

impl<T: Takes> Takes for Vec<T> {
    type Value = Vec<T::Value>;

    fn form() -> Form {
        Form::List(Box::new(T::form()))
    }

    fn take(input: &Input<'_>) -> Taken<Self::Value> {
        let items: Vec<_> = input.items::<Self>()?.iter().map(T::take).collect();
        items.into_iter().collect()
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
