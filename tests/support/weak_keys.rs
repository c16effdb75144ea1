//! RSA keys from chosen primes, good ones and ones that anybody can factor.

use std::fs::write;

use data_encoding::BASE64;
use num_bigint::BigUint;

use rcgen::KeyPair;
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::pki::{Kind, Party, Pki, der};
use super::system;

/// An RSA key.
#[derive(Debug, Clone)]
pub struct RsaKey {
    primes: [BigUint; 2],
    pub exponent: BigUint,
}

/// The public exponent of most keys.
const EXPONENT: u32 = 65_537;

impl RsaKey {
    /// A key with these primes.
    pub fn new(primes: [BigUint; 2]) -> Self {
        Self { primes, exponent: EXPONENT.into() }
    }

    /// A good key with a modulus of this size.
    pub fn good(bits: u32) -> Self {
        Self::new([(); 2].map(|()| prime(bits / 2)))
    }

    /// A key whose second prime is the next after the first.
    pub fn close_primes(bits: u32) -> Self {
        let first = prime(bits / 2);
        let second = next_prime(&first + 2_u32, |candidate| *candidate += 2_u32);
        Self::new([first, second])
    }

    /// A key as the library of Infineon generated it: both primes are k·M + (65537^a mod M), where
    /// M is a product of the first primes.
    pub fn roca(bits: u32) -> Self {
        let product = roca_product(bits);
        Self::new(
            [(); 2].map(|()| next_prime(roca_number(bits / 2), |candidate| *candidate += &product)),
        )
    }

    /// A key whose primes are polynomials in 2^`limb` with coefficients of at most 7 bits, below a
    /// leading one of `limb` bits.
    pub fn sparse(bits: u32, limb: u32) -> Self {
        Self::new(
            [(); 2].map(|()| {
                next_prime(sparse_number(bits / 2, limb), |candidate| *candidate += 2_u32)
            }),
        )
    }

    /// A key with the prime factor `factor`, and a modulus of this size.
    pub fn small_factor(bits: u32, factor: u32) -> Self {
        Self::new([factor.into(), prime(bits - factor.ilog2())])
    }

    /// The same modulus with a private exponent of this size.
    pub fn with_private_exponent(self, bits: u32) -> Self {
        let mut private = random(bits);
        let exponent = loop {
            match private.modinv(&self.totient()) {
                Some(exponent) => break exponent,
                None => private += 1_u32,
            }
        };
        self.with_exponent(exponent)
    }

    pub fn with_exponent(self, exponent: impl Into<BigUint>) -> Self {
        Self { exponent: exponent.into(), ..self }
    }

    pub fn modulus(&self) -> BigUint {
        &self.primes[0] * &self.primes[1]
    }

    fn totient(&self) -> BigUint {
        let [p, q] = &self.primes;
        (p - 1_u32) * (q - 1_u32)
    }

    /// The SubjectPublicKeyInfo (DER).
    pub fn spki(&self) -> Vec<u8> {
        spki_of(&self.modulus(), &self.exponent)
    }

    /// The private key (PKCS#8, DER).
    pub fn pkcs8(&self) -> Vec<u8> {
        let [p, q] = &self.primes;
        let private = self.exponent.modinv(&self.totient()).unwrap();
        let numbers = [
            &BigUint::ZERO,
            &self.modulus(),
            &self.exponent,
            &private,
            p,
            q,
            &(&private % (p - 1_u32)),
            &(&private % (q - 1_u32)),
            &q.modinv(p).unwrap(),
        ];
        let key = der(0x30, &numbers.map(integer).concat());
        der(0x30, &[integer(&BigUint::ZERO), algorithm(), der(0x04, &key)].concat())
    }

    /// A client with this key: `NAME.pem` and `NAME.key`.
    pub fn client(&self, pki: &Pki, name: &str) -> Party {
        self.replace_key(pki, pki.client(name, Kind::P256))
    }

    /// A server with this key: `NAME.pem` and `NAME.key`.
    pub fn server(&self, pki: &Pki, name: &str) -> Party {
        self.replace_key(pki, pki.server(name))
    }

