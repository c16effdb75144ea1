//! The files of a service are independent: an update that is rejected keeps no other one out.
//!
//! Guards: `refresh` in `src/sources/credential_source.rs` (each unit by itself),
//! `finish` in `crates/core/src/tls/crls/loader.rs` (each CA by itself).

use std::fs::{create_dir, read, read_to_string, rename, write};
use std::path::PathBuf;

use data_encoding::BASE64;

use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::output_text;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::contains;
use crate::support::write_filter;

const CRLS_SUCCESSFUL: &str = "keygate_crl_last_reload_successful{service=\"test\"}";

/// A service with the clients of two CAs, each with a list in a file of its own.
struct Scene {
    ours: Pki,
    theirs: Pki,
    keygate: Keygate,
    client: Party,
    stranger: Party,
}

impl Scene {
    fn new() -> Self {
        let (ours, theirs, origin) = (Pki::new(), Pki::named("Another CA"), Origin::start());
        let [client, stranger] = [(&ours, "client"), (&theirs, "stranger")]
            .map(|(pki, name)| pki.client(name, Kind::P256));
        write_filter(&ours.path("lost.pkbf"), &[]);
        let pem = [&ours, &theirs].map(|pki| read_to_string(pki.path("ca.pem")).unwrap());
        write(ours.path("clients.pem"), pem.concat()).unwrap();
        for (pki, name) in [(&ours, "ours.crl"), (&theirs, "theirs.crl")] {
            let list = pki.signed_crl(&RevocationList::new(1, &[])).pem().unwrap();
            write(ours.path(name), list).unwrap();
        }
        create_dir(ours.path("state")).unwrap();
        let configuration = Configuration::new(origin.address())
            .global("state = { dir = \"state\" }")
            .client_auth("trust_anchors = \"clients.pem\"")
            .client_auth("crls = [\"ours.crl\", \"theirs.crl\"]");
        let keygate = configuration.start(&ours);
        let scene = Self { ours, theirs, keygate, client, stranger };
        scene.admits(&scene.client);
        scene.admits(&scene.stranger);
        scene
    }

    fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn refuses(&self, client: &Party, problem: &str) {
        let text = self.keygate.rejection(client);
        assert!(text.contains(problem), "{}: {text}", client.name);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.ours.path(name)
    }

    fn publish(&self, name: &str, content: impl AsRef<[u8]>) {
        write(self.path("next"), content).unwrap();
        rename(self.path("next"), self.path(name)).unwrap();
    }

    /// Publishes a list of our CA whose signature is wrong.
    fn publish_forged(&self, name: &str, others: &[u8]) {
        let list = self.ours.signed_crl(&RevocationList::new(2, &[]));
        let mut forged = list.der().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        let body = BASE64.encode(&forged);
        let pem = format!("-----BEGIN X509 CRL-----\n{body}\n-----END X509 CRL-----\n");
        self.publish(name, [pem.as_bytes(), others].concat());
    }

    fn is_rejected(&self, files: &str, problem: &str) {
        self.keygate.wait_for(problem, |line| {
            line["message"] == "certificate update rejected, keeping those in use"
                && line["service"] == "test"
                && line["files"] == files
                && contains(&line["error"], problem)
        });
        self.keygate.wait_for_status(problem, |status| {
            let last = &status["services"][0]["last_reload"];
            last["result"] == "refused" && contains(&last["error"], problem)
        });
        assert!(self.keygate.admin("/").1.contains("service test"));
    }
}

fn reloads(files: &str, result: &str) -> String {
    format!(
        "keygate_credential_reloads_total{{files=\"{files}\",result=\"{result}\",service=\"test\"}}"
    )
}

fn successful(files: &str) -> String {
    format!("keygate_credential_last_reload_successful{{files=\"{files}\",service=\"test\"}}")
}

#[test]
fn an_unusable_list_of_one_ca_keeps_no_list_of_another_out() {
    for is_shared in [false, true] {
        let scene = Scene::new();
        let all = [&scene.stranger];
        let theirs = scene.theirs.signed_crl(&RevocationList::new(2, &all)).pem().unwrap();
        if is_shared {
            scene.publish_forged("ours.crl", theirs.as_bytes());
        } else {
            scene.publish_forged("ours.crl", b"");
            scene.is_rejected("crls", "its signature is not by CN=Test CA");
            scene.publish("theirs.crl", &theirs);
        }
        scene.keygate.wait_for_generation(2);
        scene.refuses(&scene.stranger, "certificate revoked");
        scene.admits(&scene.client);
        scene.is_rejected("crls", "its signature is not by CN=Test CA");
        assert_eq!(scene.keygate.metric(CRLS_SUCCESSFUL), 0.0);
        let lists = scene.keygate.status()["services"][0]["crls"].clone();
        assert_eq!(
            (&lists[0]["number"], &lists[1]["number"]),
            (&"2".into(), &"1".into()),
            "{lists}"
        );

        let all = [&scene.client];
        let ours = scene.ours.signed_crl(&RevocationList::new(2, &all)).pem().unwrap();
        let shared = if is_shared { ours + &theirs } else { ours };
        scene.publish("ours.crl", shared);
        scene.keygate.wait_for_generation(3);
        scene.refuses(&scene.client, "certificate revoked");
        scene.refuses(&scene.stranger, "certificate revoked");
        assert_eq!(scene.keygate.metric(CRLS_SUCCESSFUL), 1.0);
    }
}

