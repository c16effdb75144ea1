//! The access log: who sent which request, in which form, and where the lines go.

use std::io::{Error, Write};

use rcgen::{CertificateParams, SanType};
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::origin::Origin;
use crate::support::pki::Kind;
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy};
use crate::support::{system, wait_for, write_filter};

#[test]
fn a_line_says_who_sent_the_request_and_how() {
    let proxy = Proxy::new().global("access_log = { requests = \"all\" }").start();
    let mut client = proxy.connect();
    let agent = "é\t".repeat(2000);
    client.send(format!(
        "GET /a?b HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\nReferer: https://x.example/\"y\r\n\r\n"
    ));
    assert!(client.head().contains(" 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
    let line = proxy.access_line();
    let certificate = system(
        "openssl",
        &["x509", "-noout", "-serial", "-in", proxy.good.certificate.to_str().unwrap()],
    );
    let serial = String::from_utf8(certificate.stdout).unwrap().trim().to_lowercase();
    for (field, expected) in [
        ("sni", json!("localhost")),
        ("tls_version", json!("TLSv1.3")),
        ("subject", json!("CN=good")),
        ("referer", json!("https://x.example/\"y")),
        ("target", json!("/a?b")),
        ("upstream", json!(format!("http://{}", proxy.origin.address()))),
        ("status", json!(200)),
        ("verdict", json!("clean")),
        ("error", Value::Null),
    ] {
        assert_eq!(line[field], expected, "{field} of {line}");
    }
    assert!(line["cipher"].as_str().unwrap().starts_with("TLS_"), "{line}");
    assert!(line["issuer"].as_str().unwrap().contains("CN="), "{line}");
    assert_eq!(format!("serial={}", line["serial"].as_str().unwrap()), serial);
    let shown = line["user_agent"].as_str().unwrap();
    assert_eq!(shown.chars().count(), 1024, "it is cut");
    assert!(shown.starts_with("é\té\t"), "{shown}");
}

#[test]
fn the_names_of_a_certificate_are_in_the_line() {
    let proxy = Proxy::new();
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![
        SanType::DnsName("a.example".try_into().unwrap()),
        SanType::URI("spiffe://a.example/b".try_into().unwrap()),
        SanType::Rfc822Name("a@a.example".try_into().unwrap()),
        SanType::IpAddress([192, 0, 2, 1].into()),
        SanType::IpAddress("2001:db8::1".parse().unwrap()),
    ];
    let named = proxy.pki.client_with("named", Kind::P256, parameters);
    let proxy = proxy.global("access_log = { requests = \"all\" }").start();
    proxy.admits(&named);
    let line = proxy.access_line();
    assert_eq!(line["dns_names"], json!(["a.example"]), "{line}");
    assert_eq!(line["uris"], json!(["spiffe://a.example/b"]), "{line}");
    assert_eq!(line["emails"], json!(["a@a.example"]), "{line}");
    assert_eq!(line["ip_addresses"], json!(["192.0.2.1", "2001:db8::1"]), "{line}");
}

#[test]
fn the_configuration_chooses_the_fields() {
    let chosen =
        "access_log = { requests = \"all\", fields = [\"subject\", \"status\", \"error\"] }";
    let proxy = Proxy::new().global(chosen).start();
    proxy.admits(&proxy.good);
    assert_eq!(proxy.access_line(), json!({"status": 200, "subject": "CN=good"}));
}

#[test]
fn the_error_is_the_reason_for_the_response() {
    let nowhere = reserved_address();
    let proxy = Proxy::before(format!("http://{nowhere}"))
        .global("access_log = { requests = \"errors\" }")
        .policy("reject_with = \"http-403\"")
        .start();
    assert_eq!(proxy.code(&[]), "502");
    let line = proxy.access_line();
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("refused") && !error.contains("os error"), "{line}");
    assert_eq!(line["response_bytes"], "502 Bad Gateway\n".len(), "{line}");
    let output = proxy.curl(&proxy.lost, &[]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("403 "), "{output:?}");
    let line = proxy.access_lines(2).remove(1);
    assert_eq!((&line["status"], &line["verdict"]), (&json!(403), &json!("probable")));
    assert!(!line["error"].as_str().unwrap().is_empty(), "{line}");
    assert_eq!(line["response_bytes"], output.stdout.len(), "{line}");
    // A response to HEAD has no body.
    proxy.curl(&proxy.good, &["--head"]);
    let line = proxy.access_lines(3).remove(2);
    assert_eq!((&line["method"], &line["response_bytes"]), (&json!("HEAD"), &json!(0)), "{line}");
}

#[test]
fn a_response_that_breaks_off_has_the_reason_in_its_line() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\npart")?;
        Err(Error::other("closed before the end of the response"))
    });
    let proxy = Proxy::to(origin).global("access_log = { requests = \"errors\" }").start();
    assert!(!proxy.curl(&proxy.good, &[]).status.success());
    let line = proxy.access_line();
    assert_eq!((&line["status"], &line["complete"]), (&json!(200), &json!(false)), "{line}");
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with("the upstream broke off its response: "), "{line}");
}

