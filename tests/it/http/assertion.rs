//! Assertions for services: on every protocol, over reloads, and the rotation of their keys.
//!
//! Guards: `assertion` in `src/proxy/open_connection.rs`, `read` in `src/sources/assertion.rs`,
//! `is_identity` in `src/proxy/message/headers.rs`.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keygate_core::unix_time;
use rcgen::{CertificateParams, SanType};
use serde_json::{Value, json};

use crate::support::assertion::{POLICY, part, signing_key};
use crate::support::client::Client;
use crate::support::http2::{Came, END_HEADERS, HEADERS, frame, request};
use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::Kind;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{output_text, wait_for, wait_until, write_filter};

/// A proxy whose assertions are valid for so long that no test outlasts half of it.
fn proxy() -> Running {
    let proxy = Proxy::to(Origin::with_upgrades()).service(POLICY);
    signing_key(&proxy.pki, "now.pem", "EC");
    proxy.set("services.policy.assertion.life", "5m").start()
}

/// The assertion that the origin receives with the next request.
fn received(running: &Running) -> String {
    let request = running.origin.next();
    let fields = request.fields("keygate-assertion");
    assert_eq!(fields.len(), 1, "{}", request.head);
    fields[0].to_owned()
}

fn get(client: &mut Client) {
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
}

#[test]
fn an_assertion_has_the_client_and_its_verdict() {
    let proxy = Proxy::new().service(POLICY).policy("on_probable = \"header\"");
    signing_key(&proxy.pki, "now.pem", "ED25519");
    let running = proxy.start();
    for (client, action, verdict) in
        [(&running.good, "admit", "clean"), (&running.lost, "header", "probable")]
    {
        get(&mut Client::connect(&running.pki, running.address(), client));
        let assertion = received(&running);
        let (header, claims) = (part(&assertion, 0), part(&assertion, 1));
        let kid = header["kid"].as_str().unwrap();
        let expected = json!({ "alg": "EdDSA", "kid": kid, "typ": "keygate-assertion+jwt" });
        assert_eq!(header, expected);
        assert_eq!(claims["iss"], "https://keygate.example.com");
        assert_eq!(claims["aud"], "test");
        assert_eq!((&claims["action"], &claims["verdict"]), (&action.into(), &verdict.into()));
        assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 60);
        assert_eq!(claims["nbf"], claims["iat"]);
        assert!(claims["sub"].as_str().unwrap().contains(&client.name), "{claims}");
        let is_hit = verdict == "probable";
        assert_eq!(claims.get("filter"), is_hit.then(|| json!("lost")).as_ref(), "{claims}");
        assert_eq!(claims.get("version").is_some(), is_hit, "{claims}");
        assert_eq!(claims.get("list"), None, "{claims}");
    }
}

/// A certificate with two SPIFFE IDs is no SVID. A name of more than 256 characters is cut in logs, and
/// two clients could share the rest.
#[test]
fn the_subject_is_the_spiffe_id_alone_or_the_name_and_never_a_part_of_it() {
    let running = proxy();
    let long = format!("spiffe://example.org/{}", "a".repeat(250));
    let now = std::time::SystemTime::now();
    for (ids, subject) in [
        (&["spiffe://example.org/orders"][..], Some("spiffe://example.org/orders")),
        (&["https://example.org/", "spiffe://example.org/b"], Some("spiffe://example.org/b")),
        (&["spiffe://example.org/a", "spiffe://example.org/b"], Some("CN=client")),
        (&["https://example.org/"], Some("CN=client")),
        (&[&long], None),
    ] {
        let mut parameters = CertificateParams::default();
        let names = ids.iter().map(|id| SanType::URI((*id).try_into().unwrap()));
        parameters.subject_alt_names = names.collect();
        let end = now + Duration::from_secs(120);
        parameters.not_after = end.into();
        let client = running.pki.client_with("client", Kind::P256, parameters);
        get(&mut Client::connect(&running.pki, running.address(), &client));
        let claims = part(&received(&running), 1);
        assert_eq!(claims.get("sub").and_then(Value::as_str), subject, "{claims}");
        assert_eq!(claims["exp"], unix_time::seconds(end), "the end of the certificate");
    }
}

