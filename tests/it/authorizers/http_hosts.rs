//! The checks of every host that asks over HTTP, with its configuration in `deploy/authorizer`.
//! [`checks_of_http_hosts`] makes them tests of one host.

use std::time::Duration;

use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use crate::support::client::{Client, config, config_of};
use crate::support::http_host::{GET, HostScene, HttpHost, foreign_client, forged_certificates};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, RevocationList};
use crate::support::proxy::Configure;
use crate::support::{wait_for, write_revision};

/// The fields by which a client names its own status, in four spellings.
const FORGED_STATUS: &str = "Client-Key-Status: forged\r\nClient_Key_Status: forged\r\nClient-Key_Status: forged\r\nCLIENT_KEY-STATUS: forged\r\n";

/// The tests of a host, in the module of that host.
macro_rules! checks_of_http_hosts {
    ($host:expr) => {
        #[test]
        fn every_request_is_judged_full_and_resumed() {
            $crate::authorizers::http_hosts::judges_every_request($host);
        }

        #[test]
        fn a_certificate_in_a_header_of_the_client_is_not_read() {
            $crate::authorizers::http_hosts::reads_no_certificate_of_the_client($host);
        }

        #[test]
        fn a_filter_update_counts_from_the_next_request() {
            $crate::authorizers::http_hosts::follows_an_update($host);
        }

        #[test]
        fn without_an_answer_every_client_is_rejected() {
            $crate::authorizers::http_hosts::rejects_without_an_answer($host);
        }

        #[test]
        fn a_hanging_authorizer_rejects_every_client() {
            $crate::authorizers::http_hosts::rejects_if_keygate_hangs($host);
        }

        #[test]
        fn no_path_and_no_method_is_special() {
            $crate::authorizers::http_hosts::judges_every_path_and_method($host);
        }

        #[test]
        fn a_client_without_a_certificate_is_treated_by_mode() {
            $crate::authorizers::http_hosts::follows_the_mode($host);
        }

        #[test]
        fn a_revoked_certificate_is_rejected_on_resumed_sessions_as_well() {
            $crate::authorizers::http_hosts::rejects_a_revoked_certificate($host);
        }
    };
}
pub(super) use checks_of_http_hosts;

/// Whether the host resumes sessions of clients with certificates.
fn resumes(host: HttpHost) -> bool {
    host != HttpHost::Caddy
}

/// The status for every client if no connection to keygate is accepted, and if keygate hangs.
fn statuses_without_an_answer(host: HttpHost) -> [&'static str; 2] {
    match host {
        HttpHost::Caddy => ["502", "504"],
        HttpHost::EnvoyHttp => ["403", "403"],
        HttpHost::Nginx | HttpHost::Traefik => ["500", "500"],
    }
}

/// The configuration of the host with optional client certificates.
pub(super) fn optional_certificates(host: HttpHost, text: &str) -> String {
    let (required, optional) = match host {
        HttpHost::Caddy => ("mode require_and_verify", "mode verify_if_given"),
        HttpHost::EnvoyHttp => {
            ("require_client_certificate: true", "require_client_certificate: false")
        }
        HttpHost::Nginx => ("ssl_verify_client      on;", "ssl_verify_client optional;"),
        HttpHost::Traefik => ("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"),
    };
    text.replace(required, optional)
}

fn request(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
}

/// The fields of the next request at the origin that a server could read as the status.
fn status_at_origin(scene: &HostScene) -> Vec<(String, String)> {
    let received = scene.origin.next();
    let fields = received.head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    fields.filter(|(name, _)| name.replace('_', "-") == "client-key-status").collect()
}

/// A clean client is admitted, and the origin sees one status. A listed client gets 403, and the
/// origin sees nothing. With TLS 1.2 and 1.3, full and resumed if the host resumes sessions.
pub(super) fn judges_every_request(host: HttpHost) {
    let Some(scene) = host.start() else { return };
    let resumes = resumes(host);
    let mut rejected = scene.questions("denied");
    for version in [&TLS12, &TLS13] {
        let good = config_of(&scene.pki, &[version], Some(&scene.good));
        let lost = config_of(&scene.pki, &[version], Some(&scene.lost));
        for is_second in [false, true] {
            let response = scene.exchange(&good, request(FORGED_STATUS));
            assert_eq!(response.status(), "200", "{host:?} {version:?}: {}", response.text);
            assert_eq!(response.is_resumed, is_second && resumes, "{host:?} {version:?}");
            let status = [("client-key-status".to_owned(), "clean".to_owned())];
            assert_eq!(status_at_origin(&scene), status, "{host:?}");
            let response = scene.exchange(&lost, GET);
            assert_eq!(response.status(), "403", "{host:?} {version:?}: {}", response.text);
            assert_eq!(response.is_resumed, is_second && resumes, "{host:?} {version:?}");
            rejected += 1.0;
        }
    }
    assert_eq!(scene.origin.untaken(), 0, "{host:?}: the origin saw a listed client");
    scene.wait_for_counter("keygate_questions_total{result=\"denied\",service=\"edge\"}", rejected);
}