#[test]
fn a_connection_over_tcp_whose_upstream_fails_has_a_line() {
    let nowhere = reserved_address();
    let proxy = Proxy::before(nowhere)
        .service("protocol = \"tcp\"")
        .global("access_log = { requests = \"all\" }")
        .start();
    let mut client = proxy.connect();
    assert_eq!(client.rest(), "");
    let line = proxy.access_line();
    assert_eq!((&line["protocol"], &line["complete"]), (&json!("tcp"), &json!(false)));
    assert!(line["error"].as_str().unwrap().contains("refused"), "{line}");
}

#[test]
fn the_common_log_format_escapes_what_peers_choose() {
    let proxy = Proxy::new();
    let evil = proxy.pki.client("e\"v i\nl", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let proxy = proxy.global("access_log = { requests = \"all\", format = \"common\" }").start();
    let mut client = Client::connect(&proxy.pki, proxy.address(), &evil);
    client.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().contains(" 200 "));
    let line = proxy.access_line();
    let line = line["message"].as_str().unwrap();
    assert!(line.starts_with("127.0.0.1 - e\\\"v\\x20i\\x0al ["), "{line}");
    assert!(line.ends_with(" +0000] \"GET /a HTTP/1.1\" 200 6"), "{line}");
}

/// As logrotate does it.
#[test]
fn a_renamed_log_file_is_opened_again_by_sighup_and_by_a_reload() {
    let proxy = Proxy::new();
    let path = proxy.pki.path("access.log");
    let proxy = proxy
        .global("access_log = { requests = \"all\", fields = [\"target\"] }")
        .set("access_log.path", path.to_str().unwrap())
        .start();
    let lines_of = |file: &str| {
        std::fs::read_to_string(proxy.pki.path(file)).unwrap_or_default().lines().count()
    };
    let has_lines = |file: &str, count: usize| {
        wait_for(file, || match lines_of(file) {
            found if found == count => Ok(()),
            found => Err(format!("{found} lines")),
        });
    };
    proxy.admits(&proxy.good);
    has_lines("access.log", 1);
    std::fs::rename(&path, proxy.pki.path("access.log.1")).unwrap();
    proxy.admits(&proxy.good);
    has_lines("access.log.1", 2);
    proxy.signal("HUP");
    proxy.wait_for_metric("keygate_config_reloads_total{result=\"unchanged\"}", 1.0);
    proxy.admits(&proxy.good);
    has_lines("access.log", 1);
    std::fs::rename(&path, proxy.pki.path("access.log.2")).unwrap();
    assert_eq!(proxy.post("/reload", "application/json", "{}").0, 200);
    proxy.admits(&proxy.good);
    has_lines("access.log", 1);
    assert_eq!((lines_of("access.log.1"), lines_of("access.log.2")), (2, 1));
    let mode = system("stat", &["--format=%a", path.to_str().unwrap()]);
    assert_eq!(mode.stdout, b"640\n");

    // A directory in the place of the file: the open file stays.
    std::fs::rename(&path, proxy.pki.path("access.log.3")).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(proxy.post("/reload", "application/json", "{}").0, 200);
    proxy.admits(&proxy.good);
    has_lines("access.log.3", 2);
    proxy.wait_for("the warning", |line| {
        line["message"] == "access log cannot be reopened, the open file stays in use"
    });
}

