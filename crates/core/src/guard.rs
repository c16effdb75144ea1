//! The judgement of client keys: a verdict on a key, and the decision that a policy derives from
//! it.
//!
//! All judgements come from [`Guard::judge`] and [`Policy::decide`]: in full handshakes, resumed
//! sessions, reloads and the command line. Both are pure functions: no I/O, the time is a
//! parameter, and a clean key causes no allocation.

mod allow;
mod answers;
mod current;
mod exact;
mod judged_at;
mod judgement;
mod key_encodings;
mod lists;
mod policy;
mod recent;
mod recorded_key;
mod unanswered;
mod verdict;
mod weak;

use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

pub(crate) use allow::VouchedNames;
pub use allow::{AllowKind, AllowRuleError, AllowRules, NameBounds, NameKinds};
pub use answers::{Answers, CurrentAnswers};
pub use current::CurrentGuard;
pub use judged_at::JudgedAt;
pub use judgement::{Judgement, NameCheck};
pub use lists::{ExactList, Exception, FingerprintList, ListError, NamedBlocklist};
pub use policy::{Decision, Depth, Policy, RejectWith};
pub use recent::{MatchingClients, RecentClient, RecentClients, RecentShard};
pub use unanswered::{OpenQuestions, UnansweredKey};
pub use verdict::{Confirmation, Hit, Listing, Verdict, VerdictKind, Weakness};
pub use weak::{BatchGcd, KeyStrength, SharedPrimes, WeakCheck, WeakChecks, keys_checked};

use self::exact::ExactKeys;
use self::key_encodings::KeyEncodings;
use self::recorded_key::{RecordedKey, fingerprints_of};
use crate::pkbf::{Filter, KeyHash};
use crate::spki::{self, Algorithm, Encoding, Fingerprint, PublicKey, RsaExponents};

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

/// Judges keys by exceptions, lists, weak-key checks, answers and filters, in this order.
#[derive(Debug, Default)]
pub struct Guard {
    filters: Vec<Arc<NamedFilter>>,
    /// For each filter, the exponents with which an RSA key is looked up in it.
    filter_exponents: Vec<RsaExponents>,
    exact: ExactKeys,
    /// The exponents with which an RSA key is looked up in any filter or list.
    exponents: RsaExponents,
    weak_checks: WeakChecks,
    /// The products of primes on all lists; `None` if there is none.
    shared_primes: Option<SharedPrimes>,
    answers: Option<CurrentAnswers>,
}

impl Guard {
    /// A guard that looks keys up in `filters`, in their order. Without filters and lists, a key
    /// that no exception covers is [`Verdict::Unchecked`].
    #[must_use]
    pub fn new(filters: Vec<Arc<NamedFilter>>) -> Self {
        let filter_exponents = vec![RsaExponents::default(); filters.len()];
        Self { filters, filter_exponents, ..Self::default() }
    }

    /// A guard that looks keys up in this list alone. Its products of primes count.
    #[must_use]
    pub fn of_list(list: ExactList) -> Self {
        let checks = list.primes().map(|_| WeakChecks::SHARED_PRIMES);
        let weak_checks = checks.unwrap_or(WeakChecks::NONE);
        Self { weak_checks, ..Self::default() }.with_lists([list])
    }

    /// Looks an RSA key up in the filter with this name with `exponents` and the presented one.
    /// Each of them adds the false-positive rate of the filter once more.
    #[must_use]
    pub fn with_related_exponents(mut self, filter: &str, exponents: RsaExponents) -> Self {
        for (named, of_filter) in self.filters.iter().zip(&mut self.filter_exponents) {
            if &*named.name == filter {
                *of_filter = exponents;
            }
        }
        self.with_all_exponents()
    }

    /// Adds lists, which are consulted before the filters.
    #[must_use]
    pub fn with_lists(self, lists: impl IntoIterator<Item = impl Into<ExactList>>) -> Self {
        let lists: Vec<ExactList> = lists.into_iter().map(Into::into).collect();
        let primes = SharedPrimes::of_all(lists.iter().filter_map(ExactList::primes));
        let shared_primes = Some(primes).filter(|it| !it.is_empty());
        Self { exact: self.exact.with_lists(lists), shared_primes, ..self }.with_all_exponents()
    }

