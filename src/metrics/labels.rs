//! The values that labels can have.

use prometheus::core::{MetricVec, MetricVecBuilder};

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
    pub(super) fn of_vec<B: MetricVecBuilder<M = M>>(vec: &MetricVec<B>, fixed: &[&str]) -> Self
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

    /// What became of a handshake.
    HandshakeResult {
        /// A certificate or a proof of possession with a signature that does not verify.
        BadSignature = "bad_signature",
        /// The client went away or rejected us.
        ClientGone = "client_gone",
        /// The client's key was refused.
        Compromised = "compromised",
        /// The client's certificate has expired or is not valid yet.
        Expired = "expired",
        /// The client sent no certificate.
        NoCertificate = "no_certificate",
        /// Something else than TLS was spoken.
        NotTls = "not_tls",
        /// It succeeded.
        Ok = "ok",
        /// The client's certificate is revoked, or it cannot be known that it is not.
        Revoked = "revoked",
        /// It took too long.
        Timeout = "timeout",
        /// The client's certificate does not lead to a trust anchor.
        UnknownIssuer = "unknown_issuer",
        /// No protocol, algorithm or name in common, or a certificate for another purpose.
        Unsupported = "unsupported",
    }

    /// Why an updated filter was refused.
    RefusalReason {
        /// A key that must be in it is not, or random ones are.
        Canary = "canary",
        /// It is not what the checksum beside it speaks of.
        Checksum = "checksum",
        /// It was changed at a time that has not come yet.
        Future = "future",
        /// The file could not be read.
        Io = "io",
        /// The file does not begin as a filter does.
        Marker = "marker",
        /// It would refuse more of the clients seen lately than it may: it waits for the operator.
        NewHits = "new_hits",
        /// Its own numbers cannot explain the bits that are set.
        Plausibility = "plausibility",
        /// A parameter in the header is out of range.
        Range = "range",
        /// It is older than the one before.
        Rollback = "rollback",
        /// The length is not what the header says, or over `max_size`.
        Size = "size",
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

    /// What a certificate is to a service.
    Role {
        /// Its own.
        Server = "server",
        /// Of a CA whose clients it accepts.
        TrustAnchor = "trust_anchor",
        /// Its own, as a client of its upstream.
        UpstreamClient = "upstream_client",
        /// Of a CA that vouches for its upstream.
        UpstreamTrustAnchor = "upstream_trust_anchor",
    }

    /// When a key was judged.
    Stage {
        /// In a full handshake.
        Handshake = "handshake",
        /// On an open connection, after something changed.
        Live = "live",
        /// After a resumed one.
        Resumed = "resumed",
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
    fn a_value_is_at_its_index() {
        for (index, value) in HandshakeResult::ALL.iter().enumerate() {
            assert_eq!(value.index(), index);
        }
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
