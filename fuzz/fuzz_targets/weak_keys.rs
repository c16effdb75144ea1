//! Any numbers as an RSA key. The checks end, and what each of them finds alone is what all of them
//! find together.

#![no_main]

use keygate_core::guard::{KeyStrength, WeakCheck, WeakChecks};
use keygate_core::spki::{Fingerprint, PublicKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|numbers: (&[u8], &[u8])| {
    let spki = spki(numbers.0, numbers.1);
    let key = PublicKey::parse(&spki);
    let found = key.rsa_numbers().expect("an RSA key");
    let without_zeros = |number: &[u8]| {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        number[zeros..].to_vec()
    };
    assert_eq!(without_zeros(found.modulus), without_zeros(numbers.0));
    assert_eq!(without_zeros(found.exponent), without_zeros(numbers.1));
    let strength = |checks: WeakChecks, name: &str| {
        // Each under a name of its own, because the results are kept.
        let fingerprint = || Fingerprint::of(&[name.as_bytes(), &spki].concat());
        KeyStrength::new(&key, checks, fingerprint)
    };
    let all = strength(WeakChecks::ALL, "all");
    for check in WeakCheck::ALL {
        let alone = strength([check].into_iter().collect(), check.as_str());
        assert_eq!(alone.is_oversize, all.is_oversize);
        assert_eq!(alone.failed.contains(check), all.failed.contains(check), "{check}");
    }
    assert!(all.failed.is_empty() || !all.is_oversize);
});

/// The SubjectPublicKeyInfo of the key with these numbers.
fn spki(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    let key = der(0x30, &[integer(modulus), integer(exponent)].concat());
    let algorithm = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
    der(0x30, &[&algorithm[..], &der(0x03, &[&[0], key.as_slice()].concat())].concat())
}

fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let value = if zeros == number.len() { &[0][..] } else { &number[zeros..] };
    let sign = (value[0] >= 0x80).then_some(0);
    der(0x02, &sign.into_iter().chain(value.iter().copied()).collect::<Vec<_>>())
}

/// A DER element (X.690, section 8.1).
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let header = match content.len() {
        short @ 0..0x80 => vec![short as u8],
        _ => [&[0x80 | (length.len() - zeros) as u8], &length[zeros..]].concat(),
    };
    [&[tag], header.as_slice(), content].concat()
}