    /// Adds exceptions, which are consulted before lists and filters.
    #[must_use]
    pub fn with_exceptions(self, exceptions: impl IntoIterator<Item = Exception>) -> Self {
        Self { exact: self.exact.with_exceptions(exceptions), ..self }.with_all_exponents()
    }

    /// Lists, exceptions and proofs are exact, so that the default exponents cost no false positive
    /// there.
    fn with_all_exponents(self) -> Self {
        let of_lists = match self.exact.has_fingerprints() || self.answers.is_some() {
            true => RsaExponents::default(),
            false => RsaExponents::NONE,
        };
        let exponents = self.filter_exponents.iter().copied().fold(of_lists, RsaExponents::union);
        Self { exponents, ..self }
    }

    /// Checks RSA keys that no exception and no list covers. Default: no check.
    #[must_use]
    pub fn with_weak_checks(self, weak_checks: WeakChecks) -> Self {
        Self { weak_checks, ..self }
    }

    /// The sizes of moduli, in bits, for which products of primes are left out. The products of all
    /// lists are too large together.
    pub fn oversize_products(&self) -> impl Iterator<Item = u64> {
        self.shared_primes.iter().flat_map(|it| it.oversize()).copied()
    }

    /// Whether keys are looked up in products of primes and in nothing else.
    #[must_use]
    pub fn has_products_alone(&self) -> bool {
        self.shared_primes.is_some() && self.filters.is_empty() && !self.exact.can_list()
    }

    /// The checks of RSA keys.
    #[must_use]
    pub fn weak_checks(&self) -> WeakChecks {
        self.weak_checks
    }

    /// Adds the answers of a source of proofs, which are consulted before the filters if they
    /// confirm a key, and after the filters if they clear one.
    #[must_use]
    pub fn with_answers(self, answers: CurrentAnswers) -> Self {
        Self { answers: Some(answers), ..self }.with_all_exponents()
    }

    /// The verdict at `now` on the key of a client's `certificate`, related encodings included.
    ///
    /// A certificate that cannot be read, and a key in an unknown encoding, are
    /// [`Verdict::Unchecked`]. [`Judgement::new`] judges a path.
    #[must_use]
    pub fn judge(&self, certificate: &CertificateDer<'_>, now: SystemTime) -> Verdict {
        match spki::of_certificate(certificate) {
            Ok(spki) => self.judge_key(spki, now),
            Err(_) => Verdict::Unchecked,
        }
    }

    /// The verdict at `now` on the key with this SubjectPublicKeyInfo (DER), related encodings
    /// included. A key in an unknown encoding is [`Verdict::Unchecked`] unless a list has it,
    /// because it has related encodings that are not looked up.
    #[must_use]
    pub fn judge_key(&self, spki: &[u8], now: SystemTime) -> Verdict {
        let public_key = PublicKey::parse(spki);
        let has_fingerprints = self.exact.has_fingerprints();
        let mut key = KeyEncodings::default();
        let mut search = self.exact.search(now);
        let mut may_hit = false;
        let mut presented = None;
        public_key.for_each_related(self.exponents, |encoding, spki| {
            let hash = key.push(encoding, spki);
            // Read at once, so that the cache misses overlap with the next encoding.
            may_hit |= self.may_hit(encoding, hash);
            if has_fingerprints {
                let fingerprint = Fingerprint::of(spki);
                search.look_up(encoding, &fingerprint.into());
                presented.get_or_insert(fingerprint); // the first one
            }
        });
        if has_fingerprints {
            public_key.for_each_small_order_sum(|encoding, spki| {
                search.look_up(encoding, &Fingerprint::of(spki).into());
            });
        }
        if self.exact.has_numbers() {
            public_key.for_each_number(|encoding, digest| search.look_up(encoding, &digest));
        }
        let fingerprints = || fingerprints_of(&public_key, self.exponents);
        with_list(search.verdict(), || {
            let fingerprint = || presented.unwrap_or_else(|| Fingerprint::of(spki));
            let (checks, primes) = (self.weak_checks, self.shared_primes.as_ref());
            let strength = KeyStrength::with_primes(&public_key, checks, primes, fingerprint);
            self.judge_strength(strength, || {
                let by_filters =
                    if may_hit { self.judge_encodings(&key) } else { self.without_hit() };
                let verdict = self.judge_by_answers(&key, by_filters, now, fingerprints);
                let is_harmless = matches!(verdict, Verdict::Clean | Verdict::Cleared(_));
                let is_unknown = public_key.algorithm() == Algorithm::Other;
                if is_harmless && is_unknown { Verdict::Unchecked } else { verdict }
            })
        })
    }