#[test]
fn an_unusable_list_keeps_no_certificate_out_and_a_wrong_key_keeps_no_list_out() {
    let scene = Scene::new();
    scene.publish("ours.crl", "no list");
    scene.is_rejected("crls", "there is no revocation list in it");
    let server = scene.ours.server("another");
    let key = read(scene.path("server.key")).unwrap();
    scene.publish("server.pem", read(&server.certificate).unwrap());
    scene.is_rejected("server", "does not belong to the certificate");
    scene.keygate.wait_for_metric(&successful("server"), 0.0);
    assert_eq!(scene.keygate.metric(&reloads("server", "refused")), 1.0);
    let by_reason =
        "keygate_credential_refusals_total{files=\"server\",reason=\"key\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(by_reason), 1.0);
    assert_eq!(scene.keygate.metric(&successful("client_ca")), 1.0);

    // The list of the other CA, while the key does not fit.
    let all = [&scene.stranger];
    let theirs = scene.theirs.signed_crl(&RevocationList::new(2, &all)).pem().unwrap();
    scene.publish("theirs.crl", theirs);
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.stranger, "certificate revoked");

    // The renewed certificate, while the list of our CA is unusable.
    scene.publish("server.key", read(&server.private_key).unwrap());
    scene.keygate.wait_for_generation(3);
    assert_eq!(scene.keygate.metric(&successful("server")), 1.0);
    assert_eq!(
        scene.keygate.metric(&reloads("server", "loaded")),
        2.0,
        "the first pair, then this"
    );
    let pin = scene.path("pin.der");
    write(&pin, &server.spki).unwrap();
    let response = scene.keygate.curl(&scene.client, &["--pinnedpubkey", pin.to_str().unwrap()]);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    assert_eq!(scene.keygate.metric(CRLS_SUCCESSFUL), 0.0);
    assert_ne!(read(scene.path("server.key")).unwrap(), key);
}

#[test]
fn an_unusable_ca_file_is_counted_and_keeps_nothing_else_out() {
    let scene = Scene::new();
    scene.publish("clients.pem", "no list");
    scene.is_rejected("client_ca", "no certificate");
    scene.keygate.wait_for_metric(&successful("client_ca"), 0.0);
    assert_eq!(scene.keygate.metric(&reloads("client_ca", "refused")), 1.0);
    assert_eq!(scene.keygate.metric(CRLS_SUCCESSFUL), 1.0);
    let all = [&scene.stranger];
    let theirs = scene.theirs.signed_crl(&RevocationList::new(2, &all)).pem().unwrap();
    scene.publish("theirs.crl", theirs);
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.stranger, "certificate revoked");
    scene.admits(&scene.client);
    scene.publish("clients.pem", read(scene.ours.path("ca.pem")).unwrap());
    scene.keygate.wait_for_metric(&successful("client_ca"), 1.0);
    scene.refuses(&scene.stranger, "unknown ca");
}

#[test]
fn a_replaced_ca_is_not_trusted_although_the_lists_of_the_old_ones_are_left_over() {
    let scene = Scene::new();
    let third = Pki::named("Third CA");
    let newcomer = third.client("newcomer", Kind::P256);
    scene.publish("clients.pem", read(third.path("ca.pem")).unwrap());
    scene.keygate.wait_for_generation(2);
    for client in [&scene.client, &scene.stranger] {
        scene.refuses(client, "unknown ca");
    }
    for ca in ["CN=Test CA", "CN=Another CA"] {
        scene.keygate.wait_for("a warning", |line| {
            line["message"] == "certificate revocation list is not used"
                && contains(&line["problem"], ca)
        });
    }
    // The new CA has no list, and lists are configured.
    scene.refuses(&newcomer, "unknown ca");
    scene.keygate.wait_for("the missing list", |line| {
        line["message"] == "certificate revocation list is missing"
            && contains(&line["problem"], "has no list of CN=Third CA")
    });
    assert_eq!(scene.keygate.metric(&successful("client_ca")), 1.0);
    assert_eq!(scene.keygate.metric(CRLS_SUCCESSFUL), 1.0);
    let next = scene.keygate.metrics();
    assert!(!next.contains_key("keygate_crl_next_update_timestamp_seconds{service=\"test\"}"));

    let list = third.signed_crl(&RevocationList::new(1, &[])).pem().unwrap();
    scene.publish("ours.crl", list);
    scene.keygate.wait_for_generation(3);
    scene.admits(&newcomer);
    scene.refuses(&scene.client, "unknown ca");
}

#[test]
fn a_forged_list_in_the_file_of_another_ca_holds_back_no_update() {
    let mut scene = Scene::new();
    let theirs = scene.theirs.signed_crl(&RevocationList::new(2, &[])).pem().unwrap();
    scene.publish_forged("theirs.crl", theirs.as_bytes());
    scene.is_rejected("crls", "its signature is not by CN=Test CA");
    let ours = scene.ours.signed_crl(&RevocationList::new(3, &[&scene.client])).pem().unwrap();
    scene.publish("ours.crl", ours);
    scene.keygate.wait_for_generation(3);
    scene.refuses(&scene.client, "certificate revoked");
    scene.admits(&scene.stranger);
    // Another list of the file is good. A start uses the copy of the one that the forged one replaced.
    scene.publish("theirs.crl", &theirs);
    let theirs = scene.theirs.signed_crl(&RevocationList::new(3, &[])).pem().unwrap();
    scene.publish_forged("ours.crl", theirs.as_bytes());
    scene.keygate.wait_for_generation(4);
    scene.keygate.signal("TERM");
    assert!(scene.keygate.ended().success());
    let text = read_to_string(scene.path("keygate.toml")).unwrap();
    scene.keygate = Keygate::configured(&scene.ours, &text);
    scene.refuses(&scene.client, "certificate revoked");
    scene.admits(&scene.stranger);
}
