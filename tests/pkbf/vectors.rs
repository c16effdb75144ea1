//! The filter against `tests/vectors`: fresh keys with their hashes and bit positions. The filters
//! in it, their values and the verdicts come from the reference implementation.
//!
//! Everything here is computed a second time from the published formula, over integers that do not
//! wrap: <https://pwnedkeys.com/filter.html>

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use keygate_core::pkbf::{self, Filter, FilterError, Header, MARKER, Parameters};
use keygate_core::spki::{Fingerprint, for_each_point_form, keys_in};
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh64::xxh64;

/// A key in one encoding, as `vectors.json` describes it.
#[derive(Deserialize)]
struct Vector {
    key: String,
    encoding: String,
    spki_der_hex: String,
    spki_sha256: String,
    xxh64_seed0: String,
    xxh64_seed1: String,
    /// By `k=2,hash_length=4`; at most the first 40 of each.
    positions: BTreeMap<String, Vec<u64>>,
}

impl Vector {
    fn name(&self) -> String {
        format!("{}/{}", self.key, self.encoding)
    }

    fn spki(&self) -> Vec<u8> {
        HEXLOWER.decode(self.spki_der_hex.as_bytes()).unwrap()
    }

    /// The formula's positions from the hashes that `vectors.json` lists.
    fn formula(&self, hash_count: u8, hash_length: u8) -> Vec<u64> {
        let hash = |hex| u64::from_str_radix(hex, 16).unwrap();
        positions([hash(&self.xxh64_seed0), hash(&self.xxh64_seed1)], hash_count, hash_length)
    }
}

/// The values and verdicts that the reference implementation reads from a filter.
#[derive(Deserialize)]
struct Reading {
    file: String,
    size: usize,
    revision: u32,
    update_time: u64,
    entry_count: u32,
    hash_count: u8,
    hash_length: u8,
    false_positive_rate: f64,
    /// By [`Vector::name`].
    probably_includes: BTreeMap<String, bool>,
}

/// `f_i = h1 + i·h2 + (i³ − i)/6 mod 2^L` for `i` from 0 to `k − 1`, with h2 made odd.
fn positions([seed0, seed1]: [u64; 2], hash_count: u8, hash_length: u8) -> Vec<u64> {
    let h1 = u128::from(seed0);
    let h2 = u128::from(seed1) + u128::from(seed1 % 2 == 0);
    (0..u128::from(hash_count))
        .map(|i| (h1 + i * h2 + (i * i * i - i) / 6) % (1_u128 << hash_length))
        .map(|position| position.try_into().unwrap())
        .collect()
}

/// A model of the format: one `bool` for each bit.
struct Model {
    hash_count: u8,
    hash_length: u8,
    entry_count: u32,
    bits: Vec<bool>,
}

impl Model {
    fn new(hash_count: u8, hash_length: u8) -> Self {
        Self { hash_count, hash_length, entry_count: 0, bits: vec![false; 1 << hash_length] }
    }

    /// The model of a file whose length fits its header.
    fn of_file(file: &[u8]) -> Self {
        let bits = file[24..].iter().flat_map(|byte| {
            let digits = format!("{byte:08b}");
            digits.chars().map(|digit| digit == '1').collect::<Vec<_>>()
        });
        let entry_count = u32::from_be_bytes(file[18..22].try_into().unwrap());
        Self { hash_count: file[22], hash_length: file[23], entry_count, bits: bits.collect() }
    }

    fn positions(&self, spki: &[u8]) -> Vec<usize> {
        positions([xxh64(spki, 0), xxh64(spki, 1)], self.hash_count, self.hash_length)
            .into_iter()
            .map(|position| position.try_into().unwrap())
            .collect()
    }

    fn contains(&self, spki: &[u8]) -> bool {
        self.positions(spki).into_iter().all(|position| self.bits[position])
    }

    fn insert(&mut self, spki: &[u8]) -> bool {
        let is_new = !self.contains(spki);
        for position in self.positions(spki) {
            self.bits[position] = true;
        }
        self.entry_count += u32::from(is_new);
        is_new
    }

    fn file(&self, revision: u32, updated_at: u64) -> Vec<u8> {
        let mut file = MARKER.to_vec();
        file.extend(revision.to_be_bytes());
        file.extend(updated_at.to_be_bytes());
        file.extend(self.entry_count.to_be_bytes());
        file.extend([self.hash_count, self.hash_length]);
        file.extend(self.bits.chunks(8).map(|byte| {
            let digits: String = byte.iter().map(|bit| if *bit { '1' } else { '0' }).collect();
            u8::from_str_radix(&digits, 2).unwrap()
        }));
        file
    }
}

/// The filters of `tests/vectors`, by file name without extension.
const FILTERS: [&str; 8] = ["12_18", "1_3", "20_20", "255_16", "2_4", "3_14", "3_6", "5_12"];
/// A file small enough to try everything on it.
const SMALL: &str = "3_6";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn vectors() -> Vec<Vector> {
    json("vectors.json")
}

fn filter_file(name: &str) -> Vec<u8> {
    bytes(&format!("{name}.pkbf"))
}

