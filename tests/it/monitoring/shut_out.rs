//! The conditions of clients that do not get in.
//!
//! Guards: `shut_out`, `rejecting_update` in `src/admin/attention/clients.rs`; `OF_CLIENTS`,
//! `DENIED` in `src/admin/admissions.rs`; `Rejections::by`, `loaded_files` in
//! `src/admin/admissions/update.rs`; `ServiceRejected` in `crates/core/src/tls/handshake_result.rs`.

use std::fs::copy;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::client::Client;
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::write_revision;

/// Clients that fail; more than ten are many.
const MANY: usize = 12;

/// The condition whose subject begins with `subject`, as level, problem and command. Conditions of
/// files are left out.
fn condition(status: &Value, subject: &str) -> Option<(String, String, Value)> {
    let mut items = status["attention"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let is_of_clients = |it: &Value| !text(&it["problem"]).contains("client_auth.crls has no list");
    let it = items.find(|it| text(&it["subject"]).starts_with(subject) && is_of_clients(it))?;
    Some((text(&it["level"]), text(&it["problem"]), it["command"].clone()))
}

/// Waits until the condition has counted all of the [`MANY`] clients. A client reads its rejection
/// before it is counted.
fn wait_for_condition(keygate: &Keygate, subject: &str) -> (String, String, Value) {
    let count = format!("{MANY} ");
    let is_counted = |(_, problem, _): (_, String, _)| problem.starts_with(&count);
    let status = keygate
        .wait_for_status(subject, |status| condition(status, subject).is_some_and(is_counted));
    condition(&status, subject).unwrap()
}

/// Sends a request and waits for the response, or for the end of the connection.
fn try_request(pki: &Pki, proxy: &Running, client: &Party) {
    let mut client = Client::connect(pki, proxy.address(), client);
    let _ = client.try_send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); // it may be rejected
    client.head_or_end();
}

#[test]
fn a_client_ca_that_no_client_has_needs_attention_and_is_named() {
    let proxy = Proxy::new();
    proxy.pki.crl("clients.crl", &[], Duration::from_secs(86_400));
    let proxy = proxy.client_auth("crls = [\"clients.crl\"]").start();
    proxy.admits(&proxy.good);
    // The time of a load is in seconds.
    let status = proxy.wait_for_status("the second after the start", |status| {
        let loaded = status["services"][0]["last_reload"]["at"].as_u64().unwrap();
        UNIX_EPOCH.elapsed().unwrap().as_secs() > loaded
    });
    assert_eq!(status["attention"], json!([]));
    copy(Pki::named("Other CA").path("ca.pem"), proxy.pki.path("ca.pem")).unwrap();
    proxy.wait_for_generation(2);
    for _ in 0..MANY {
        try_request(&proxy.pki, &proxy, &proxy.good);
    }
    let (level, problem, _) = wait_for_condition(&proxy, "service test");
    assert_eq!(level, "amber", "less than a minute");
    let expected = " attempts of clients in the last minute failed (unknown_issuer: 12): \
                    check client_auth.trust_anchors, and the intermediates that clients send; the \
                    last unknown_issuer has the issuer CN=Test CA; last update ";
    assert!(problem.contains(expected), "{problem}");
    let file = format!("service test: {}", proxy.pki.path("ca.pem").display());
    assert!(problem.ends_with(&file), "{problem}");
    let (_, problem, command) = wait_for_condition(&proxy, &format!("update of {file}"));
    assert_eq!(command, Value::Null, "the report has none of the clients");
    assert!(problem.starts_with("12 rejections since it was loaded, "), "{problem}");
    let remedy = "; if intended, nothing to do; otherwise restore the file before it, but for a CRL, \
                  of which the CA must issue the next one";
    assert!(problem.ends_with(remedy), "{problem}");
    let (_, text) = proxy.admin("/status.txt");
    assert!(!text.contains("nothing needs attention"), "{text}");
    let first = text.lines().nth(1).unwrap();
    assert!(first.starts_with("  red: service test: "), "{text}");
    assert!(first.contains("client_auth.crls has no list of CN=Other CA"), "{text}");
    let page = proxy.admin("/").1;
    assert!(page.contains("No client since the start, but 12 handshakes failed."), "{page}");
}

