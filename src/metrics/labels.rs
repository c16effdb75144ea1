//! The values that labels can have.

use prometheus::core::{MetricVec, MetricVecBuilder};

use crate::guard::{JudgedAt, VerdictKind};
use crate::tls::{CertificateRole, HandshakeResult};

/// A set of label values that is known when the program is built.
pub trait Label: Copy + 'static {
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];

    /// The place of this value in [`Label::ALL`].
    fn index(self) -> usize;

    /// The value as it is exposed.
    fn as_str(self) -> &'static str;
}

/// One handle for every value of a label, resolved once.
#[derive(Debug, Clone)]
pub struct Family<L, M> {
    handles: Vec<M>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label, M> Family<L, M> {
    /// The handles of `vec` whose last label is `L` and whose others are `fixed`.
    pub(super) fn from_vec<B: MetricVecBuilder<M = M>>(vec: &MetricVec<B>, fixed: &[&str]) -> Self
    where
        M: prometheus::core::Metric,
    {
        let values = L::ALL.iter().map(|value| [fixed, &[value.as_str()]].concat());
        let handles = values.map(|values| vec.with_label_values(&values)).collect();
        Self { handles, label: std::marker::PhantomData }
    }

    /// The handle for `value`.
    #[expect(clippy::indexing_slicing, reason = "built with one handle for each value of `ALL`")]
    pub fn of(&self, value: L) -> &M {
        &self.handles[value.index()]
    }
}

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            fn index(self) -> usize {
                self as usize
            }

            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    )*};
}

labels! {
    /// What an upstream's answer was, by the first digit of its status.
    CodeClass {
        /// 1xx.
        Informational = "1xx",
        /// 2xx.
        Success = "2xx",
        /// 3xx.
        Redirection = "3xx",
        /// 4xx.
        ClientError = "4xx",
        /// 5xx.
        ServerError = "5xx",
    }

    /// What became of a TCP connection from a client.
    ConnectionResult {
        /// No TLS session came about.
        Failed = "failed",
        /// The client's address had too many connections.
        Limited = "limited",
        /// The client's key was refused.
        Refused = "refused",
        /// Requests were served.
        Served = "served",
    }

    /// What became of a look at a file that may have changed.
    ReloadResult {
        /// It is in use now.
        Loaded = "loaded",
        /// It was refused; the one before stays in use.
        Refused = "refused",
        /// It is the one in use already.
        Unchanged = "unchanged",
    }

    /// What was done about a judged key.
    KeyAction {
        /// Served.
        Admit = "admit",
        /// An open connection was ended.
        Evict = "evict",
        /// Served, logged.
        Flag = "flag",
        /// Served, logged, and the upstream is told.
        Header = "header",
        /// Refused before any request.
        Reject = "reject",
    }

    /// Why a request got no answer from its upstream.
    UpstreamFailure {
        /// No connection could be made.
        Connect = "connect",
        /// The connection broke before the response head was there.
        Response = "response",
        /// No response head within `response_timeout`.
        Timeout = "timeout",
        /// No server is well, or no connection is left to be made.
        Unavailable = "unavailable",
    }
}

macro_rules! domain_labels {
    ($($name:ty),*) => {$(
        impl Label for $name {
            const ALL: &'static [Self] = &<$name>::ALL;

            fn index(self) -> usize {
                self as usize
            }

            fn as_str(self) -> &'static str {
                <$name>::as_str(self)
            }
        }
    )*};
}

domain_labels!(CertificateRole, HandshakeResult, JudgedAt, VerdictKind);

impl CodeClass {
    /// The class of a status code.
    #[must_use]
    pub fn of(status: u16) -> Self {
        match status {
            ..200 => Self::Informational,
            200..300 => Self::Success,
            300..400 => Self::Redirection,
            400..500 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_at_its_index() {
        fn check<L: Label + PartialEq + std::fmt::Debug>() {
            assert!(L::ALL.iter().enumerate().all(|(index, value)| value.index() == index));
        }
        check::<CertificateRole>();
        check::<CodeClass>();
        check::<HandshakeResult>();
        check::<JudgedAt>();
        check::<VerdictKind>();
    }

    #[test]
    fn a_status_belongs_to_its_class() {
        for (status, class) in
            [(101, "1xx"), (204, "2xx"), (302, "3xx"), (421, "4xx"), (502, "5xx")]
        {
            assert_eq!(CodeClass::of(status).as_str(), class);
        }
    }
}