#[test]
fn the_level_of_the_log_changes_with_a_reload() {
    let proxy = Proxy::new().start();
    let with_level = |level: &str| {
        let text = proxy.configuration.clone().set("log.level", level).text();
        std::fs::write(proxy.pki.path("keygate.toml"), text).unwrap();
        assert_eq!(proxy.post("/reload", "application/json", "{}").0, 200);
    };
    let requests = |line: &Value| line["message"] == "reload requested by an operator";
    let is_debug = |line: &Value| line["level"] == "DEBUG";
    assert!(proxy.matching_lines(is_debug).is_empty());
    with_level("debug");
    drop(std::net::TcpStream::connect(proxy.address()).unwrap());
    proxy.wait_for("a line of the new level", is_debug);
    with_level("error"); // its request is logged: the level changes after it
    with_level("info"); // not logged
    with_level("info"); // logged
    proxy.wait_for_lines("three requests", 3, requests);
    assert_eq!(proxy.matching_lines(requests).len(), 3);
    assert_eq!(
        proxy.lines("these settings are read at the start only: restart to change them").len(),
        0
    );
    assert_eq!(proxy.status()["restart_needed"], Value::Null);
}

/// The responses of the HTTP library to a malformed head, and of keygate to a late one.
#[test]
fn a_response_without_a_request_is_logged_and_counted_with_its_client() {
    let limits = "max_header_size = \"8KiB\", header_timeout = \"1s\"";
    let proxy = Proxy::new().global("access_log = { requests = \"all\" }").limits(limits).start();
    let long = "x".repeat(10_000);
    let cases = [
        ("GET / HTTP/1.1\r\nHost localhost\r\n\r\n".to_owned(), 400, "invalid HTTP header parsed"),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"), 431, "too large"),
        ("GET / HTTP/1.1\r\nHost:".to_owned(), 408, "the head exceeded header_timeout"),
    ];
    for (index, (head, status, error)) in cases.iter().enumerate() {
        let mut client = proxy.connect();
        let peer = client.tcp().local_addr().unwrap().to_string();
        client.send(head);
        assert!(client.head().starts_with(&format!("HTTP/1.1 {status} ")));
        let line = proxy.access_lines(index + 1).pop().unwrap();
        assert_eq!(line["status"], *status, "{line}");
        assert_eq!((&line["peer"], &line["service"]), (&json!(peer), &json!("test")), "{line}");
        assert_eq!(line["subject"], "CN=good", "{line}");
        assert!(line["error"].as_str().unwrap().contains(error), "{line}");
        assert_eq!(line["method"], Value::Null, "{line}");
        let count = (index + 1) as f64;
        proxy.wait_for_metric("keygate_requests_total{code=\"4xx\",service=\"test\"}", count);
    }
    // A line without a response would be wrong.
    let mut client = proxy.connect();
    client.send("GET / HT");
    client.finish();
    drop(client);
    let header = format!("X-Long: {long}");
    assert_eq!(proxy.code(&["--http2", "-H", &header]), "431");
    let line = proxy.access_lines(4).pop().unwrap();
    assert_eq!((&line["status"], &line["protocol"]), (&json!(431), &json!("HTTP/2")), "{line}");
    assert_eq!((&line["target"], &line["peer"]), (&json!("/"), &line["peer"]), "{line}");
    assert!(line["error"].as_str().unwrap().starts_with("head above limits.max_h"), "{line}");
    proxy.wait_for_metric("keygate_own_responses_total{service=\"test\",status=\"431\"}", 2.0);
}
