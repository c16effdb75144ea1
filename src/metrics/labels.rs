//! Labels with a fixed set of values, and counters resolved once for each value.

use keygate_core::guard::{JudgedAt, NameCheck, VerdictKind};
use keygate_core::spki::Algorithm;
use keygate_core::tls::{CertificateRole, HandshakeResult, KeyExchange};
use keygate_wire::permit::BufferClass;

/// A label whose values are the variants of an enum.
pub trait Label: Copy + 'static {
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];

    /// The index of this value in [`Label::ALL`].
    fn index(self) -> usize;

    /// The value in the exposition.
    fn as_str(self) -> &'static str;
}

/// One handle for each value of the label `L`, resolved once.
#[derive(Debug, Clone)]
pub struct Family<L, M> {
    handles: Vec<M>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label, M> Family<L, M> {
    /// One handle for each value.
    pub(super) fn new(handle: impl Fn(&str) -> M) -> Self {
        let handles = L::ALL.iter().map(|value| handle(value.as_str())).collect();
        Self { handles, label: std::marker::PhantomData }
    }

    /// The handle for `value`.
    #[expect(clippy::indexing_slicing, reason = "built with one handle for each value of `ALL`")]
    pub fn of(&self, value: L) -> &M {
        &self.handles[value.index()]
    }
}

/// Defines enums with the text of each variant, as labels.
macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $crate::metrics::Label for $name {
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

pub(crate) use labels;

labels! {
    /// The first digit of a response's status.
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

    /// How a question about a key ended.
    ConfirmationResult {
        /// The source has sent a body that proves nothing about the key.
        BadProof = "bad_proof",
        /// The source does not know the key, and the key is cleared.
        Cleared = "cleared",
        /// A proof was verified.
        Confirmed = "confirmed",
        /// The question was not asked, because too many waited.
        Dropped = "dropped",
        /// The source wants fewer questions: 429.
        RateLimited = "rate_limited",
        /// The source has rejected the question: a redirect or any other status below 500.
        Refused = "refused",
        /// The source has failed: 5xx.
        ServerError = "server_error",
        /// The response did not end within `timeout`.
        Timeout = "timeout",
        /// The response is larger than any proof.
        TooLarge = "too_large",
        /// The source could not be reached, or the connection broke off.
        Unreachable = "unreachable",
        /// The source does not know the key, and that counts for nothing: its canary failed, or the
        /// answer could be forged.
        Untrusted = "untrusted",
    }

    /// How a client's connection ended.
    ConnectionResult {
        /// The handshake failed.
        Failed = "failed",
        /// The client's address has reached its connection limit, or a handshake was evicted, or
        /// there was no memory for it.
        Limited = "limited",
        /// No rule of the service names the client.
        NotAllowed = "not_allowed",
        /// The policy rejected the client's key.
        Rejected = "refused",
        /// The connection was served.
        Served = "served",
    }

    /// The algorithm of a client's key.
    #[expect(missing_docs, reason = "the names of the algorithms")]
    KeyAlgorithm {
        Ed25519 = "ed25519",
        MlDsa44 = "ml-dsa-44",
        MlDsa65 = "ml-dsa-65",
        MlDsa87 = "ml-dsa-87",
        Other = "other",
        P256 = "p256",
        P384 = "p384",
        P521 = "p521",
        Rsa = "rsa",
    }

    /// A log whose lines may be dropped.
    LogName {
        /// The access log.
        Access = "access",
        /// Lines of the log that clients can cause in any number.
        Main = "main",
        /// Lines of the log about security.
        Security = "security",
    }

    /// The result of the rules by name.
    NameResult {
        /// A rule names the client.
        Allowed = "allowed",
        /// No rule names the client.
        NotAllowed = "not_allowed",
    }

    /// A status of responses that keygate makes itself because of the request.
    OwnStatus {
        /// Bad Request.
        BadRequest = "400",
        /// Forbidden.
        Forbidden = "403",
        /// Method Not Allowed.
        Method = "405",
        /// Request Timeout.
        Timeout = "408",
        /// Content Too Large.
        ContentTooLarge = "413",
        /// URI Too Long.
        TargetTooLong = "414",
        /// Misdirected Request.
        Misdirected = "421",
        /// Too Many Requests.
        TooMany = "429",
        /// Request Header Fields Too Large.
        HeadTooLarge = "431",
    }

    /// The result of a question of another proxy, or of its connection.
    QuestionResult {
        /// The client may be served.
        Allowed = "allowed",
        /// The asker has all of its connections open, or a handshake was evicted for a new
        /// connection. Counts connections.
        Busy = "busy",
        /// No rule of the authorizer names the client.
        ClientNotAllowed = "client_not_allowed",
        /// The policy rejects the client.
        Denied = "denied",
        /// The question got no answer, because the process drains, or a reload has removed the
        /// authorizer.
        Draining = "draining",
        /// The certificate in the question cannot be read, or there is more than one.
        Malformed = "malformed",
        /// The question has no certificate, and `client_auth.mode` requires one.
        NoCertificate = "no_certificate",
        /// The asker may not ask. Counts its connections.
        NotAllowed = "not_allowed",
        /// The certificate failed the verification of the host or of the authorizer.
        NotVerified = "not_verified",
        /// A CA of the client may not vouch for a name of its certificate.
        NotVouched = "not_vouched",
        /// The question is larger than `max_question_size`.
        Oversize = "oversize",
    }

    /// The result of a check for a changed file.
    ReloadResult {
        /// The new version was loaded and is in use.
        Loaded = "loaded",
        /// The new version was rejected; the previous one stays in use.
        Rejected = "refused",
        /// The file has not changed.
        Unchanged = "unchanged",
    }

    /// Why spans were not exported.
    SpanDrop {
        /// The export failed.
        Export = "export",
        /// The queue of the exporter was full.
        Queue = "queue",
        /// `max_spans_per_second` was reached, and the request was not sampled.
        Rate = "rate",
        /// The collector has rejected them.
        Rejected = "rejected",
    }

    /// The action that followed a verdict.
    KeyAction {
        /// The client was served.
        Admit = "admit",
        /// An open connection was closed.
        Evict = "evict",
        /// The client was served and logged.
        Flag = "flag",
        /// The client was served and logged, and its requests carry the verdict in a header.
        Header = "header",
        /// The client was rejected before its first request.
        Reject = "reject",
    }

    /// How the wait of a connection for an answer about the client's key ended.
    WaitOutcome {
        /// The questions were answered, or a reload left nothing to wait for.
        Answered = "answered",
        /// The client closed the connection.
        ClientGone = "client_gone",
        /// `confirm.wait` passed, or no answer could come within it any more.
        Expired = "expired",
        /// The process drains, or a reload has removed the service.
        Stopped = "stopped",
    }

    /// Why a request got no complete response from its upstream.
    UpstreamFailure {
        /// No server accepted a connection.
        Connect = "connect",
        /// The response broke off, or stalled for `body_timeout`, after its head.
        Incomplete = "incomplete",
        /// The connection failed before the response head was complete.
        Response = "response",
        /// The response head did not arrive within `response_timeout`.
        Timeout = "timeout",
        /// No server is healthy, a connection limit is reached, or the process lacks descriptors,
        /// ports or memory.
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

domain_labels!(BufferClass, CertificateRole, HandshakeResult, JudgedAt, KeyExchange, VerdictKind);

impl KeyAlgorithm {
    /// The algorithm of the key with this SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        let name = match Algorithm::of(spki) {
            Algorithm::Ec(name) | Algorithm::MlDsa(name) => name,
            Algorithm::Ed25519 => Self::Ed25519.as_str(),
            Algorithm::Other => Self::Other.as_str(),
            Algorithm::Rsa(_) => Self::Rsa.as_str(),
        };
        Self::ALL.iter().copied().find(|it| it.as_str() == name).unwrap_or(Self::Other)
    }
}

impl NameResult {
    /// The label value; `None` if no rule was consulted.
    #[must_use]
    pub fn from_name_check(names: NameCheck) -> Option<Self> {
        match names {
            NameCheck::Allowed => Some(Self::Allowed),
            NameCheck::NotAllowed => Some(Self::NotAllowed),
            NameCheck::NotChecked => None,
        }
    }
}

impl OwnStatus {
    /// The label value; `None` if the request is not the cause.
    #[must_use]
    pub fn from_status(status: u16) -> Option<Self> {
        let text = status.to_string();
        Self::ALL.iter().find(|it| it.as_str() == text).copied()
    }

    /// Why requests get the status.
    #[must_use]
    pub fn cause(self) -> &'static str {
        match self {
            Self::BadRequest => "malformed request, target or host",
            Self::ContentTooLarge => "body above limits.max_body_size",
            Self::Forbidden => "rejected client: see keygate report",
            Self::HeadTooLarge => {
                "head above limits.max_header_size, limits.max_headers or upstream.max_header_size"
            }
            Self::Method => "CONNECT",
            Self::Misdirected => "host of another service, or in no server_names",
            Self::TargetTooLong => "target above 64 KiB",
            Self::Timeout => "head above limits.header_timeout, or body above limits.body_timeout",
            Self::TooMany => {
                "client above limits.max_connections_per_ip, or above its share of the memory"
            }
        }
    }
}

impl CodeClass {
    /// The class of a status code.
    #[must_use]
    pub fn from_status(status: u16) -> Self {
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
        check::<KeyExchange>();
        check::<VerdictKind>();
    }

    #[test]
    fn a_status_belongs_to_its_class() {
        for (status, class) in
            [(101, "1xx"), (204, "2xx"), (302, "3xx"), (421, "4xx"), (502, "5xx")]
        {
            assert_eq!(CodeClass::from_status(status).as_str(), class);
        }
    }
}
