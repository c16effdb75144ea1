//! The judgement: what is known of a client's key, and what is done about it.
//!
//! [`Guard::judge`] and [`Policy::decide`] are the only places that decide. The handshake, the
//! resumed session and the command line call these two and nothing else. Both are pure: no I/O, no
//! clock, and no allocation for a clean key.

mod policy;
mod recent;
mod verdict;

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

pub use policy::{Decision, Policy};
pub use recent::{RecentKeys, RecentShard};
pub use verdict::{Hit, Verdict};

use crate::pkbf::{Filter, KeyHash};
use crate::spki::{self, Encoding};

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

/// Judges keys by every filter in use.
#[derive(Debug, Default)]
pub struct Guard {
    filters: Vec<Arc<NamedFilter>>,
}

impl Guard {
    /// A guard that asks `filters` in their order. Without any, every key is
    /// [`Verdict::Unchecked`].
    #[must_use]
    pub fn new(filters: Vec<Arc<NamedFilter>>) -> Self {
        Self { filters }
    }

    /// What is known of the key of a client that presented `chain`, leaf first.
    ///
    /// A chain without a readable leaf is [`Verdict::Unchecked`].
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Verdict {
        let Some(leaf) = chain.first() else { return Verdict::Unchecked };
        match spki::of_certificate(leaf) {
            Ok(spki) => self.judge_key(spki),
            Err(_) => Verdict::Unchecked,
        }
    }

    /// What is known of the key with this SubjectPublicKeyInfo (DER), related encodings included.
    #[must_use]
    pub fn judge_key(&self, spki: &[u8]) -> Verdict {
        if self.filters.is_empty() {
            return Verdict::Unchecked;
        }
        self.judge_forms(&KeyForms::of(spki))
    }

    /// The same for a key whose forms are known already.
    #[must_use]
    pub fn judge_forms(&self, forms: &KeyForms) -> Verdict {
        if self.filters.is_empty() {
            return Verdict::Unchecked;
        }
        let hit = self.filters.iter().find_map(|named| {
            let encoding = forms.encodings.get(named.filter.find(&forms.hashes)?)?;
            Some(Hit {
                filter: Arc::clone(&named.name),
                revision: named.filter.header().revision,
                encoding: *encoding,
                false_positive_ratio: named.filter.false_positive_ratio(),
            })
        });
        hit.map_or(Verdict::Clean, Verdict::Probable)
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
pub struct KeyForms {
    encodings: SmallVec<[Encoding; 4]>,
    hashes: SmallVec<[KeyHash; 4]>,
}

impl KeyForms {
    /// The forms of the key with this SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        let mut forms = Self { encodings: SmallVec::new(), hashes: SmallVec::new() };
        spki::for_each_related(spki, |encoding, spki| {
            forms.encodings.push(encoding);
            forms.hashes.push(KeyHash::of(spki));
        });
        forms
    }

    /// Whether the key is probably in `filter`, in any of its forms.
    #[must_use]
    pub fn are_in(&self, filter: &Filter) -> bool {
        filter.find(&self.hashes).is_some()
    }
}

#[cfg(test)]
mod tests {
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
        let Verdict::Probable(hit) = guard.judge(&[listed]) else { panic!("not found") };
        assert_eq!((&*hit.filter, hit.revision, hit.encoding), ("lost", 1, Encoding::Presented));
        assert_eq!(guard.judge(&[other]), Verdict::Clean);
    }

    #[test]
    fn a_key_is_probable_when_any_related_encoding_is_in_a_filter() {
        let (leaf, spki) = certificate();
        for (encoding, other_form) in related(&spki) {
            let verdict = guard(&[&other_form]).judge(std::slice::from_ref(&leaf));
            let Verdict::Probable(hit) = verdict else { panic!("{encoding:?} was not found") };
            assert_eq!(hit.encoding, encoding);
        }
    }

    #[test]
    fn what_cannot_be_checked_is_unchecked_and_never_clean() {
        let (leaf, _) = certificate();
        assert_eq!(Guard::default().judge(std::slice::from_ref(&leaf)), Verdict::Unchecked);
        assert_eq!(guard(&[]).judge(&[]), Verdict::Unchecked);
        let broken = CertificateDer::from(leaf[..20].to_vec());
        assert_eq!(guard(&[]).judge(&[broken]), Verdict::Unchecked);
    }
}