fn readings() -> impl Iterator<Item = (Filter, Reading)> {
    FILTERS.into_iter().map(|name| {
        let filter = Filter::parse(&filter_file(name)).unwrap();
        (filter, json(&format!("{name}.pkbf.json")))
    })
}

/// The two numbers in `k=2,hash_length=4`.
fn parse_parameters(text: &str) -> (u8, u8) {
    let (hash_count, hash_length) = text.split_once(',').unwrap();
    (
        hash_count.strip_prefix("k=").unwrap().parse().unwrap(),
        hash_length.strip_prefix("hash_length=").unwrap().parse().unwrap(),
    )
}

/// The bits that are set, in ascending order. Blocks of zeros are skipped whole: most of a large
/// filter with one key is zeros.
fn set_positions(bits: &[u8]) -> Vec<u64> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut positions = Vec::new();
    for (block, bytes) in (0_u64..).zip(bits.chunks(ZEROS.len())) {
        if *bytes == ZEROS[..bytes.len()] {
            continue;
        }
        for (byte, value) in (block * 4096..).zip(bytes) {
            positions
                .extend((0..8).filter(|bit| value & (0x80 >> bit) != 0).map(|bit| byte * 8 + bit));
        }
    }
    positions
}

#[test]
fn every_spki_has_its_fingerprint() {
    for vector in vectors() {
        let fingerprint = Fingerprint::of(&vector.spki()).to_string();
        assert_eq!(fingerprint, vector.spki_sha256, "{}", vector.name());
    }
}

#[test]
fn every_spki_has_its_two_hashes() {
    for vector in vectors() {
        let hash = |seed| format!("{:016x}", xxh64(&vector.spki(), seed));
        assert_eq!([hash(0), hash(1)], [&*vector.xxh64_seed0, &*vector.xxh64_seed1]);
    }
}

#[test]
fn the_formula_gives_the_positions_of_every_key_for_every_size() {
    for vector in vectors() {
        assert_eq!(vector.positions.len(), 8, "{}", vector.name());
        for (parameters, listed) in &vector.positions {
            let (hash_count, hash_length) = parse_parameters(parameters);
            assert_eq!(listed.len(), usize::from(hash_count).min(40));
            let formula = vector.formula(hash_count, hash_length);
            assert_eq!(formula[..listed.len()], *listed, "{} at {parameters}", vector.name());
        }
    }
}

/// 512 MiB is the largest that is made here; `L = 40` would have 128 GiB.
#[test]
fn a_key_alone_in_a_filter_sets_its_positions_and_no_others() {
    let vectors = vectors();
    let sizes = vectors[0].positions.keys().map(|parameters| parse_parameters(parameters));
    for (hash_count, hash_length) in sizes.filter(|(_, hash_length)| *hash_length <= 32) {
        let parameters = Parameters::new(hash_count, hash_length).unwrap();
        for vector in &vectors {
            let mut filter = Filter::new(parameters).unwrap();
            assert!(filter.insert(&vector.spki()));
            let expected = BTreeSet::from_iter(vector.formula(hash_count, hash_length));
            let found = set_positions(filter.to_parts().1);
            let name = vector.name();
            assert_eq!(found, Vec::from_iter(expected), "{name}, k={hash_count} L={hash_length}");
            assert_eq!(filter.set_bits(), found.len() as u64);
        }
    }
}

#[test]
fn every_header_field_equals_that_of_the_reference_implementation() {
    for (filter, reading) in readings() {
        let expected = Header {
            revision: reading.revision,
            updated_at: reading.update_time,
            entry_count: reading.entry_count,
            hash_count: reading.hash_count,
            hash_length: reading.hash_length,
        };
        assert_eq!(*filter.header(), expected, "{}", reading.file);
        assert_eq!(bytes(&reading.file).len(), reading.size);
    }
}

#[test]
fn every_verdict_equals_that_of_the_reference_implementation() {
    let vectors = vectors();
    for (filter, reading) in readings() {
        assert_eq!(reading.probably_includes.len(), vectors.len(), "{}", reading.file);
        for vector in &vectors {
            let name = vector.name();
            let expected = reading.probably_includes[&name];
            assert_eq!(filter.contains(&vector.spki()), expected, "{name} in {}", reading.file);
        }
    }
}

#[test]
fn the_false_positive_rate_is_that_of_the_reference_implementation() {
    for (filter, reading) in readings() {
        let (rate, expected) = (filter.false_positive_ratio(), reading.false_positive_rate);
        // The reference implementation loses the last digits in 1 − 1/m.
        let tolerance = expected * 1e-9;
        let difference = (rate - expected).abs();
        assert!(difference <= tolerance, "{}: {rate}, expected {expected}", reading.file);
    }
}

#[test]
fn filters_of_the_reference_implementation_are_plausible() {
    for (filter, reading) in readings() {
        let plausibility = filter.plausibility();
        assert!(plausibility.is_plausible(), "{}: {plausibility:?}", reading.file);
    }
}

