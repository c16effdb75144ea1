//! The filter against the files that its inventor publishes: example filters, and the two keys in
//! them.

use std::path::Path;

use keygate_core::pkbf::{self, Filter, Parameters};
use keygate_core::spki::{Encoding, Fingerprint, related};

use crate::published::{self, P256, P256_COMPRESSED, RSA, spki_in};

/// The published example filters, with `k` and `L`.
const EXAMPLES: [(&str, u8, u8); 4] = [
    ("2_4_filter_example.pkbf", 2, 4),
    ("3_6_filter_example.pkbf", 3, 6),
    ("5_12_filter_example.pkbf", 5, 12),
    ("12_18_filter_example.pkbf", 12, 18),
];

/// When they were written: 2019-04-20, in seconds since the Unix epoch.
const APRIL_2019: u64 = 1_555_799_917;

fn read(directory: &Path, name: &str) -> Filter {
    let file = pkbf::read(&directory.join(name), 1 << 20);
    file.unwrap_or_else(|error| panic!("{name}: {error}")).filter
}

/// The keys in the examples by fingerprint; the P-256 key is there in both encodings.
fn entries(directory: &Path) -> [(&'static str, Vec<u8>); 3] {
    let p256 = spki_in(directory, "p256_cert.der");
    let compressed = related(&p256)
        .into_iter()
        .find_map(|(encoding, spki)| (encoding == Encoding::Compressed).then_some(spki));
    [
        (RSA, spki_in(directory, "rsa2048_cert.der")),
        (P256, p256),
        (P256_COMPRESSED, compressed.unwrap()),
    ]
}

#[test]
fn every_published_form_of_a_key_gives_its_fingerprint() {
    let Some(directory) = published::directory() else { return };
    for (key, fingerprint) in [("rsa2048", RSA), ("p256", P256)] {
        for form in ["cert", "csr", "key"] {
            for format in ["der", "pem"] {
                let name = format!("{key}_{form}.{format}");
                let spki = spki_in(&directory, &name);
                assert_eq!(Fingerprint::of(&spki).to_string(), fingerprint, "{name}");
            }
        }
    }
    for (fingerprint, spki) in entries(&directory) {
        assert_eq!(Fingerprint::of(&spki).to_string(), fingerprint);
    }
}

#[test]
fn the_headers_of_the_published_filters_are_what_their_names_say() {
    let Some(directory) = published::directory() else { return };
    for (name, hash_count, hash_length) in EXAMPLES {
        let filter = read(&directory, name);
        let header = filter.header();
        assert_eq!((header.hash_count, header.hash_length), (hash_count, hash_length), "{name}");
        assert_eq!((header.revision, header.entry_count), (1, 3), "{name}");
        assert_eq!(header.updated_at, APRIL_2019, "{name}");
        assert!(filter.plausibility().is_plausible(), "{name}: {:?}", filter.plausibility());
    }
}

#[test]
fn the_published_filters_contain_every_form_of_the_published_keys() {
    let Some(directory) = published::directory() else { return };
    for (name, ..) in EXAMPLES {
        let filter = read(&directory, name);
        for (fingerprint, spki) in entries(&directory) {
            assert!(filter.contains(&spki), "{fingerprint} in {name}");
        }
    }
}

#[test]
fn adding_the_published_keys_again_gives_the_published_filters() {
    let Some(directory) = published::directory() else { return };
    for (name, hash_count, hash_length) in EXAMPLES {
        let mut filter = Filter::new(Parameters::new(hash_count, hash_length).unwrap()).unwrap();
        for (_, spki) in entries(&directory) {
            assert!(filter.insert(&spki), "{name}");
        }
        filter.stamp(APRIL_2019);
        assert_eq!(filter, read(&directory, name), "{name}");
    }
}

/// The fixture of the reference implementation's own tests: they add a first 32-bit RSA key to an
/// empty filter, and then a second one that this file does not contain.
#[test]
fn the_fixture_of_the_reference_implementation_has_the_first_of_its_two_keys() {
    let Some(directory) = published::directory() else { return };
    let mut filter = read(&directory, "reference_spec_2_4.pkbf");
    let header = *filter.header();
    assert_eq!((header.hash_count, header.hash_length), (2, 4));
    assert_eq!((header.revision, header.entry_count), (1, 1));
    assert_eq!(filter.to_parts().1, [0b0000_0010, 0b0000_0001]);
    assert!((filter.false_positive_ratio() - 0.014_66).abs() < 1e-5);
    assert!(filter.plausibility().is_plausible());

    assert!(filter.contains(&spki_of_32_bits(0xca9a_0b09)));
    let second = spki_of_32_bits(0xd1c7_8f71);
    assert!(!filter.contains(&second));
    assert!(filter.insert(&second));
    assert_eq!(filter.to_parts().1, [0b0000_0010, 0b0110_0001]);
}

#[test]
fn the_fixture_of_the_reference_implementation_has_none_of_the_published_keys() {
    let Some(directory) = published::directory() else { return };
    let filter = read(&directory, "reference_spec_2_4.pkbf");
    for (fingerprint, spki) in entries(&directory) {
        assert!(!filter.contains(&spki), "{fingerprint}");
    }
}

/// SubjectPublicKeyInfo of an RSA key with a modulus of 32 bits and e = 65537.
fn spki_of_32_bits(modulus: u32) -> Vec<u8> {
    let modulus = modulus.to_be_bytes();
    [
        b"\x30\x20\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00".as_slice(),
        b"\x03\x0f\x00\x30\x0c\x02\x05\x00",
        &modulus,
        b"\x02\x03\x01\x00\x01",
    ]
    .concat()
}
