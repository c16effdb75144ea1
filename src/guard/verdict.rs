//! The verdict on a key, and its text for logs, metrics and headers.

use std::fmt;
use std::sync::Arc;

use crate::spki::Encoding;

/// The verdict on a key, with the evidence.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// An exception of the operator covers the key.
    Allowed,
    /// The key is in no filter and on no list. Filters have no false negatives.
    Clean,
    /// The key is in a filter and proved to be compromised. No code produces this verdict yet.
    Confirmed(Hit),
    /// The key is on an exact list.
    Listed(Listing),
    /// The key is in a filter, up to its false-positive rate.
    Probable(Hit),
    /// The key could not be checked: there is no readable certificate or no filter.
    Unchecked,
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

/// The list entry that a key matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The list's name.
    pub list: Arc<str>,
    /// The encoding of the key that is on the list.
    pub encoding: Encoding,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
}

impl Verdict {
    /// The verdict without its evidence.
    #[must_use]
    pub fn kind(&self) -> VerdictKind {
        match self {
            Self::Allowed => VerdictKind::Allowed,
            Self::Clean => VerdictKind::Clean,
            Self::Confirmed(_) => VerdictKind::Confirmed,
            Self::Listed(_) => VerdictKind::Listed,
            Self::Probable(_) => VerdictKind::Probable,
            Self::Unchecked => VerdictKind::Unchecked,
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
            Self::Unchecked => 2,
            Self::Probable(_) => 3,
            Self::Confirmed(_) => 4,
            Self::Listed(_) => 5,
        }
    }

    /// This verdict for the certificate at `position` in the client's chain.
    #[must_use]
    pub fn at(mut self, position: usize) -> Self {
        match &mut self {
            Self::Confirmed(hit) | Self::Probable(hit) => hit.position = position,
            Self::Listed(listing) => listing.position = position,
            Self::Allowed | Self::Clean | Self::Unchecked => {}
        }
        self
    }

    /// Position in the client's chain of the certificate whose key was found; 0 is the leaf.
    #[must_use]
    pub fn position(&self) -> Option<usize> {
        match self {
            Self::Confirmed(hit) | Self::Probable(hit) => Some(hit.position),
            Self::Listed(listing) => Some(listing.position),
            Self::Allowed | Self::Clean | Self::Unchecked => None,
        }
    }

    /// The filter entry, if the key is in a filter.
    #[must_use]
    pub fn hit(&self) -> Option<&Hit> {
        match self {
            Self::Confirmed(hit) | Self::Probable(hit) => Some(hit),
            Self::Allowed | Self::Clean | Self::Listed(_) | Self::Unchecked => None,
        }
    }

    /// The list entry, if the key is on a list.
    #[must_use]
    pub fn listing(&self) -> Option<&Listing> {
        match self {
            Self::Listed(listing) => Some(listing),
            Self::Allowed
            | Self::Clean
            | Self::Confirmed(_)
            | Self::Probable(_)
            | Self::Unchecked => None,
        }
    }

    /// The encoding of the key that was found.
    #[must_use]
    pub fn encoding(&self) -> Option<Encoding> {
        match self {
            Self::Listed(listing) => Some(listing.encoding),
            Self::Confirmed(hit) | Self::Probable(hit) => Some(hit.encoding),
            Self::Allowed | Self::Clean | Self::Unchecked => None,
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
    /// The key is in a filter and proved to be compromised.
    Confirmed,
    /// The key is on an exact list.
    Listed,
    /// The key is in a filter, up to its false-positive rate.
    Probable,
    /// The key could not be checked.
    Unchecked,
}

impl VerdictKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 6] = [
        Self::Allowed,
        Self::Clean,
        Self::Confirmed,
        Self::Listed,
        Self::Probable,
        Self::Unchecked,
    ];

    /// The name of the verdict in metrics, logs and headers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Clean => "clean",
            Self::Confirmed => "confirmed",
            Self::Listed => "listed",
            Self::Probable => "probable",
            Self::Unchecked => "unchecked",
        }
    }
}

/// The moment in a connection's life at which its key was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgedAt {
    /// In a full handshake.
    FullHandshake,
    /// On an open connection, after a new snapshot was activated.
    Reload,
    /// After a handshake that resumed a session.
    Resumption,
}

impl JudgedAt {
    /// Every moment, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::FullHandshake, Self::Reload, Self::Resumption];

    /// The value of the label `stage` in metrics and of the field `stage` in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
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
        match self {
            // Configured names contain no character that needs escaping in a quoted string.
            Self::Listed(listing) => write!(formatter, ";list=\"{}\"", listing.list),
            Self::Confirmed(hit) | Self::Probable(hit) => {
                write!(formatter, ";filter=\"{}\";revision={}", hit.filter, hit.revision)
            }
            Self::Allowed | Self::Clean | Self::Unchecked => Ok(()),
        }
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
        assert_eq!(
            Verdict::Confirmed(hit.clone()).to_string(),
            r#"confirmed;filter="pwnedkeys";revision=42"#
        );
        assert_eq!(
            Verdict::Probable(hit).to_string(),
            r#"probable;filter="pwnedkeys";revision=42"#
        );
        let listing = Listing { list: "march".into(), encoding: Encoding::Presented, position: 0 };
        assert_eq!(Verdict::Listed(listing).to_string(), r#"listed;list="march""#);
        assert_eq!(Verdict::Allowed.to_string(), "allowed");
        assert_eq!(Verdict::Clean.to_string(), "clean");
        assert_eq!(Verdict::Unchecked.to_string(), "unchecked");
    }
}
