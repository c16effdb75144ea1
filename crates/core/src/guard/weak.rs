//! RSA keys that anybody can factor, and points that are no keys, found by the public key alone.
//!
//! Each check is a pure function of modulus and public exponent, with its source in its module. A
//! check of a new key takes some hundred microseconds. The results are therefore kept for each
//! thread ([`cache`]), and a key that was checked before costs one lookup.

mod batch_gcd;
mod cache;
mod fermat;
mod roca;
mod rsapoly;
mod shared_primes;
mod small_factors;
mod square;
mod wiener;

use std::fmt;

use num_bigint::BigUint;

pub use self::batch_gcd::BatchGcd;
pub use self::cache::keys_checked;
pub use self::shared_primes::SharedPrimes;
use crate::named::named;
use crate::spki::{Fingerprint, PublicKey, RsaNumbers};

/// Maximum size of a modulus and of a public exponent that are checked, in bits. The time of a check
/// is therefore bounded. aws-lc accepts moduli of 8192 bits and exponents of 33 bits.
const MAX_BITS: u64 = 8192;
/// The smallest product of two different primes.
const SMALLEST_MODULUS: u32 = 6;

named! {
    /// A reason for which anybody can factor an RSA modulus or compute the private exponent. If a
    /// key fails several checks, the first of them is reported.
    pub enum WeakCheck {
        /// The modulus is even, a square, a cube, a fifth power, or less than 6; or the public
        /// exponent is even, 1, or not less than the modulus. A point of an elliptic curve is not
        /// on its curve, or is an Ed25519 point of small order, for which anybody can sign.
        Invalid = "invalid",
        /// The modulus has a prime factor of at most 65537.
        SmallFactors = "small-factors",
        /// The primes have the form that a library of Infineon generated: CVE-2017-15361, "ROCA".
        Roca = "roca",
        /// The primes are so close that Fermat's method finds them within 110 rounds.
        Fermat = "fermat",
        /// The private exponent is so small that Wiener's attack finds it.
        Wiener = "wiener",
        /// So few bits of the modulus are set that its primes are polynomials with small
        /// coefficients.
        Rsapoly = "rsapoly",
        /// The modulus has a prime of a product on a list.
        SharedPrimes = "shared-primes",
    }
}

impl WeakCheck {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for WeakCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A set of checks. Default: none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct WeakChecks(u8);

impl WeakChecks {
    /// Every check.
    pub const ALL: Self = Self(0b111_1111);
    /// No check.
    pub const NONE: Self = Self(0);
    /// The check of products of primes.
    pub(super) const SHARED_PRIMES: Self = Self(WeakCheck::SharedPrimes.bit());

    /// Whether no check is in the set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether `check` is in the set.
    #[must_use]
    pub fn contains(self, check: WeakCheck) -> bool {
        self.0 & check.bit() != 0
    }

    /// The checks of the set, in the order in which they are reported.
    pub fn iter(self) -> impl Iterator<Item = WeakCheck> {
        WeakCheck::ALL.into_iter().filter(move |check| self.contains(*check))
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl FromIterator<WeakCheck> for WeakChecks {
    fn from_iter<I: IntoIterator<Item = WeakCheck>>(checks: I) -> Self {
        checks.into_iter().fold(Self::NONE, |set, check| Self(set.0 | check.bit()))
    }
}

impl fmt::Debug for WeakChecks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

/// The result of the checks of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyStrength {
    /// The checks that the key fails.
    pub failed: WeakChecks,
    /// Whether modulus or public exponent are larger than any that is checked, or whether products
    /// of primes for the modulus are left out.
    pub is_oversize: bool,
}

impl KeyStrength {
    /// The result of `checks` of a key, which is kept for this thread. `fingerprint` is called for
    /// RSA keys and for points. No product of primes is checked.
    #[must_use]
    pub fn new(
        key: &PublicKey<'_>,
        checks: WeakChecks,
        fingerprint: impl FnOnce() -> Fingerprint,
    ) -> Self {
        Self::with_primes(key, checks, None, fingerprint)
    }

