//! The verdict on a key, and its text for logs, metrics and headers.

use std::fmt;
use std::sync::Arc;

use super::WeakCheck;
use crate::spki::{Encoding, Fingerprint};

/// The verdict on a key, with the evidence.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// An exception of the operator covers the key.
    Allowed,
    /// The key is in no filter and on no list. Filters have no false negatives.
    Clean,
    /// The key is in a filter, and the source of proofs does not know it. The clearance expires.
    Cleared(Hit),
    /// The compromise of the key is proved by a signature of the key itself.
    /// Boxed, because it is rare, and three times as large as the others.
    Confirmed(Box<Confirmation>),
    /// The key is on an exact list.
    Listed(Listing),
    /// The key is in a filter, up to its false-positive rate.
    Probable(Hit),
    /// The key could not be checked: there is no readable certificate, or neither filter nor list.
    Unchecked,
    /// The key is an RSA key that anybody can factor.
    Weak(Weakness),
}

/// The filter entry that a key matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The filter's name.
    pub filter: Arc<str>,
    /// The filter's revision.
    pub revision: u32,
    /// The encoding of the key that is in the filter.
    pub encoding: Encoding,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
    /// Probability that a key that was never added is a hit, over all lookups for one key.
    pub false_positive_ratio: f64,
}

/// The proof of a key's compromise.
#[derive(Debug, Clone, PartialEq)]
pub struct Confirmation {
    /// Fingerprint of the encoding whose key made the proof, which is the name of the proof.
    pub proof: Fingerprint,
    /// The encoding of the key whose proof is known.
    pub encoding: Encoding,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
    /// The filter entry that the key matches; `None` if the key is in no filter any more.
    pub hit: Option<Hit>,
}

/// The list entry that a key matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The list's name.
    pub list: Arc<str>,
    /// The name of the collection that the key was found in, such as `debianssl`; `None` for a list
    /// without collections.
    pub finding: Option<Arc<str>>,
    /// The encoding of the key that is on the list.
    pub encoding: Encoding,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
    /// The verdict that the key would have without the list; `None` if it would be clean. The harder
    /// decision wins.
    pub also: Option<Box<Verdict>>,
}

/// The check that an RSA key fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Weakness {
    /// The first check that the key fails, in the order of [`WeakCheck::ALL`].
    pub check: WeakCheck,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
    /// The verdict that the key would have without the checks; `None` if it would be clean. The
    /// harder decision wins.
    pub also: Option<Box<Verdict>>,
}

impl Verdict {
    /// This verdict behind a graver one; `None` if it is clean.
    pub(super) fn behind(self) -> Option<Box<Self>> {
        (self != Self::Clean).then(|| Box::new(self))
    }

    /// The verdict behind a listed or weak key, if there is one.
    #[must_use]
    pub fn also(&self) -> Option<&Self> {
        match self {
            Self::Listed(listing) => listing.also.as_deref(),
            Self::Weak(weakness) => weakness.also.as_deref(),
            Self::Allowed
            | Self::Clean
            | Self::Cleared(_)
            | Self::Confirmed(_)
            | Self::Probable(_)
            | Self::Unchecked => None,
        }
    }

    /// The verdict of filters and answers on a listed or weak key; any other verdict itself.
    #[must_use]
    pub fn innermost(&self) -> &Self {
        self.also().map_or(self, Self::innermost)
    }

    /// The verdict without its evidence.
    #[must_use]
    pub fn kind(&self) -> VerdictKind {
        match self {
            Self::Allowed => VerdictKind::Allowed,
            Self::Clean => VerdictKind::Clean,
            Self::Cleared(_) => VerdictKind::Cleared,
            Self::Confirmed(_) => VerdictKind::Confirmed,
            Self::Listed(_) => VerdictKind::Listed,
            Self::Probable(_) => VerdictKind::Probable,
            Self::Unchecked => VerdictKind::Unchecked,
            Self::Weak(_) => VerdictKind::Weak,
        }
    }

