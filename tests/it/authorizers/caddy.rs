//! Caddy with `forward_auth` (`deploy/authorizer/caddy`).

use super::http_hosts::{self, checks_of_http_hosts};
use crate::support::client::config;
use crate::support::http_host::{HostScene, HttpHost, replaced};
use crate::support::{spellings, system};

const HOST: HttpHost = HttpHost::Caddy;

checks_of_http_hosts!(HOST);

/// Caddy with this mode, in which it verifies no certificate.
fn unverified(text: &str, mode: &str) -> String {
    let required = "mode require_and_verify";
    let trust = "\n\t\t\ttrust_pool file /etc/edge/clients-ca.pem";
    assert!(text.contains(required) && text.contains(trust));
    text.replace(required, mode).replace(trust, "")
}

#[test]
fn certificates_that_caddy_does_not_verify_are_verified() {
    http_hosts::verifies_by_itself(HOST, |text| unverified(&text, "mode require"));
}

#[test]
fn a_certificate_that_caddy_does_not_verify_is_no_unchecked_one() {
    http_hosts::rejects_the_unverified_although_unchecked_are_flagged(HOST, |text| {
        unverified(&text, "mode request")
    });
}

#[test]
fn clients_over_http_2_are_judged_as_well() {
    let Some(scene) = HOST.start() else { return };
    let ca = scene.pki.path("ca.pem");
    for (client, expected) in [(&scene.good, "200 2"), (&scene.lost, "403 2")] {
        let path = |path: &std::path::Path| path.display().to_string();
        let output = system(
            "curl",
            &[
                "--silent",
                "--http2",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code} %{http_version}",
                "--cacert",
                &path(&ca),
                "--cert",
                &path(&client.certificate),
                "--key",
                &path(&client.private_key),
                &format!("https://localhost:{}/", scene.address.port()),
            ],
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
}

#[test]
fn a_second_instance_answers_if_the_first_one_is_killed_or_hangs() {
    let second = HOST.authorizer().start();
    let change = |text: String| {
        let both = format!(
            "forward_auth unix//run/keygate/ask.sock unix/{} {{",
            second.socket().display()
        );
        replaced(&text, "forward_auth unix//run/keygate/ask.sock {", &both)
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

#[test]
fn every_spelling_of_a_listed_key_is_rejected() {
    http_hosts::judges_every_spelling(HOST, &spellings::OF_GO);
}
