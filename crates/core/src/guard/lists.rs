//! Exact lists of compromised keys, and exceptions for keys that stay admitted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::Listing;
use super::weak::SharedPrimes;
use crate::badkeys::Metadata;
use crate::badkeys::{Blocklist, Findings};
use crate::spki::{Encoding, KeyDigest};

/// Length of a line with a digest in hex, in bytes.
const HEX_LINE: usize = 65;

/// An exact list of keys, by digest.
#[derive(Debug)]
pub struct FingerprintList {
    /// The name in logs, metrics and headers.
    pub name: Arc<str>,
    /// Sorted, without duplicates: 33 bytes for each key.
    digests: Vec<KeyDigest>,
    has_numbers: bool,
    /// Products of primes that RSA keys share.
    primes: SharedPrimes,
}

/// Why a line of a list cannot be used. Lines are counted from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The line has the form in which programs print the fingerprint of a certificate. No key has
    /// that fingerprint, so that the entry would have no effect.
    #[error(
        "line {line}: bytes with colons between them are the fingerprint of a certificate, which matches no key; write what `keygate key --lists` prints for the certificate, or remove the colons if it is the SHA-256 of a SubjectPublicKeyInfo"
    )]
    Certificate {
        /// Number of the line.
        line: usize,
    },
    /// The line begins with `rsa-primes:`, and is no product.
    #[error(
        "line {line}: not a product of primes; write rsa-primes:, the size of the moduli in bits, a colon, and an odd number in hex; the numbers for one size have at most 512 KiB, and above 1024 bits 2^32 by the size in bits"
    )]
    NotAProduct {
        /// Number of the line.
        line: usize,
    },
    /// The line is not a digest. Its text is not shown, because it may be a private key.
    #[error(
        "line {line}: not a fingerprint (length {length}); write the SHA-256 of a SubjectPublicKeyInfo in hex or base64, or rsa-modulus: or ec-x: and a SHA-256, as `keygate key --lists` prints it; comments begin with '#'"
    )]
    NotADigest {
        /// Number of the line.
        line: usize,
        /// Number of characters of the line, without comment and spaces around it.
        length: usize,
    },
}

impl FingerprintList {
    /// Parses a list of one digest a line: a fingerprint, or `rsa-modulus:` or `ec-x:` and a
    /// SHA-256, in hex or base64. `rsa-primes:`, the size of moduli in bits, a colon and a number
    /// in hex is a product of primes that such moduli share. A comment begins with `#`.
    ///
    /// # Errors
    /// Returns the first line that is neither a digest, nor empty, nor a comment, or that has
    /// colons in its fingerprint.
    pub fn parse(name: &str, text: &str) -> Result<Self, ListError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let lines = lines.enumerate().filter(|(_, line)| !line.is_empty());
        // Room for lines of hex. A buffer that grows needs up to three times the memory.
        let mut digests = Vec::with_capacity(text.len() / HEX_LINE);
        let mut primes = SharedPrimes::default();
        for (index, line) in lines {
            if let Some(product) = line.strip_prefix("rsa-primes:") {
                primes.add(product).ok_or(ListError::NotAProduct { line: index + 1 })?;
                continue;
            }
            digests.push(parse_line(line, index + 1)?);
        }
        digests.sort_unstable();
        digests.dedup();
        digests.shrink_to_fit();
        let has_numbers = digests.iter().any(KeyDigest::is_of_number);
        Ok(Self { name: name.into(), digests, has_numbers, primes })
    }

    /// Whether a key with this digest is on the list.
    #[must_use]
    pub fn contains(&self, digest: &KeyDigest) -> bool {
        self.digests.binary_search(digest).is_ok()
    }

    /// The digests, in order.
    pub fn iter(&self) -> impl Iterator<Item = &KeyDigest> {
        self.digests.iter()
    }

    /// The number of entries. A product counts as its primes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.digests.len() + self.primes.count()
    }

    /// Whether the list has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The products of primes.
    #[must_use]
    pub fn primes(&self) -> &SharedPrimes {
        &self.primes
    }
}

