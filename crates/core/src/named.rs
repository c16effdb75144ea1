//! Enums whose variants have names.

/// Declares an enum whose variants have names in metrics, logs, JSON or the configuration.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$attribute:meta])* $variant:ident = $text:expr,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[$attribute])* $variant,)+ }

        impl $name {
            /// Every variant, in the order of declaration.
            $vis const ALL: [Self; [$($text,)+].len()] = [$(Self::$variant,)+];

            /// The name of the variant.
            #[must_use]
            $vis fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}
pub(crate) use named;
