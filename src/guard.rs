//! The judgement of client keys: a verdict on a key, and the decision that a policy derives from
//! it.
//!
//! All judgements come from [`Guard::judge`] and [`Policy::decide`]: in full handshakes, resumed
//! sessions, reloads and the command line. Both are pure functions: no I/O, the time is a
//! parameter, and a clean key causes no allocation.

mod answers;
mod confirmed_marks;
mod judgement;
mod lists;
mod policy;
mod recent;
mod unanswered;
mod verdict;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

pub use answers::{Answers, CurrentAnswers};
pub use judgement::Judgement;
pub use lists::{Exception, FingerprintList, ListError};
pub use policy::{Decision, Depth, Policy, RejectWith};
pub use recent::{MatchingClients, RecentClient, RecentKeys, RecentShard};
pub use unanswered::{OpenQuestions, UnansweredKey};
pub use verdict::{Confirmation, Hit, JudgedAt, Listing, Verdict, VerdictKind};

use self::lists::ExceptionsByKey;

use crate::pkbf::{Filter, KeyHash};
use crate::spki::{self, Algorithm, Encoding, Fingerprint};

/// A filter with its configured name.
#[derive(Debug)]
pub struct NamedFilter {
    /// The name in logs, metrics and headers.
    pub name: Arc<str>,
    /// The filter.
    pub filter: Filter,
    /// SHA-256 of the filter file.
    pub sha256: [u8; 32],
}

/// Judges keys by exceptions, lists, answers and filters, in this order.
#[derive(Debug, Default)]
pub struct Guard {
    filters: Vec<Arc<NamedFilter>>,
    lists: Vec<Arc<FingerprintList>>,
    exceptions: ExceptionsByKey,
    answers: Option<CurrentAnswers>,
}

impl Guard {
    /// A guard that looks keys up in `filters`, in their order. Without filters, a key that no
    /// exception or list covers is [`Verdict::Unchecked`].
    #[must_use]
    pub fn new(filters: Vec<Arc<NamedFilter>>) -> Self {
        Self { filters, ..Self::default() }
    }

    /// Adds lists, which are consulted before the filters.
    #[must_use]
    pub fn with_lists(self, lists: Vec<Arc<FingerprintList>>) -> Self {
        Self { lists, ..self }
    }

    /// Adds exceptions, which are consulted before lists and filters.
    #[must_use]
    pub fn with_exceptions(self, exceptions: impl IntoIterator<Item = Exception>) -> Self {
        Self { exceptions: ExceptionsByKey::new(exceptions), ..self }
    }

    /// Adds the answers of a source of proofs, which are consulted before the filters if they
    /// confirm a key, and after the filters if they clear one.
    #[must_use]
    pub fn with_answers(self, answers: CurrentAnswers) -> Self {
        Self { answers: Some(answers), ..self }
    }