/// A certificate that a client puts into a header, in any dialect, neither helps nor harms.
pub(super) fn reads_no_certificate_of_the_client(host: HttpHost) {
    let Some(scene) = host.start() else { return };
    let [good, lost] = [&scene.good, &scene.lost].map(|client| config(&scene.pki, client));
    let lines = forged_certificates(&scene.good);
    let fields: Vec<_> = lines.split_inclusive("\r\n").chain([lines.as_str()]).collect();
    for forged in fields {
        let response = scene.exchange(&lost, request(forged));
        assert_eq!(response.status(), "403", "{host:?}: {forged}{}", response.text);
    }
    let lines = forged_certificates(&scene.lost);
    for forged in lines.split_inclusive("\r\n").chain([lines.as_str()]) {
        let response = scene.exchange(&good, request(forged));
        assert_eq!(response.status(), "200", "{host:?}: {forged}{}", response.text);
    }
}

/// A filter update counts from the next request on, on an open connection and on resumed sessions.
pub(super) fn follows_an_update(host: HttpHost) {
    let Some(scene) = host.start() else { return };
    let good = config(&scene.pki, &scene.good);
    assert_eq!(scene.get(&good), "200"); // has a session now
    let mut client = Client::with(good.clone(), scene.address);
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200"), "{host:?}");
    client.exactly(6); // the response of the origin
    let filter = scene.pki.path("lost.pkbf");
    write_revision(&filter, &[&scene.lost.spki, &scene.good.spki], 2);
    scene.wait_for_generation(2);
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 403"), "{host:?}");
    assert_eq!(scene.get(&good), "403", "{host:?}: a resumed session");
}

/// While keygate is stopped every client is rejected; after a restart it is judged.
pub(super) fn rejects_without_an_answer(host: HttpHost) {
    let [status, _] = statuses_without_an_answer(host);
    let Some(mut scene) = host.start() else { return };
    let good = config(&scene.pki, &scene.good);
    assert_eq!(scene.get(&good), "200");
    scene.signal("TERM");
    scene.running.keygate.ended();
    assert_eq!(scene.get(&good), status, "{host:?}: keygate has ended");
    scene.running.restart();
    // A host may leave out an upstream that has failed for a while.
    wait_for("an admitted client", || match scene.get(&good) {
        status if status == "200" => Ok(()),
        status => Err(status),
    });
    assert_eq!(scene.get(&config(&scene.pki, &scene.lost)), "403", "{host:?}");
}

/// A keygate that does not answer is an error of the host, within its timeout: 30 seconds of
/// Traefik, which has no setting for it.
pub(super) fn rejects_if_keygate_hangs(host: HttpHost) {
    let [_, status] = statuses_without_an_answer(host);
    let Some(scene) = host.start_with_documented_timeout() else { return };
    let good = config(&scene.pki, &scene.good);
    wait_for("an admitted client", || match scene.get(&good) {
        status if status == "200" => Ok(()),
        status => Err(status),
    });
    scene.signal("STOP");
    let found = scene.get(&good);
    scene.signal("CONT");
    assert_eq!(found, status, "{host:?}");
}

/// No method, no path and no kind of request is treated in another way. Envoy passes method and path
/// of the client on to keygate.
pub(super) fn judges_every_path_and_method(host: HttpHost) {
    let mut authorizer = host.authorizer();
    authorizer.origin = Origin::with_upgrades();
    let Some(scene) = host.start_with(authorizer, |text| text) else { return };
    let [good, lost] = [&scene.good, &scene.lost].map(|client| config(&scene.pki, client));
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let close = "Connection: close\r\n";
    for request in [
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{close}\r\n"),
        format!("GET /metrics?a=1 HTTP/1.1\r\nHost: localhost\r\n{close}\r\n"),
        format!("GET /readyz HTTP/1.1\r\nHost: localhost\r\n{close}\r\n"),
        format!("HEAD /livez HTTP/1.1\r\nHost: localhost\r\n{close}\r\n"),
        format!("OPTIONS / HTTP/1.1\r\nHost: localhost\r\n{close}\r\n"),
        format!("POST / HTTP/1.1\r\nHost: localhost\r\n{close}Content-Length: 5\r\n\r\nhello"),
    ] {
        let response = scene.exchange(&lost, &request);
        assert_eq!(response.status(), "403", "{host:?}: {request}{}", response.text);
    }
    let mut client = Client::with(lost, scene.address);
    client.send(format!("GET /socket HTTP/1.1\r\nHost: localhost\r\n{upgrade}"));
    assert!(client.head().starts_with("HTTP/1.1 403"), "{host:?}: upgrade");
    assert_eq!(scene.origin.untaken(), 0, "{host:?}");
    let post =
        format!("POST / HTTP/1.1\r\nHost: localhost\r\n{close}Content-Length: 5\r\n\r\nhello");
    assert_eq!(scene.exchange(&good, post).status(), "200", "{host:?}");
    assert_eq!(scene.origin.next().body, b"hello", "{host:?}");
    let clean = [("client-key-status".to_owned(), "clean".to_owned())];
    let head = format!("HEAD / HTTP/1.1\r\nHost: localhost\r\n{FORGED_STATUS}{close}\r\n");
    let response = scene.exchange(&good, head);
    assert_eq!(response.status(), "200", "{host:?}");
    assert!(response.text.ends_with("\r\n\r\n"), "{host:?}: {}", response.text);
    assert_eq!(status_at_origin(&scene), clean, "{host:?}: HEAD");
    let mut client = Client::with(good, scene.address);
    client.send(format!("GET /socket HTTP/1.1\r\nHost: localhost\r\n{FORGED_STATUS}{upgrade}"));
    let response = client.head();
    assert!(response.starts_with("HTTP/1.1 101"), "{host:?}: upgrade: {response}");
    assert_eq!(status_at_origin(&scene), clean, "{host:?}: upgrade");
}

