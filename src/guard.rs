//! The judgement: what is known of a client's key, and what is done about it.
//!
//! [`Guard::judge`] and [`Policy::decide`] are the only places that decide. The handshake, the
//! resumed session and the command line call these two and nothing else. Both are pure: no I/O, no
//! clock but the time they are given, and no allocation for a clean key.

mod lists;
mod policy;
mod recent;
mod verdict;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

pub use lists::{Exception, FingerprintList, ListError};
pub use policy::{Decision, Depth, Policy, RejectWith};
pub use recent::{RecentKeys, RecentShard};
pub use verdict::{Hit, JudgedAt, Listing, Verdict, VerdictKind};

use self::lists::ExceptionsByKey;

use crate::pkbf::{Filter, KeyHash};
use crate::spki::{self, Algorithm, Encoding, Fingerprint};

/// A filter under the name that the configuration gives it.
#[derive(Debug)]
pub struct NamedFilter {
    /// The name in logs, metrics and headers.
    pub name: Arc<str>,
    /// The filter.
    pub filter: Filter,
    /// SHA-256 of the file it was read from.
    pub sha256: [u8; 32],
}

/// Judges keys by everything that is known of them.
#[derive(Debug, Default)]
pub struct Guard {
    filters: Vec<Arc<NamedFilter>>,
    lists: Vec<Arc<FingerprintList>>,
    exceptions: ExceptionsByKey,
}

impl Guard {
    /// A guard that asks `filters` in their order. Without any, every key that nothing else is known
    /// of is [`Verdict::Unchecked`].
    #[must_use]
    pub fn new(filters: Vec<Arc<NamedFilter>>) -> Self {
        Self { filters, ..Self::default() }
    }

    /// The same guard, which asks `lists` before its filters.
    #[must_use]
    pub fn with_lists(self, lists: Vec<Arc<FingerprintList>>) -> Self {
        Self { lists, ..self }
    }

    /// The same guard, which lets `exceptions` pass before it asks anything else.
    #[must_use]
    pub fn with_exceptions(self, exceptions: impl IntoIterator<Item = Exception>) -> Self {
        Self { exceptions: ExceptionsByKey::new(exceptions), ..self }
    }

    /// What is known at `now` of the keys of a client that presented `chain`, leaf first: the worst
    /// of them, as deep as `depth` says.
    ///
    /// A chain without a leaf, a certificate that cannot be read, and a key in an encoding that is
    /// not known are [`Verdict::Unchecked`].
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>], depth: Depth, now: SystemTime) -> Verdict {
        let Some((leaf, intermediates)) = chain.split_first() else { return Verdict::Unchecked };
        let leaf = self.judge_certificate(leaf, now);
        match depth {
            Depth::Chain => (1..)
                .zip(intermediates)
                .map(|(place, certificate)| self.judge_certificate(certificate, now).at(place))
                .fold(leaf, Verdict::worse),
            Depth::Leaf => leaf,
        }
    }

    fn judge_certificate(&self, certificate: &CertificateDer<'_>, now: SystemTime) -> Verdict {
        match spki::of_certificate(certificate) {
            Ok(spki) => {
                let verdict = self.judge_key(spki, now);
                // A key in an encoding that is not known can be any key: the verifier reads more than
                // one, and none of the others was looked up.
                let is_known = Algorithm::of(spki) != Algorithm::Other;
                if verdict == Verdict::Clean && !is_known { Verdict::Unchecked } else { verdict }
            }
            Err(_) => Verdict::Unchecked,
        }
    }

    /// What is known at `now` of the key with this SubjectPublicKeyInfo (DER), related encodings
    /// included.
    #[must_use]
    pub fn judge_key(&self, spki: &[u8], now: SystemTime) -> Verdict {
        self.exact_match(spki, now)
            .unwrap_or_else(|| self.judge_encodings(&KeyEncodings::from_spki(spki)))
    }

    /// What exceptions and lists say of a key, which they have by its fingerprints.
    fn exact_match(&self, spki: &[u8], now: SystemTime) -> Option<Verdict> {
        if self.exceptions.is_empty() && self.lists.is_empty() {
            return None;
        }
        let mut forms = SmallVec::<[(Encoding, Fingerprint); 4]>::new();
        spki::for_each_related(spki, |encoding, spki| {
            forms.push((encoding, Fingerprint::of(spki)));
        });
        if forms.iter().any(|(_, fingerprint)| self.exceptions.cover(fingerprint, now)) {
            return Some(Verdict::Allowed);
        }
        self.lists.iter().find_map(|list| {
            let (encoding, _) = forms.iter().find(|(_, form)| list.contains(form))?;
            Some(Verdict::Listed(Listing {
                list: Arc::clone(&list.name),
                encoding: *encoding,
                position: 0,
            }))
        })
    }

    /// What the filters say of a key.
    #[must_use]
    pub fn judge_encodings(&self, forms: &KeyEncodings) -> Verdict {
        if self.filters.is_empty() {
            return Verdict::Unchecked;
        }
        let hit = self.filters.iter().find_map(|named| {
            let encoding = forms.encodings.get(named.filter.find(&forms.hashes)?)?;
            Some(Hit {
                filter: Arc::clone(&named.name),
                revision: named.filter.header().revision,
                encoding: *encoding,
                position: 0,
                false_positive_ratio: self.false_positive_ratio(forms.hashes.len()),
            })
        });
        hit.map_or(Verdict::Clean, Verdict::Probable)
    }

    /// The probability that a key which nobody added is found, by any of `look_ups` in each filter.
    fn false_positive_ratio(&self, look_ups: usize) -> f64 {
        let look_ups = i32::try_from(look_ups).unwrap_or(i32::MAX);
        let missed = self.filters.iter().map(|named| {
            (f64::from(look_ups) * (-named.filter.false_positive_ratio()).ln_1p()).exp_m1()
        });
        // 1 − ∏(1 − p)^n, where `missed` is (1 − p)^n − 1: exact also for the smallest p.
        -missed.fold(0.0, |all, one| all + one + all * one)
    }

    /// The filters in use.
    #[must_use]
    pub fn filters(&self) -> &[Arc<NamedFilter>] {
        &self.filters
    }
}

