//! Signing keys change under full load: each request has an assertion that the set verifies which
//! was published before the request.
//!
//! Guards: `PUBLISHED_BEFORE`, `PUBLISHED_AFTER` and `rfind` in `src/sources/assertion.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Arc, Mutex};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use data_encoding::BASE64URL_NOPAD;
use keygate_core::unix_time;
use serde_json::Value;

use crate::support::assertion::{part, signing_key};
use crate::support::load::Load;
use crate::support::origin::{Origin, Received};
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{wait_for, write_filter};

/// The keys that a service knows, and the requests that it has seen.
#[derive(Default)]
struct Verifier {
    /// The keys that were published last, by their ids.
    keys: BTreeMap<String, Vec<u8>>,
    /// The ids of the keys that have signed.
    seen: BTreeSet<String>,
    requests: usize,
    failures: Vec<String>,
}

impl Verifier {
    fn learn(&mut self, set: &str) {
        let set: Value = serde_json::from_str(set).unwrap();
        let text = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
        let point = |key: &Value| {
            let number = |name| BASE64URL_NOPAD.decode(text(key, name).as_bytes()).unwrap();
            [vec![4], number("x"), number("y")].concat()
        };
        let keys = set["keys"].as_array().unwrap().iter();
        self.keys = keys.map(|key| (text(key, "kid"), point(key))).collect();
    }

    fn check(&mut self, request: &Received) {
        self.requests += 1;
        let verified = match request.fields("keygate-assertion")[..] {
            [assertion] => self.verify(assertion),
            ref fields => Err(format!("{} assertions", fields.len())),
        };
        self.failures.extend(verified.err());
    }

    fn verify(&mut self, assertion: &str) -> Result<(), String> {
        let (header, claims) = (part(assertion, 0), part(assertion, 1));
        let id = header["kid"].as_str().unwrap();
        let key = self.keys.get(id).ok_or_else(|| format!("unknown key {id}"))?;
        let (signed, signature) = assertion.rsplit_once('.').unwrap();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key);
        key.verify(signed.as_bytes(), &signature).map_err(|_| format!("signature of {id}"))?;
        let (now, time) = (unix_time::now(), |name: &str| claims[name].as_u64().unwrap());
        if time("nbf") > now || time("exp") <= now {
            return Err(format!("not valid at {now}: {claims}"));
        }
        self.seen.insert(id.to_owned());
        Ok(())
    }
}

#[test]
fn the_published_keys_verify_each_request_while_keys_are_rotated() {
    let verifier = Arc::new(Mutex::new(Verifier::default()));
    let service = Arc::clone(&verifier);
    let origin = Origin::responding(move |request, tcp| {
        service.lock().unwrap().check(request);
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    for name in ["a", "b", "c", "d"] {
        signing_key(&pki, &format!("{name}.pem"), "EC");
    }
    let now = unix_time::now();
    let at = |time: u64| format!(", from = {}", unix_time::rfc3339(time));
    let key = |name: &str, from: &str| format!("{{ file = \"{name}.pem\"{from} }}");
    // The second one has signed for long enough; the third one begins under load.
    let (a, b, c) = (key("a", ""), key("b", &at(now - 310)), key("c", &at(now + 8)));
    let d = key("d", &at(now + 86_400));
    let configuration = |keys: &[&str]| {
        let keys: toml::Table = format!("keys = [{}]", keys.join(", ")).parse().unwrap();
        Configuration::new(origin.address())
            .policy("assertion = { issuer = \"https://keygate.example.com\", life = \"6s\" }")
            .set("services.policy.assertion.signing_keys", keys["keys"].clone())
    };
    let keygate = configuration(&[&a, &b, &c]).start(&pki);
    let learn = || verifier.lock().unwrap().learn(&keygate.admin("/.well-known/jwks.json").1);
    let reload = |keys: &[&str]| {
        std::fs::write(pki.path("keygate.toml"), configuration(keys).text()).unwrap();
        keygate.signal("HUP");
    };
    let rejected = |problem: &str| {
        keygate.wait_for("the rejection", |line| {
            line["problem"].as_str().is_some_and(|it| it.contains(problem))
        });
    };
    learn();
    let load = Load::start(keygate.address(), &pki, &good);
    load.wait_for(500);
    // The first key may go at once, and no longer verifies.
    reload(&[&b, &c]);
    keygate.wait_for_generation(2);
    learn();
    load.wait_for(500);
    reload(&[&key("d", ""), &b, &c]);
    rejected("verifiers do not know the key yet");
    load.wait_for(500);
    // The set is not read again before the third key signs.
    wait_for("signatures of the third key", || {
        let seen = verifier.lock().unwrap().seen.len();
        if seen == 2 { Ok(()) } else { Err(format!("{seen} keys")) }
    });
    load.wait_for(500);
    reload(&[&c]);
    rejected("has signed within the last 5 minutes");
    load.wait_for(500);
    reload(&[&b, &c, &d]);
    keygate.wait_for_generation(3);
    load.wait_for(500);
    let failures = load.failures();
    drop(load);
    assert!(failures.is_empty(), "{failures:?}");
    let verifier = verifier.lock().unwrap();
    assert!(verifier.requests >= 3000, "{} requests are no load", verifier.requests);
    assert!(verifier.failures.is_empty(), "{:?}", verifier.failures.first());
}