#[test]
fn a_client_without_a_certificate_has_no_assertion() {
    let proxy = Proxy::new().service(POLICY).policy("on_unchecked = \"flag\"");
    signing_key(&proxy.pki, "now.pem", "EC");
    let running = proxy.client_auth("mode = \"optional\"").start();
    let mut client = Client::anonymous(&running.pki, running.address());
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\nKeygate-Assertion: forged\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let request = running.origin.next();
    assert_eq!(request.fields("keygate-assertion"), [""; 0], "{}", request.head);
}

#[test]
fn every_protocol_carries_an_assertion() {
    let running = proxy();
    let mut assertions = Vec::new();
    let mut client = running.connect();
    get(&mut client);
    assertions.push(received(&running));
    client.send(
        "GET /socket HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    assertions.push(received(&running));
    let mut client = running.connect_http2();
    client.send_get(1);
    assert!(matches!(client.next(), Came::Response(_, 1)));
    assertions.push(received(&running));
    let socket = request("CONNECT", &[(":protocol", "websocket"), ("sec-websocket-version", "13")]);
    client.send(&frame(HEADERS, END_HEADERS, 3, &socket));
    assert!(matches!(client.next(), Came::Response(_, 3)));
    assertions.push(received(&running));
    assert_eq!(assertions[0], assertions[1], "one connection has one assertion");
    assert_eq!(assertions[2], assertions[3], "one connection has one assertion");
    assert_eq!(part(&assertions[0], 1)["cnf"], part(&assertions[2], 1)["cnf"]);
}

/// The first 16 and four mixed ones are spellings that servers turn into one variable.
fn spellings() -> Vec<String> {
    let separators = ["-", "_", ".", "~", "!", "#", "$", "%", "&", "'", "*", "+", "^", "`", "|"];
    let mixed =
        ["KEYGATE-assertion", "keygate-ASSERTION", "KEYGATE_ASSERTION", "kEyGaTe.aSsErTiOn"];
    let other = "Keygate_assertion".to_owned();
    let named = separators.iter().map(|it| format!("Keygate{it}Assertion"));
    named.chain(mixed.map(str::to_owned)).chain([other]).collect()
}

#[test]
fn a_header_of_the_client_is_removed_in_twenty_spellings() {
    let spellings = spellings();
    assert_eq!(spellings.len(), 20);
    let without = Proxy::to(Origin::with_upgrades()).start();
    for (running, count) in [(proxy(), 1), (without, 0)] {
        for http in ["--http1.1", "--http2"] {
            let forged: Vec<_> = spellings.iter().map(|it| format!("{it}: forged")).collect();
            let fields = forged.iter().flat_map(|it| ["-H", it, "-H", it]);
            let arguments: Vec<_> = [http].into_iter().chain(fields).collect();
            let response = running.curl(&running.good, &arguments);
            assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
            let request = running.origin.next();
            assert!(!request.head.contains("forged"), "{http}: {}", request.head);
            let is_it = |name: &&String| {
                name.replace(|it: char| !it.is_alphanumeric(), "-") == "keygate-assertion"
            };
            assert_eq!(request.names().iter().filter(is_it).count(), count, "{}", request.head);
        }
        let mut client = running.connect();
        client.send(
            "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\
             Trailer: Keygate_Assertion, X-Sum\r\n\r\n\
             2\r\nhi\r\n0\r\nKeygate_Assertion: forged\r\nX-Sum: 1\r\n\r\n",
        );
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(String::from_utf8_lossy(&running.origin.next().body), "hix-sum: 1\r\n");
    }
}

/// With `header` the name is another one, and the client's own copies of it are removed as well.
#[test]
fn another_name_of_the_header_is_removed_from_the_client_as_well() {
    let proxy = Proxy::new().service(POLICY);
    signing_key(&proxy.pki, "now.pem", "EC");
    let running = proxy.set("services.policy.assertion.header", "X-Client-Proof").start();
    let mut client = running.connect();
    client.send(
        "GET / HTTP/1.1\r\nHost: localhost\r\nx_client_proof: forged\r\nX-Client-Proof: forged\r\n\
         Keygate-Assertion: forged\r\n\r\n",
    );
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let request = running.origin.next();
    assert!(!request.head.contains("forged"), "{}", request.head);
    assert_eq!(request.fields("x-client-proof").len(), 1, "{}", request.head);
}

/// Half of the life is two and a half minutes. Only the judgement makes a new one before.
#[test]
fn a_connection_keeps_its_assertion_until_it_is_judged_again() {
    let running = proxy();
    let mut client = running.connect();
    let mut request = || {
        get(&mut client);
        received(&running)
    };
    let first = request();
    assert_eq!(request(), first, "one signature serves both requests");
    let text = running.configuration.clone().policy("on_weak = \"flag\"").text();
    std::fs::write(running.pki.path("keygate.toml"), text).unwrap();
    running.signal("HUP");
    running.wait_for_generation(2);
    // Each worker judges its connections after the swap.
    let fresh = wait_for("a new assertion", || {
        let assertion = request();
        if assertion == first { Err(assertion) } else { Ok(assertion) }
    });
    let time = |assertion: &str| part(assertion, 1)["iat"].as_u64().unwrap();
    assert!(time(&fresh) - time(&first) < 150, "half of the life has passed");
}

#[test]
fn an_assertion_is_replaced_after_half_of_its_life() {
    let proxy = Proxy::new().service(POLICY);
    signing_key(&proxy.pki, "now.pem", "EC");
    let running = proxy.set("services.policy.assertion.life", "4s").start();
    let mut client = running.connect();
    let mut times = Vec::new();
    while times.len() < 3 {
        let asked = std::time::SystemTime::now();
        get(&mut client);
        let claims = part(&received(&running), 1);
        let time = |name: &str| claims[name].as_u64().unwrap();
        let asked = asked.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(time("iat") + 2 > asked, "at least half of its life is left");
        assert_eq!(time("exp"), time("iat") + 4);
        times.push(time("iat"));
        times.dedup();
    }
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 2), "{times:?}");
}

