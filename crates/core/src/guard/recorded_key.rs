//! A key that was judged, for later judgements without its SubjectPublicKeyInfo.

use smallvec::SmallVec;

use super::{KeyEncodings, KeyStrength, SharedPrimes, WeakChecks};
use crate::spki::{Encoding, Fingerprint, KeyDigest, PublicKey, RsaExponents, RsaNumbers};

/// A key for judgements that come later, by other guards, whose filters may have other exponents.
#[derive(Debug)]
pub(super) struct RecordedKey {
    pub(super) encodings: KeyEncodings,
    /// The fingerprints of the encodings, in the same order, and all other digests.
    pub(super) digests: Box<[(Encoding, KeyDigest)]>,
    /// The result of the checks at the time of the record, without products of primes.
    strength: KeyStrength,
    /// The modulus of an RSA key, for products of primes.
    modulus: Option<Box<[u8]>>,
}

impl RecordedKey {
    /// The key with this SubjectPublicKeyInfo (DER). `checks` are the checks of the guard that
    /// judged it.
    pub(super) fn new(spki: &[u8], checks: WeakChecks) -> Self {
        let key = PublicKey::parse(spki);
        let fingerprints = fingerprints_of(&key, RsaExponents::ALL).into_iter();
        let mut digests: Vec<_> = fingerprints.map(|(form, it)| (form, it.into())).collect();
        key.for_each_small_order_sum(|encoding, spki| {
            digests.push((encoding, Fingerprint::of(spki).into()));
        });
        key.for_each_number(|encoding, digest| digests.push((encoding, digest)));
        let strength = KeyStrength::new(&key, checks, || Fingerprint::of(spki));
        let encodings = KeyEncodings::new(&key, RsaExponents::ALL);
        let modulus = key.rsa_numbers().map(|numbers| numbers.modulus.into());
        Self { encodings, digests: digests.into(), strength, modulus }
    }

    /// The result of the checks, with `primes` if they are one of `checks`.
    pub(super) fn strength_with(
        &self,
        primes: Option<&SharedPrimes>,
        checks: WeakChecks,
    ) -> KeyStrength {
        let (Some(_), Some(modulus)) = (primes, &self.modulus) else { return self.strength };
        let checks = checks.intersection(WeakChecks::SHARED_PRIMES);
        let numbers = RsaNumbers { modulus, exponent: &[] }; // the exponent is of no product
        let first = || self.fingerprints().first().map(|(_, presented)| *presented);
        let name = || first().unwrap_or_else(|| Fingerprint::of(modulus));
        self.strength.union(KeyStrength::of_numbers(numbers, checks, primes, name))
    }

    /// The fingerprints of the encodings.
    pub(super) fn fingerprints(&self) -> EncodingFingerprints {
        let digests = self.digests.iter().take(self.encodings.encodings.len());
        let fingerprints = digests.filter_map(|(encoding, digest)| match digest {
            KeyDigest::Spki(fingerprint) => Some((*encoding, *fingerprint)),
            KeyDigest::EcX(_) | KeyDigest::Number(_) | KeyDigest::RsaModulus(_) => None,
        });
        fingerprints.collect()
    }
}

/// The fingerprint of a key in each of its encodings.
pub(super) type EncodingFingerprints = SmallVec<[(Encoding, Fingerprint); 4]>;

/// The fingerprints of all encodings of a key, in the order of its [`KeyEncodings`].
pub(super) fn fingerprints_of(
    key: &PublicKey<'_>,
    exponents: RsaExponents,
) -> EncodingFingerprints {
    let mut fingerprints = EncodingFingerprints::new();
    key.for_each_related(exponents, |encoding, spki| {
        fingerprints.push((encoding, Fingerprint::of(spki)));
    });
    fingerprints
}
