//! The conditions of clients that do not get in.
//!
//! Guards: `shut_out`, `rejecting_update` in `src/admin/attention/clients.rs`; `OF_CLIENTS`,
//! `DENIED` in `src/admin/admissions.rs`; `Rejections::by`, `loaded_files` in
//! `src/admin/admissions/update.rs`; `ServiceRejected` in `crates/core/src/tls/handshake_result.rs`.

use std::fs::{copy, write};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyUsagePurpose};
use rustls::ALL_VERSIONS;
use rustls::version::TLS12;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::client::{Client, config_of};
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::wait::wait_within;
use crate::support::write_revision;

/// Clients that fail; more than ten are many.
const MANY: usize = 12;
const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

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
    let _ = client.try_send(GET); // it may be rejected
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

/// Guards: `from_certificate_error` in `crates/core/src/tls/handshake_result.rs`.
#[test]
fn clients_whose_certificates_have_another_purpose_or_key_usage_need_attention() {
    let proxy = Proxy::new().start();
    proxy.admits(&proxy.good);
    let for_servers = proxy.pki.server_with("for-servers", CertificateParams::default());
    let mut usage = CertificateParams::default();
    usage.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    let no_signature = proxy.pki.client_with("no-signature", Kind::P256, usage);
    for _ in 0..MANY / 2 {
        try_request(&proxy.pki, &proxy, &for_servers);
        try_request(&proxy.pki, &proxy, &no_signature);
    }
    let (_, problem, _) = wait_for_condition(&proxy, "service test");
    let cause = "(unsuitable: 12): the purpose or key of client certificates, see error of";
    assert!(problem.contains(cause), "{problem}");
    for error in ["serverAuth only", "key usage"] {
        let line = proxy
            .wait_for(error, |line| line["error"].as_str().is_some_and(|it| it.contains(error)));
        assert_eq!(line["result"], "unsuitable", "{line}");
    }
}

/// Guards: `limited` in `src/admin/attention/clients.rs` and `src/client_log.rs`.
#[test]
fn connections_above_the_limit_of_one_address_need_attention_and_are_logged() {
    let proxy = Proxy::new().workers(1).limits("max_connections_per_ip = 2").start();
    let _held: Vec<_> = (0..4).map(|_| TcpStream::connect(proxy.address()).unwrap()).collect();
    for _ in 0..MANY {
        let mut closed = TcpStream::connect(proxy.address()).unwrap();
        let read = closed.read(&mut [0; 64]);
        assert!(read.is_err() || read.is_ok_and(|it| it == 0));
    }
    let (level, problem, _) = wait_for_condition(&proxy, "connections without a service");
    assert_eq!(level, "amber");
    let expected = "at a limit: see \"too many connections from one address\" and ";
    assert!(problem.contains(expected), "{problem}");
    let (_, text) = proxy.admin("/status.txt");
    assert!(!text.contains("nothing needs attention") && text.contains("12 connections"), "{text}");
    assert!(proxy.admin("/").1.contains("12 connections in the last minute were closed"));
    let lines = proxy.lines("too many connections from one address");
    let line = lines.first().unwrap();
    assert_eq!((lines.len(), &line["limit"], &line["level"]), (1, &json!(2), &json!("WARN")));
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    let remedy = line["remedy"].as_str().unwrap();
    assert!(remedy.contains("max_connections_per_ip") && remedy.contains("accept_proxy"));
}

/// Takes a minute, which is the time without a success.
///
/// Guards: `unusual_failures` in `src/admin/attention/clients.rs`, `unusual` and `unrouted` in
/// `src/admin/admissions.rs`.
#[test]
fn clients_that_all_fail_with_a_result_of_scanners_need_attention() {
    let expected = [
        ("unsupported", "check tls.min_version: the log has the fault in error"),
        ("unknown_name", "check server_names: the log has the name in sni"),
        ("no_certificate", "clients present none"),
    ];
    let proxies = expected.map(|(result, cause)| {
        let proxy = Proxy::new().service("server_names = [\"localhost\"]").start();
        for _ in 0..4 {
            let mut client = proxy.connect();
            client.send(GET);
            assert!(client.head().starts_with("HTTP/1.1 200 "));
        }
        assert_eq!(proxy.status()["attention"], json!([])); // counts the successes
        let before = proxy.configuration.clone();
        let after = match result {
            "unsupported" => before.add("services.tls", "min_version = \"1.3\""),
            "unknown_name" => before.service("server_names = [\"api.example.com\"]"),
            _ => before,
        };
        if result != "no_certificate" {
            write(proxy.pki.path("keygate.toml"), after.text()).unwrap();
            proxy.wait_for_generation(2);
        }
        let client = (result != "no_certificate").then_some(&proxy.good);
        for _ in 0..MANY {
            let versions = if result == "unsupported" { &[&TLS12][..] } else { ALL_VERSIONS };
            let config = config_of(&proxy.pki, versions, client);
            let mut client = Client::with(config, proxy.address());
            let _ = client.try_send(GET); // it may be rejected
            assert!(client.head_or_end().is_none(), "{result}");
        }
        (proxy, format!("is selected ({result}: {MANY}): {cause}"))
    });
    let is_shown = |(proxy, expected): &(Running, String)| {
        let status = proxy.status();
        status["attention"].as_array().unwrap().iter().any(|it| {
            let problem = it["problem"].as_str().unwrap();
            (&it["level"], &it["subject"]) == (&json!("amber"), &json!("service test"))
                && problem.starts_with("no client gets in for 1 minute, and more handshakes than ")
                && problem.contains(expected)
        })
    };
    let waited = wait_within(Duration::from_secs(110), || {
        let missing = proxies.iter().filter(|it| !is_shown(it));
        let missing: Vec<_> = missing.map(|(proxy, it)| (it, proxy.status())).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    });
    waited.unwrap();
    for (proxy, _) in proxies {
        assert!(!proxy.admin("/status.txt").1.contains("nothing needs attention"));
    }
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
    shown("(no_certificate: 12): clients present none, or the host sends none", "red");
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
