//! nginx with `auth_request` (`deploy/authorizer/nginx`).

use super::http_hosts;
use crate::support::client::{Client, config, config_of};
use crate::support::http_host::{HttpHost, foreign_client};
use crate::support::keygate::Keygate;
use crate::support::proxy::Configure;
use crate::support::{wait_for, write_revision};

const HOST: HttpHost = HttpHost::Nginx;

#[test]
fn every_request_is_judged_full_and_resumed() {
    http_hosts::judges_every_request(HOST, true);
}

#[test]
fn a_certificate_in_a_header_of_the_client_is_not_read() {
    http_hosts::reads_no_certificate_of_the_client(HOST);
}

#[test]
fn a_filter_update_counts_from_the_next_request() {
    http_hosts::follows_an_update(HOST);
}

#[test]
fn without_an_answer_every_client_is_rejected() {
    http_hosts::rejects_without_an_answer(HOST, "500");
}

#[test]
fn a_hanging_authorizer_rejects_every_client() {
    http_hosts::rejects_if_keygate_hangs(HOST, "500");
}

#[test]
fn no_path_and_no_method_is_special() {
    http_hosts::judges_every_path_and_method(HOST);
}

#[test]
fn a_client_without_a_certificate_is_treated_by_mode() {
    let optional =
        |text: String| text.replace("ssl_verify_client      on;", "ssl_verify_client optional;");
    http_hosts::follows_the_mode(HOST, optional);
}

#[test]
fn a_revoked_certificate_is_rejected_on_resumed_sessions_as_well() {
    http_hosts::rejects_a_revoked_certificate(HOST);
}

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

/// The verify header alone must not admit, because nginx leaves out a certificate that does not fit.
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

/// With `cache_for` nginx keeps an answer, by the whole certificate, and no longer than that.
#[test]
fn a_cached_answer_is_of_one_certificate_and_expires() {
    let cached = |text: String| text.replace("#cache ", "");
    let authorizer = HOST.authorizer().set("authorizers.cache_for", "2s");
    let Some(scene) = HOST.start_with(authorizer, cached) else { return };
    let [good, lost] = [&scene.good, &scene.lost].map(|client| config(&scene.pki, client));
    assert_eq!(scene.get(&good), "200");
    assert_eq!(scene.get(&lost), "403", "the answer about another certificate");
    let denied = scene.questions("denied");
    assert_eq!(scene.get(&lost), "403");
    assert_eq!(scene.questions("denied"), denied + 1.0, "a denial is not cached");
    let filter = scene.pki.path("lost.pkbf");
    write_revision(&filter, &[&scene.lost.spki, &scene.good.spki], 2);
    scene.wait_for_generation(2);
    wait_for("the end of the cached answer", || match scene.get(&good) {
        status if status == "403" => Ok(()),
        status => Err(status),
    });
}

/// Two instances, one of which ends: nginx moves its questions, and no request fails.
#[test]
fn no_request_fails_while_one_of_two_instances_drains() {
    let authorizer = HOST.authorizer();
    let other = crate::support::pki::Pki::new();
    let socket = other.path("ask.sock").display().to_string();
    let text = std::fs::read_to_string("deploy/authorizer/nginx/keygate.toml").unwrap();
    let filter = authorizer.pki.path("lost.pkbf");
    write_revision(&filter, &[&authorizer.lost.spki], 1);
    let text = text
        .replace("127.0.0.1:9464", "127.0.0.1:0")
        .replace("/etc/keygate/pwnedkeys.pkbf", &filter.display().to_string())
        .replace("/run/keygate/ask.sock", &socket);
    let second = |text: String| {
        let spare = "# server unix:/run/keygate-2/ask.sock;";
        assert!(text.contains(spare));
        text.replace(spare, &format!("server unix:{socket};"))
    };
    let Some(mut scene) = HOST.start_with(authorizer, second) else { return };
    let _second = Keygate::configured(&other, &text);
    let good = config(&scene.pki, &scene.good);
    let address = scene.address;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let clients: Vec<_> = std::iter::repeat_with(|| good.clone()).take(4).collect();
    let stopped = std::sync::Arc::new(std::sync::Mutex::new(stopped));
    let threads: Vec<_> = clients
        .into_iter()
        .map(|config| {
            let stopped = std::sync::Arc::clone(&stopped);
            std::thread::spawn(move || {
                let mut client = Client::with(config.clone(), address);
                let mut count = 0;
                loop {
                    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    let head = client.head();
                    assert!(head.starts_with("HTTP/1.1 200"), "after {count}: {head}");
                    client.exactly(6);
                    count += 1;
                    if count % 500 == 0 {
                        client = Client::with(config.clone(), address); // nginx closes after 1,000
                    }
                    let ended = stopped.lock().unwrap().try_recv();
                    if ended == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                        return count;
                    }
                }
            })
        })
        .collect();
    scene.wait_for_counter("keygate_questions_total{result=\"allowed\",service=\"edge\"}", 50.0);
    scene.signal("TERM");
    scene.running.keygate.ended();
    drop(stop);
    for thread in threads {
        assert!(thread.join().unwrap() > 0);
    }
    assert_eq!(scene.get(&config(&scene.pki, &scene.lost)), "403");
}
