//! Any bytes as a proof of compromise, and any header and payload as a proof that is signed or
//! forged. A proof that verifies was signed here, contains the words, and is for the key in
//! question. The first byte selects: `u` signed for the uncompressed point, `c` for the compressed
//! one, `f` forged, any other byte: the rest is the proof.

#![no_main]

use std::sync::LazyLock;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use data_encoding::BASE64URL_NOPAD;
use keygate_core::proof::{self, BadProof, CreatedProof, MAX_BODY, MAX_PAYLOAD, TEXT};
use libfuzzer_sys::fuzz_target;
use rcgen::KeyPair;

/// A key that is made for this process, so that no input has a signature of it.
static KEY: LazyLock<(EcdsaKeyPair, [CreatedProof; 2])> = LazyLock::new(|| {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().serialize_der();
    let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, &key);
    (pair.unwrap(), proof::create(&key).unwrap().try_into().unwrap())
});

fn check(body: &[u8], is_signed: bool) {
    let form = proof::form(body);
    let (_, created) = &*KEY;
    for CreatedProof { spki, fingerprint, json } in created {
        match proof::verify(body, spki) {
            Ok(proof) => {
                assert!(is_signed, "a forged proof: {json}");
                assert_eq!((form, proof.fingerprint), (Ok(*fingerprint), *fingerprint));
                assert!(body.len() <= MAX_BODY && proof.payload.len() <= MAX_PAYLOAD);
                assert!(String::from_utf8_lossy(&proof.payload).contains(TEXT));
            }
            // The form was checked first.
            Err(BadProof::Base64 | BadProof::Header | BadProof::Json | BadProof::Members) => {
                assert!(form.is_err());
            }
            Err(_) => {}
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else { return };
    let (pair, [uncompressed, compressed]) = &*KEY;
    let (created, is_signed) = match kind {
        b'u' => (uncompressed, true),
        b'c' => (compressed, true),
        b'f' => (uncompressed, false),
        _ => return check(rest, false),
    };
    // The first line is the header. The fuzzer cannot guess the fingerprint.
    let mut lines = rest.splitn(2, |byte| *byte == b'\n');
    let header = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let header = header.replace("FINGERPRINT", &created.fingerprint.to_string());
    let header = BASE64URL_NOPAD.encode(header.as_bytes());
    let payload = BASE64URL_NOPAD.encode(lines.next().unwrap_or_default());
    let signature = pair.sign(&SystemRandom::new(), format!("{header}.{payload}").as_bytes());
    let mut signature = signature.unwrap().as_ref().to_vec();
    if !is_signed {
        signature[rest.len() % 64] ^= 1;
    }
    let signature = BASE64URL_NOPAD.encode(&signature);
    let body =
        format!(r#"{{"payload":"{payload}","protected":"{header}","signature":"{signature}"}}"#);
    check(body.as_bytes(), is_signed);
});
