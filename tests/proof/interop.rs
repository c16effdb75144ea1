//! Proofs by other programs and for the published keys.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use keygate_core::proof::{self, BadProof, create, verify, verify_with_rsa_1024};
use keygate_core::spki::{Encoding, Fingerprint, related};

use crate::draft::{STATEMENT, TestKey, body, header, members};
use crate::published::{self, P256, P256_COMPRESSED, RSA, spki_in};
use crate::skip;

/// The response for the published RSA key, in the bytes of the reference generator.
const RSA_RESPONSE: &str = "\
    {\"payload\":\"VGhpcyBrZXkgaXMgcHduZWQhICBTZWUgaHR0cHM6Ly9wd25lZGtleXMuY29tIGZvciBtb3JlIGl\
    uZm8u\",\"protected\":\"eyJhbGciOiJSUzI1NiIsImtpZCI6IjllMDNiNTY3NDlhYmU4MjFhNmY1Mjk5ZDZmNj\
    M0YjM1NDA0OTc1ZjA1NTJlYjMzNDdiZjNhZGZhZDlhZjExMDkifQ\",\"signature\":\"K4st32p63CPf4VLyatf\
    YDzQ6h5ajHPZt_o1UtSOl4gXrKEGUMcmrvoCDENU-G0mTofWQZC0Yo1lfOkAmXwnecT8UFprCRSLyKc_vnh888BlKC\
    m57MuohhRT3MELSMhfKv6SkDhpZFJx6wB-iKQw0g5Z2Ud5w5Ex2nywhLVBHp0zqMT_0O8jXdfDTrNQrUzn0ONH65gM\
    73lBzA-OXpbkNdzYmbaMT7aBTr3pshCmjsS-obuZCvNy203oWW_kXJa80KUANNyT4LipWOlHmmj8X8tg7VlnUFvNGU\
    SYDlByLOpzB2ltQV84hitdKCmVpB4YdcgaGXysxphMNSMZZn0tsag\"}";

#[test]
fn the_response_for_the_published_rsa_key_is_reproduced() {
    let Some(directory) = published::directory() else { return };
    let key = TestKey::from_pem_file(&directory.join("rsa2048_key.pem"));
    let [created] = <[_; 1]>::try_from(create(&key.der).unwrap()).unwrap();
    assert_eq!(created.fingerprint.to_string(), RSA);
    assert_eq!(created.json, RSA_RESPONSE);
    let certificate = spki_in(&directory, "rsa2048_cert.der");
    let proof = verify(created.json.as_bytes(), &certificate).unwrap();
    assert_eq!(proof.payload, STATEMENT.as_bytes());
    // The live response of 2018 had the members in another order.
    let [payload, protected, signature] = members(RSA_RESPONSE);
    let reordered =
        format!(r#"{{"protected":"{protected}","payload":"{payload}","signature":"{signature}"}}"#);
    assert_eq!(verify(reordered.as_bytes(), &certificate), Ok(proof));
}

#[test]
fn the_published_p256_key_has_a_proof_for_each_form_of_its_point() {
    let Some(directory) = published::directory() else { return };
    let der = std::fs::read(directory.join("p256_key.der")).unwrap();
    let created = create(&der).unwrap();
    let fingerprints: Vec<_> = created.iter().map(|it| it.fingerprint.to_string()).collect();
    assert_eq!(fingerprints, [P256, P256_COMPRESSED]);
    let presented = spki_in(&directory, "p256_cert.der");
    let compressed = related(&presented).into_iter().find(|it| it.0 == Encoding::Compressed);
    for (created, spki) in created.iter().zip([presented, compressed.unwrap().1]) {
        let proof = verify(created.json.as_bytes(), &spki).unwrap();
        assert_eq!(proof.algorithm, "ES256");
        assert_eq!(proof::form(created.json.as_bytes()), Ok(created.fingerprint));
    }
    let foreign = verify(created[0].json.as_bytes(), &spki_in(&directory, "rsa2048_cert.der"));
    assert_eq!(foreign, Err(BadProof::Algorithm));
}

/// Runs a program with `input`; returns its standard output.
fn run(program: &str, arguments: &[&str], directory: &Path, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}");
    output.stdout
}

/// A proof that `openssl dgst` signs with the private key in `key`. RSA only.
fn signed_by_openssl(directory: &Path, key: &str, spki: &[u8]) -> String {
    let header = header("RS256", &Fingerprint::of(spki).to_string());
    let (header, payload) =
        (BASE64URL_NOPAD.encode(header.as_bytes()), BASE64URL_NOPAD.encode(STATEMENT.as_bytes()));
    let signed = format!("{header}.{payload}");
    let signature =
        run("openssl", &["dgst", "-sha256", "-sign", key], directory, signed.as_bytes());
    body(&payload, &header, &BASE64URL_NOPAD.encode(&signature))
}

