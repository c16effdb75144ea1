//! Changes of good proofs, byte by byte. No change of a byte leaves a proof good: each byte is
//! punctuation, a part of a name, or a part of a signed or signing text. White space between the
//! tokens of the JSON may be added.

use keygate_core::proof::{create, verify};

use crate::draft::TestKey;

const KEYS: [&str; 5] = ["rsa-2048-a", "p256-a", "p384", "p521", "ed25519"];

/// Calls `visit` with a good proof and its key, for every key and form of a point.
fn for_each_proof(visit: impl Fn(&str, &[u8], &[u8])) {
    for name in KEYS {
        for proof in create(&TestKey::named(name).der).unwrap() {
            assert!(verify(proof.json.as_bytes(), &proof.spki).is_ok(), "{name}");
            visit(name, proof.json.as_bytes(), &proof.spki);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn no_changed_byte_leaves_a_proof_good() {
    for_each_proof(|name, proof, spki| {
        let mut changed = proof.to_vec();
        for position in 0..proof.len() {
            // Each bit, both neighbours in base64url and in ASCII, and characters of JSON.
            let good = proof[position];
            let bits = (0..8).map(|bit| good ^ 1 << bit);
            let neighbours = [good.wrapping_add(1), good.wrapping_sub(1)];
            let others = *b"A_-=/+ \"\\{}[],:\n\0";
            for byte in bits.chain(neighbours).chain(others).filter(|byte| *byte != good) {
                changed[position] = byte;
                let outcome = verify(&changed, spki);
                assert!(outcome.is_err(), "{name}: byte {position} of {}", text(&changed));
            }
            changed[position] = good;
        }
    });
}

#[test]
fn no_removed_or_repeated_byte_and_no_truncation_leaves_a_proof_good() {
    for_each_proof(|name, proof, spki| {
        for position in 0..proof.len() {
            let (start, rest) = proof.split_at(position);
            let removed = [start, &rest[1..]].concat();
            let repeated = [start, &rest[..1], rest].concat();
            for changed in [start, &removed, &repeated] {
                let outcome = verify(changed, spki);
                assert!(outcome.is_err(), "{name}: byte {position}, {}", text(changed));
            }
        }
    });
}

#[test]
fn white_space_may_be_added_between_tokens_only() {
    for_each_proof(|name, proof, spki| {
        let mut is_in_string = false;
        for position in 0..=proof.len() {
            let (start, rest) = proof.split_at(position);
            for white_space in [&b" "[..], b"\t", b"\r\n"] {
                let changed = [start, white_space, rest].concat();
                let outcome = verify(&changed, spki);
                assert_eq!(outcome.is_err(), is_in_string, "{name}: {}", text(&changed));
            }
            is_in_string ^= proof.get(position) == Some(&b'"');
        }
    });
}