    /// The verdict at `now` on a client's `chain`, leaf first. With [`Depth::Chain`] it is the
    /// worst verdict of all certificates.
    ///
    /// An empty chain, a certificate that cannot be read, and a key in an unknown encoding are
    /// [`Verdict::Unchecked`].
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>], depth: Depth, now: SystemTime) -> Verdict {
        let Some((leaf, intermediates)) = chain.split_first() else { return Verdict::Unchecked };
        let leaf = self.judge_certificate(leaf, now);
        match depth {
            Depth::Chain => (1..)
                .zip(intermediates)
                .map(|(position, certificate)| {
                    self.judge_certificate(certificate, now).at(position)
                })
                .fold(leaf, Verdict::worse),
            Depth::Leaf => leaf,
        }
    }

    fn judge_certificate(&self, certificate: &CertificateDer<'_>, now: SystemTime) -> Verdict {
        match spki::of_certificate(certificate) {
            Ok(spki) => {
                let (verdict, algorithm) = self.judge_with_algorithm(spki, now);
                // A key in an unknown encoding has related encodings that were not looked up.
                let is_harmless = matches!(verdict, Verdict::Clean | Verdict::Cleared(_));
                if is_harmless && algorithm == Algorithm::Other {
                    Verdict::Unchecked
                } else {
                    verdict
                }
            }
            Err(_) => Verdict::Unchecked,
        }
    }

    /// The verdict at `now` on the key with this SubjectPublicKeyInfo (DER), related encodings
    /// included.
    #[must_use]
    pub fn judge_key(&self, spki: &[u8], now: SystemTime) -> Verdict {
        self.judge_with_algorithm(spki, now).0
    }

    /// [`Guard::judge_key`] with the algorithm of the key.
    fn judge_with_algorithm(&self, spki: &[u8], now: SystemTime) -> (Verdict, Algorithm) {
        let has_exact = !self.exceptions.is_empty() || !self.lists.is_empty();
        let mut key = KeyEncodings::default();
        let mut encodings = EncodingFingerprints::new();
        let (mut may_hit, mut may_be_confirmed) = (false, false);
        let algorithm = spki::for_each_related(spki, |encoding, spki| {
            let hash = key.push(encoding, spki);
            // Read at once, so that the cache misses overlap with the next encoding.
            may_hit |= self.may_hit(hash);
            may_be_confirmed |= self.may_be_confirmed(&hash);
            if has_exact {
                encodings.push((encoding, Fingerprint::of(spki)));
            }
        });
        let fingerprints = || if has_exact { encodings.clone() } else { fingerprints_of(spki) };
        let verdict = self.exact_match(&encodings, now).unwrap_or_else(|| {
            let by_filters = if may_hit { self.judge_encodings(&key) } else { self.without_hit() };
            self.judge_by_answers(&key, by_filters, may_be_confirmed, now, fingerprints)
        });
        (verdict, algorithm)
    }

    /// Whether a filter has the first bits of an encoding.
    fn may_hit(&self, hash: KeyHash) -> bool {
        self.filters.iter().fold(false, |may_hit, named| may_hit | named.filter.may_contain(hash))
    }

    /// Whether a source of proofs may have confirmed a key with this hash.
    fn may_be_confirmed(&self, hash: &KeyHash) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.may_confirm(hash))
    }

    /// The verdict of the filters on a key that none of them has.
    fn without_hit(&self) -> Verdict {
        if self.filters.is_empty() { Verdict::Unchecked } else { Verdict::Clean }
    }

    /// The verdict of the exceptions and lists, which hold keys by fingerprint.
    fn exact_match(&self, encodings: &EncodingFingerprints, now: SystemTime) -> Option<Verdict> {
        if encodings.iter().any(|(_, fingerprint)| self.exceptions.covers(fingerprint, now)) {
            return Some(Verdict::Allowed);
        }
        self.lists.iter().find_map(|list| {
            let (encoding, _) =
                encodings.iter().find(|(_, fingerprint)| list.contains(fingerprint))?;
            Some(Verdict::Listed(Listing {
                list: Arc::clone(&list.name),
                encoding: *encoding,
                position: 0,
            }))
        })
    }

    /// The verdict at `now` on a key that was recorded before.
    fn judge_recorded(&self, key: &RecordedKey, now: SystemTime) -> Verdict {
        let exact = self.exact_match(&key.fingerprints, now);
        let fingerprints = || key.fingerprints.clone();
        exact.unwrap_or_else(|| {
            let by_filters = self.judge_encodings(&key.encodings);
            let encodings = &key.encodings;
            let may_be_confirmed = encodings.hashes.iter().any(|hash| self.may_be_confirmed(hash));
            self.judge_by_answers(encodings, by_filters, may_be_confirmed, now, fingerprints)
        })
    }

    /// The verdict of the filters alone.
    #[must_use]
    pub fn judge_encodings(&self, key: &KeyEncodings) -> Verdict {
        let hit = self.filters.iter().find_map(|named| {
            let encoding = key.encodings.get(named.filter.find(&key.hashes)?)?;
            Some(Hit {
                filter: Arc::clone(&named.name),
                revision: named.filter.header().revision,
                encoding: *encoding,
                position: 0,
                false_positive_ratio: self.false_positive_ratio(key.hashes.len()),
            })
        });
        hit.map_or_else(|| self.without_hit(), Verdict::Probable)
    }

    /// The false-positive rate of a key that takes `lookups` lookups in each filter.
    fn false_positive_ratio(&self, lookups: usize) -> f64 {
        let lookups = i32::try_from(lookups).unwrap_or(i32::MAX);
        let missed = self.filters.iter().map(|named| {
            (f64::from(lookups) * (-named.filter.false_positive_ratio()).ln_1p()).exp_m1()
        });
        // 1 − ∏(1 − p)^n, where `missed` is (1 − p)^n − 1. This form is exact for a very small p.
        -missed.fold(0.0, |all, one| all + one + all * one)
    }

    /// The answers of the source of proofs, if there are any.
    #[must_use]
    pub fn answers(&self) -> Option<&CurrentAnswers> {
        self.answers.as_ref()
    }

    /// The filters in use.
    #[must_use]
    pub fn filters(&self) -> &[Arc<NamedFilter>] {
        &self.filters
    }
}