    /// A client whose issuer, an intermediate, has this key. `NAME.pem` contains both.
    pub fn client_of_issuer(&self, pki: &Pki, name: &str) -> Party {
        let key = PrivatePkcs8KeyDer::from(self.pkcs8());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &rcgen::PKCS_RSA_SHA256).unwrap();
        pki.client_of_intermediate_with_key(name, key).0
    }

    fn replace_key(&self, pki: &Pki, like: Party) -> Party {
        let party = pki.with_spki(like, &self.spki(), &self.pkcs8());
        write(&party.certificate, pem("CERTIFICATE", &party.der)).unwrap();
        write(&party.private_key, pem("PRIVATE KEY", &party.key)).unwrap();
        party
    }
}

/// The SubjectPublicKeyInfo (DER) of an RSA key with these numbers, which may be of no key.
pub fn spki_of(modulus: &BigUint, exponent: &BigUint) -> Vec<u8> {
    let key = der(0x30, &[integer(modulus), integer(exponent)].concat());
    der(0x30, &[algorithm(), der(0x03, &[&[0], key.as_slice()].concat())].concat())
}

pub fn pem(label: &str, content: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(content))
}

fn algorithm() -> Vec<u8> {
    b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00".to_vec()
}

fn integer(number: &BigUint) -> Vec<u8> {
    let bytes = number.to_bytes_be();
    let sign = bytes.first().is_some_and(|byte| *byte >= 0x80).then_some(0);
    der(0x02, &sign.into_iter().chain(bytes).collect::<Vec<_>>())
}

/// A random prime of this size, whose two highest bits are set.
pub fn prime(bits: u32) -> BigUint {
    let bits = bits.to_string();
    let made = system("openssl", &["prime", "-generate", "-hex", "-bits", &bits]);
    let digits = String::from_utf8(made.stdout).unwrap();
    BigUint::parse_bytes(digits.trim().as_bytes(), 16).unwrap()
}

/// A random number of this size, whose two highest bits are set.
pub fn random(bits: u32) -> BigUint {
    let mut bytes = vec![0; usize::try_from(bits.div_ceil(8)).unwrap()];
    aws_lc_rs::rand::fill(&mut bytes).unwrap();
    let below = BigUint::from_bytes_be(&bytes) >> (8 * bits.div_ceil(8) - bits + 2);
    below + (BigUint::from(3_u32) << (bits - 2))
}

/// The product M of the first primes for ROCA moduli of this size.
fn roca_product(bits: u32) -> BigUint {
    let count = match bits {
        512..=960 => 39,
        992..=1952 => 71,
        1984..=3936 => 126,
        _ => 225,
    };
    small_primes().take(count).map(BigUint::from).product()
}

/// A number k·M + (65537^a mod M) of this size, for a ROCA modulus of twice as many bits.
pub fn roca_number(bits: u32) -> BigUint {
    let product = roca_product(2 * bits);
    let power = BigUint::from(EXPONENT).modpow(&random(128), &product);
    random(bits) / &product * &product + power
}

/// An odd number of this size, a polynomial in 2^`limb` with random coefficients of at most 7 bits,
/// below a leading one of `limb` bits.
pub fn sparse_number(bits: u32, limb: u32) -> BigUint {
    let mut number = BigUint::from(3_u32) << (bits - 2);
    let coefficients = random(8 * (bits / limb)).to_bytes_be();
    for (position, coefficient) in (1..bits / limb - 1).zip(coefficients) {
        number += BigUint::from(coefficient % 128) << (position * limb);
    }
    number + 1_u32
}

/// The first prime from `candidate` on.
fn next_prime(mut candidate: BigUint, advance: impl Fn(&mut BigUint)) -> BigUint {
    while !is_prime(&candidate) {
        advance(&mut candidate);
    }
    candidate
}

/// Whether a random number is prime, by Fermat's test.
fn is_prime(number: &BigUint) -> bool {
    let has_small_factor =
        || small_primes().take(500).any(|prime| (number % prime) == BigUint::ZERO);
    let one = BigUint::from(1_u32);
    !has_small_factor() && BigUint::from(2_u32).modpow(&(number - 1_u32), number) == one
}

pub fn small_primes() -> impl Iterator<Item = u32> {
    let has_no_factor = |number: &u32| {
        (2..*number).take_while(|it| it * it <= *number).all(|it| !number.is_multiple_of(it))
    };
    (2_u32..).filter(has_no_factor)
}
