//! What is done about a verdict: a table, nothing else.

use super::Verdict;

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is served.
    Admit,
    /// It is served, logged, and the upstream is told in a header.
    Annotate,
    /// It is served and logged.
    Flag,
    /// It is refused.
    Reject,
}

impl Decision {
    /// The word for it in the configuration, metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Annotate => "header",
            Self::Flag => "flag",
            Self::Reject => "reject",
        }
    }
}

/// How much of a client's chain is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "proxy", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Depth {
    /// The leaf, and every intermediate that the client presents.
    Chain,
    /// The leaf alone.
    Leaf,
}

/// How a client is told that it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "proxy", derive(serde::Deserialize))]
pub enum RejectWith {
    /// By a TLS alert, in the handshake.
    #[cfg_attr(feature = "proxy", serde(rename = "alert"))]
    Alert,
    /// By the status 403 to its first request.
    #[cfg_attr(feature = "proxy", serde(rename = "http-403"))]
    Http403,
}

/// What a service does about each verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// For a key that is proved to be compromised.
    pub on_confirmed: Decision,
    /// For a key that is on a list.
    pub on_listed: Decision,
    /// For a key that is in a filter.
    pub on_probable: Decision,
    /// For a key that could not be checked.
    pub on_unchecked: Decision,
    /// How much of a client's chain is judged.
    pub judge: Depth,
    /// How a client is told that it is refused.
    pub reject_with: RejectWith,
}

impl Policy {
    /// What happens to a connection whose client key has `verdict`.
    #[must_use]
    pub fn decide(&self, verdict: &Verdict) -> Decision {
        match verdict {
            Verdict::Allowed | Verdict::Clean => Decision::Admit,
            Verdict::Confirmed(_) => self.on_confirmed,
            Verdict::Listed(_) => self.on_listed,
            Verdict::Probable(_) => self.on_probable,
            Verdict::Unchecked => self.on_unchecked,
        }
    }

    /// Whether upstreams are told the verdict of every client: then they also know that a request
    /// without the header did not come through the proxy.
    #[must_use]
    pub fn annotates(&self) -> bool {
        [self.on_confirmed, self.on_listed, self.on_probable, self.on_unchecked]
            .contains(&Decision::Annotate)
    }
}

/// Refuses whatever is not known to be clean.
impl Default for Policy {
    fn default() -> Self {
        Self {
            on_confirmed: Decision::Reject,
            on_listed: Decision::Reject,
            on_probable: Decision::Reject,
            on_unchecked: Decision::Reject,
            judge: Depth::Leaf,
            reject_with: RejectWith::Alert,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Hit, Listing};
    use crate::spki::Encoding;

    #[test]
    fn each_verdict_has_its_own_row() {
        let policy = Policy {
            on_confirmed: Decision::Annotate,
            on_listed: Decision::Reject,
            on_probable: Decision::Flag,
            on_unchecked: Decision::Annotate,
            ..Policy::default()
        };
        let listing = Listing { list: "l".into(), encoding: Encoding::Presented, position: 0 };
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
        assert_eq!(policy.decide(&Verdict::Confirmed(hit.clone())), Decision::Annotate);
        assert_eq!(policy.decide(&Verdict::Probable(hit)), Decision::Flag);
        assert_eq!(policy.decide(&Verdict::Unchecked), Decision::Annotate);
    }

    #[test]
    fn the_header_is_sent_when_any_verdict_asks_for_it() {
        assert!(!Policy::default().annotates());
        assert!(Policy { on_probable: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_confirmed: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_listed: Decision::Annotate, ..Policy::default() }.annotates());
        assert!(Policy { on_unchecked: Decision::Annotate, ..Policy::default() }.annotates());
    }
}