    /// The name of the verdict in metrics, logs and headers.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.kind().as_str()
    }

    /// The more severe of two verdicts; `self` if they are equally severe.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        if other.severity() > self.severity() { other } else { self }
    }

    fn severity(&self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Allowed => 1,
            Self::Cleared(_) => 2,
            Self::Unchecked => 3,
            Self::Probable(_) => 4,
            Self::Confirmed(_) => 5,
            Self::Weak(_) => 6,
            Self::Listed(_) => 7,
        }
    }

    /// This verdict for the certificate at `position` in the client's chain.
    #[must_use]
    pub fn at(mut self, position: usize) -> Self {
        match &mut self {
            Self::Cleared(hit) | Self::Probable(hit) => hit.position = position,
            Self::Confirmed(confirmation) => {
                confirmation.position = position;
                if let Some(hit) = &mut confirmation.hit {
                    hit.position = position;
                }
            }
            Self::Listed(Listing { position: of_key, also, .. })
            | Self::Weak(Weakness { position: of_key, also, .. }) => {
                *of_key = position;
                *also = also.take().map(|verdict| Box::new(verdict.at(position)));
            }
            Self::Allowed | Self::Clean | Self::Unchecked => {}
        }
        self
    }

    /// Position in the client's chain of the certificate whose key was found; 0 is the leaf.
    #[must_use]
    pub fn position(&self) -> Option<usize> {
        match self {
            Self::Cleared(hit) | Self::Probable(hit) => Some(hit.position),
            Self::Confirmed(confirmation) => Some(confirmation.position),
            Self::Listed(listing) => Some(listing.position),
            Self::Weak(weakness) => Some(weakness.position),
            Self::Allowed | Self::Clean | Self::Unchecked => None,
        }
    }

    /// The filter entry, if the key is in a filter, also if it is listed or weak.
    #[must_use]
    pub fn hit(&self) -> Option<&Hit> {
        match self {
            Self::Cleared(hit) | Self::Probable(hit) => Some(hit),
            Self::Confirmed(confirmation) => confirmation.hit.as_ref(),
            Self::Listed(_) | Self::Weak(_) => self.also()?.hit(),
            Self::Allowed | Self::Clean | Self::Unchecked => None,
        }
    }

    /// The list entry, if the key is on a list.
    #[must_use]
    pub fn listing(&self) -> Option<&Listing> {
        match self {
            Self::Listed(listing) => Some(listing),
            Self::Allowed
            | Self::Clean
            | Self::Cleared(_)
            | Self::Confirmed(_)
            | Self::Probable(_)
            | Self::Unchecked
            | Self::Weak(_) => None,
        }
    }

    /// The check that the key fails, if it is weak.
    #[must_use]
    pub fn weakness(&self) -> Option<&Weakness> {
        match self {
            Self::Weak(weakness) => Some(weakness),
            Self::Listed(_) => self.also()?.weakness(),
            Self::Allowed
            | Self::Clean
            | Self::Cleared(_)
            | Self::Confirmed(_)
            | Self::Probable(_)
            | Self::Unchecked => None,
        }
    }

    /// The name of the proof, if the compromise of the key is proved.
    #[must_use]
    pub fn proof(&self) -> Option<&Fingerprint> {
        match self {
            Self::Confirmed(confirmation) => Some(&confirmation.proof),
            Self::Listed(_) | Self::Weak(_) => self.also()?.proof(),
            Self::Allowed
            | Self::Clean
            | Self::Cleared(_)
            | Self::Probable(_)
            | Self::Unchecked => None,
        }
    }

    /// The reason for rejecting a client with this verdict, in words for the client.
    #[must_use]
    pub fn rejection(&self) -> &'static str {
        let is_issuer = self.position().is_some_and(|position| position > 0);
        match self {
            Self::Cleared(_) if is_issuer => {
                "the key of an issuer of the client certificate is in a filter of rejected keys"
            }
            Self::Cleared(_) => "the key of the client certificate is in a filter of rejected keys",
            Self::Confirmed(_) | Self::Listed(_) | Self::Probable(_) if is_issuer => {
                "the key of an issuer of the client certificate is known to be compromised"
            }
            Self::Confirmed(_) => {
                "the key of the client certificate is compromised: replace key and certificate"
            }
            Self::Listed(_) => "the key of the client certificate is on a list of rejected keys",
            Self::Probable(_) => {
                "the key of the client certificate is probably compromised: replace key and certificate"
            }
            Self::Weak(_) if is_issuer => {
                "the key of an issuer of the client certificate is weak: anybody can compute it"
            }
            Self::Weak(_) => {
                "the key of the client certificate is weak: replace key and certificate"
            }
            Self::Allowed | Self::Clean | Self::Unchecked => {
                "the key of the client certificate could not be checked"
            }
        }
    }

    /// The encoding of the key that was found.
    #[must_use]
    pub fn encoding(&self) -> Option<Encoding> {
        match self {
            Self::Listed(listing) => Some(listing.encoding),
            Self::Cleared(hit) | Self::Probable(hit) => Some(hit.encoding),
            Self::Confirmed(confirmation) => Some(confirmation.encoding),
            Self::Allowed | Self::Clean | Self::Unchecked | Self::Weak(_) => None,
        }
    }
}