/// Parses the line with this number, which has no comment.
fn parse_line(text: &str, line: usize) -> Result<KeyDigest, ListError> {
    let not_a_digest = || ListError::NotADigest { line, length: text.chars().count() };
    let digest = KeyDigest::parse(text).ok_or_else(not_a_digest)?;
    let is_of_certificate = !digest.is_of_number() && text.matches(':').count() > 1;
    if is_of_certificate { Err(ListError::Certificate { line }) } else { Ok(digest) }
}

/// A badkeys blocklist with its configured name.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedBlocklist {
    /// The name in logs, metrics and headers.
    pub name: Arc<str>,
    /// The records.
    pub blocklist: Blocklist,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// The names of the collections, which are reported as findings.
    pub findings: Findings,
    /// Date of the list, in seconds since the Unix epoch; `None` if it is unknown.
    pub date: Option<u64>,
    /// Whether the publisher calls the format deprecated, so that it may not be updated any more.
    pub is_deprecated: bool,
}

impl NamedBlocklist {
    /// The list `name` with these records and this metadata. `sha256` is the digest of the file.
    pub fn new(name: &str, blocklist: Blocklist, sha256: [u8; 32], metadata: Metadata) -> Self {
        let Metadata { date, findings, is_deprecated, .. } = metadata;
        Self { name: name.into(), blocklist, sha256, findings, date, is_deprecated }
    }
}

/// An exact list of any format.
#[derive(Debug, Clone)]
pub enum ExactList {
    /// A badkeys blocklist.
    Badkeys(Arc<NamedBlocklist>),
    /// A list of fingerprints and of digests of numbers.
    Fingerprints(Arc<FingerprintList>),
}

impl ExactList {
    /// The name in logs, metrics and headers.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Badkeys(list) => &list.name,
            Self::Fingerprints(list) => &list.name,
        }
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Badkeys(list) => list.blocklist.len(),
            Self::Fingerprints(list) => list.len(),
        }
    }

    /// Whether the list has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The date of a blocklist, in seconds since the Unix epoch, if it is known.
    #[must_use]
    pub fn date(&self) -> Option<u64> {
        match self {
            Self::Badkeys(list) => list.date,
            Self::Fingerprints(_) => None,
        }
    }

    /// Whether `other` has the same entries, and the same names of collections.
    pub fn has_same_entries(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Badkeys(list), Self::Badkeys(other)) => list == other,
            (Self::Fingerprints(list), Self::Fingerprints(other)) => {
                list.digests == other.digests && list.primes == other.primes
            }
            (Self::Badkeys(_), Self::Fingerprints(_))
            | (Self::Fingerprints(_), Self::Badkeys(_)) => false,
        }
    }

    /// The number of entries that only this list has, and the number of those that only `other` has.
    /// `None` if the lists differ in format.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<(usize, usize)> {
        match (self, other) {
            (Self::Badkeys(list), Self::Badkeys(other)) => {
                Some(list.blocklist.difference(&other.blocklist))
            }
            (Self::Fingerprints(list), Self::Fingerprints(other)) => {
                let without = |one: &FingerprintList, other: &FingerprintList| {
                    let digests = one.iter().filter(|digest| !other.contains(digest)).count();
                    digests + one.primes.count_without(&other.primes)
                };
                Some((without(list, other), without(other, list)))
            }
            (Self::Badkeys(_), Self::Fingerprints(_))
            | (Self::Fingerprints(_), Self::Badkeys(_)) => None,
        }
    }

    /// Whether the list may have fingerprints.
    pub(super) fn has_fingerprints(&self) -> bool {
        match self {
            Self::Badkeys(_) => false,
            Self::Fingerprints(list) => !list.digests.is_empty(),
        }
    }

    /// The products of primes on the list, if there are any.
    pub(super) fn primes(&self) -> Option<&SharedPrimes> {
        match self {
            Self::Badkeys(_) => None,
            Self::Fingerprints(list) => Some(&list.primes).filter(|it| !it.is_empty()),
        }
    }

    /// Whether the list has digests of numbers.
    pub(super) fn has_numbers(&self) -> bool {
        match self {
            Self::Badkeys(_) => true,
            Self::Fingerprints(list) => list.has_numbers,
        }
    }

    /// The entry for the form `encoding` of a key, which has this digest.
    pub(super) fn listing(&self, encoding: Encoding, digest: &KeyDigest) -> Option<Listing> {
        let finding = match self {
            // A record is the start of a SHA-256, and a fingerprint is of other bytes.
            Self::Badkeys(_) if !digest.is_of_number() => return None,
            Self::Badkeys(list) => Some(list.findings.name(list.blocklist.find(&digest.sha256())?)),
            Self::Fingerprints(list) if list.contains(digest) => None,
            Self::Fingerprints(_) => return None,
        };
        let list = Arc::clone(self.name());
        Some(Listing { list, finding, encoding, position: 0, underlying: None })
    }
}

