//! The verdict on a key, and its text for logs, metrics and headers.

mod evidence;
mod kind;

use std::fmt;

pub use self::evidence::{Confirmation, Hit, Listing, Weakness};
pub use self::kind::VerdictKind;
use crate::spki::{Encoding, Fingerprint};

/// The verdict on a key, with the evidence.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// An exception of the operator covers the key.
    Allowed,
    /// The key is in no filter and on no list. Filters have no false negatives.
    Clean,
    /// The key is in a filter, and is unknown to the source of proofs. The clearance expires.
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

impl Verdict {
    /// This verdict as the underlying one of a listed or weak key; `None` if it is clean.
    pub(super) fn into_underlying(self) -> Option<Box<Self>> {
        (self != Self::Clean).then(|| Box::new(self))
    }

    /// The verdict on a listed or weak key without the list or the check; `None` if it is clean.
    #[must_use]
    pub fn underlying(&self) -> Option<&Self> {
        match self {
            Self::Listed(listing) => listing.underlying.as_deref(),
            Self::Weak(weakness) => weakness.underlying.as_deref(),
            Self::Allowed
            | Self::Clean
            | Self::Cleared(_)
            | Self::Confirmed(_)
            | Self::Probable(_)
            | Self::Unchecked => None,
        }
    }

    /// This verdict and the underlying ones: a list, a check, filters and answers.
    pub(super) fn findings(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |verdict| verdict.underlying())
    }

    /// The last of the findings. Filters and answers made it, unless the key is in no filter.
    #[must_use]
    pub fn by_filters(&self) -> &Self {
        self.findings().last().unwrap_or(self)
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

    pub(super) fn severity(&self) -> u8 {
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
            Self::Listed(Listing { position: of_key, underlying, .. })
            | Self::Weak(Weakness { position: of_key, underlying, .. }) => {
                *of_key = position;
                *underlying = underlying.take().map(|verdict| Box::new(verdict.at(position)));
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

    /// The filter entry, if the key is in a filter. A listed or weak key may have one.
    #[must_use]
    pub fn hit(&self) -> Option<&Hit> {
        match self {
            Self::Cleared(hit) | Self::Probable(hit) => Some(hit),
            Self::Confirmed(confirmation) => confirmation.hit.as_ref(),
            Self::Listed(_) | Self::Weak(_) => self.underlying()?.hit(),
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
            Self::Listed(_) => self.underlying()?.weakness(),
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
            Self::Listed(_) | Self::Weak(_) => self.underlying()?.proof(),
            Self::Allowed
            | Self::Clean
            | Self::Cleared(_)
            | Self::Probable(_)
            | Self::Unchecked => None,
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
    use crate::guard::WeakCheck;

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
            underlying: None,
        };
        assert_eq!(Verdict::Listed(listing("march", None)).to_string(), r#"listed;list="march""#);
        assert_eq!(
            Verdict::Listed(listing("badkeys", Some("debianssl"))).to_string(),
            r#"listed;list="badkeys";finding="debianssl""#
        );
        let check = WeakCheck::SmallFactors;
        let weak = Verdict::Weak(Weakness { check, position: 0, underlying: None });
        assert_eq!(weak.to_string(), r#"weak;check="small-factors""#);
        let underlying = Some(Box::new(Verdict::Probable(hit)));
        let weak = Verdict::Weak(Weakness { check, position: 0, underlying });
        let shown = r#"weak;check="small-factors";filter="pwnedkeys";revision=42"#;
        assert_eq!(weak.to_string(), shown);
        let both = Listing { underlying: Some(Box::new(weak)), ..listing("march", None) };
        let shown = r#"listed;list="march";check="small-factors";filter="pwnedkeys";revision=42"#;
        assert_eq!(Verdict::Listed(both).to_string(), shown);
        assert_eq!(Verdict::Allowed.to_string(), "allowed");
        assert_eq!(Verdict::Clean.to_string(), "clean");
        assert_eq!(Verdict::Unchecked.to_string(), "unchecked");
    }
}
