//! ML-DSA keys as inputs, in each form that RFC 9881 and RFC 9964 define.

use std::fs::write;

use aws_lc_rs::encoding::AsRawBytes;
use aws_lc_rs::signature::{
    KeyPair, ML_DSA_44_SIGNING, ML_DSA_65_SIGNING, ML_DSA_87_SIGNING, PqdsaKeyPair,
};
use data_encoding::BASE64URL_NOPAD;
use keygate_core::spki::{self, Algorithm, Fingerprint, InputError, related};
use rcgen::{CertificateParams, PublicKeyData};
use serde_json::{Value, json};

use super::inputs::{keys, problem};
use crate::support::keygate::keygate;
use crate::support::output_text;
use crate::support::pki::{der, elements};
use crate::support::program::keys_of_badkeys;

const RFC_9881: &[u8] = include_bytes!("../../vectors/inputs/ml-dsa-44.pem");

/// A PKCS #8 key of the algorithm that `spki` names, with `content` in its OCTET STRING.
fn pkcs8(spki: &[u8], content: &[u8]) -> Vec<u8> {
    let algorithm = elements(spki).swap_remove(0);
    der(0x30, &[&der(0x02, &[0])[..], &algorithm, &der(0x04, content)].concat())
}

#[test]
fn the_private_key_of_the_standard_is_its_public_key_in_each_form() {
    let seed: Vec<u8> = (0..32).collect();
    let [spki] = keys("RFC 9881", RFC_9881).try_into().unwrap();
    for (signing, name) in [
        (&ML_DSA_44_SIGNING, "ML-DSA-44"),
        (&ML_DSA_65_SIGNING, "ML-DSA-65"),
        (&ML_DSA_87_SIGNING, "ML-DSA-87"),
    ] {
        let pair = PqdsaKeyPair::from_seed(signing, &seed).unwrap();
        let expanded = pair.private_key().as_raw_bytes().unwrap();
        let expanded = der(0x04, expanded.as_ref());
        let public = pair.public_key().as_ref();
        // The identifiers of the three parameter sets differ in their last byte.
        let mut algorithm = elements(&spki).swap_remove(0);
        let last = algorithm.len() - 1;
        algorithm[last] = match name {
            "ML-DSA-44" => 17,
            "ML-DSA-65" => 18,
            _ => 19,
        };
        let expected = der(0x30, &[algorithm, der(0x03, &[&[0], public].concat())].concat());
        if name == "ML-DSA-44" {
            assert_eq!(expected, spki, "the published key");
        }
        assert_eq!(Algorithm::of(&expected).to_string(), name.to_lowercase());
        assert_eq!(related(&expected).len(), 1);
        let both = der(0x30, &[der(0x04, &seed), expanded.clone()].concat());
        for form in [der(0x80, &seed), expanded.clone(), both] {
            assert_eq!(keys(name, &pkcs8(&expected, &form)), [&expected[..]], "{name}");
        }
        let jwk = json!({
            "kty": "AKP", "alg": name, "pub": BASE64URL_NOPAD.encode(public),
            "priv": BASE64URL_NOPAD.encode(&seed),
        });
        assert_eq!(keys(name, jwk.to_string().as_bytes()), [&expected[..]], "{name}");
        let lower = jwk.to_string().replace(name, &name.to_lowercase());
        let error = problem(name, lower.as_bytes());
        assert!(matches!(error, InputError::Unsupported { .. }), "names have a case: {error}");
        // Two halves of different keys.
        let other = der(0x30, &[der(0x04, &[7; 32]), expanded].concat());
        let error = problem(name, &pkcs8(&expected, &other));
        assert!(matches!(error, InputError::Broken { what: "a private key", .. }), "{error}");
        let short = problem(name, &pkcs8(&expected, &der(0x80, &seed[1..])));
        assert!(matches!(short, InputError::Broken { what: "a private key", .. }), "{short}");
    }
    for (alg, public) in [("ML-DSA-44", "AAAA"), ("ML-DSA-45", "AAAA"), ("", "")] {
        let jwk = json!({ "kty": "AKP", "alg": alg, "pub": public }).to_string();
        problem(alg, jwk.as_bytes());
    }
}

/// badkeys itself does not read two of the files.
#[test]
fn the_ml_dsa_test_keys_of_badkeys_are_read_in_each_form() {
    let Some(directory) = keys_of_badkeys() else { return };
    let key = |file: &str| {
        let output = keygate(&["key", "--json", directory.join(file).to_str().unwrap()]);
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        [&row["algorithm"], &row["fingerprint"]].map(|it| it.as_str().unwrap().to_owned())
    };
    let seed = key("mldsa44.key");
    assert_eq!(seed[0], "ml-dsa-44");
    for form in ["unsupported/mldsa44-both.key", "unsupported/mldsa44-expanded.key"] {
        assert_eq!(key(form), seed, "{form}");
    }
    assert_eq!(key("mldsa65-cert.crt")[0], "ml-dsa-65");
}

#[test]
fn a_key_with_parameters_or_another_length_is_no_ml_dsa_key() {
    let [spki] = keys("RFC 9881", RFC_9881).try_into().unwrap();
    let [algorithm, key] = elements(&spki).try_into().unwrap();
    let null = der(0x30, &[&algorithm[2..], &[0x05, 0x00]].concat());
    let short = der(0x03, &key[4..key.len() - 1]);
    for (algorithm, key) in [(&null, &key), (&algorithm, &short)] {
        let other = der(0x30, &[&algorithm[..], key].concat());
        assert_eq!(Algorithm::of(&other), Algorithm::Other);
        assert_eq!(spki::key_problem(&other).is_some(), *algorithm == null);
        let directory = tempfile::tempdir().unwrap();
        let [file, filter] = ["key", "new.pkbf"].map(|it| directory.path().join(it));
        let [file, filter] = [&file, &filter].map(|it| it.to_str().unwrap());
        write(file, &other).unwrap();
        keygate(&["filter", "create", filter, "--entries", "10", "--fp-rate", "0.01"]);
        for arguments in [&["key", file][..], &["filter", "add", filter, file]] {
            let output = output_text(&keygate(arguments));
            assert_eq!(output.contains("with parameters"), *algorithm == null, "{output}");
        }
    }
    for length in 0..spki.len() {
        assert_eq!(Algorithm::of(&spki[..length]), Algorithm::Other, "{length}");
    }
}

#[test]
fn the_command_key_names_the_algorithm_of_certificates_and_keys() {
    let directory = tempfile::tempdir().unwrap();
    for (algorithm, name) in [
        (&rcgen::PKCS_ML_DSA_44, "ml-dsa-44"),
        (&rcgen::PKCS_ML_DSA_65, "ml-dsa-65"),
        (&rcgen::PKCS_ML_DSA_87, "ml-dsa-87"),
    ] {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let parameters = CertificateParams::default();
        let request = parameters.serialize_request(&key).unwrap().pem().unwrap();
        let certificate = parameters.self_signed(&key).unwrap().pem();
        let fingerprint = Fingerprint::of(&key.subject_public_key_info()).to_string();
        let file = directory.path().join("keys.pem");
        write(&file, [key.serialize_pem(), certificate, request].concat()).unwrap();
        let output = keygate(&["key", "--json", file.to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 3, "{text}");
        for row in rows {
            assert_eq!(row["algorithm"], name, "{row}");
            let encodings = json!([{ "encoding": "presented", "fingerprint": fingerprint }]);
            assert_eq!(row["encodings"], encodings, "{row}");
        }
    }
}
