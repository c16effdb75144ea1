//! Envoy's `ext_authz` filter with the HTTP service (`deploy/authorizer/envoy-http`).

use rustls::version::{TLS12, TLS13};

use super::http_hosts::{checks_of_http_hosts, optional_certificates, rejects_an_expired_client};
use crate::support::client::{config, config_of};
use crate::support::http_host::{HostScene, HttpHost, escaped_pem};
use crate::support::proxy::Configure;

const HOST: HttpHost = HttpHost::EnvoyHttp;

checks_of_http_hosts!(HOST);

/// With `failure_mode_allow` an error of the authorizer admits every client. No input of a client
/// may cause an error.
#[test]
fn input_of_a_client_is_denied_although_errors_admit() {
    let authorizer = HOST.authorizer();
    let authorizer = authorizer.add("authorizers.limits", "max_question_size = \"8KiB\"");
    let open = |text: String| {
        let allowed = "patterns: [{ exact: accept }]";
        assert!(text.contains(allowed));
        text.replace("failure_mode_allow: false", "failure_mode_allow: true")
            // The client can repeat the header with the certificate, and fill the question.
            .replace(allowed, "patterns: [{ prefix: x- }]")
    };
    let Some(mut scene) = HOST.start_with(authorizer, open) else { return };
    let large = scene.pki.large_client("large");
    for version in [&TLS12, &TLS13] {
        assert_eq!(scene.get(&config_of(&scene.pki, &[version], Some(&large))), "403");
    }
    assert_eq!(scene.questions("oversize"), 2.0);
    let lost = config(&scene.pki, &scene.lost);
    let request = |fields: String| {
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
    };
    let certificate = escaped_pem(&scene.good.der);
    for fields in [
        format!("X-Large: {}\r\n", "a".repeat(50 << 10)),
        "X-Many: a\r\n".repeat(90),
        format!("X_SSL_Cert: {certificate}\r\n"),
        format!("X-SSL_Cert: {certificate}\r\n"),
        format!("X-SSL-Cert: {certificate}\r\n"),
        "X-Text: \u{e9}\u{7f}\r\n".replace('\u{7f}', ""),
    ] {
        let response = scene.exchange(&lost, request(fields.clone()));
        let start: String = fields.chars().take(40).collect();
        assert_eq!(response.status(), "403", "{start}: {}", response.text);
    }
    assert_eq!(scene.origin.untaken(), 0);
    // The hole: an error admits the listed client like the clean one.
    scene.signal("TERM");
    scene.running.keygate.ended();
    assert_eq!(scene.get(&lost), "200");
}

/// Envoy resumes sessions of clients whose certificate has expired. Guard: `trust_anchors`.
#[test]
fn an_expired_client_that_resumes_its_session_is_rejected_if_keygate_verifies() {
    rejects_an_expired_client(HOST, |text| text);
}

/// Without a client certificate Envoy leaves its header out, so that a client's own copy would pass
/// if `allowed_headers` had it.
#[test]
fn the_header_of_an_anonymous_client_is_not_passed_on() {
    let optional = |text: String| optional_certificates(HOST, &text);
    let Some(scene) = HOST.start_with(HOST.authorizer(), optional) else { return };
    let anonymous = |scene: &HostScene| config_of(&scene.pki, rustls::ALL_VERSIONS, None);
    let certificate = escaped_pem(&scene.good.der);
    let forged = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-SSL-Cert: {certificate}\r\n\r\n"
    );
    assert_eq!(scene.exchange(&anonymous(&scene), &forged).status(), "403");
    drop(scene);
    // The hole.
    let passing = |text: String| {
        optional(text).replace("{ exact: accept }", "{ exact: accept }, { exact: x-ssl-cert }")
    };
    let scene = HOST.start_with(HOST.authorizer(), passing).unwrap();
    assert_eq!(scene.exchange(&anonymous(&scene), &forged).status(), "200");
}

/// Guards: `retry_policy`, and `max_interval`, which limits each attempt.
#[test]
fn a_second_instance_answers_if_the_first_one_is_killed_or_hangs() {
    let second = HOST.authorizer().start();
    let change = |text: String| {
        let line = text.lines().find(|line| line.contains("pipe: {")).unwrap().to_owned();
        let socket = line.split("path: ").nth(1).unwrap().trim_end_matches([' ', '}']);
        let other = line.replace(socket, second.socket().to_str().unwrap());
        text.replace(&line, &format!("{line}\n{other}"))
    };
    let Some(mut scene) = HOST.start_with_documented_timeout(change) else { return };
    let good = config(&scene.pki, &scene.good);
    let served = |scene: &HostScene, state| {
        for _ in 0..6 {
            assert_eq!(scene.get(&good), "200", "{state}");
        }
    };
    scene.signal("STOP");
    served(&scene, "the first one hangs");
    scene.signal("KILL");
    scene.running.keygate.ended();
    served(&scene, "the first one was killed");
}
