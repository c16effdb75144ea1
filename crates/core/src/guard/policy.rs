//! The policy: a table from verdicts to decisions.

use std::sync::Arc;

use super::{AllowRules, Verdict};
use crate::named::named;

named! {
    /// The treatment of a connection.
    pub enum Decision {
        /// The connection is served.
        Admit = "admit",
        /// The connection is served and logged, and its requests carry the verdict in a header.
        Annotate = "header",
        /// The connection is served and logged.
        Flag = "flag",
        /// The connection is rejected.
        Reject = "reject",
    }
}

impl Decision {
    /// The rank of a decision: admit, flag, header, reject.
    pub(super) fn strictness(self) -> u8 {
        match self {
            Self::Admit => 0,
            Self::Flag => 1,
            Self::Annotate => 2,
            Self::Reject => 3,
        }
    }

    /// The stricter of two decisions.
    pub(super) fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }
}

/// The certificates of a client's verified path that are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The leaf, the intermediates that lead to the trust anchor, and the trust anchor.
    Chain,
    /// The leaf only.
    Leaf,
}

/// The way in which a client is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectWith {
    /// A TLS alert in the handshake.
    Alert,
    /// The status 403 to the first request.
    Http403,
}

/// A service's decision for each verdict, and its rules by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Decision for a key that is in a filter and cleared by the source of proofs.
    pub on_cleared: Decision,
    /// Decision for a key that is proved to be compromised.
    pub on_confirmed: Decision,
    /// Decision for a key on a list.
    pub on_listed: Decision,
    /// Decision for a key in a filter.
    pub on_probable: Decision,
    /// Decision for a key that could not be checked.
    pub on_unchecked: Decision,
    /// Decision for an RSA key that anybody can factor.
    pub on_weak: Decision,
    /// The names of the clients that are served; `None` serves every client that its CA certified.
    pub allow: Option<Arc<AllowRules>>,
    /// The certificates of a client's verified path that are judged.
    pub judge: Depth,
    /// The way in which a client is rejected.
    pub reject_with: RejectWith,
}

impl Policy {
    /// The treatment of a connection whose client key has `verdict`. If several findings apply to
    /// the key, such as a list and a filter, the strictest decision applies.
    #[must_use]
    pub fn decide(&self, verdict: &Verdict) -> Decision {
        self.decide_finding(self.deciding_finding(verdict))
    }

    /// The finding of `verdict` from which the decision follows: the first with the strictest one.
    #[must_use]
    pub fn deciding_finding<'a>(&self, verdict: &'a Verdict) -> &'a Verdict {
        let strictness = |finding| self.decide_finding(finding).strictness();
        verdict.findings().fold(verdict, |deciding, finding| {
            if strictness(finding) > strictness(deciding) { finding } else { deciding }
        })
    }

    /// The decision on a key with this finding alone.
    fn decide_finding(&self, finding: &Verdict) -> Decision {
        match finding {
            Verdict::Allowed | Verdict::Clean => Decision::Admit,
            Verdict::Cleared(_) => self.on_cleared,
            Verdict::Confirmed(_) => self.on_confirmed,
            Verdict::Listed(_) => self.on_listed,
            Verdict::Probable(_) => self.on_probable,
            Verdict::Unchecked => self.on_unchecked,
            Verdict::Weak(_) => self.on_weak,
        }
    }

    /// The decision on a key with `verdict` if no filter and no answer applied to it.
    pub(super) fn decide_without_filters(&self, verdict: &Verdict) -> Decision {
        let findings = verdict.findings().filter(|finding| match finding {
            Verdict::Listed(_) | Verdict::Weak(_) => true,
            Verdict::Allowed
            | Verdict::Clean
            | Verdict::Cleared(_)
            | Verdict::Confirmed(_)
            | Verdict::Probable(_)
            | Verdict::Unchecked => false,
        });
        let decisions = findings.map(|finding| self.decide_finding(finding));
        decisions.fold(Decision::Admit, Decision::stricter)
    }

    /// Whether requests carry the verdict in a header. This includes requests of clean clients, so
    /// that a request without the header did not come through the proxy.
    #[must_use]
    pub fn annotates(&self) -> bool {
        let Self {
            on_cleared, on_confirmed, on_listed, on_probable, on_unchecked, on_weak, ..
        } = self;
        [on_cleared, on_confirmed, on_listed, on_probable, on_unchecked, on_weak]
            .contains(&&Decision::Annotate)
    }
}

/// Rejects every key that is not [`Verdict::Clean`], [`Verdict::Cleared`] or [`Verdict::Allowed`].
impl Default for Policy {
    fn default() -> Self {
        Self {
            on_cleared: Decision::Admit,
            on_confirmed: Decision::Reject,
            on_listed: Decision::Reject,
            on_probable: Decision::Reject,
            on_unchecked: Decision::Reject,
            on_weak: Decision::Reject,
            allow: None,
            judge: Depth::Leaf,
            reject_with: RejectWith::Alert,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Confirmation, Hit, Listing, WeakCheck, Weakness};
    use crate::spki::{Encoding, Fingerprint};

    #[test]
    fn each_verdict_has_its_own_decision() {
        let policy = Policy {
            on_cleared: Decision::Flag,
            on_confirmed: Decision::Annotate,
            on_listed: Decision::Reject,
            on_probable: Decision::Flag,
            on_unchecked: Decision::Annotate,
            on_weak: Decision::Flag,
            ..Policy::default()
        };
        let listing = Listing {
            list: "l".into(),
            finding: None,
            encoding: Encoding::Presented,
            position: 0,
            underlying: None,
        };
        assert_eq!(policy.decide(&Verdict::Allowed), Decision::Admit);
        assert_eq!(policy.decide(&Verdict::Listed(listing)), Decision::Reject);
        let hit = Hit {
            filter: "f".into(),
            revision: 1,
            encoding: Encoding::Presented,
            position: 0,
            false_positive_ratio: 0.0,
        };
        assert_eq!(policy.decide(&Verdict::Clean), Decision::Admit);
        let confirmation = Confirmation {
            proof: Fingerprint::of(b"key"),
            encoding: Encoding::Presented,
            position: 0,
            hit: None,
        };
        assert_eq!(policy.decide(&Verdict::Confirmed(Box::new(confirmation))), Decision::Annotate);
        assert_eq!(policy.decide(&Verdict::Cleared(hit.clone())), Decision::Flag);
        assert_eq!(Policy::default().decide(&Verdict::Cleared(hit.clone())), Decision::Admit);
        assert_eq!(policy.decide(&Verdict::Probable(hit)), Decision::Flag);
        assert_eq!(policy.decide(&Verdict::Unchecked), Decision::Annotate);
        let weak =
            Verdict::Weak(Weakness { check: WeakCheck::Roca, position: 0, underlying: None });
        assert_eq!(policy.decide(&weak), Decision::Flag);
        assert_eq!(Policy::default().decide(&weak), Decision::Reject);
    }

    #[test]
    fn requests_carry_the_header_if_any_verdict_requires_it() {
        assert!(!Policy::default().annotates());
        assert!(Policy { on_probable: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_cleared: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_confirmed: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_listed: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_unchecked: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_weak: Decision::Annotate, ..Policy::default() }.annotates());
    }
}