/// A handle to the guard in use, which can be replaced.
///
/// A [`Guard`] keeps its filters in memory. Values that live as long as a connection therefore hold
/// this handle instead.
#[derive(Debug, Clone)]
pub struct CurrentGuard(Arc<ArcSwap<Guard>>);

impl CurrentGuard {
    /// The guard in use. Never waits.
    #[must_use]
    pub fn load(&self) -> arc_swap::Guard<Arc<Guard>> {
        self.0.load()
    }

    /// Replaces the guard in use.
    pub fn replace(&self, guard: Arc<Guard>) {
        self.0.store(guard);
    }
}

impl From<Guard> for CurrentGuard {
    fn from(guard: Guard) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(guard)))
    }
}

/// The fingerprint of a key in each of its encodings.
type EncodingFingerprints = SmallVec<[(Encoding, Fingerprint); 4]>;

/// The fingerprints of all encodings of the key with this SubjectPublicKeyInfo (DER).
fn fingerprints_of(spki: &[u8]) -> EncodingFingerprints {
    let mut fingerprints = EncodingFingerprints::new();
    spki::for_each_related(spki, |encoding, spki| {
        fingerprints.push((encoding, Fingerprint::of(spki)));
    });
    fingerprints
}

/// A key for judgements that come later, by other guards.
#[derive(Debug)]
struct RecordedKey {
    encodings: KeyEncodings,
    fingerprints: EncodingFingerprints,
}

impl RecordedKey {
    /// The key with this SubjectPublicKeyInfo (DER).
    fn from_spki(spki: &[u8]) -> Self {
        Self { encodings: KeyEncodings::from_spki(spki), fingerprints: fingerprints_of(spki) }
    }
}

/// The related encodings of a key with their hashes, ready for lookups in filters of any size.
#[derive(Debug, Clone, Default)]
pub struct KeyEncodings {
    encodings: SmallVec<[Encoding; 4]>,
    hashes: SmallVec<[KeyHash; 4]>,
}

impl KeyEncodings {
    /// The encodings of the key with this SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn from_spki(spki: &[u8]) -> Self {
        let mut key = Self::default();
        spki::for_each_related(spki, |encoding, spki| {
            key.push(encoding, spki);
        });
        key
    }

    fn push(&mut self, encoding: Encoding, spki: &[u8]) -> KeyHash {
        let hash = KeyHash::of(spki);
        self.encodings.push(encoding);
        self.hashes.push(hash);
        hash
    }

    /// Whether any encoding of the key is probably in `filter`.
    #[must_use]
    pub fn any_in(&self, filter: &Filter) -> bool {
        filter.find(&self.hashes).is_some()
    }
}

#[cfg(test)]
mod tests;