#[test]
fn openssl_and_keygate_make_the_same_rsa_proof() {
    if skip::without("openssl") {
        return;
    }
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    for name in ["rsa-2048-a", "rsa-3072", "rsa-4096"] {
        let key = TestKey::named(name);
        let made = signed_by_openssl(&vectors, &format!("{name}.key.pem"), &key.spki);
        assert_eq!(create(&key.der).unwrap()[0].json, made, "{name}");
    }
}

#[test]
fn a_1024_bit_rsa_key_proves_nothing_to_the_proxy_but_can_be_examined() {
    if skip::without("openssl") {
        return;
    }
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let key = TestKey::named("rsa-1024");
    let proof = signed_by_openssl(&vectors, "rsa-1024.key.pem", &key.spki);
    assert_eq!(verify(proof.as_bytes(), &key.spki), Err(BadProof::Key));
    assert_eq!(verify_with_rsa_1024(proof.as_bytes(), &key.spki).unwrap().algorithm, "RS256");
    let changed = proof.replace("\"signature\":\"", "\"signature\":\"AAAA");
    let outcome = verify_with_rsa_1024(changed.as_bytes(), &key.spki);
    assert_eq!(outcome, Err(BadProof::Signature));
    assert!(create(&key.der).is_err());
}

#[test]
fn a_proof_with_the_exponent_three_verifies() {
    if skip::without("openssl") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = "genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:2048 \
                     -pkeyopt rsa_keygen_pubexp:3 -out key.pem";
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    run("openssl", &arguments, directory.path(), b"");
    let key = TestKey::from_pem_file(&directory.path().join("key.pem"));
    let proof = signed_by_openssl(directory.path(), "key.pem", &key.spki);
    assert!(verify(proof.as_bytes(), &key.spki).is_ok());
}

/// Reads the private key (PEM), the `alg`, the `kid` and our proof, verifies the proof, and prints
/// a proof of its own.
const JWCRYPTO: &str = r#"
import json, sys
from jwcrypto import jwk, jws
given = json.load(sys.stdin)
key = jwk.JWK.from_pem(given["key"].encode())
proof = jws.JWS()
proof.deserialize(given["proof"], key, alg=given["alg"])
header = {"alg": given["alg"], "kid": given["kid"]}
assert proof.jose_header == header, proof.jose_header
own = jws.JWS(proof.payload)
own.add_signature(key, protected=json.dumps(header))
print(own.serialize())
"#;

#[test]
fn a_jose_library_verifies_our_proofs_and_makes_proofs_that_verify() {
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let mut import = Command::new(python);
        import.args(["-c", "import jwcrypto"]).stderr(Stdio::null());
        import.status().is_ok_and(|status| status.success())
    });
    if skip::unless(python.is_some(), "no python3 has the module jwcrypto") {
        return;
    }
    for (name, alg) in [
        ("rsa-2048-a", "RS256"),
        ("p256-a", "ES256"),
        ("p384", "ES384"),
        ("p521", "ES512"),
        ("ed25519", "EdDSA"),
    ] {
        let path = format!("{}/tests/vectors/{name}.key.pem", env!("CARGO_MANIFEST_DIR"));
        let pem = std::fs::read_to_string(&path).unwrap();
        let key = TestKey::named(name);
        let ours = if alg == "EdDSA" {
            key.draft(alg, crate::draft::ed25519) // the library has no `Ed25519` yet
        } else {
            create(&key.der).unwrap().remove(0).json
        };
        let input = serde_json::json!({
            "key": pem, "alg": alg, "kid": key.fingerprint(), "proof": ours,
        });
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output =
            run(python.unwrap(), &["-c", JWCRYPTO], directory, input.to_string().as_bytes());
        let proof = verify(output.trim_ascii(), &key.spki);
        assert_eq!(proof.map(|it| it.algorithm), Ok(alg), "{name}");
    }
}

#[test]
fn a_proof_of_a_secp256k1_key_verifies_in_both_forms() {
    // A number of 32 bytes, d = 1: the public key is the base point (SEC 2, section 2.4.1).
    let sec1 = HEXLOWER
        .decode(
            b"302e0201010420000000000000000000000000000000000000000000000000000000000000000\
                  1a00706052b8104000a",
        )
        .unwrap();
    let created = create(&sec1).unwrap();
    assert_eq!(created.len(), 2);
    for created in created {
        let proof = verify(created.json.as_bytes(), &created.spki).unwrap();
        assert_eq!(proof.algorithm, "ES256K");
    }
}
