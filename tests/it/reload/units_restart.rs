//! Restarts with a CRL or a CA file that cannot be used: the copy in the state directory.
//!
//! Guards: `load` in `src/sources/client_auth.rs`, `save` in
//! `src/saved_state/saved_credentials.rs` (the copies), `check` in `crates/core/src/tls/crls/loader.rs` (expired
//! lists).

use std::fs::{create_dir, read, read_dir, read_to_string, remove_file, write};
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, SystemTime};

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::contains;
use crate::support::{output_text, wait_until, write_filter};

struct Scene {
    pki: Pki,
    text: String,
    keygate: Keygate,
    good: Party,
    revoked: Party,
    origin: Origin,
}

impl Scene {
    fn new() -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[]);
        create_dir(pki.path("state")).unwrap();
        std::fs::copy(pki.path("ca.pem"), pki.path("clients.pem")).unwrap();
        pki.crl_with("clients.crl", &RevocationList::new(5, &[&revoked]));
        let text = Configuration::new(origin.address())
            .global("state = { dir = \"state\" }")
            .client_auth("trust_anchors = \"clients.pem\", crls = [\"clients.crl\"]")
            .text();
        let keygate = Keygate::configured(&pki, &text);
        let scene = Self { pki, text, keygate, good, revoked, origin };
        scene.is_as_it_was();
        wait_until("the copies", || scene.copies().len() == 2);
        scene
    }

    fn is_as_it_was(&self) {
        let response = self.keygate.curl(&self.good, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        let text = self.keygate.rejection(&self.revoked);
        assert!(text.contains("certificate revoked"), "{text}");
    }

    /// The copies of lists and CAs in the state directory.
    fn copies(&self) -> Vec<PathBuf> {
        let files = read_dir(self.pki.path("state")).unwrap().map(|it| it.unwrap().path());
        let mut copies: Vec<_> = files
            .filter(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with("last-good-ca-") || name.starts_with("last-good-crl-")
            })
            .collect();
        copies.sort();
        copies
    }

    fn stop(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
    }

    fn start(&mut self) {
        self.keygate = Keygate::configured(&self.pki, &self.text);
    }

    fn validate(&self) -> Output {
        let config = self.pki.path("keygate.toml");
        keygate(&["validate", "--config", config.to_str().unwrap()])
    }

    fn removes_copies(&self) {
        self.copies().iter().for_each(|copy| remove_file(copy).unwrap());
    }

    fn starts_with_the_copy(&mut self, problem: &str) {
        let validated = self.validate();
        let text = output_text(&validated);
        assert_eq!(validated.status.code(), Some(0), "{text}");
        assert!(text.contains("the last good one in state.dir is in use"), "{text}");
        assert!(text.contains(problem), "{text}");
        self.start();
        self.is_as_it_was();
        self.keygate.wait_for("a warning", |line| {
            line["message"] == "files rejected at the start, using the last good ones"
                && contains(&line["problem"], problem)
        });
        self.keygate.wait_for_status("the rejection", |status| {
            let error = &status["services"][0]["last_reload"]["error"];
            contains(error, problem) && contains(error, "the last good one in state.dir is in use")
        });
    }

    fn does_not_start(&self, problem: &str) {
        let validated = self.validate();
        assert_eq!(validated.status.code(), Some(3), "{}", output_text(&validated));
        assert!(output_text(&validated).contains(problem), "{}", output_text(&validated));
    }
}

const CRLS: &str = "keygate_crl_last_reload_successful{service=\"test\"}";

#[test]
fn a_start_with_an_unusable_revocation_list_uses_the_last_good_one() {
    let mut scene = Scene::new();
    let file = scene.pki.path("clients.crl");
    let good = read(&file).unwrap();
    let copies = scene.copies();
    assert_eq!(read(&copies[1]).unwrap(), good, "the original bytes");
    let ahead = || {
        let mut list = RevocationList::new(6, &[]);
        list.issued = SystemTime::now() + Duration::from_secs(360);
        list.expires = list.issued + Duration::from_secs(86_400);
        scene.pki.signed_crl(&list).pem().unwrap()
    };
    let older = scene.pki.signed_crl(&RevocationList::new(4, &[])).pem().unwrap();
    let of_another = Pki::named("Another CA").signed_crl(&RevocationList::new(9, &[]));
    for (content, problem) in [
        (Some(ahead()), "in the future; correct the clock"),
        (Some("no list".to_owned()), "there is no revocation list in it"),
        (Some(older), "(number 4, issued "),
        (Some(of_another.pem().unwrap()), "no revocation list of CN=Test CA is left"),
        (None, "clients.crl"),
    ] {
        scene.stop();
        match content {
            Some(content) => write(&file, content).unwrap(),
            None => remove_file(&file).unwrap(),
        }
        scene.starts_with_the_copy(problem);
        assert_eq!(scene.keygate.metric(CRLS), 0.0);
        assert_eq!(scene.copies(), copies, "{problem}");
        // The file of the copy is known, so that no list is missing besides.
        write(&file, "more nonsense").unwrap();
        let error = "clients.crl: there is no revocation list in it";
        scene.keygate.wait_for_status("the next rejection", |status| {
            let last = &status["services"][0]["last_reload"]["error"];
            contains(last, error) && !contains(last, "is left")
        });
    }
    // Without a copy nobody knows who is revoked.
    scene.stop();
    scene.removes_copies();
    scene.does_not_start("clients.crl");
    write(&file, good).unwrap();
    scene.start();
    scene.is_as_it_was();
    assert_eq!(scene.keygate.metric(CRLS), 1.0);
    wait_until("the copies", || scene.copies() == copies);
}