#[test]
fn a_filter_that_has_every_client_is_named_with_its_revision() {
    for rejection in ["alert", "http-403"] {
        let proxy = Proxy::new().policy(&format!("reject_with = \"{rejection}\"")).start();
        proxy.admits(&proxy.good);
        assert_eq!(proxy.status()["attention"], json!([]));
        write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.good.spki], 7);
        proxy.wait_for_generation(2);
        for _ in 0..MANY {
            try_request(&proxy.pki, &proxy, &proxy.good);
        }
        let (_, problem, command) = wait_for_condition(&proxy, "update of filter lost, revision 7");
        let expected = "12 rejections since it was loaded, ";
        assert!(problem.starts_with(expected), "{rejection}: {problem}");
        assert!(problem.contains(" ago at most, 0 before in as long; if intended, "), "{problem}");
        assert!(problem.contains("on_probable or on_listed = \"flag\" admits"), "{problem}");
        let config = proxy.pki.path("keygate.toml").display().to_string();
        assert_eq!(command, format!("keygate report --config {config}"));
        let (_, problem, _) = wait_for_condition(&proxy, "service test");
        let cause = "if intended, nothing to do; otherwise check the filters and lists that have ";
        assert!(problem.contains(cause), "{problem}");
    }
}

#[test]
fn clients_that_reject_the_certificate_of_the_service_need_attention() {
    let proxy = Proxy::new().start();
    proxy.admits(&proxy.good);
    let stranger = Pki::named("Other CA");
    for _ in 0..MANY {
        try_request(&stranger, &proxy, &proxy.good);
    }
    let (_, problem, _) = wait_for_condition(&proxy, "service test");
    let cause = "(service_rejected: 12): clients reject tls.certificate, or lack its CA";
    assert!(problem.contains(cause), "{problem}");
}

#[test]
fn a_client_of_another_ca_that_retries_is_no_condition_of_a_filter_update() {
    let proxy = Proxy::new().start();
    proxy.admits(&proxy.good);
    assert_eq!(proxy.status()["attention"], json!([]));
    write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki], 7);
    proxy.wait_for_generation(2);
    let stranger = Pki::named("Other CA").client("stranger", Kind::P256);
    for _ in 0..MANY {
        try_request(&proxy.pki, &proxy, &stranger);
    }
    let (_, problem, _) = wait_for_condition(&proxy, "service test");
    assert!(problem.contains("; last update "), "{problem}");
    assert_eq!(condition(&proxy.status(), "update of "), None);
}

#[test]
fn an_authorizer_that_denies_most_clients_needs_attention() {
    let asked = AskedKeygate::start(UNIX);
    let mut asker = asked.connect();
    assert_eq!(asker.ask_about(&asked.good).status, 200);
    assert_eq!(asked.keygate.status()["attention"], json!([]));
    for _ in 0..MANY {
        assert_eq!(asker.ask(&[]).status, 403, "a visitor without a certificate");
        assert_eq!(asker.ask_about(&asked.lost).status, 403);
    }
    let (level, problem, _) = wait_for_condition(&asked.keygate, "authorizer edge");
    assert_eq!(level, "amber", "less than a minute");
    let expected = " attempts of clients in the last minute failed (denied: 12): \
                    if intended, nothing to do; otherwise check the filters and lists that have their \
                    keys";
    assert!(problem.ends_with(expected), "{problem}");
    assert_eq!(asked.keygate.status()["attention"][0]["row"], "authorizer-edge");
}