/// A verdict without its evidence: the label value in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictKind {
    /// An exception of the operator covers the key.
    Allowed,
    /// The key is in no filter and on no list.
    Clean,
    /// The key is in a filter, and the source of proofs does not know it.
    Cleared,
    /// The compromise of the key is proved.
    Confirmed,
    /// The key is on an exact list.
    Listed,
    /// The key is in a filter, up to its false-positive rate.
    Probable,
    /// The key could not be checked.
    Unchecked,
    /// The key is an RSA key that anybody can factor.
    Weak,
}

impl VerdictKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::Allowed,
        Self::Clean,
        Self::Cleared,
        Self::Confirmed,
        Self::Listed,
        Self::Probable,
        Self::Unchecked,
        Self::Weak,
    ];

    /// The name of the verdict in metrics, logs and headers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Clean => "clean",
            Self::Cleared => "cleared",
            Self::Confirmed => "confirmed",
            Self::Listed => "listed",
            Self::Probable => "probable",
            Self::Unchecked => "unchecked",
            Self::Weak => "weak",
        }
    }
}

/// The moment at which a client's key was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgedAt {
    /// During a question of another proxy, which has verified the client.
    Asked,
    /// In a full handshake.
    FullHandshake,
    /// On an open connection, after a new snapshot was activated.
    Reload,
    /// After a handshake that resumed a session.
    Resumption,
}

impl JudgedAt {
    /// Every moment, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::Asked, Self::FullHandshake, Self::Reload, Self::Resumption];

    /// The value of the label `stage` in metrics and of the field `stage` in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::FullHandshake => "handshake",
            Self::Reload => "live",
            Self::Resumption => "resumed",
        }
    }
}

/// The value of `Client-Key-Status`: a structured-field item (RFC 9651, section 3.3).
impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())?;
        // Names of filters, lists and findings have no character that needs escaping in a string.
        if let Some(listing) = self.listing() {
            write!(formatter, ";list=\"{}\"", listing.list)?;
            if let Some(finding) = &listing.finding {
                write!(formatter, ";finding=\"{finding}\"")?;
            }
        }
        if let Some(weakness) = self.weakness() {
            write!(formatter, ";check=\"{}\"", weakness.check)?;
        }
        if let Some(hit) = self.hit() {
            write!(formatter, ";filter=\"{}\";revision={}", hit.filter, hit.revision)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_displays_as_a_structured_field_item() {
        let hit = Hit {
            filter: "pwnedkeys".into(),
            revision: 42,
            encoding: Encoding::Presented,
            position: 0,
            false_positive_ratio: 0.001,
        };
        let confirmation = |hit: Option<Hit>| {
            Box::new(Confirmation {
                proof: Fingerprint::of(b"key"),
                encoding: Encoding::Presented,
                position: 0,
                hit,
            })
        };
        assert_eq!(
            Verdict::Confirmed(confirmation(Some(hit.clone()))).to_string(),
            r#"confirmed;filter="pwnedkeys";revision=42"#
        );
        assert_eq!(Verdict::Confirmed(confirmation(None)).to_string(), "confirmed");
        assert_eq!(
            Verdict::Cleared(hit.clone()).to_string(),
            r#"cleared;filter="pwnedkeys";revision=42"#
        );
        assert_eq!(
            Verdict::Probable(hit.clone()).to_string(),
            r#"probable;filter="pwnedkeys";revision=42"#
        );
        let listing = |list: &str, finding: Option<&str>| Listing {
            list: list.into(),
            finding: finding.map(Into::into),
            encoding: Encoding::Presented,
            position: 0,
            also: None,
        };
        assert_eq!(Verdict::Listed(listing("march", None)).to_string(), r#"listed;list="march""#);
        assert_eq!(
            Verdict::Listed(listing("badkeys", Some("debianssl"))).to_string(),
            r#"listed;list="badkeys";finding="debianssl""#
        );
        let check = WeakCheck::SmallFactors;
        let weak = Verdict::Weak(Weakness { check, position: 0, also: None });
        assert_eq!(weak.to_string(), r#"weak;check="small-factors""#);
        let also = Some(Box::new(Verdict::Probable(hit)));
        let weak = Verdict::Weak(Weakness { check, position: 0, also });
        let shown = r#"weak;check="small-factors";filter="pwnedkeys";revision=42"#;
        assert_eq!(weak.to_string(), shown);
        let both = Listing { also: Some(Box::new(weak)), ..listing("march", None) };
        let shown = r#"listed;list="march";check="small-factors";filter="pwnedkeys";revision=42"#;
        assert_eq!(Verdict::Listed(both).to_string(), shown);
        assert_eq!(Verdict::Allowed.to_string(), "allowed");
        assert_eq!(Verdict::Clean.to_string(), "clean");
        assert_eq!(Verdict::Unchecked.to_string(), "unchecked");
    }
}
