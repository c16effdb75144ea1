//! Exceptions and exact lists, searched for all digests of one key.

use std::time::SystemTime;

use super::lists::{ExactList, ExceptionsByKey};
use super::{Exception, Listing, Verdict};
use crate::spki::{Encoding, KeyDigest};

/// The exceptions and lists of a guard.
#[derive(Debug, Default)]
pub(super) struct ExactKeys {
    lists: Vec<ExactList>,
    exceptions: ExceptionsByKey,
    /// Whether a fingerprint could be found. If not, none needs to be computed.
    has_fingerprints: bool,
    /// Whether the digest of a number could be found.
    has_numbers: bool,
}

impl ExactKeys {
    pub(super) fn with_lists(self, lists: Vec<ExactList>) -> Self {
        Self { lists, ..self }.with_kinds()
    }

    pub(super) fn with_exceptions(self, exceptions: impl IntoIterator<Item = Exception>) -> Self {
        Self { exceptions: ExceptionsByKey::new(exceptions), ..self }.with_kinds()
    }

    fn with_kinds(self) -> Self {
        let (lists, exceptions) = (&self.lists, &self.exceptions);
        let has_fingerprints =
            exceptions.has_fingerprints() || lists.iter().any(ExactList::has_fingerprints);
        let has_numbers = exceptions.has_numbers() || lists.iter().any(ExactList::has_numbers);
        Self { has_fingerprints, has_numbers, ..self }
    }

    /// Whether there is a list that may have a key of any kind.
    pub(super) fn can_list(&self) -> bool {
        self.lists.iter().any(|it| it.primes().is_none() || it.has_fingerprints())
    }

    /// Whether fingerprints must be looked up.
    pub(super) fn has_fingerprints(&self) -> bool {
        self.has_fingerprints
    }

    /// Whether digests of numbers must be looked up.
    pub(super) fn has_numbers(&self) -> bool {
        self.has_numbers
    }

    /// A search for one key at `now`.
    pub(super) fn search(&self, now: SystemTime) -> ExactSearch<'_> {
        ExactSearch { keys: self, now, is_allowed: false, found: None }
    }
}

/// A search for the digests of one key, one after the other.
pub(super) struct ExactSearch<'a> {
    keys: &'a ExactKeys,
    now: SystemTime,
    is_allowed: bool,
    /// The entry on the first list that has one, and the position of the list.
    found: Option<(usize, Listing)>,
}

impl ExactSearch<'_> {
    /// Looks up the digest of one form of the key.
    pub(super) fn look_up(&mut self, encoding: Encoding, digest: &KeyDigest) {
        self.is_allowed |= self.keys.exceptions.covers(digest, self.now);
        let end = self.found.as_ref().map_or(usize::MAX, |(position, _)| *position);
        let lists = self.keys.lists.iter().enumerate().take(end);
        let found = { lists }.find_map(|(position, list)| {
            list.listing(encoding, digest).map(|listing| (position, listing))
        });
        if found.is_some() {
            self.found = found;
        }
    }

    /// The verdict of the exceptions, or else of the first list that has the key.
    pub(super) fn verdict(self) -> Option<Verdict> {
        if self.is_allowed {
            return Some(Verdict::Allowed);
        }
        self.found.map(|(_, listing)| Verdict::Listed(listing))
    }
}
