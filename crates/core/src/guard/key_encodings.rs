//! The encodings of one key, hashed for filters.

use smallvec::SmallVec;

use crate::pkbf::{Filter, KeyHash};
use crate::spki::{Encoding, PublicKey, RsaExponents};

/// The related encodings of a key with their hashes, ready for lookups in filters of any size.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyEncodings {
    pub(super) encodings: SmallVec<[Encoding; 8]>,
    pub(super) hashes: SmallVec<[KeyHash; 8]>,
}

impl KeyEncodings {
    /// The encodings of a key.
    pub(super) fn new(key: &PublicKey<'_>, exponents: RsaExponents) -> Self {
        let mut encodings = Self::default();
        key.for_each_related(exponents, |encoding, spki| {
            encodings.push(encoding, spki);
        });
        encodings
    }

    pub(super) fn push(&mut self, encoding: Encoding, spki: &[u8]) -> KeyHash {
        let hash = KeyHash::from_spki(spki);
        self.encodings.push(encoding);
        self.hashes.push(hash);
        hash
    }

    /// The first encoding that is probably in `filter`, of those with one of `exponents`.
    pub(super) fn find_in(&self, filter: &Filter, exponents: RsaExponents) -> Option<Encoding> {
        let looked_up = |(encoding, _): &(&Encoding, &KeyHash)| exponents.include(**encoding);
        let mut encodings = self.encodings.iter().zip(&self.hashes).filter(looked_up);
        encodings.find(|(_, hash)| filter.contains_hash(**hash)).map(|(encoding, _)| *encoding)
    }
}