    /// [`KeyStrength::new`], and the check of `primes`.
    pub(super) fn with_primes(
        key: &PublicKey<'_>,
        checks: WeakChecks,
        primes: Option<&SharedPrimes>,
        fingerprint: impl FnOnce() -> Fingerprint,
    ) -> Self {
        if checks.is_empty() {
            return Self::default();
        }
        if let Some(numbers) = key.rsa_numbers() {
            return Self::of_numbers(numbers, checks, primes, fingerprint);
        }
        let invalid = checks.intersection(WeakChecks::from_iter([WeakCheck::Invalid]));
        if invalid.is_empty() || !key.has_point() {
            return Self::default();
        }
        let failed = cache::failed(&fingerprint(), invalid, [0; 8], |_| {
            if key.is_invalid_point() { invalid } else { WeakChecks::NONE }
        });
        Self { failed, is_oversize: false }
    }

    /// The result of `checks` of an RSA key.
    pub(super) fn of_numbers(
        numbers: RsaNumbers<'_>,
        checks: WeakChecks,
        primes: Option<&SharedPrimes>,
        fingerprint: impl FnOnce() -> Fingerprint,
    ) -> Self {
        if is_oversize(numbers) {
            return Self { failed: WeakChecks::NONE, is_oversize: true };
        }
        let primes = primes.filter(|_| checks.contains(WeakCheck::SharedPrimes));
        let checks =
            if primes.is_some() { checks } else { checks.without(WeakChecks::SHARED_PRIMES) };
        let products = primes.map(SharedPrimes::id).unwrap_or_default();
        let is_oversize = primes.is_some_and(|it| it.oversize().contains(&size(numbers.modulus)));
        let compute = |unknown| failed(numbers, unknown, primes);
        Self { failed: cache::failed(&fingerprint(), checks, products, compute), is_oversize }
    }

    /// The result of both.
    pub(super) fn union(self, other: Self) -> Self {
        let is_oversize = self.is_oversize || other.is_oversize;
        Self { failed: self.failed.union(other.failed), is_oversize }
    }

    /// The first of `checks` that the key fails.
    pub(super) fn weakness(self, checks: WeakChecks) -> Option<WeakCheck> {
        self.failed.intersection(checks).iter().next()
    }
}

/// Whether a number is larger than any that is checked.
fn is_oversize(RsaNumbers { modulus, exponent }: RsaNumbers<'_>) -> bool {
    size(modulus).max(size(exponent)) > MAX_BITS
}

/// The size of a number without leading zero bytes, in bits.
fn size(number: &[u8]) -> u64 {
    let zeros = number.first().map_or(0, |first| first.leading_zeros());
    (number.len() as u64).saturating_mul(8).saturating_sub(zeros.into())
}

/// The subset of `checks` that the key with these numbers fails. The time is bounded by the size of
/// the numbers, see [`is_oversize`], and of the products.
fn failed(
    numbers: RsaNumbers<'_>,
    checks: WeakChecks,
    primes: Option<&SharedPrimes>,
) -> WeakChecks {
    let modulus = BigUint::from_bytes_be(numbers.modulus);
    let exponent = BigUint::from_bytes_be(numbers.exponent);
    if modulus < BigUint::from(SMALLEST_MODULUS) {
        return checks.intersection(WeakChecks::from_iter([WeakCheck::Invalid]));
    }
    let fails = |check: &WeakCheck| match check {
        WeakCheck::Fermat => fermat::has_close_primes(&modulus),
        WeakCheck::Invalid => is_invalid(&modulus, &exponent),
        WeakCheck::Roca => roca::has_fingerprint(&modulus),
        WeakCheck::Rsapoly => rsapoly::has_sparse_primes(&modulus),
        WeakCheck::SharedPrimes => primes.is_some_and(|it| it.has_prime_of(&modulus)),
        WeakCheck::SmallFactors => small_factors::has_one(&modulus),
        WeakCheck::Wiener => wiener::has_small_private_exponent(&modulus, &exponent),
    };
    checks.iter().filter(fails).collect()
}

/// Whether the numbers cannot belong to an RSA key (RFC 8017, section 3.1): the modulus is a
/// product of different odd primes, and the exponent is odd, at least 3 and less than the modulus.
fn is_invalid(modulus: &BigUint, exponent: &BigUint) -> bool {
    !modulus.bit(0)
        || !exponent.bit(0)
        || exponent < &BigUint::from(3_u32)
        || exponent >= modulus
        || square::is_power(modulus)
}

#[cfg(test)]
mod tests;