/// A client without a certificate is treated by `mode` and `on_unchecked`. The host accepts clients
/// without a certificate. Caddy then sends `Client-Cert: ::`.
pub(super) fn follows_the_mode(host: HttpHost) {
    let change = |text: String| optional_certificates(host, &text);
    let required = host.start_with(host.authorizer(), change);
    let Some(scene) = required else { return };
    let anonymous = |scene: &HostScene| config_of(&scene.pki, rustls::ALL_VERSIONS, None);
    assert_eq!(scene.get(&anonymous(&scene)), "403", "{host:?}: required");
    // A forged certificate is none.
    let forged = request(&forged_certificates(&scene.good));
    let response = scene.exchange(&anonymous(&scene), &forged);
    assert_eq!(response.status(), "403", "{host:?}: {}", response.text);
    assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "200", "{host:?}");
    drop(scene);
    let optional = host.authorizer().asked_policy("on_unchecked = \"flag\"");
    let optional = optional.add("authorizers.client_auth", "mode = \"optional\"");
    let scene = host.start_with(optional, change).unwrap();
    assert_eq!(scene.get(&anonymous(&scene)), "200", "{host:?}: optional");
    let [(_, status)] = status_at_origin(&scene).try_into().unwrap();
    assert_eq!(status, "unchecked", "{host:?}");
    assert_eq!(scene.get(&config(&scene.pki, &scene.lost)), "403", "{host:?}: optional");
}

/// keygate verifies the certificates that the host sends. One is revoked while its session lives.
pub(super) fn rejects_a_revoked_certificate(host: HttpHost) {
    let authorizer = host.authorizer();
    let day = Duration::from_secs(86_400);
    authorizer.pki.crl("clients.crl.pem", &[], day);
    let authorizer = authorizer
        .add("authorizers.client_auth", "trust_anchors = \"ca.pem\"\ncrls = [\"clients.crl.pem\"]");
    let Some(scene) = host.start_with(authorizer, |text| text) else { return };
    for version in [&TLS12, &TLS13] {
        let good = config_of(&scene.pki, &[version], Some(&scene.good));
        assert_eq!(scene.get(&good), "200", "{host:?} {version:?}");
    }
    let sessions: Vec<ClientConfig> = [&TLS12, &TLS13]
        .map(|version| config_of(&scene.pki, &[version], Some(&scene.good)))
        .into_iter()
        .inspect(|good| assert_eq!(scene.get(good), "200", "{host:?}"))
        .collect();
    let list = RevocationList::new(2, &[]);
    let revoked = [&scene.good];
    scene.pki.crl_with("clients.crl.pem", &RevocationList { revoked: &revoked, ..list });
    scene.wait_for_generation(2);
    for session in &sessions {
        assert_eq!(scene.get(session), "403", "{host:?}: a session from before");
    }
    let full = config(&scene.pki, &scene.good);
    assert_eq!(scene.get(&full), "403", "{host:?}: a full handshake");
    assert!(scene.questions("not_verified") >= 3.0, "{host:?}");
}

/// keygate verifies the certificates of a host that does not: an expired one, and one of another CA.
/// `change` turns the verification of the host off.
pub(super) fn verifies_by_itself(host: HttpHost, change: impl Fn(String) -> String) {
    let without = host.start_with(host.authorizer(), &change);
    let Some(scene) = without else { return };
    let expired = |scene: &HostScene| -> Party {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
        scene.pki.client_with("expired", Kind::P256, parameters)
    };
    let (_, foreign) = foreign_client();
    let [old, other] = [&expired(&scene), &foreign].map(|client| config(&scene.pki, client));
    // The hole: neither the host nor the authorizer verifies.
    assert_eq!([scene.get(&old), scene.get(&other)], ["200", "200"], "{host:?}");
    drop(scene);
    let verifying = host.authorizer().add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
    let scene = host.start_with(verifying, &change).unwrap();
    let [old, other] = [&expired(&scene), &foreign].map(|client| config(&scene.pki, client));
    for _ in 0..2 {
        assert_eq!([scene.get(&old), scene.get(&other)], ["403", "403"], "{host:?}");
    }
    assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "200", "{host:?}");
}
