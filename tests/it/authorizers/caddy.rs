//! Caddy with `forward_auth` (`deploy/authorizer/caddy`). Caddy does not resume sessions of clients
//! with certificates.

use super::http_hosts;
use crate::support::http_host::HttpHost;
use crate::support::system;

const HOST: HttpHost = HttpHost::Caddy;

#[test]
fn every_request_is_judged() {
    http_hosts::judges_every_request(HOST, false);
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
    http_hosts::rejects_without_an_answer(HOST, "502");
}

#[test]
fn a_hanging_authorizer_rejects_every_client() {
    http_hosts::rejects_if_keygate_hangs(HOST, "504");
}

#[test]
fn no_path_and_no_method_is_special() {
    http_hosts::judges_every_path_and_method(HOST);
}

/// Caddy sends `Client-Cert: ::` for a client without a certificate.
#[test]
fn a_client_without_a_certificate_is_treated_by_mode() {
    http_hosts::follows_the_mode(HOST, |text| {
        text.replace("mode require_and_verify", "mode verify_if_given")
    });
}

#[test]
fn a_revoked_certificate_is_rejected() {
    http_hosts::rejects_a_revoked_certificate(HOST);
}

#[test]
fn certificates_that_caddy_does_not_verify_are_verified() {
    http_hosts::verifies_by_itself(HOST, |text| {
        let trust = "\n\t\t\ttrust_pool file /etc/edge/clients-ca.pem";
        assert!(text.contains(trust));
        text.replace("mode require_and_verify", "mode require").replace(trust, "")
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
