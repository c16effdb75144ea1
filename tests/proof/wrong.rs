//! Wrong proofs: each is rejected for its reason.

use std::fmt::Write;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use keygate_core::proof::{self, BadProof, MAX_BODY, verify};
use keygate_core::spki::{Encoding, Fingerprint, related};

use crate::draft::{
    CURVES, STATEMENT, TestKey, asn1, body, ed25519, fixed, header, members, ps256, rs256, rs384,
};

fn reason(body: &str, spki: &[u8]) -> BadProof {
    verify(body.as_bytes(), spki).expect_err(body)
}

fn encoding(spki: &[u8], wanted: Encoding) -> Vec<u8> {
    related(spki).into_iter().find(|(encoding, _)| *encoding == wanted).unwrap().1
}

/// A good proof with an ECDSA key, and that key.
fn p256() -> (TestKey, String) {
    let key = TestKey::named("p256-a");
    let proof = key.draft("ES256", fixed("ES256"));
    (key, proof)
}

#[test]
fn drafts_verify_if_nothing_is_wrong() {
    for (name, alg, _) in CURVES {
        let key = TestKey::named(name);
        let proof = verify(key.draft(alg, fixed(alg)).as_bytes(), &key.spki).unwrap();
        assert_eq!((proof.algorithm, proof.payload), (alg, STATEMENT.as_bytes().to_vec()));
    }
    let rsa = TestKey::named("rsa-2048-a");
    assert!(verify(rsa.draft("RS256", rs256).as_bytes(), &rsa.spki).is_ok());
    let edwards = TestKey::named("ed25519");
    for alg in ["Ed25519", "EdDSA"] {
        let proof = verify(edwards.draft(alg, ed25519).as_bytes(), &edwards.spki).unwrap();
        assert_eq!(proof.algorithm, alg);
    }
}

#[test]
fn an_algorithm_other_than_the_one_of_the_key_is_rejected() {
    let rsa = TestKey::named("rsa-2048-a");
    let pem = format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        BASE64
            .encode(&rsa.spki)
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).unwrap())
            .collect::<Vec<_>>()
            .join("\n")
    );
    let with_secret = |secret: &[u8]| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        rsa.draft("HS256", |_, message| hmac::sign(&key, message).as_ref().to_vec())
    };
    for (what, body) in [
        ("none", rsa.draft("none", |_, _| Vec::new())),
        ("none with a signature", rsa.draft("none", rs256)),
        ("no name", rsa.draft("", rs256)),
        ("HS256 with the SPKI", with_secret(&rsa.spki)),
        ("HS256 with the PEM", with_secret(pem.as_bytes())),
        ("HS256 with the PEM of one line end less", with_secret(pem.trim_end().as_bytes())),
        ("RS384", rsa.draft("RS384", rs384)),
        ("PS256", rsa.draft("PS256", ps256)),
        ("lower case", rsa.draft("rs256", rs256)),
        ("a blank", rsa.draft("RS256 ", rs256)),
        ("EdDSA", rsa.draft("EdDSA", rs256)),
    ] {
        assert_eq!(reason(&body, &rsa.spki), BadProof::Algorithm, "{what}");
    }
    // The right name does not make another algorithm right.
    for body in [rsa.draft("RS256", rs384), rsa.draft("RS256", ps256)] {
        assert_eq!(reason(&body, &rsa.spki), BadProof::Signature);
    }
    for (name, alg, _) in CURVES {
        let key = TestKey::named(name);
        for other in ["ES256", "ES384", "ES512", "ES256K", "EdDSA", "RS256", "HS256", "none"] {
            if other != alg {
                let body = key.draft(other, fixed(alg));
                assert_eq!(reason(&body, &key.spki), BadProof::Algorithm, "{other} for {name}");
            }
        }
    }
}