#[test]
fn a_start_with_an_expired_revocation_list_rejects_the_clients_of_its_ca() {
    for has_copy in [true, false] {
        let mut scene = Scene::new();
        scene.stop();
        if !has_copy {
            scene.removes_copies();
        }
        let mut expired = RevocationList::new(6, &[]);
        expired.expires = SystemTime::now() - Duration::from_secs(60);
        scene.pki.crl_with("clients.crl", &expired);
        let validated = scene.validate();
        let text = output_text(&validated);
        assert_eq!(validated.status.code(), Some(0), "{text}");
        let warning = "has expired at ";
        assert!(text.contains(warning) && text.contains("its clients are rejected"), "{text}");
        scene.start();
        for client in [&scene.good, &scene.revoked] {
            assert!(!scene.keygate.curl(client, &[]).status.success(), "{}", client.name);
        }
        scene.keygate.wait_for("a warning", |line| {
            line["message"] == "certificate revocation list has expired"
        });
        scene.pki.crl_with("clients.crl", &RevocationList::new(7, &[&scene.revoked]));
        scene.keygate.wait_for_generation(2);
        scene.is_as_it_was();
    }
}

#[test]
fn a_start_with_an_unusable_ca_file_uses_the_last_good_one() {
    let mut scene = Scene::new();
    let file = scene.pki.path("clients.pem");
    let good = read(&file).unwrap();
    assert_eq!(read(&scene.copies()[0]).unwrap(), good, "the original bytes");
    scene.stop();
    write(&file, "no list").unwrap();
    scene.starts_with_the_copy("clients.pem: no certificate");
    let successful =
        "keygate_credential_last_reload_successful{files=\"client_ca\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(successful), 0.0);
    write(&file, &good).unwrap();
    scene.keygate.wait_for_metric(successful, 1.0);
    scene.is_as_it_was();

    // A copy with other bytes than those in use is not used.
    scene.stop();
    let copy = &scene.copies()[0];
    write(&file, "no list").unwrap();
    write(copy, read(Pki::named("Another CA").path("ca.pem")).unwrap()).unwrap();
    scene.does_not_start("clients.pem: no certificate");
    write(&file, &good).unwrap();
    scene.start();
    scene.is_as_it_was();

    // The copy of another path is not used, and a copy that is no longer needed is removed.
    scene.stop();
    let moved = scene.text.replace("clients.pem", "moved.pem");
    write(scene.pki.path("keygate.toml"), &moved).unwrap();
    write(scene.pki.path("moved.pem"), "no list").unwrap();
    scene.does_not_start("moved.pem");
    write(scene.pki.path("moved.pem"), &good).unwrap();
    let before = scene.copies();
    scene.text = moved;
    scene.start();
    wait_until("the new copy", || scene.copies().len() == 2 && scene.copies()[0] != before[0]);
}

#[test]
fn a_configuration_whose_ca_file_cannot_be_used_is_rejected_although_there_is_a_copy() {
    let scene = Scene::new();
    write(scene.pki.path("clients.pem"), "no list").unwrap();
    let changed = Configuration::new(scene.origin.address())
        .global("state = { dir = \"state\" }")
        .client_auth("trust_anchors = \"clients.pem\", crls = [\"clients.crl\"]")
        .policy("judge = \"chain\"");
    write(scene.pki.path("keygate.toml"), changed.text()).unwrap();
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(&line["problem"], "clients.pem: no certificate")
    });
    scene.is_as_it_was();
}

#[test]
fn a_file_with_a_private_key_is_not_copied() {
    let mut scene = Scene::new();
    let file = scene.pki.path("clients.pem");
    let with_key =
        read_to_string(&file).unwrap() + &read_to_string(scene.pki.path("server.key")).unwrap();
    write(&file, &with_key).unwrap();
    scene.keygate.wait_for("the CA", |line| line["message"] == "certificates loaded");
    wait_until("the removal of the copy", || scene.copies().len() == 1);
    scene.is_as_it_was();
    scene.stop();
    for file in read_dir(scene.pki.path("state")).unwrap() {
        let content = read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains("PRIVATE"));
    }
}