/// Replaces the array of signing keys, and reloads.
fn reload(running: &Running, keys: &str) {
    let text: toml::Table = format!("keys = {keys}").parse().unwrap();
    let place = "services.policy.assertion.signing_keys";
    let text = running.configuration.clone().set(place, text["keys"].clone()).text();
    std::fs::write(running.pki.path("keygate.toml"), text).unwrap();
    running.signal("HUP");
}

fn is_about(line: &Value, problem: &str) -> bool {
    line["problem"].as_str().is_some_and(|it| it.contains(problem))
}

fn kid(running: &Running) -> Value {
    get(&mut running.connect());
    part(&received(running), 0)["kid"].clone()
}

#[test]
fn a_key_is_published_before_it_signs_and_no_key_in_use_is_replaced() {
    let running = proxy();
    signing_key(&running.pki, "next.pem", "EC");
    let (old, mut told) = (kid(&running), Vec::new());
    let later = "{ file = \"next.pem\", from = 2999-01-01T00:00:00Z }";
    for (keys, problem) in [
        ("[{ file = \"next.pem\" }]", "verifiers do not know the key yet"),
        (
            "[{ file = \"now.pem\" }, { file = \"next.pem\", from = 2020-01-01 }]",
            "verifiers do not know the key yet",
        ),
        (&format!("[{later}]"), "no key signs yet"),
        (
            "[{ file = \"now.pem\", from = 2999-01-01 }, { file = \"next.pem\", from = 2998-01-01 }]",
            "no key signs yet",
        ),
        ("[{ file = \"now.pem\" }, { file = \"now.pem\" }]", "is in another file too"),
    ] {
        reload(&running, keys);
        told.push(problem);
        let count = told.iter().filter(|it| **it == problem).count();
        running.wait_for_lines("the rejection", count, |line| is_about(line, problem));
        assert_eq!(kid(&running), old, "the key in use signs on");
    }
    reload(&running, &format!("[{{ file = \"now.pem\" }}, {later}]"));
    running.wait_for_generation(2);
    let (status, set) = running.admin("/.well-known/jwks.json");
    assert_eq!(status, 200, "{set}");
    let keys: Value = serde_json::from_str(&set).unwrap();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "{keys}");
    assert_eq!((&keys["keys"][0]["kid"], &keys["keys"][0]["nbf"]), (&old, &0.into()));
    assert_eq!(keys["keys"][1]["nbf"], 32_472_144_000_u64);
    assert!(!set.contains("\"d\""), "no private half: {set}");
    let config = running.pki.path("keygate.toml");
    let printed = keygate(&["jwks", config.to_str().unwrap()]);
    assert_eq!(serde_json::from_slice::<Value>(&printed.stdout).unwrap(), keys);
    assert_eq!(kid(&running), old, "the next key does not sign yet");
    std::fs::copy(running.pki.path("next.pem"), running.pki.path("now.pem")).unwrap();
    running.signal("HUP");
    running.wait_for("the rejection", |line| line["files"] == "signing_keys");
    assert_eq!(kid(&running), old, "a replaced file changes nothing");
}

