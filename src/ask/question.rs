//! A question about a client, and the answer.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use hyper::header::{HeaderName, HeaderValue};
use keygate_core::guard::{Decision, Depth, Judgement, Verdict, VerdictKind};
use keygate_core::spki::{self, Fingerprint};
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use crate::dialect::MalformedValue;

/// Maximum number of certificates in a question.
pub(crate) const MAX_CERTIFICATES: usize = keygate_core::tls::MAX_CERTIFICATES;

/// A question of a host about one of its clients.
#[derive(Debug)]
pub(crate) struct ClientQuestion<'a> {
    /// When the question was complete.
    pub(crate) received: Instant,
    pub(crate) presented: Presented<'a>,
    /// Address of the client, for logs and the report.
    pub(crate) client: Option<IpAddr>,
    /// SNI of the client, for logs.
    pub(crate) server_name: Option<&'a str>,
    /// The object that the question is about if it is no client, for logs.
    pub(crate) object: Option<&'a str>,
}

/// The certificates of the client in a question.
#[derive(Debug)]
pub(crate) enum Presented<'a> {
    /// The client's certificate, then its issuers as far as the host sends them: 1 to
    /// [`MAX_CERTIFICATES`].
    Chain(SmallVec<[CertificateDer<'a>; 2]>),
    /// The object that is to be stored has no key. It is allowed without a judgement.
    NoKey,
    /// The host states that the client has no certificate.
    None,
    /// The question cannot be judged and is denied, whatever the policy.
    Unusable(Unusable),
}

/// The reason for a denial without a judgement. The texts are constants for log and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// No certificate can be read, or there is more than one where one is due.
    Malformed(&'static str),
    /// The client has no certificate, or the host does not send it.
    NoCertificate,
    /// The host, or the authorizer itself, did not verify the client.
    NotVerified(&'static str),
    /// A CA of the client may not vouch for a name of its certificate.
    NotVouched,
    /// The question is larger than `max_question_size`.
    Oversize,
}

impl Unusable {
    /// The reason in words, for log and body.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Malformed(reason) | Self::NotVerified(reason) => reason,
            Self::NoCertificate => "the question has no client certificate",
            Self::NotVouched => "a CA of the client may not vouch for a name of its certificate",
            Self::Oversize => "the question is larger than max_question_size",
        }
    }
}

impl From<MalformedValue> for Unusable {
    fn from(value: MalformedValue) -> Self {
        Self::Malformed(value.reason())
    }
}

impl ClientQuestion<'_> {
    /// The fingerprint of the client's key, computed at each call; `None` without a readable
    /// certificate.
    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        let Presented::Chain(chain) = &self.presented else { return None };
        let spki = spki::of_certificate(chain.first()?).ok()?;
        Some(Fingerprint::of(spki))
    }
}

/// The answer to a question.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// [`Decision::Reject`] denies; the others allow.
    pub(crate) decision: Decision,
    /// The verdict in one word. A question that was not judged is `unchecked`.
    pub(crate) verdict: VerdictKind,
    /// The value of the status header: the whole item if the client is allowed, the word alone if
    /// it is denied, because hosts show it to the client.
    pub(crate) status: HeaderValue,
    /// The reason for a denial, in words for the client. Before a certificate exists: the finding
    /// about a key, also if the policy flags the key.
    pub(crate) reason: Option<Cow<'static, str>>,
    /// Name and revision of the filter that has the key.
    pub(crate) filter: Option<(Arc<str>, u32)>,
    /// The header with the assertion about the client.
    pub(crate) assertion: Option<(HeaderName, HeaderValue)>,
    /// Whether the answer may change with time alone, so that no host may use it again.
    pub(crate) is_temporary: bool,
}

impl Answer {
    /// The answer to a question that was judged to this `depth`.
    pub(super) fn new(judgement: &Judgement, depth: Depth) -> Self {
        let Judgement { verdict, decision, .. } = judgement;
        let is_rejected = *decision == Decision::Reject;
        let word = HeaderValue::from_static(verdict.as_str());
        let status = match verdict {
            Verdict::Allowed | Verdict::Clean | Verdict::Unchecked => word,
            _ if is_rejected => word,
            Verdict::Cleared(_)
            | Verdict::Confirmed(_)
            | Verdict::Listed(_)
            | Verdict::Probable(_)
            | Verdict::Weak(_) => HeaderValue::from_str(&verdict.to_string()).unwrap_or(word),
        };
        Self {
            decision: *decision,
            verdict: verdict.kind(),
            status,
            reason: is_rejected.then(|| judgement.rejection().into()),
            filter: verdict.hit().map(|hit| (Arc::clone(&hit.filter), hit.revision)),
            assertion: None,
            is_temporary: judgement.is_temporary(depth),
        }
    }

    /// Whether the host may serve the client.
    pub(crate) fn is_allowed(&self) -> bool {
        match self.decision {
            Decision::Admit | Decision::Annotate | Decision::Flag => true,
            Decision::Reject => false,
        }
    }
}
