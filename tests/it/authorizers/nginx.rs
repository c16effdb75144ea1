//! nginx with `auth_request` (`deploy/authorizer/nginx`).

use super::http_hosts::{self, checks_of_http_hosts, rejects_an_expired_client};
use crate::support::asker::Asker;
use crate::support::client::{config, config_of};
use crate::support::http_host::{
    HostScene, HttpHost, foreign_client, replaced, with_second_instance,
};
use crate::support::proxy::Configure;
use crate::support::{spellings, wait_for, write_revision};

const HOST: HttpHost = HttpHost::Nginx;

checks_of_http_hosts!(HOST);

const ALLOWED: &str = "keygate_questions_total{result=\"allowed\",service=\"edge\"}";

/// `optional_no_ca` hands over certificates that nginx has not verified, with `FAILED:` in
/// `$ssl_client_verify`. A policy that admits clients without a certificate must not admit these.
#[test]
fn a_client_of_a_foreign_ca_is_rejected_with_optional_no_ca() {
    let unverified = |text: String| {
        text.replace("ssl_verify_client      on;", "ssl_verify_client optional_no_ca;")
    };
    let (_, foreign) = foreign_client();
    let optional = || {
        let authorizer = HOST.authorizer().asked_policy("on_unchecked = \"flag\"");
        authorizer.add("authorizers.client_auth", "mode = \"optional\"")
    };
    let Some(scene) = HOST.start_with(optional(), unverified) else { return };
    assert_eq!(scene.get(&config(&scene.pki, &foreign)), "403");
    assert_eq!(scene.questions("not_verified"), 1.0);
    assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "200");
    assert_eq!(scene.get(&config_of(&scene.pki, rustls::ALL_VERSIONS, None)), "200");
    drop(scene);
    // The hole: without `verify` every certificate counts as verified.
    let from = "certificate_from = { header = \"X-SSL-Cert\", encoding = \"escaped-pem\" }";
    let unconfigured = optional().unset("authorizers.certificate_from").add("authorizers", from);
    let scene = HOST.start_with(unconfigured, unverified).unwrap();
    assert_eq!(scene.get(&config(&scene.pki, &foreign)), "200");
}

/// nginx 1.22 resumes a session without verifying the certificate again. Guard: `trust_anchors`.
#[test]
fn an_expired_client_that_resumes_its_session_is_rejected_if_keygate_verifies() {
    rejects_an_expired_client(HOST, |text| text);
}

/// The verify header alone must not admit, because nginx leaves out a certificate that does not
/// fit.
#[test]
fn a_certificate_of_20_kib_is_judged_like_any_other() {
    let authorizer = HOST.authorizer();
    let names: Vec<_> =
        (0..640).map(|index| format!("{index:04}.a-name-of-some-length.example")).collect();
    let large = |names: &[String]| rcgen::CertificateParams::new(names.to_vec()).unwrap();
    let kind = crate::support::pki::Kind::P256;
    let [clean, listed] =
        ["clean", "listed"].map(|name| authorizer.pki.client_with(name, kind, large(&names)));
    assert!(listed.der.len() > 18 << 10);
    write_revision(&authorizer.pki.path("lost.pkbf"), &[&listed.spki], 1);
    let Some(scene) = HOST.start_with(authorizer, |text| text) else { return };
    assert_eq!(scene.get(&config(&scene.pki, &clean)), "200");
    assert_eq!(scene.get(&config(&scene.pki, &listed)), "403");
}

/// Guard: `http_503` of `proxy_next_upstream` in `deploy/authorizer/nginx/nginx.conf`.
#[test]
fn an_instance_without_a_free_connection_is_passed_over() {
    let full = HOST.authorizer().set("authorizers.limits.max_connections", 4);
    let path = full.pki.path("ask.sock");
    let other = HOST.authorizer().start();
    let Some(scene) = HOST.start_with(full, |text| with_second_instance(&text, &other)) else {
        return;
    };
    scene.wait_for_metric("keygate_askers_active{service=\"edge\"}", 0.0);
    let _askers: Vec<_> = (0..4)
        .map(|_| {
            let mut asker = Asker::unix(&path);
            assert_eq!(asker.ask(&[]).status, 403);
            asker
        })
        .collect();
    let other_before = other.metric(ALLOWED);
    for _ in 0..4 {
        assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "200");
    }
    assert_eq!(other.metric(ALLOWED) - other_before, 4.0);
    assert!(scene.questions("busy") > 0.0);
}

