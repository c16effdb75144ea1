//! The evidence of a verdict: an entry of a filter or of a list, a proof, or a failed check.

use std::sync::Arc;

use super::Verdict;
use crate::guard::WeakCheck;
use crate::spki::{Encoding, Fingerprint};

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
    /// The filter entry that the key matches; `None` if no filter has the key.
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
    /// The verdict on the key without the lists; `None` if it is clean. The stricter decision
    /// applies.
    pub underlying: Option<Box<Verdict>>,
}

/// The check that an RSA key fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Weakness {
    /// The first check that the key fails, in the order of [`WeakCheck::ALL`].
    pub check: WeakCheck,
    /// Position in the client's chain of the certificate with this key; 0 is the leaf.
    pub position: usize,
    /// The verdict on the key without the checks; `None` if it is clean. The stricter decision
    /// applies.
    pub underlying: Option<Box<Verdict>>,
}