/// A key signs until another one takes over, whatever their order was before.
#[test]
fn a_key_is_kept_for_as_long_as_its_last_assertion_lives() {
    let proxy = Proxy::new().service(POLICY);
    for name in ["now.pem", "next.pem"] {
        signing_key(&proxy.pki, name, "EC");
    }
    let [now, next] = ["now", "next"].map(|name| format!("{{ file = \"{name}.pem\" }}"));
    let keys: toml::Table = format!("keys = [{now}, {next}]").parse().unwrap();
    let place = "services.policy.assertion.signing_keys";
    let running = proxy.set(place, keys["keys"].clone()).start();
    let old = kid(&running);
    reload(&running, &format!("[{next}, {now}]"));
    running.wait_for_generation(2);
    assert_ne!(kid(&running), old, "the other key signs");
    reload(&running, &format!("[{now}]"));
    let is_rejection = |line: &Value| is_about(line, "has signed within the last 5 minutes");
    running.wait_for("the rejection", is_rejection);
}

/// The origin closes the connection once the assertion has expired, and gets the request again.
#[test]
fn a_request_that_is_sent_again_has_an_assertion_that_is_valid() {
    let lives = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lives);
    let origin = Origin::responding(move |request, tcp| {
        let claims = part(request.fields("keygate-assertion")[0], 1);
        let end = claims["exp"].as_u64().unwrap();
        seen.lock().unwrap().push((unix_time::now(), end));
        if seen.lock().unwrap().len() == 2 {
            wait_until("the end of the assertion", || unix_time::now() > end);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    let proxy = Proxy::to(origin).service(POLICY);
    signing_key(&proxy.pki, "now.pem", "EC");
    let running = proxy.set("services.policy.assertion.life", "2s").start();
    let mut client = running.connect();
    get(&mut client);
    get(&mut client);
    let lives = lives.lock().unwrap();
    let &[_, (_, end), (again, later)] = &lives[..] else { panic!("{lives:?}") };
    assert!(again > end && later >= again, "{lives:?}");
}

#[test]
fn a_file_that_is_no_signing_key_stops_the_start() {
    let proxy = Proxy::new().service(POLICY);
    for algorithm in ["rsa", "p384", "none"] {
        let file = proxy.pki.path("now.pem");
        match algorithm {
            "none" => std::fs::write(&file, "no key").unwrap(),
            "rsa" => drop(std::fs::copy("tests/vectors/rsa-2048-a.key.pem", &file).unwrap()),
            _ => drop(std::fs::copy("tests/vectors/p384.key.pem", &file).unwrap()),
        }
        let config = proxy.pki.path("keygate.toml");
        std::fs::write(&config, proxy.configuration.text()).unwrap();
        let output = keygate(&["jwks", config.to_str().unwrap()]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(3), "{algorithm}: {text}");
        assert!(text.contains("now.pem"), "{text}");
        assert!(text.contains("policy.assertion.signing_keys"), "{text}");
    }
}

/// The key is judged as the other keys of the service: an error at the start, unless it is allowed.
#[test]
fn a_compromised_signing_key_is_an_own_key() {
    let proxy = Proxy::new().service(POLICY);
    std::fs::copy(&proxy.lost.private_key, proxy.pki.path("now.pem")).unwrap();
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki]);
    let config = proxy.pki.path("keygate.toml");
    std::fs::write(&config, proxy.configuration.text()).unwrap();
    let output = keygate(&["validate", config.to_str().unwrap()]);
    let text = output_text(&output);
    assert!(!output.status.success() && text.contains("the key of its assertion signer"), "{text}");
    assert!(text.contains("allow_compromised_own_key"), "{text}");
    let running = proxy.policy("allow_compromised_own_key = true").start();
    let series = "keygate_own_key_compromised{role=\"assertion_signer\",service=\"test\"}";
    assert_eq!(running.metric(series), 1.0);
    get(&mut running.connect());
    received(&running);
}