/// nginx has one connection for each question at the same time, and is the only asker. It keeps more
/// idle ones for each of its processes than the limit permits.
#[test]
fn a_peak_of_requests_above_the_connections_to_keygate_is_served() {
    let authorizer = HOST.authorizer().set("authorizers.limits.max_connections", 20);
    let Some(scene) = HOST.start_with(authorizer, |text| text) else { return };
    let good = config(&scene.pki, &scene.good);
    std::thread::scope(|scope| {
        for _ in 0..35 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(scene.get(&good), "200");
                }
            });
        }
    });
    assert_eq!(scene.questions("busy"), 0.0);
}

#[test]
fn without_keepalive_nginx_asks_over_http_1_0() {
    let old = |text: String| {
        let [keepalive, version] = ["keepalive 16;", "proxy_http_version 1.1;"];
        assert!(text.contains(keepalive) && text.contains(version));
        text.replace(keepalive, "").replacen(version, "", 1)
    };
    let Some(scene) = HOST.start_with(HOST.authorizer(), old) else { return };
    assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "200");
    assert_eq!(scene.get(&config(&scene.pki, &scene.lost)), "403");
}

/// Guard: `unusable_questions` in `src/admin/attention/clients.rs`.
#[test]
fn a_host_that_sends_no_certificate_that_can_be_read_is_the_first_line_of_the_status() {
    let unescaped = |text: String| replaced(&text, "$ssl_client_escaped_cert", "$ssl_client_cert");
    let Some(scene) = HOST.start_with(HOST.authorizer(), unescaped) else { return };
    for _ in 0..12 {
        assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "403");
    }
    let (_, text) = scene.running.keygate.admin("/status.txt");
    let first = text.lines().next().unwrap();
    assert!(!first.contains("nothing needs attention"), "{text}");
    let status = scene.running.keygate.status();
    let condition = &status["attention"][0];
    assert_eq!(
        (&condition["level"], &condition["subject"]),
        (&"red".into(), &"authorizer edge".into())
    );
    let problem = condition["problem"].as_str().unwrap();
    assert!(problem.contains(" were denied (malformed: "), "{problem}");
    assert!(problem.contains("): correct the configuration of the host"), "{problem}");
}

/// With `cache_for` nginx keeps an answer, by the whole certificate, and no longer than that.
#[test]
fn a_cached_answer_is_of_one_certificate_and_expires() {
    let cached = |text: String| text.replace("#cache ", "");
    let start = |cache_for: &str| {
        HOST.start_with(HOST.authorizer().set("authorizers.cache_for", cache_for), cached)
    };
    let compromise_good = |scene: &HostScene| {
        let filter = scene.pki.path("lost.pkbf");
        write_revision(&filter, &[&scene.lost.spki, &scene.good.spki], 2);
        scene.wait_for_generation(2);
    };
    let Some(scene) = start("1h") else { return };
    let [good, lost] = [&scene.good, &scene.lost].map(|client| config(&scene.pki, client));
    assert_eq!(scene.get(&good), "200");
    assert_eq!(scene.get(&lost), "403", "the answer about another certificate");
    let denied = scene.questions("denied");
    assert_eq!(scene.get(&lost), "403");
    assert_eq!(scene.questions("denied"), denied + 1.0, "a denial is not cached");
    compromise_good(&scene);
    assert_eq!(scene.get(&good), "200", "the cached answer");
    assert_eq!(scene.questions("allowed"), 1.0);
    drop(scene);
    let scene = start("2s").unwrap();
    let good = config(&scene.pki, &scene.good);
    assert_eq!(scene.get(&good), "200");
    compromise_good(&scene);
    wait_for("the end of the cached answer", || match scene.get(&good) {
        status if status == "403" => Ok(()),
        status => Err(status),
    });
}

/// Guard: `auth_request` in the `server`, not in a `location`.
#[test]
fn a_second_location_is_judged_as_well() {
    let second = "location /api { proxy_pass http://app; }\n        location / {";
    http_hosts::judges_every_route(HOST, |text| replaced(&text, "location / {", second));
}

#[test]
fn every_spelling_of_a_listed_key_is_rejected() {
    http_hosts::judges_every_spelling(HOST, &spellings::OF_OPENSSL);
}
