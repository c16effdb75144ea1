//! Exact lists of compromised keys, and exceptions for keys that stay admitted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use crate::spki::Fingerprint;

/// An exact list of keys, by fingerprint.
#[derive(Debug)]
pub struct FingerprintList {
    /// The name in logs, metrics and headers.
    pub name: Arc<str>,
    fingerprints: HashSet<Fingerprint>,
}

/// A line of a list is not a fingerprint.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: not a fingerprint; write the SHA-256 of a SubjectPublicKeyInfo in hex or base64, and comments after '#'"
)]
pub struct ListError {
    /// Number of the line, counted from 1.
    pub line: usize,
}

impl FingerprintList {
    /// Parses a list of one fingerprint a line, in hex or base64. A comment begins with `#`.
    ///
    /// # Errors
    /// Returns the first line that is neither a fingerprint, nor empty, nor a comment.
    pub fn parse(name: &str, text: &str) -> Result<Self, ListError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let lines = lines.enumerate().filter(|(_, line)| !line.is_empty());
        let fingerprints = lines
            .map(|(index, line)| Fingerprint::parse(line).ok_or(ListError { line: index + 1 }));
        Ok(Self { name: name.into(), fingerprints: fingerprints.collect::<Result<_, _>>()? })
    }

    /// Whether the key with this fingerprint is on the list.
    #[must_use]
    pub fn contains(&self, fingerprint: &Fingerprint) -> bool {
        self.fingerprints.contains(fingerprint)
    }

    /// The fingerprints, in no order.
    #[cfg(feature = "proxy")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fingerprint> {
        self.fingerprints.iter()
    }

    /// The number of keys on the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fingerprints.len()
    }

    /// Whether the list has no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fingerprints.is_empty()
    }
}

/// A key that is admitted until a given time, regardless of lists and filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Fingerprint of the key in any of its encodings.
    pub fingerprint: Fingerprint,
    /// The moment at which the exception expires.
    pub until: SystemTime,
    /// The operator's reason for the exception.
    pub reason: String,
}

/// All exceptions by fingerprint.
#[derive(Debug, Clone, Default)]
pub(super) struct ExceptionsByKey(HashMap<Fingerprint, Exception>);

impl ExceptionsByKey {
    pub(super) fn new(exceptions: impl IntoIterator<Item = Exception>) -> Self {
        let by_key = exceptions.into_iter().map(|exception| (exception.fingerprint, exception));
        Self(by_key.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an exception for the key is valid at `now`.
    pub(super) fn covers(&self, fingerprint: &Fingerprint, now: SystemTime) -> bool {
        self.0.get(fingerprint).is_some_and(|exception| now < exception.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_fingerprint_a_line_and_comments() {
        let one = Fingerprint::of(b"one");
        let text = format!("# lost in March\r\n\r\n{one}  # laptop\r\n{one}\n");
        let list = FingerprintList::parse("march", &text).unwrap();
        assert_eq!(list.len(), 1);
        assert!(list.contains(&one) && !list.contains(&Fingerprint::of(b"two")));
        assert!(FingerprintList::parse("none", "").unwrap().is_empty());
    }

    #[test]
    fn an_error_names_the_line_that_is_not_a_fingerprint() {
        let text = format!("# a\n{}\nabc\n", Fingerprint::of(b"one"));
        assert_eq!(FingerprintList::parse("x", &text).unwrap_err(), ListError { line: 3 });
    }
}
