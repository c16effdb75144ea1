//! `reject`, `flag` and `header`: what the client gets, what the origin receives byte for byte, the
//! metric and the log line.

use data_encoding::BASE64;
use keygate_core::spki::Fingerprint;
use serde_json::Value;

use crate::support::pki::{Kind, Party};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{output_text, write_revision};

fn setting(action: &str) -> Running {
    let mut proxy = Proxy::new().policy(&format!("on_probable = \"{action}\""));
    proxy.lost = proxy.pki.client("lost", Kind::P384);
    write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki], 42);
    proxy.start()
}

impl Running {
    /// One request without the headers that curl adds.
    fn plain_request(&self, client: &Party) -> std::process::Output {
        self.keygate.curl(client, &["--http1.1", "-A", "test", "-H", "Accept:", "-H", "X-Own: 1"])
    }

    /// The head that the origin must have received, to the byte.
    fn expected_head(&self, client: &Party, status: Option<&str>) -> String {
        let host = self.keygate.address();
        let certificate = BASE64.encode(&client.der);
        let status = status.map(|status| format!("client-key-status: {status}\r\n"));
        let status = status.unwrap_or_default();
        format!(
            "GET / HTTP/1.1\r\nhost: {host}\r\nuser-agent: test\r\nx-own: 1\r\n\
             client-cert: :{certificate}:\r\nx-forwarded-for: 127.0.0.1\r\n\
             x-forwarded-proto: https\r\nx-forwarded-host: {host}\r\n{status}\r\n"
        )
    }

    fn assert_counts(&self, counts: &[(&str, f64)]) {
        for (series, expected) in counts {
            assert_eq!(self.keygate.metric(series), *expected, "{series}");
        }
    }

    /// The one line about the lost client.
    fn key_line(&self, message: &str, action: &str) -> Value {
        let line = self
            .keygate
            .wait_for("the line about the client", |line| line["target"] == "keygate::client_key");
        let expected = serde_json::json!({
            "message": message,
            "level": "WARN",
            "service": "test",
            "subject": "CN=lost",
            "issuer": "CN=Test CA",
            "fingerprint": Fingerprint::of(&self.lost.spki).to_string(),
            "verdict": "probable",
            "action": action,
            "filter": "lost",
            "revision": 42,
            "encoding": "presented",
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&line[field], value, "{field} of {line}");
        }
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(!line["serial"].as_str().unwrap().is_empty(), "{line}");
        line
    }
}

const CHECKED_CLEAN: &str =
    r#"keygate_key_checks_total{service="test",stage="handshake",verdict="clean"}"#;
const CHECKED_PROBABLE: &str =
    r#"keygate_key_checks_total{service="test",stage="handshake",verdict="probable"}"#;

#[test]
fn reject_sends_an_alert_in_the_handshake_and_nothing_to_the_origin() {
    let setting = setting("reject");
    let response = setting.plain_request(&setting.good);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    assert_eq!(
        setting.origin.next().head_without("x-request-id"),
        setting.expected_head(&setting.good, None)
    );

    let refused = setting.plain_request(&setting.lost);
    assert!(output_text(&refused).contains("access denied"), "{}", output_text(&refused));
    assert_eq!(setting.origin.untaken(), 0);
    setting.key_line("client key rejected", "reject");
    setting.assert_counts(&[
        (CHECKED_CLEAN, 1.0),
        (CHECKED_PROBABLE, 1.0),
        (r#"keygate_key_actions_total{action="admit",service="test"}"#, 1.0),
        (r#"keygate_key_actions_total{action="reject",service="test"}"#, 1.0),
        (r#"keygate_handshakes_total{result="ok",resumed="false",service="test"}"#, 1.0),
        (r#"keygate_handshakes_total{result="compromised",resumed="false",service="test"}"#, 1.0),
        (r#"keygate_connections_total{result="served",service="test"}"#, 1.0),
        (r#"keygate_connections_total{result="refused",service="test"}"#, 1.0),
        (r#"keygate_requests_total{code="2xx",service="test"}"#, 1.0),
    ]);
}

#[test]
fn flag_serves_and_logs_and_adds_no_header() {
    let setting = setting("flag");
    for client in [&setting.good, &setting.lost] {
        let response = setting.plain_request(client);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        assert_eq!(
            setting.origin.next().head_without("x-request-id"),
            setting.expected_head(client, None)
        );
    }
    setting.key_line("client key flagged", "flag");
    setting.assert_counts(&[
        (CHECKED_CLEAN, 1.0),
        (CHECKED_PROBABLE, 1.0),
        (r#"keygate_key_actions_total{action="flag",service="test"}"#, 1.0),
        (r#"keygate_connections_total{result="served",service="test"}"#, 2.0),
        (r#"keygate_requests_total{code="2xx",service="test"}"#, 2.0),
    ]);
}

#[test]
fn header_serves_and_adds_the_verdict_of_every_client() {
    let setting = setting("header");
    let lost = r#"probable;filter="lost";revision=42"#;
    for (client, status) in [(&setting.good, "clean"), (&setting.lost, lost)] {
        let response = setting.plain_request(client);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        assert_eq!(
            setting.origin.next().head_without("x-request-id"),
            setting.expected_head(client, Some(status))
        );
    }
    setting.key_line("client key flagged", "header");
    setting.assert_counts(&[
        (CHECKED_CLEAN, 1.0),
        (CHECKED_PROBABLE, 1.0),
        (r#"keygate_key_actions_total{action="admit",service="test"}"#, 1.0),
        (r#"keygate_key_actions_total{action="header",service="test"}"#, 1.0),
        (r#"keygate_connections_total{result="served",service="test"}"#, 2.0),
    ]);
}