/// Guards: `unusable_questions` in `src/admin/attention/clients.rs`, `Unusable::NoCertificate`.
#[test]
fn visitors_without_a_certificate_are_told_from_a_host_that_is_configured_wrongly() {
    let asked = AskedKeygate::start(UNIX);
    let shown = |expected: &str, level: &str| {
        let is_counted = |it: (String, String, Value)| it.1.contains(expected) && it.0 == level;
        asked.keygate.wait_for_status(expected, |status| {
            condition(status, "authorizer edge").is_some_and(is_counted)
        });
    };
    for _ in 0..MANY {
        assert_eq!(asked.connect().ask(&[]).status, 403);
    }
    shown("(no_certificate: 12): the host sends none, or in another field", "red");
    let row = &asked.keygate.admin("/status.txt").1;
    assert!(row.contains("unusable 12, without certificate 100.0 %"), "{row}");
    assert_eq!(asked.connect().ask_about(&asked.good).status, 200);
    asked.keygate.wait_for_status("the client", |it| it["attention"] == json!([]));

    let optional = "client_auth = { mode = \"optional\" }\npolicy = { on_unchecked = \"flag\" }\n";
    let asked = AskedKeygate::start(&format!("{UNIX}{optional}"));
    for _ in 0..MANY {
        assert_eq!(asked.connect().ask(&[]).status, 200);
        assert_eq!(asked.connect().ask(&[b"no certificate"]).status, 403);
    }
    let row = &asked.keygate.admin("/status.txt").1;
    assert!(row.contains("unusable 12, without certificate 50.0 %"), "{row}");
    assert_eq!(asked.keygate.status()["attention"], json!([]));
}

/// Guards: `rejected_requests` in `src/admin/attention/traffic.rs`; `successes` in
/// `src/admin/traffic.rs`.
#[test]
fn requests_that_all_get_one_status_of_keygate_are_a_condition_until_one_succeeds() {
    let proxy = Proxy::new().start();
    proxy.admits(&proxy.good);
    proxy.wait_for_status("the success", |status| {
        status["traffic"]["test"]["requests_per_minute"].as_f64() > Some(0.0)
    });
    let large = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n", "b".repeat(100_000));
    for _ in 0..MANY {
        let mut client = Client::connect(&proxy.pki, proxy.address(), &proxy.good);
        let _ = client.try_send(&large); // the response may come first
        client.head_or_end();
    }
    let is_counted = |(level, problem, _): (String, String, Value)| {
        level == "amber" && problem.contains(", 12 of 12 in the last minute got 431 from keygate: ")
    };
    let status = proxy.wait_for_status("the condition", |status| {
        condition(status, "service test").is_some_and(is_counted)
    });
    let (_, problem, _) = condition(&status, "service test").unwrap();
    assert!(problem.contains("limits.max_header_size"), "{problem}");
    proxy.admits(&proxy.good);
    proxy.wait_for_status("a success", |status| status["attention"] == json!([]));
}

#[test]
fn scanners_without_a_certificate_need_no_attention() {
    let proxy = Proxy::new().start();
    proxy.admits(&proxy.good);
    for _ in 0..MANY {
        let mut anonymous = Client::anonymous(&proxy.pki, proxy.address());
        let _ = anonymous.try_send("GET / HTTP/1.1\r\n\r\n");
        assert!(anonymous.head_or_end().is_none());
        let mut gone = TcpStream::connect(proxy.address()).unwrap();
        gone.write_all(b"\x16\x03\x01\x00\x05hello").unwrap();
    }
    let series =
        "keygate_handshakes_total{result=\"no_certificate\",resumed=\"false\",service=\"test\"}";
    proxy.wait_for_metric(series, MANY as f64);
    assert_eq!(proxy.status()["attention"], json!([]));
    proxy.rejection(&Pki::named("Other CA").client("lost", Kind::P256));
    assert_eq!(proxy.status()["attention"], json!([]), "a single client");
}
