//! Reviews of Secrets (`src/ask/http/admission.rs`).

use std::process::Command;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, HttpReply, UNIX};
use crate::support::pki::Kind;
use crate::support::webhook::{
    SECRET_RESOURCE, UID, admission, files, is_stored, pem, review, secret, tls_secret,
};

fn review_of(scene: &AskedKeygate, review: &Value) -> HttpReply {
    scene.connect().review(review)
}

#[test]
fn both_halves_of_a_secret_are_judged() {
    let scene = admission(UNIX);
    let ([good, good_key], [lost, lost_key]) = (files(&scene.good), files(&scene.lost));
    let chain = |first: &[u8], second: &[u8]| [first, second].concat();
    let opaque = |entries: &[(&str, &[u8])]| secret("Opaque", entries);
    for (name, object, stored) in [
        ("good", tls_secret(&good, &good_key), true),
        ("lost", tls_secret(&lost, &lost_key), false),
        ("another key", tls_secret(&good, &lost_key), false),
        ("another certificate", tls_secret(&lost, &good_key), false),
        ("lost issuer", tls_secret(&chain(&good, &lost), &good_key), false),
        ("certificate alone", tls_secret(&good, b""), true),
        ("lost certificate alone", tls_secret(&lost, b""), false),
        ("key alone", tls_secret(b"", &good_key), true),
        ("lost key alone", tls_secret(b"", &lost_key), false),
        ("opaque", opaque(&[("tls.key", &lost_key)]), false),
        ("opaque and good", opaque(&[("tls.crt", &good), ("tls.key", &good_key)]), true),
        ("two keys", tls_secret(&good, &chain(&good_key, &lost_key)), false),
    ] {
        let reply = review_of(&scene, &review(SECRET_RESOURCE, "CREATE", object));
        assert_eq!(is_stored(&reply, UID), stored, "{name}: {}", reply.body);
        assert!(!reply.body.contains("warnings"), "{name}: {}", reply.body);
    }
    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client key rejected");
    assert_eq!(line["object"], "secrets shop/web by alice");
    let log = format!("{:?}", scene.keygate.matching_lines(|_| true));
    assert!(!log.contains("PRIVATE KEY") && !log.contains(&BASE64.encode(&good_key)));
}

/// The evidence for a CA has certificates that were issued, and no others.
#[test]
fn the_report_has_the_certificate_of_a_secret() {
    let scene = admission(UNIX);
    let [certificate, key] = files(&scene.lost);
    review_of(&scene, &review(SECRET_RESOURCE, "CREATE", tls_secret(&certificate, &key)));
    let report: Value = serde_json::from_str(&scene.keygate.admin("/report").1).unwrap();
    assert_eq!(report["clients"][0]["chain"], json!([BASE64.encode(&scene.lost.der)]), "{report}");
}

#[test]
fn a_secret_without_an_entry_that_has_a_key_is_stored() {
    let scene = admission(UNIX);
    let mut without_data = secret("Opaque", &[]);
    without_data["data"] = Value::Null;
    for object in [tls_secret(b"", b""), secret("Opaque", &[("password", b"x")]), without_data] {
        let reply = review_of(&scene, &review(SECRET_RESOURCE, "CREATE", object));
        assert!(is_stored(&reply, UID), "{}", reply.body);
    }
}

#[test]
fn a_secret_that_cannot_be_read_is_denied() {
    let scene = admission(UNIX);
    let [certificate, key] = files(&scene.good);
    let encrypted = Command::new("openssl")
        .args(["pkcs8", "-topk8", "-passout", "pass:x", "-in"])
        .arg(&scene.good.private_key)
        .output()
        .unwrap()
        .stdout;
    assert!(encrypted.starts_with(b"-----BEGIN ENCRYPTED"));
    let eleven: Vec<_> =
        (0..11).map(|number| scene.pki.client(&format!("c{number}"), Kind::Ed25519)).collect();
    let eleven: Vec<u8> = eleven.iter().flat_map(|it| files(it)[0].clone()).collect();
    let many_keys = key.repeat(21);
    let mut string_data = tls_secret(&certificate, &key);
    string_data["stringData"] = json!({ "tls.key": "x" });
    let mut no_base64 = tls_secret(&certificate, &key);
    no_base64["data"]["tls.crt"] = "no base64".into();
    let mut number = tls_secret(&certificate, &key);
    number["data"]["tls.crt"] = 7.into();
    for (name, object) in [
        ("encrypted", tls_secret(&certificate, &encrypted)),
        ("no key", tls_secret(&certificate, b"no key")),
        ("half of a key", tls_secret(&certificate, &key[..key.len() / 2])),
        ("no certificate", tls_secret(b"no certificate", &key)),
        ("half of a certificate", tls_secret(&certificate[..certificate.len() / 2], &key)),
        ("key as certificate", tls_secret(&key, &key)),
        ("damaged certificate", tls_secret(pem("CERTIFICATE", b"0").as_bytes(), &key)),
        ("eleven", tls_secret(&eleven, &key)),
        ("one key many times", tls_secret(&certificate, &many_keys)),
        ("stringData", string_data),
        ("no base64", no_base64),
        ("number", number),
    ] {
        let reply = review_of(&scene, &review(SECRET_RESOURCE, "CREATE", object));
        assert!(!reply.body.contains("\"allowed\":true"), "{name}: {}", reply.body);
        assert!(reply.status == 200 || reply.status == 403, "{name}: {}", reply.head);
    }
    assert_eq!(scene.questions("malformed"), 12.0);
}

/// A Secret has up to 1 MiB, an update twice as much.
#[test]
fn a_review_of_the_largest_secret_is_answered_and_a_larger_one_is_denied() {
    let limits = "limits = { max_question_size = \"4MiB\" }\n";
    let scene = admission(&format!("{UNIX}{limits}"));
    let [certificate, key] = files(&scene.good);
    let padding = vec![b'x'; 1 << 20];
    let large = secret(
        "kubernetes.io/tls",
        &[("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &padding)],
    );
    let mut update = review(SECRET_RESOURCE, "UPDATE", large.clone());
    update["request"]["oldObject"] = tls_secret(b"", b"");
    update["request"]["oldObject"]["data"]["ca.crt"] = large["data"]["ca.crt"].clone();
    assert!(is_stored(&review_of(&scene, &update), UID));
    let huge = secret("kubernetes.io/tls", &[("ca.crt", &vec![b'x'; 4 << 20])]);
    let reply = review_of(&scene, &review(SECRET_RESOURCE, "CREATE", huge));
    assert_eq!(reply.status, 403, "{}", reply.body);
    assert_eq!(scene.questions("oversize"), 1.0);
}