impl From<Arc<FingerprintList>> for ExactList {
    fn from(list: Arc<FingerprintList>) -> Self {
        Self::Fingerprints(list)
    }
}

impl From<Arc<NamedBlocklist>> for ExactList {
    fn from(list: Arc<NamedBlocklist>) -> Self {
        Self::Badkeys(list)
    }
}

/// A key that is admitted until a given time, regardless of lists and filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Digest of the key, in any of its encodings.
    pub key: KeyDigest,
    /// The moment at which the exception expires.
    pub until: SystemTime,
    /// The operator's reason for the exception.
    pub reason: String,
}

/// All exceptions by digest.
#[derive(Debug, Clone, Default)]
pub(super) struct ExceptionsByKey(HashMap<KeyDigest, Exception>);

impl ExceptionsByKey {
    pub(super) fn new(exceptions: impl IntoIterator<Item = Exception>) -> Self {
        let by_key = exceptions.into_iter().map(|exception| (exception.key, exception));
        Self(by_key.collect())
    }

    pub(super) fn has_fingerprints(&self) -> bool {
        self.0.keys().any(|digest| !digest.is_of_number())
    }

    pub(super) fn has_numbers(&self) -> bool {
        self.0.keys().any(KeyDigest::is_of_number)
    }

    /// Whether an exception for the key is valid at `now`.
    pub(super) fn covers(&self, digest: &KeyDigest, now: SystemTime) -> bool {
        self.0.get(digest).is_some_and(|exception| now < exception.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spki::Fingerprint;

    #[test]
    fn a_list_has_one_fingerprint_a_line_and_comments() {
        let one = Fingerprint::of(b"one");
        let text = format!("# lost in March\r\n\r\n{one}  # laptop\r\n{one}\n");
        let list = FingerprintList::parse("march", &text).unwrap();
        assert_eq!(list.len(), 1);
        assert!(list.contains(&one.into()) && !list.contains(&Fingerprint::of(b"two").into()));
        assert!(FingerprintList::parse("none", "").unwrap().is_empty());
    }

    #[test]
    fn an_error_names_the_line_that_is_not_a_fingerprint() {
        let text = format!("# a\n{}\n abc # one\n", Fingerprint::of(b"one"));
        let error = FingerprintList::parse("x", &text).unwrap_err();
        assert_eq!(error, ListError::NotADigest { line: 3, length: 3 });
        assert!(!error.to_string().contains("abc"), "{error}");
    }

    #[test]
    fn a_fingerprint_with_colons_is_taken_for_that_of_a_certificate() {
        let hex = Fingerprint::of(b"one").to_string();
        let bytes: Vec<_> = hex.as_bytes().chunks(2).map(String::from_utf8_lossy).collect();
        let colons = bytes.join(":").to_uppercase();
        let error = FingerprintList::parse("x", &format!("# a\n{colons} # b\n")).unwrap_err();
        assert_eq!(error, ListError::Certificate { line: 2 });
        assert!(error.to_string().contains("`keygate key --lists`"), "{error}");
        let pin = format!("sha256:{hex}");
        for line in [hex.clone(), pin, format!("ec-x:{hex}"), format!("rsa-modulus: {hex}")] {
            assert_eq!(FingerprintList::parse("x", &line).unwrap().len(), 1, "{line}");
        }
    }
}
