//! The certificates in `client_auth.trust_anchors`: roots, intermediates below them, and pinned
//! client certificates.
//!
//! Guards: `fn tell_apart` in `crates/core/src/tls/trust_anchors/kinds.rs`, `fn complete` in `crates/core/src/tls/trust_anchors.rs`, `fn check` and
//! `fn verify_pin` in `crates/core/src/tls/client_verifier/search.rs`, `crates/core/src/tls/path_rules.rs`.

use std::fs::{read_to_string, rename, write};

use keygate_core::spki::Fingerprint;
use rcgen::{CertificateParams, CustomExtension};

use super::revocation::{A_DAY, configuration, validate};
use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

fn admits(keygate: &Keygate, client: &Party) {
    let response = keygate.curl(client, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
}

fn rejects(keygate: &Keygate, client: &Party, alert: &str) {
    let response = output_text(&keygate.curl(client, &[]));
    assert!(response.contains(alert), "{}: {response}", client.name);
}

/// Root and issuing CA in one file, as users of nginx have it, and a client of the issuing CA.
fn root_and_issuing() -> (Pki, Pki, Party) {
    let pki = Pki::new();
    let issuing = pki.subordinate("Issuing CA");
    let client = issuing.client("client", Kind::P256);
    let cas = [pki.path("ca.pem"), issuing.path("ca.pem")];
    write(pki.path("ca.pem"), cas.map(|path| read_to_string(path).unwrap()).concat()).unwrap();
    write_filter(&pki.path("lost.pkbf"), &[]);
    (pki, issuing, client)
}

#[test]
fn an_issuing_ca_that_its_root_revoked_issues_no_clients() {
    for (depth, is_rejected) in [("path", true), ("leaf", false)] {
        let (pki, issuing, client) = root_and_issuing();
        let origin = Origin::start();
        rename(issuing.crl("sub.crl", &[], A_DAY), pki.path("sub.crl")).unwrap();
        pki.crl("clients.crl", &[], A_DAY);
        let keygate = configuration(&origin, "")
            .client_auth("crls = [\"clients.crl\", \"sub.crl\"]")
            .client_auth(&format!("revocation = \"{depth}\""))
            .start(&pki);
        admits(&keygate, &client);
        pki.crl_with("clients.crl", &RevocationList::new(2, &[&issuing.as_party()]));
        keygate.wait_for_generation(2);
        let presents_both = client.present_with(&[issuing.ca()]);
        if is_rejected {
            rejects(&keygate, &presents_both, "certificate revoked");
            let warning = "trust anchor cannot be used, its clients are rejected";
            keygate.wait_for("a warning", |line| {
                line["message"] == warning
                    && line["problem"]
                        .as_str()
                        .unwrap()
                        .contains("CN=Issuing CA is revoked by a list")
            });
        } else {
            admits(&keygate, &presents_both);
        }
    }
}

#[test]
fn an_authorizer_rejects_the_clients_of_an_issuing_ca_that_its_root_revoked() {
    let (pki, issuing, client) = root_and_issuing();
    rename(issuing.crl("sub.crl", &[], A_DAY), pki.path("sub.crl")).unwrap();
    pki.crl("clients.crl", &[&issuing.as_party()], A_DAY);
    let more = "trust_anchors = \"ca.pem\", crls = [\"clients.crl\", \"sub.crl\"]";
    let scene = AskedKeygate::with_pki(pki, &format!("{UNIX}client_auth = {{ {more} }}\n"));
    let denied = scene.connect().ask_about(&client);
    assert_eq!(denied.status, 403);
    assert!(denied.body.contains("is revoked"), "{}", denied.body);
}

#[test]
fn a_listed_root_rejects_the_clients_of_an_issuing_ca_in_the_same_file() {
    let (pki, _issuing, client) = root_and_issuing();
    let origin = Origin::start();
    write(pki.path("deny.txt"), Fingerprint::of(&pki.spki()).to_string()).unwrap();
    let keygate = Configuration::new(origin.address())
        .global("lists = [{ name = \"march\", path = \"deny.txt\" }]")
        .policy("judge = \"chain\", allow_compromised_own_key = true")
        .start(&pki);
    rejects(&keygate, &client, "access denied");
    let line = keygate.wait_for("its line", |line| line["message"] == "client key rejected");
    assert_eq!(line["found_subject"], "CN=Test CA");
}

#[test]
fn a_pinned_certificate_admits_its_client_and_issues_nobody() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let (pinned, forged) = pki.self_signed_client("pinned");
    let keygate = Configuration::new(origin.address())
        .client_auth("trust_anchors = \"pinned.pem\"")
        .global("lists = [{ name = \"march\", path = \"deny.txt\" }]");
    write(pki.path("deny.txt"), "").unwrap();
    let keygate = keygate.start(&pki);
    for _ in 0..2 {
        admits(&keygate, &pinned);
        rejects(&keygate, &forged, "unknown ca");
    }
    rejects(&keygate, &forged.present_with(&[&pinned.der]), "alert");
    let output = output_text(&validate(&pki));
    let counts = "service test: trust anchors: 0 roots, 0 intermediates, 1 pinned certificate";
    assert!(output.contains(counts), "{output}");
    // Its key is judged as any client's.
    write(pki.path("deny.txt"), Fingerprint::of(&pinned.spki).to_string()).unwrap();
    keygate.wait_for_generation(2);
    rejects(&keygate, &pinned, "access denied");
}

#[test]
fn validate_tells_the_trust_anchors_apart_and_names_those_that_admit_nobody() {
    let (pki, _, _) = root_and_issuing();
    let origin = Origin::start();
    let config = Configuration::new(origin.address());
    write(pki.path("keygate.toml"), config.text()).unwrap();
    let output = output_text(&validate(&pki));
    let counts = "service test: trust anchors: 1 root, 1 intermediate, 0 pinned certificates";
    assert!(output.contains(counts), "{output}");
    assert!(!output.contains("trust_anchors"), "{output}");

    let server = pki.server("other");
    let mut unknown = CertificateParams::default();
    let mut extension =
        CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 55_555, 1], vec![5, 0]);
    extension.set_criticality(true);
    unknown.custom_extensions.push(extension);
    let critical = Pki::with_parameters("Critical CA", unknown);
    let cas = [critical.path("ca.pem"), server.certificate, pki.path("server.pem")];
    let cas: String = cas.iter().filter_map(|path| read_to_string(path).ok()).collect();
    write(pki.path("wrong.pem"), cas).unwrap();
    let config = config.client_auth("trust_anchors = \"wrong.pem\"");
    write(pki.path("keygate.toml"), config.text()).unwrap();
    let output = output_text(&validate(&pki));
    for expected in [
        "CN=Critical CA has a critical extension that is not supported",
        "its extended key usage has serverAuth only",
        "is the service's own certificate, and no CA",
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
}

#[test]
fn an_issuing_ca_outside_of_every_list_of_its_root_issues_no_clients() {
    let (pki, issuing, client) = root_and_issuing();
    let origin = Origin::start();
    rename(issuing.crl("sub.crl", &[], A_DAY), pki.path("sub.crl")).unwrap();
    let point = Some("http://crl.example/a");
    let list = RevocationList { distribution_point: point, ..RevocationList::new(1, &[]) };
    pki.crl_with("clients.crl", &list);
    let keygate =
        configuration(&origin, "").client_auth("crls = [\"clients.crl\", \"sub.crl\"]").start(&pki);
    rejects(&keygate, &client, "alert");
}