/// The guard in use: it is replaced while others hold on to this.
///
/// Whoever keeps a [`Guard`] keeps its filters in memory; what lives as long as a connection keeps
/// this instead.
#[derive(Debug, Clone)]
pub struct CurrentGuard(Arc<ArcSwap<Guard>>);

impl CurrentGuard {
    /// The guard of this moment. Never waits.
    #[must_use]
    pub fn load(&self) -> arc_swap::Guard<Arc<Guard>> {
        self.0.load()
    }

    /// Puts another guard to use.
    pub fn replace(&self, guard: Arc<Guard>) {
        self.0.store(guard);
    }
}

impl From<Guard> for CurrentGuard {
    fn from(guard: Guard) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(guard)))
    }
}

/// A key as filters of any size are asked for it: every related encoding, and its hash.
#[derive(Debug, Clone)]
pub struct KeyEncodings {
    encodings: SmallVec<[Encoding; 4]>,
    hashes: SmallVec<[KeyHash; 4]>,
}

impl KeyEncodings {
    /// The forms of the key with this SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn from_spki(spki: &[u8]) -> Self {
        let mut forms = Self { encodings: SmallVec::new(), hashes: SmallVec::new() };
        spki::for_each_related(spki, |encoding, spki| {
            forms.encodings.push(encoding);
            forms.hashes.push(KeyHash::of(spki));
        });
        forms
    }

    /// Whether the key is probably in `filter`, in any of its forms.
    #[must_use]
    pub fn any_in(&self, filter: &Filter) -> bool {
        filter.find(&self.hashes).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::PublicKeyData;

    use super::*;
    use crate::pkbf::Parameters;
    use crate::spki::related;

    fn guard(keys: &[&[u8]]) -> Guard {
        let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
        for key in keys {
            filter.insert(key);
        }
        filter.stamp(1_700_000_000);
        Guard::new(vec![Arc::new(NamedFilter { name: "lost".into(), filter, sha256: [0; 32] })])
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
    }

    fn certificate() -> (CertificateDer<'static>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.der().clone(), key.subject_public_key_info())
    }

    #[test]
    fn a_key_in_a_filter_is_probable_and_another_is_clean() {
        let (listed, spki) = certificate();
        let (other, _) = certificate();
        let guard = guard(&[&spki]);
        let Verdict::Probable(hit) = guard.judge(&[listed], Depth::Leaf, now()) else {
            panic!("not found")
        };
        assert_eq!((&*hit.filter, hit.revision, hit.encoding), ("lost", 1, Encoding::Presented));
        assert_eq!(guard.judge(&[other], Depth::Leaf, now()), Verdict::Clean);
    }

    #[test]
    fn a_key_is_probable_when_any_related_encoding_is_in_a_filter() {
        let (leaf, spki) = certificate();
        for (encoding, other_form) in related(&spki) {
            let verdict =
                guard(&[&other_form]).judge(std::slice::from_ref(&leaf), Depth::Leaf, now());
            let Verdict::Probable(hit) = verdict else { panic!("{encoding:?} was not found") };
            assert_eq!(hit.encoding, encoding);
        }
    }

    #[test]
    fn the_worst_of_a_chain_counts_if_all_of_it_is_judged() {
        let ((leaf, _), (issuer, spki)) = (certificate(), certificate());
        let guard = guard(&[&spki]);
        let chain = [leaf, issuer];
        assert_eq!(guard.judge(&chain, Depth::Leaf, now()), Verdict::Clean);
        assert!(guard.judge(&chain, Depth::Chain, now()).hit().is_some());
        let [leaf, issuer] = chain;
        assert!(guard.judge(&[issuer, leaf], Depth::Chain, now()).hit().is_some());
    }

    #[test]
    fn what_cannot_be_checked_is_unchecked_and_never_clean() {
        let (leaf, _) = certificate();
        assert_eq!(
            Guard::default().judge(std::slice::from_ref(&leaf), Depth::Leaf, now()),
            Verdict::Unchecked
        );
        assert_eq!(guard(&[]).judge(&[], Depth::Leaf, now()), Verdict::Unchecked);
        let broken = CertificateDer::from(leaf[..20].to_vec());
        assert_eq!(guard(&[]).judge(&[broken], Depth::Leaf, now()), Verdict::Unchecked);
    }

    #[test]
    fn exceptions_come_before_lists_and_lists_before_filters_in_every_encoding() {
        let (leaf, spki) = certificate();
        let until = now();
        for (encoding, form) in related(&spki) {
            let fingerprint = Fingerprint::of(&form);
            let list = FingerprintList::parse("march", &fingerprint.to_string()).unwrap();
            let exception = Exception { fingerprint, until, reason: "replaced soon".to_owned() };
            let guard = guard(&[&spki]).with_lists(vec![Arc::new(list)]);
            let listing = Listing { list: "march".into(), encoding, position: 0 };
            let chain = std::slice::from_ref(&leaf);
            assert_eq!(guard.judge(chain, Depth::Leaf, now()), Verdict::Listed(listing.clone()));
            // At the moment that it names it has lapsed.
            let guard = guard.with_exceptions([exception]);
            let before = until - Duration::from_nanos(1);
            assert_eq!(guard.judge(chain, Depth::Leaf, before), Verdict::Allowed);
            assert_eq!(guard.judge(chain, Depth::Leaf, until), Verdict::Listed(listing));
        }
        let other = FingerprintList::parse("other", &Fingerprint::of(b"x").to_string()).unwrap();
        let guard = guard(&[&spki]).with_lists(vec![Arc::new(other)]);
        assert!(guard.judge(std::slice::from_ref(&leaf), Depth::Leaf, now()).hit().is_some());
    }

    #[test]
    fn the_rate_that_is_shown_is_that_of_all_look_ups_together() {
        let (leaf, spki) = certificate();
        let mut filter = Filter::new(Parameters::new(2, 12).unwrap()).unwrap();
        (0_u64..300).for_each(|key| {
            filter.insert(&key.to_be_bytes());
        });
        filter.insert(&spki);
        let one = filter.false_positive_ratio();
        let named = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
        let named = Arc::new(named);
        let guard = Guard::new(vec![Arc::clone(&named), named]);
        let verdict = guard.judge(&[leaf], Depth::Leaf, now());
        let shown = verdict.hit().unwrap().false_positive_ratio;
        let expected = 1.0 - (1.0 - one).powi(8); // four encodings, two filters
        assert!((shown - expected).abs() < 1e-12, "{shown} {expected}");
    }
}
