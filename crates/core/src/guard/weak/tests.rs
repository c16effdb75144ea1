use rcgen::PublicKeyData;

use super::*;
use crate::spki::related;

/// A Mersenne prime.
fn mersenne(exponent: u32) -> BigUint {
    (BigUint::from(1_u32) << exponent) - 1_u32
}

fn failed_by(modulus: &BigUint, exponent: &BigUint, checks: WeakChecks) -> WeakChecks {
    let (modulus, exponent) = (modulus.to_bytes_be(), exponent.to_bytes_be());
    failed(RsaNumbers { modulus: &modulus, exponent: &exponent }, checks, None)
}

fn set(checks: &[WeakCheck]) -> WeakChecks {
    checks.iter().copied().collect()
}

fn rsa_key() -> Vec<u8> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    key.subject_public_key_info()
}

#[test]
fn each_check_has_its_place_in_a_set() {
    for check in WeakCheck::ALL {
        let one = set(&[check]);
        assert!(WeakCheck::ALL.into_iter().all(|other| one.contains(other) == (other == check)));
        assert!(!WeakChecks::ALL.without(one).contains(check));
    }
    assert_eq!(set(&WeakCheck::ALL), WeakChecks::ALL);
    assert!(WeakChecks::default().is_empty());
    assert_eq!(format!("{:?}", set(&[WeakCheck::Wiener, WeakCheck::Roca])), "{Roca, Wiener}");
}

#[test]
fn a_good_key_fails_no_check_and_numbers_of_no_key_are_invalid() {
    let (modulus, exponent) = (mersenne(607) * mersenne(1279), BigUint::from(65_537_u32));
    let failed =
        |modulus: &BigUint, exponent: &BigUint| failed_by(modulus, exponent, WeakChecks::ALL);
    assert_eq!(failed(&modulus, &exponent), WeakChecks::NONE);
    assert_eq!(failed(&modulus, &3_u32.into()), WeakChecks::NONE);
    assert_eq!(failed(&modulus, &(&modulus - 2_u32)), WeakChecks::NONE);
    let invalid = set(&[WeakCheck::Invalid]);
    for wrong in [0_u32, 1, 2, 4, 65_536] {
        assert_eq!(failed(&modulus, &wrong.into()), invalid, "e = {wrong}");
    }
    for wrong in [modulus.clone(), &modulus + 2_u32] {
        assert_eq!(failed(&modulus, &wrong), invalid, "e ≥ n");
    }
    let even = failed(&(&modulus * 2_u32), &exponent);
    assert_eq!(even, set(&[WeakCheck::Invalid, WeakCheck::SmallFactors]));
    let square = failed(&(mersenne(1279) * mersenne(1279)), &exponent);
    assert_eq!(square, set(&[WeakCheck::Invalid, WeakCheck::Fermat]));
    for power in [mersenne(607).pow(3), mersenne(521).pow(5)] {
        assert_eq!(failed(&power, &exponent), invalid);
    }
    let small = failed(&(mersenne(1279) * 65_537_u32), &exponent);
    assert_eq!(small, set(&[WeakCheck::SmallFactors]));
    for tiny in 0..6_u32 {
        assert_eq!(failed(&tiny.into(), &exponent), invalid, "n = {tiny}");
    }
}

#[test]
fn only_the_selected_checks_are_made() {
    let even = mersenne(607) * 2_u32;
    for check in WeakCheck::ALL {
        let expected = match check {
            WeakCheck::Invalid | WeakCheck::SmallFactors => set(&[check]),
            WeakCheck::Fermat
            | WeakCheck::Roca
            | WeakCheck::Rsapoly
            | WeakCheck::SharedPrimes
            | WeakCheck::Wiener => WeakChecks::NONE,
        };
        assert_eq!(failed_by(&even, &3_u32.into(), set(&[check])), expected, "{check}");
    }
    assert_eq!(failed_by(&BigUint::ZERO, &BigUint::ZERO, WeakChecks::NONE), WeakChecks::NONE);
}

#[test]
fn numbers_larger_than_any_that_is_checked_are_oversize() {
    let [largest, too_large] = [1024, 1025].map(|length| vec![0xff; length]);
    let is_oversize =
        |modulus: &[u8], exponent: &[u8]| is_oversize(RsaNumbers { modulus, exponent });
    assert!(!is_oversize(&largest, &largest));
    assert!(is_oversize(&too_large, &[3]) && is_oversize(&[0xff], &too_large));
}

#[test]
fn the_numbers_of_a_key_are_found_in_each_encoding() {
    let spki = rsa_key();
    let numbers = PublicKey::parse(&spki).rsa_numbers().unwrap();
    assert_eq!((numbers.modulus.len(), numbers.exponent), (256, &[1, 0, 1][..]));
    for (_, other) in related(&spki) {
        let other = PublicKey::parse(&other).rsa_numbers().unwrap();
        assert_eq!(other.modulus, numbers.modulus);
    }
    // RSASSA-PSS (RFC 4055), which no verifier here accepts.
    let oid = |last| [b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01", &[last][..]].concat();
    let position = spki.windows(11).position(|window| window == oid(1)).unwrap();
    let mut pss = spki.clone();
    pss[position + 10] = 10;
    assert_eq!(PublicKey::parse(&pss).rsa_numbers(), Some(numbers));
    let ec = rcgen::KeyPair::generate().unwrap().subject_public_key_info();
    for other in [&ec[..], b"", &spki[..40]] {
        assert_eq!(PublicKey::parse(other).rsa_numbers(), None);
    }
    let strength =
        KeyStrength::new(&PublicKey::parse(&spki), WeakChecks::ALL, || Fingerprint::of(&spki));
    assert_eq!(strength, KeyStrength::default());
}

#[test]
fn points_of_small_order_and_off_the_curve_are_invalid() {
    let failed = |spki: &[u8]| {
        KeyStrength::new(&PublicKey::parse(spki), WeakChecks::ALL, || Fingerprint::of(spki)).failed
    };
    let invalid = set(&[WeakCheck::Invalid]);
    for point in &curve25519_dalek::constants::EIGHT_TORSION {
        let prefix = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
        let spki = [&prefix[..], &point.compress().0].concat();
        assert_eq!(failed(&spki), invalid, "{:?}", point.compress());
    }
    let algorithms = [
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
    ];
    for algorithm in algorithms {
        let spki = rcgen::KeyPair::generate_for(algorithm).unwrap().subject_public_key_info();
        for (encoding, spki) in related(&spki) {
            assert_eq!(failed(&spki), WeakChecks::NONE, "{encoding:?}");
        }
        // Half of all x, and half of all y of Ed25519, are on the curve; one y in a field is.
        let (mut changed, last) = (spki.clone(), spki.len() - 1);
        let is_found = (1..=u8::MAX).any(|change| {
            changed[last] = spki[last] ^ change;
            failed(&changed) == invalid
        });
        assert!(is_found, "{algorithm:?}");
        let unselected = set(&[WeakCheck::Roca]);
        let key = PublicKey::parse(&changed);
        let strength = KeyStrength::new(&key, unselected, || Fingerprint::of(&changed));
        assert_eq!(strength, KeyStrength::default());
    }
}