#[test]
fn a_key_without_proofs_is_named_as_the_reason() {
    let (key, proof) = p256();
    let mut explicit = key.spki.clone();
    explicit[1] = 0x81;
    for spki in [&b""[..], b"\x30\x00", &key.spki[1..], &key.der, &explicit] {
        assert_eq!(reason(&proof, spki), BadProof::Key);
    }
    let mut off_curve = key.spki.clone();
    *off_curve.last_mut().unwrap() ^= 1;
    let proof = key.proof(
        &header("ES256", &Fingerprint::of(&off_curve).to_string()),
        STATEMENT.as_bytes(),
        fixed("ES256"),
    );
    assert_eq!(reason(&proof, &off_curve), BadProof::Key);
}

#[test]
fn a_key_is_never_taken_from_the_proof() {
    let (victim, _) = p256();
    let thief = TestKey::named("p256-b");
    let own = thief.draft("ES256", fixed("ES256"));
    assert_eq!(reason(&own, &victim.spki), BadProof::KeyId);
    let kid = victim.fingerprint();
    let with_foreign_kid =
        thief.proof(&header("ES256", &kid), STATEMENT.as_bytes(), fixed("ES256"));
    assert_eq!(reason(&with_foreign_kid, &victim.spki), BadProof::Signature);
    let x = BASE64URL_NOPAD.encode(&thief.spki[27..59]);
    let y = BASE64URL_NOPAD.encode(&thief.spki[59..]);
    for parameter in [
        format!(r#""jwk":{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}"}}"#),
        format!(r#""x5c":["{}"]"#, BASE64.encode(&thief.spki)),
        r#""jku":"https://localhost/keys""#.to_owned(),
        r#""x5u":"https://localhost/key""#.to_owned(),
    ] {
        let header = format!(r#"{{"alg":"ES256","kid":"{kid}",{parameter}}}"#);
        let proof = thief.proof(&header, STATEMENT.as_bytes(), fixed("ES256"));
        assert_eq!(reason(&proof, &victim.spki), BadProof::Header, "{parameter}");
    }
}

#[test]
fn a_kid_in_another_spelling_or_of_another_encoding_is_rejected() {
    let (key, _) = p256();
    let fingerprint = key.fingerprint();
    let pairs = fingerprint.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    let digest = HEXLOWER.decode(fingerprint.as_bytes()).unwrap();
    let compressed = encoding(&key.spki, Encoding::Compressed);
    for kid in [
        fingerprint.to_uppercase(),
        pairs.collect::<Vec<_>>().join(":"),
        BASE64.encode(&digest),
        BASE64URL_NOPAD.encode(&digest), // the form of an RFC 7638 thumbprint
        Fingerprint::of(&compressed).to_string(),
        Fingerprint::of(&key.spki[26..]).to_string(), // of the point alone
        format!("{fingerprint} "),
        fingerprint[1..].to_owned(),
        String::new(),
    ] {
        let proof = key.proof(&header("ES256", &kid), STATEMENT.as_bytes(), fixed("ES256"));
        assert_eq!(reason(&proof, &key.spki), BadProof::KeyId, "{kid}");
        let has_form = kid.len() == 64 && kid.bytes().all(|it| b"0123456789abcdef".contains(&it));
        assert_eq!(proof::form(proof.as_bytes()).is_ok(), has_form, "{kid}");
    }
}

#[test]
fn a_statement_without_the_words_is_rejected() {
    let (key, _) = p256();
    for payload in ["", "key is fine", "Key is pwned", "key  is pwned", "key is pwne", "pwned"] {
        let proof =
            key.proof(&header("ES256", &key.fingerprint()), payload.as_bytes(), fixed("ES256"));
        assert_eq!(reason(&proof, &key.spki), BadProof::Text, "{payload}");
        assert!(proof::form(proof.as_bytes()).is_err(), "{payload}");
    }
    // Bytes around the words do not matter, also outside of UTF-8.
    let odd = [&b"\xff\x00"[..], b"key is pwned", b"\xfe\n"].concat();
    let proof = key.proof(&header("ES256", &key.fingerprint()), &odd, fixed("ES256"));
    assert_eq!(verify(proof.as_bytes(), &key.spki).unwrap().payload, odd);
}

#[test]
fn a_statement_may_have_1024_bytes_and_no_more() {
    let (key, _) = p256();
    let proof = |length: usize| {
        let payload = format!("{:width$}key is pwned", "", width = length - 12);
        key.proof(&header("ES256", &key.fingerprint()), payload.as_bytes(), fixed("ES256"))
    };
    assert!(verify(proof(1024).as_bytes(), &key.spki).is_ok());
    assert_eq!(reason(&proof(1025), &key.spki), BadProof::Payload);
    assert!(proof::form(proof(1025).as_bytes()).is_err());
}

/// A change of a signature.
type Change<'a> = &'a dyn Fn(Vec<u8>) -> Vec<u8>;

#[test]
fn an_elliptic_curve_signature_has_exactly_the_length_of_its_curve() {
    for (name, alg, length) in CURVES {
        let key = TestKey::named(name);
        let sign = fixed(alg);
        assert_eq!(sign(&key.der, b"any").len(), length);
        let half = length / 2;
        // Both numbers longer or shorter, one of them, the whole longer or shorter at either end.
        let changes: [(&str, Change<'_>); 8] = [
            ("one byte less", &|it| it[..length - 1].to_vec()),
            ("one byte more", &|it| [&it[..], &[0]].concat()),
            ("one byte before", &|it| [&[0], &it[..]].concat()),
            ("two bytes more", &|it| [&it[..], &[0, 0]].concat()),
            ("longer numbers", &|it| [&[0], &it[..half], &[0], &it[half..]].concat()),
            ("shorter numbers", &|it| [&it[1..half], &it[half + 1..]].concat()),
            ("no bytes", &|_| Vec::new()),
            ("zeros", &|it| vec![0; it.len()]),
        ];
        for (what, change) in changes {
            let body = key.draft(alg, |der, message| change(sign(der, message)));
            assert_eq!(reason(&body, &key.spki), BadProof::Signature, "{what} of {name}");
        }
        let body = key.draft(alg, asn1(alg));
        assert_eq!(reason(&body, &key.spki), BadProof::Signature, "DER of {name}");
    }
}

#[test]
fn a_jwt_and_other_forms_of_jws_are_rejected() {
    let (key, proof) = p256();
    let kid = key.fingerprint();
    let [payload, protected, signature] = members(&proof);
    let compact = format!("{protected}.{payload}.{signature}");
    assert_eq!(reason(&compact, &key.spki), BadProof::Json);
    let json_string = format!("\"{compact}\"");
    assert_eq!(reason(&json_string, &key.spki), BadProof::Members);
    let general = format!(
        r#"{{"payload":"{payload}","signatures":[{{"protected":"{protected}","signature":"{signature}"}}]}}"#
    );
    assert_eq!(reason(&general, &key.spki), BadProof::Members);
    for unprotected in [r#"{"kid":"x"}"#, r#"{"alg":"ES256"}"#, "{}"] {
        let body = format!(
            r#"{{"payload":"{payload}","protected":"{protected}","signature":"{signature}","header":{unprotected}}}"#
        );
        assert_eq!(reason(&body, &key.spki), BadProof::Members);
    }
    // A token that the key signed for another purpose, with the words in a claim.
    let claims = br#"{"sub":"key is pwned"}"#;
    for header in [
        format!(r#"{{"typ":"JWT","alg":"ES256","kid":"{kid}"}}"#),
        r#"{"alg":"ES256","typ":"JWT"}"#.to_owned(),
        r#"{"alg":"ES256"}"#.to_owned(),
    ] {
        let token = key.proof(&header, claims, fixed("ES256"));
        assert_eq!(reason(&token, &key.spki), BadProof::Header, "{header}");
    }
}

#[test]
fn a_header_has_exactly_two_strings() {
    let (key, _) = p256();
    let kid = key.fingerprint();
    for header in [
        format!(r#"{{"alg":"ES256","kid":"{kid}","crit":["b64"],"b64":false}}"#),
        format!(r#"{{"alg":"ES256","kid":"{kid}","b64":true}}"#),
        format!(r#"{{"alg":"ES256","kid":"{kid}","crit":[]}}"#),
        format!(r#"{{"alg":"ES256","kid":"{kid}","zip":"DEF"}}"#),
        format!(r#"{{"alg":"ES256","kid":"{kid}","kid":"{kid}"}}"#),
        format!(r#"{{"alg":"none","alg":"ES256","kid":"{kid}"}}"#),
        format!(r#"{{"alg":"ES256","kid":"{kid}","\u0061lg":"ES256"}}"#),
        format!(r#"{{"alg":["ES256"],"kid":"{kid}"}}"#),
        format!(r#"{{"alg":null,"kid":"{kid}"}}"#),
        r#"{"alg":"ES256","kid":7}"#.to_owned(),
        format!(r#"{{"kid":"{kid}"}}"#),
        format!(r#"["ES256","{kid}"]"#),
        format!(r#"{{"alg":"ES256","kid":"{kid}"}}{{}}"#),
        format!("\u{feff}{{\"alg\":\"ES256\",\"kid\":\"{kid}\"}}"),
        String::new(),
        "{}".to_owned(),
        "null".to_owned(),
        "[".repeat(4000),
    ] {
        let proof = key.proof(&header, STATEMENT.as_bytes(), fixed("ES256"));
        assert_eq!(reason(&proof, &key.spki), BadProof::Header, "{header}");
        assert!(proof::form(proof.as_bytes()).is_err(), "{header}");
    }
}

#[test]
fn a_member_in_another_spelling_of_base64_is_rejected() {
    let (key, proof) = p256();
    let parts = members(&proof);
    for index in 0..3 {
        let with = |text: &str| {
            let mut parts = parts.clone();
            parts[index] = text.to_owned();
            body(&parts[0], &parts[1], &parts[2])
        };
        let good = &parts[index];
        for text in [
            format!("{good}="),
            format!("{good}=="),
            format!("{good}A"),
            format!("{good}%3D"),
            format!("{good}\\n"),
            format!("\\n{good}"),
            format!(" {good}"),
            format!("{}+{}", &good[..4], &good[5..]),
            format!("{}/{}", &good[..4], &good[5..]),
            format!("{}\\u0000{}", &good[..4], &good[5..]),
            format!("{}.{}", &good[..4], &good[5..]),
            format!("{}ä{}", &good[..4], &good[5..]),
        ] {
            let what = verify(with(&text).as_bytes(), &key.spki).unwrap_err();
            // Four more bits can be a whole byte.
            let is_longer = text == format!("{good}A") && !good.len().is_multiple_of(4);
            assert!(what == BadProof::Base64 || is_longer, "{what:?} for {text}");
        }
    }
    // The 64 bytes of a signature leave four bits of the last character unused.
    let [payload, protected, signature] = &parts;
    let (start, last) = signature.split_at(signature.len() - 1);
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let value = alphabet.find(last).unwrap();
    assert_eq!(value % 16, 0);
    for spare in 1..16 {
        let other = &alphabet[value + spare..=value + spare];
        let body = body(payload, protected, &format!("{start}{other}"));
        assert_eq!(reason(&body, &key.spki), BadProof::Base64, "{other}");
    }
}

#[test]
fn a_body_is_an_object_of_three_strings() {
    let (key, proof) = p256();
    let [payload, protected, signature] = members(&proof);
    let inside = &proof[1..proof.len() - 1];
    for body in [
        format!("{{{inside},\"payload\":\"{payload}\"}}"),
        format!("{{\"signature\":\"AAAA\",{inside}}}"),
        format!("{{{inside},\"\\u0070ayload\":\"{payload}\"}}"),
        format!("{{{inside},\"extra\":\"\"}}"),
        format!("{{{inside},\"\":\"\"}}"),
        format!("[\"{payload}\",\"{protected}\",\"{signature}\"]"),
        format!("[{proof}]"),
        proof.replace("\"payload\"", "\"Payload\""),
        format!(r#"{{"payload":"{payload}","protected":"{protected}"}}"#),
        format!(r#"{{"payload":"{payload}","protected":"{protected}","signature":null}}"#),
        format!(r#"{{"payload":"{payload}","protected":["{protected}"],"signature":""}}"#),
        format!(r#"{{"payload":{{}},"protected":"{protected}","signature":""}}"#),
        "{}".to_owned(),
        "null".to_owned(),
        "17".to_owned(),
    ] {
        assert_eq!(reason(&body, &key.spki), BadProof::Members, "{body}");
    }
    for body in [
        String::new(),
        " ".to_owned(),
        "That key does not appear to be pwned".to_owned(),
        "<html>".to_owned(),
        format!("{proof}{proof}"),
        format!("{proof},"),
        format!("{{{inside},}}"),
        format!("\u{feff}{proof}"),
        proof.replace('"', "'"),
        format!("// {proof}"),
        proof[..proof.len() - 1].to_owned(),
        proof.replace("\"signature\":\"", "\"signature\":\"\t"),
    ] {
        assert_eq!(reason(&body, &key.spki), BadProof::Json, "{body}");
    }
    let mut not_text = proof.clone().into_bytes();
    not_text[20] = 0xff;
    assert_eq!(verify(&not_text, &key.spki), Err(BadProof::Json));
    assert_eq!(reason(&"[".repeat(MAX_BODY), &key.spki), BadProof::Members);
}

#[test]
fn order_white_space_and_escapes_do_not_matter() {
    let (key, proof) = p256();
    let [payload, protected, signature] = members(&proof);
    let mut escaped = String::new();
    for character in payload.chars() {
        write!(escaped, "\\u{:04x}", u32::from(character)).unwrap();
    }
    for body in [
        format!(r#"{{"signature":"{signature}","protected":"{protected}","payload":"{payload}"}}"#),
        format!(
            "\r\n{{ \"payload\" :\t\"{payload}\" ,\n\"protected\": \"{protected}\",\"signature\":\"{signature}\" }}\n"
        ),
        format!(
            r#"{{"pa\u0079load":"{escaped}","protected":"{protected}","signature":"{signature}"}}"#
        ),
    ] {
        assert!(verify(body.as_bytes(), &key.spki).is_ok(), "{body}");
    }
    let header = format!("{{ \"kid\" : \"{}\", \"alg\":\"ES256\" }}\n", key.fingerprint());
    let proof = key.proof(&header, STATEMENT.as_bytes(), fixed("ES256"));
    assert!(verify(proof.as_bytes(), &key.spki).is_ok());
}

#[test]
fn a_body_may_have_16_kib_and_no_more() {
    let (key, proof) = p256();
    let padded = format!("{proof:<MAX_BODY$}");
    assert!(verify(padded.as_bytes(), &key.spki).is_ok());
    assert_eq!(reason(&format!("{padded} "), &key.spki), BadProof::Size);
    assert!(proof::form(format!("{padded} ").as_bytes()).is_err());
}

#[test]
fn the_negative_of_a_point_is_another_key() {
    let (key, _) = p256();
    let negated = negative(&key);
    let sign = |der: &[u8], message: &[u8]| {
        let pair = EcdsaKeyPair::from_private_key_and_public_key(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            der,
            &negated.spki[26..],
        );
        pair.unwrap().sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
    };
    let proof = negated.draft("ES256", sign);
    assert!(verify(proof.as_bytes(), &negated.spki).is_ok());
    assert_eq!(reason(&proof, &key.spki), BadProof::KeyId);
    let kid = key.fingerprint();
    let proof = negated.proof(&header("ES256", &kid), STATEMENT.as_bytes(), sign);
    assert_eq!(reason(&proof, &key.spki), BadProof::Signature);
}

/// The key n − d, whose public half is the negative of the point. Its `der` is the bare number.
fn negative(key: &TestKey) -> TestKey {
    const ORDER: &[u8] = b"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
    let order = HEXLOWER.decode(ORDER).unwrap();
    let start = key.der.windows(2).position(|tag| tag == [0x04, 0x20]).unwrap() + 2;
    let mut borrow = 0;
    let mut der = order.clone();
    for (digit, subtrahend) in der.iter_mut().zip(&key.der[start..start + 32]).rev() {
        let difference = i16::from(*digit) - i16::from(*subtrahend) - borrow;
        borrow = i16::from(difference < 0);
        *digit = u8::try_from(difference.rem_euclid(256)).unwrap();
    }
    TestKey { der, spki: encoding(&key.spki, Encoding::NegatedUncompressed) }
}

#[test]
fn a_modulus_with_another_exponent_is_another_key() {
    let key = TestKey::named("rsa-2048-a");
    let other = encoding(&key.spki, Encoding::RsaExponent3);
    assert_eq!(reason(&key.draft("RS256", rs256), &other), BadProof::KeyId);
    let kid = Fingerprint::of(&other).to_string();
    let proof = key.proof(&header("RS256", &kid), STATEMENT.as_bytes(), rs256);
    assert_eq!(reason(&proof, &other), BadProof::Signature);
}

#[test]
fn both_forms_of_a_point_verify_a_proof_that_names_them() {
    for (name, alg, _) in CURVES {
        let key = TestKey::named(name);
        let compressed = encoding(&key.spki, Encoding::Compressed);
        let kid = Fingerprint::of(&compressed).to_string();
        let proof = key.proof(&header(alg, &kid), STATEMENT.as_bytes(), fixed(alg));
        assert!(verify(proof.as_bytes(), &compressed).is_ok(), "{name}");
        assert_eq!(reason(&proof, &key.spki), BadProof::KeyId, "{name}");
    }
}

#[test]
fn the_first_reason_in_the_order_of_the_checks_is_given() {
    let (key, _) = p256();
    let none = |_: &[u8], _: &[u8]| vec![0];
    let long = [b'x'; 1025];
    let proof = |header: &str, payload: &[u8]| key.proof(header, payload, none);
    let kid = key.fingerprint();
    let steps = [
        (proof("{}", &long).replace('}', ",}"), BadProof::Json),
        (proof("{}", &long).replace("signature", "sign"), BadProof::Members),
        (proof("{}", &long).replace("\"}", "=\"}"), BadProof::Base64),
        (proof("{}", &long), BadProof::Header),
        (proof(&header("none", ""), &long), BadProof::Algorithm),
        (proof(&header("ES256", ""), &long), BadProof::KeyId),
        (proof(&header("ES256", &kid), &long), BadProof::Payload),
        (proof(&header("ES256", &kid), &long[..1024]), BadProof::Text),
        (proof(&header("ES256", &kid), b"key is pwned"), BadProof::Signature),
    ];
    for (body, expected) in steps {
        assert_eq!(reason(&body, &key.spki), expected, "{body}");
    }
    assert_eq!(reason(&proof(&header("none", ""), &long), b"no key"), BadProof::Key);
    assert_eq!(reason(&format!("{:<20000}", "{"), &key.spki), BadProof::Size);
}

#[test]
fn every_reason_is_one_word_of_its_own() {
    let reasons = [
        BadProof::Algorithm,
        BadProof::Base64,
        BadProof::Header,
        BadProof::Json,
        BadProof::Key,
        BadProof::KeyId,
        BadProof::Members,
        BadProof::Payload,
        BadProof::Signature,
        BadProof::Size,
        BadProof::Text,
    ];
    let words: std::collections::BTreeSet<_> = reasons.iter().map(|it| it.as_str()).collect();
    assert_eq!(words.len(), reasons.len());
    for word in words {
        assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    }
}