#[test]
fn a_file_is_written_back_as_it_was_read() {
    for name in FILTERS {
        let read = pkbf::read(&path(&format!("{name}.pkbf")), 1 << 20).unwrap().filter;
        let (header, bits) = read.to_parts();
        assert_eq!([&header[..], bits].concat(), filter_file(name), "{name}");
    }
}

#[test]
fn the_same_additions_give_the_same_file() {
    let added = ["rsa-2048-a", "rsa-4096", "p256-a", "p384", "ed25519"];
    for (reference, reading) in readings() {
        let parameters = Parameters::new(reading.hash_count, reading.hash_length).unwrap();
        let mut filter = Filter::new(parameters).unwrap();
        for vector in vectors().iter().filter(|vector| added.contains(&&*vector.key)) {
            filter.insert(&vector.spki());
        }
        filter.stamp(reading.update_time);
        assert_eq!(filter, reference, "{}", reading.file);
    }
}

#[test]
fn every_private_key_file_gives_its_spki() {
    for vector in vectors().iter().filter(|vector| vector.encoding == "default") {
        let findings = keys_in(&bytes(&format!("{}.key.pem", vector.key)));
        let keys: Result<Vec<_>, _> = findings.into_iter().map(|finding| finding.key).collect();
        assert_eq!(keys.unwrap(), [vector.spki()], "{}", vector.key);
    }
}

/// With its EC keys under both encodings, as the vectors of the reference implementation have them.
#[test]
fn the_forms_of_a_point_are_those_of_the_reference_implementation() {
    let vectors = vectors();
    for vector in vectors.iter().filter(|vector| vector.encoding == "default") {
        let mut forms = Vec::new();
        for_each_point_form(&vector.spki(), |spki| forms.push(spki.to_vec()));
        let of_key = vectors.iter().filter(|other| other.key == vector.key);
        let mut expected: Vec<_> = of_key.map(Vector::spki).collect();
        forms.sort();
        expected.sort();
        assert_eq!(forms, expected, "{}", vector.key);
    }
}

#[test]
fn every_truncation_of_a_filter_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("truncated.pkbf");
    let whole = filter_file(SMALL);
    for length in 0..whole.len() {
        assert!(Filter::parse(&whole[..length]).is_err(), "{length} bytes were accepted");
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(pkbf::read(&path, 1 << 20).is_err(), "a file of {length} bytes was accepted");
    }
}

#[test]
fn every_filter_file_with_a_byte_too_many_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("longer.pkbf");
    for name in FILTERS {
        let mut file = filter_file(name);
        file.push(0);
        let error = Filter::parse(&file).unwrap_err();
        assert!(matches!(error, FilterError::WrongLength { .. }), "{name}: {error}");
        std::fs::write(&path, &file).unwrap();
        let error = pkbf::read(&path, 1 << 20).unwrap_err();
        assert!(matches!(error, FilterError::WrongLength { .. }), "{name}: {error}");
    }
}

#[test]
fn every_changed_byte_of_a_filter_file_is_an_error_or_matches_the_model() {
    let spkis: Vec<_> = vectors().iter().map(Vector::spki).collect();
    let whole = filter_file(SMALL);
    for offset in 0..whole.len() {
        for value in (0..=u8::MAX).filter(|value| *value != whole[offset]) {
            let mut file = whole.clone();
            file[offset] = value;
            let is_usable = match offset {
                0..6 | 23 => false, // the marker; a hash length that does not fit the file
                22 => value != 0,   // the hash count
                _ => true,
            };
            let parsed = Filter::parse(&file);
            assert_eq!(parsed.is_ok(), is_usable, "offset {offset} is {value}");
            if let Ok(mut filter) = parsed {
                let _ = (filter.plausibility(), filter.false_positive_ratio());
                let mut model = Model::of_file(&file);
                for spki in &spkis {
                    assert_eq!(filter.contains(spki), model.contains(spki), "{offset}: {value}");
                    assert_eq!(filter.insert(spki), model.insert(spki), "{offset}: {value}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn a_filter_does_what_a_model_over_wide_integers_does(
        hash_count in 1_u8..=255,
        hash_length in 3_u8..=16,
        keys in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..30),
        others in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..30),
        updated_at: u64,
    ) {
        let mut filter = Filter::new(Parameters::new(hash_count, hash_length).unwrap()).unwrap();
        let mut model = Model::new(hash_count, hash_length);
        for key in &keys {
            prop_assert_eq!(filter.insert(key), model.insert(key));
        }
        for key in keys.iter().chain(&others) {
            prop_assert_eq!(filter.contains(key), model.contains(key));
        }
        prop_assert!(keys.iter().all(|key| filter.contains(key)));
        let impossible = matches!(filter.plausibility(), pkbf::Plausibility::Impossible { .. });
        prop_assert!(!impossible);
        let set_bits = model.bits.iter().filter(|bit| **bit).count();
        prop_assert_eq!(filter.set_bits(), set_bits as u64);

        filter.stamp(updated_at);
        let file = model.file(1, updated_at);
        let (header, bits) = filter.to_parts();
        prop_assert_eq!([&header[..], bits].concat(), &file[..]);
        prop_assert_eq!(Filter::parse(&file).unwrap(), filter);
    }
}
