//! What is known of a key, and how upstreams are told.

use std::fmt;
use std::sync::Arc;

use crate::spki::Encoding;

/// What is known of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// In no filter: certain.
    Clean,
    /// In a filter, up to its false-positive rate.
    Probable(Hit),
    /// Could not be checked: no readable certificate, or no filter to ask.
    Unchecked,
}

/// Where a key was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The filter's name.
    pub filter: Arc<str>,
    /// The filter's revision.
    pub revision: u32,
    /// The encoding of the key that is in the filter.
    pub encoding: Encoding,
    /// The probability that a key which was never added is found in this filter, for one look-up.
    pub false_positive_ratio: f64,
}

impl Verdict {
    /// The word for it in metrics, logs and headers.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Probable(_) => "probable",
            Self::Unchecked => "unchecked",
        }
    }

    /// Where the key was found, if it was.
    #[must_use]
    pub fn hit(&self) -> Option<&Hit> {
        match self {
            Self::Probable(hit) => Some(hit),
            Self::Clean | Self::Unchecked => None,
        }
    }
}

/// The value of `Client-Key-Status`: a structured-field item (RFC 9651, section 3.3).
impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())?;
        match self {
            // A filter's name has nothing that needs escaping in a quoted string.
            Self::Probable(hit) => {
                write!(formatter, ";filter=\"{}\";revision={}", hit.filter, hit.revision)
            }
            Self::Clean | Self::Unchecked => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_a_structured_field_item() {
        let hit = Hit {
            filter: "pwnedkeys".into(),
            revision: 42,
            encoding: Encoding::Presented,
            false_positive_ratio: 0.001,
        };
        assert_eq!(
            Verdict::Probable(hit).to_string(),
            r#"probable;filter="pwnedkeys";revision=42"#
        );
        assert_eq!(Verdict::Clean.to_string(), "clean");
        assert_eq!(Verdict::Unchecked.to_string(), "unchecked");
    }
}
