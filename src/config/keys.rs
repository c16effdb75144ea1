//! The table of keys: each key with its type, its bounds, its default, the effect of a reload and
//! its meaning. `table!` declares typed tables and their keys at once. The check of a file, the JSON
//! Schema, `config show` and the rows of `docs/configuration.md` come from here.

use keygate_core::guard::{Depth, RejectWith, WeakCheck};
use keygate_core::tls::{AlpnProtocol, ExpiredCrl, KeyExchange, RevocationDepth, TlsVersion};

use super::form::Form;
use super::input::{Input, Taken, Takes};

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

        impl $crate::config::input::Takes for $name {
            type Value = Self;

            fn form() -> $crate::config::form::Form {
                use $crate::config::form::{Form, Key, Reload, Table};
                use $crate::config::input::Takes;
                use $crate::config::keys::kind;
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
        $crate::config::keys::takes! {
            $name => Self,
            {
                const _: fn($name) = |it| match it { $(<$name>::$variant => {})+ };
                $crate::config::form::Form::Words(&[$($word,)+])
            },
            |input| input.word::<Self>(&[$(($word, <$name>::$variant),)+]);
        }
    )+ };
}
pub(super) use words;

/// Declares kinds of text, each with its type in the model and its conversion.
macro_rules! texts {
    ($($(#[$meta:meta])* $kind:ident => $value:ty = $convert:expr;)+) => { $(
        $(#[$meta])*
        #[derive(Debug)]
        pub(in crate::config) struct $kind;

        $crate::config::keys::takes! {
            $kind => $value, $crate::config::form::Form::Text, |input| {
                let convert: fn(&str) -> Result<$value, String> = $convert;
                convert(input.text::<Self>()?).map_err(|problem| input.report(problem))
            };
        }
    )+ };
}
pub(super) use texts;

/// Implements [`Takes`] for a type whose values are text, or of another form.
macro_rules! takes {
    ($($kind:ty => $value:ty, $form:expr, $take:expr;)+) => { $(
        impl $crate::config::input::Takes for $kind {
            type Value = $value;

            fn form() -> $crate::config::form::Form {
                $form
            }

            fn take(
                input: &$crate::config::input::Input<'_>,
            ) -> $crate::config::input::Taken<$value> {
                let take: fn(
                    &$crate::config::input::Input<'_>,
                ) -> $crate::config::input::Taken<$value> = $take;
                take(input)
            }
        }
    )+ };
}
pub(super) use takes;

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

#[cfg(test)]
mod tests;