    /// The verdict on a key with this `strength`. `by_filters` returns the verdict of filters and
    /// answers.
    fn judge_strength(
        &self,
        strength: KeyStrength,
        by_filters: impl FnOnce() -> Verdict,
    ) -> Verdict {
        match (strength.weakness(self.weak_checks), by_filters()) {
            (Some(check), verdict) => Verdict::Weak(Weakness {
                check,
                position: 0,
                underlying: verdict.into_underlying(),
            }),
            (None, Verdict::Clean | Verdict::Cleared(_)) if strength.is_oversize => {
                Verdict::Unchecked
            }
            (None, verdict) => verdict,
        }
    }

    /// The filters, each with its exponents.
    fn filters_with_exponents(&self) -> impl Iterator<Item = (&Arc<NamedFilter>, RsaExponents)> {
        self.filters.iter().zip(self.filter_exponents.iter().copied())
    }

    /// Whether a filter has the first bits of an encoding.
    fn may_hit(&self, encoding: Encoding, hash: KeyHash) -> bool {
        self.filters_with_exponents().fold(false, |may_hit, (named, exponents)| {
            may_hit | (exponents.include(encoding) && named.filter.may_contain(hash))
        })
    }

    /// The verdict on a key that no filter and no list has.
    fn without_hit(&self) -> Verdict {
        let can_find = !self.filters.is_empty() || self.exact.can_list();
        if can_find { Verdict::Clean } else { Verdict::Unchecked }
    }

    /// The verdict at `now` on a key that was recorded before. The products of primes count if they
    /// are given, because their check takes most of the time.
    fn judge_recorded(
        &self,
        key: &RecordedKey,
        primes: Option<&SharedPrimes>,
        now: SystemTime,
    ) -> Verdict {
        let mut search = self.exact.search(now);
        let looked_up =
            key.digests.iter().filter(|(encoding, _)| self.exponents.include(*encoding));
        looked_up.for_each(|(encoding, digest)| search.look_up(*encoding, digest));
        with_list(search.verdict(), || {
            self.judge_strength(key.strength_with(primes, self.weak_checks), || {
                let encodings = &key.encodings;
                let by_filters = self.judge_encodings(encodings);
                self.judge_by_answers(encodings, by_filters, now, || key.fingerprints())
            })
        })
    }

    /// The verdict of the filters alone.
    fn judge_encodings(&self, key: &KeyEncodings) -> Verdict {
        let hit = self.filters_with_exponents().find_map(|(named, exponents)| {
            Some(Hit {
                filter: Arc::clone(&named.name),
                revision: named.filter.header().revision,
                encoding: key.find_in(&named.filter, exponents)?,
                position: 0,
                false_positive_ratio: self.false_positive_ratio(key),
            })
        });
        hit.map_or_else(|| self.without_hit(), Verdict::Probable)
    }

    /// The false-positive rate of `key`, over all of its lookups in each filter.
    fn false_positive_ratio(&self, key: &KeyEncodings) -> f64 {
        let missed = self.filters_with_exponents().map(|(named, exponents)| {
            let lookups = key.encodings.iter().filter(|it| exponents.include(**it)).count();
            let lookups = i32::try_from(lookups).unwrap_or(i32::MAX);
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

/// The verdict on a key for which exceptions and lists have found `exact`. `others` returns the
/// verdict without them, and is not called for a key with an exception.
fn with_list(exact: Option<Verdict>, others: impl FnOnce() -> Verdict) -> Verdict {
    match exact {
        None => others(),
        Some(Verdict::Listed(listing)) => {
            Verdict::Listed(Listing { underlying: others().into_underlying(), ..listing })
        }
        Some(exact) => exact,
    }
}

#[cfg(test)]
mod tests;
