//! Updates of CAs that wait, while services share the file, are renamed or are removed.
//!
//! Guards: `waiting_next` in `src/saved_state/rollback_state.rs`, `former` in
//! `src/sources/credential_source.rs`, `take_over` in `src/saved_state/saved_credentials.rs`,
//! `may_be_of` in `src/sources/check/dry_run.rs`.

use std::fs::{create_dir, read_to_string, rename, write};

use serde_json::Value;

use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::output_text;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::contains;
use crate::support::write_filter;

const NOT_CHECKED: &str = "not checked: no recent client";
const NO_COPY: &str =
    "not checked: an update waited, and state.dir has no copy of the files before it";

/// The service `test`, which admits one new hit at once, and the service `second` on the same address,
/// which admits none. Both trust `clients.pem`.
struct Scene {
    pki: Pki,
    keygate: Keygate,
    clients: [Party; 3],
    origin: Origin,
}

impl Scene {
    fn new(configure: impl FnOnce(Configuration) -> Configuration) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let clients = ["one", "two", "three"].map(|name| pki.client(name, Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[]);
        create_dir(pki.path("state")).unwrap();
        std::fs::copy(pki.path("ca.pem"), pki.path("clients.pem")).unwrap();
        std::fs::copy(Pki::named("Another CA").path("ca.pem"), pki.path("other.pem")).unwrap();
        let list = pki.signed_crl(&RevocationList::new(1, &[])).pem().unwrap();
        write(pki.path("clients.crl"), list).unwrap();
        let keygate = configure(base(&origin)).start(&pki);
        Self { pki, keygate, clients, origin }
    }

    fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn second_admits(&self, client: &Party) {
        let port = self.keygate.address().port();
        let url = format!("https://second.test:{port}/");
        let resolved = format!("second.test:{port}:127.0.0.1");
        let response = self.keygate.curl(client, &["--insecure", "--resolve", &resolved, &url]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn publish(&self, name: &str, content: impl AsRef<[u8]>) {
        write(self.pki.path("next"), content).unwrap();
        rename(self.pki.path("next"), self.pki.path(name)).unwrap();
    }

    /// Replaces the CA of the clients by another one.
    fn publish_other_ca(&self) {
        self.publish("clients.pem", read_to_string(self.pki.path("other.pem")).unwrap());
    }

    /// Publishes a configuration, whose services then have these names.
    fn reconfigure(&self, text: &str, names: &[&str]) {
        let loaded = self.keygate.lines("configuration loaded").len();
        self.publish("keygate.toml", text);
        self.keygate.wait_for_lines("the configuration", loaded + 1, |line| {
            line["message"] == "configuration loaded"
        });
        self.keygate.wait_for_status("the names", |status| {
            let services = status["services"].as_array().unwrap().iter();
            services.map(|it| it["name"].as_str().unwrap()).eq(names.iter().copied())
        });
    }

    fn rejects_configuration(&self, text: &str, problem: &str) {
        self.publish("keygate.toml", text);
        self.keygate.wait_for(problem, |line| {
            line["message"] == "configuration rejected, keeping the one in use"
                && contains(&line["problem"], problem)
        });
    }

    fn service(&self, index: usize, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let status = self.keygate.wait_for_status(what, |status| is(&status["services"][index]));
        status["services"][index].clone()
    }

    fn waits(&self, index: usize, new_hits: usize) {
        self.service(index, "an update that waits", |it| it["waiting"]["new_hits"] == new_hits);
    }

    fn restart(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
        let text = read_to_string(self.pki.path("keygate.toml")).unwrap();
        self.keygate = Keygate::configured(&self.pki, &text);
    }
}

fn base(origin: &Origin) -> Configuration {
    Configuration::new(origin.address())
        .global("state = { dir = \"state\" }")
        .client_auth("trust_anchors = \"clients.pem\", max_new_hits = 1")
}

fn with_second(configuration: Configuration) -> Configuration {
    configuration
        .second_service("server_names = [\"second.test\"]\nclient_auth = { max_new_hits = 0 }")
}

/// The configuration with a new name in place of each name in `names`.
fn renamed(configuration: &Configuration, names: &[(&str, &str)]) -> String {
    names.iter().fold(configuration.text(), |text, (from, to)| {
        let [from, to] = [from, to].map(|name| format!("name = \"{name}\""));
        assert!(text.contains(&from), "{text}");
        text.replace(&from, &to)
    })
}

#[test]
fn each_service_remembers_its_own_new_hits_of_a_shared_file() {
    let mut scene = Scene::new(with_second);
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.second_admits(&scene.clients[0]);
    scene.publish_other_ca();
    for _ in 0..2 {
        scene.waits(0, 3);
        scene.waits(1, 1);
        scene.admits(&scene.clients[1]);
        scene.restart();
    }
}

#[test]
fn a_renamed_service_takes_over_the_copy_of_the_ca_before_the_one_that_waits() {
    let mut scene = Scene::new(|it| it);
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.publish_other_ca();
    scene.waits(0, 3);
    scene.reconfigure(&renamed(&base(&scene.origin), &[("test", "renamed")]), &["renamed"]);
    scene.waits(0, 3);
    scene.restart();
    scene.waits(0, 3);
    scene.admits(&scene.clients[0]);
}

#[test]
fn a_service_that_is_renamed_while_keygate_is_stopped_lets_no_waiting_ca_through() {
    let mut scene = Scene::new(|it| it);
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.publish_other_ca();
    scene.waits(0, 3);
    scene.publish("keygate.toml", renamed(&base(&scene.origin), &[("test", "renamed")]));
    for _ in 0..2 {
        scene.restart();
        scene.service(0, "the name", |it| it["name"] == "renamed");
        scene.waits(0, 3);
        scene.admits(&scene.clients[0]);
    }
}

#[test]
fn two_services_that_are_renamed_at_once_keep_their_own_waiting_updates() {
    // The first one has no limit, and uses the update.
    let unlimited = |it: Configuration| with_second(it).unset("services.client_auth.max_new_hits");
    let scene = Scene::new(unlimited);
    scene.second_admits(&scene.clients[0]);
    scene.publish_other_ca();
    scene.waits(1, 1);
    let text = renamed(&unlimited(base(&scene.origin)), &[("test", "a"), ("second", "b")]);
    scene.reconfigure(&text, &["a", "b"]);
    scene.waits(1, 1);
    scene.second_admits(&scene.clients[0]);
}

#[test]
fn a_service_that_is_removed_and_added_again_says_that_its_update_waited() {
    let scene = Scene::new(with_second);
    scene.second_admits(&scene.clients[0]);
    scene.publish_other_ca();
    scene.waits(1, 1);
    scene.reconfigure(&base(&scene.origin).text(), &["test"]);
    scene.reconfigure(&with_second(base(&scene.origin)).text(), &["test", "second"]);
    scene.service(1, "the update", |it| it["max_new_hits"] == NO_COPY);
    scene.keygate.wait_for("a warning", |line| {
        line["message"] == "max_new_hits was not checked"
            && line["service"] == "second"
            && line["max_new_hits"] == NO_COPY
    });
}

#[test]
fn a_configuration_is_used_while_a_ca_without_a_list_waits() {
    let with_list = |it: Configuration| it.client_auth("crls = [\"clients.crl\"]");
    let scene = Scene::new(with_list);
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.publish_other_ca();
    scene.waits(0, 3);
    let flagging = with_list(base(&scene.origin)).policy("on_probable = \"flag\"");
    scene.reconfigure(&flagging.text(), &["test"]);
    scene.service(0, "the policy", |it| it["on_probable"] == "flag");
    scene.waits(0, 3);
    scene.admits(&scene.clients[0]);
}

#[test]
fn cas_still_wait_after_another_list_was_configured() {
    let with_lists =
        |it: Configuration, names: &[&str]| it.set("services.client_auth.crls", names.to_vec());
    let scene = Scene::new(|it| with_lists(it, &["clients.crl"]));
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.publish_other_ca();
    scene.waits(0, 3);
    std::fs::copy(scene.pki.path("clients.crl"), scene.pki.path("more.crl")).unwrap();
    let more = with_lists(base(&scene.origin), &["clients.crl", "more.crl"]);
    scene.reconfigure(&more.text(), &["test"]);
    scene.waits(0, 3);
    scene.admits(&scene.clients[0]);
}

#[test]
fn the_clients_before_a_renaming_count_for_a_later_configuration() {
    let scene = Scene::new(|it| it);
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.reconfigure(&renamed(&base(&scene.origin), &[("test", "renamed")]), &["renamed"]);
    let other = base(&scene.origin).client_auth("trust_anchors = \"other.pem\"");
    let other = renamed(&other, &[("test", "renamed")]);
    scene.rejects_configuration(&other, "it would reject 3 of the 3 clients admitted recently");
    scene.admits(&scene.clients[0]);
}

#[test]
fn a_configuration_with_another_ca_that_was_tried_on_nobody_says_so() {
    let scene = Scene::new(|it| it);
    let other = base(&scene.origin).client_auth("trust_anchors = \"other.pem\"");
    scene.reconfigure(&other.text(), &["test"]);
    scene.service(0, "the CA", |it| it["max_new_hits"] == NOT_CHECKED);
    scene.keygate.wait_for("a warning", |line| {
        line["message"] == "max_new_hits was not checked" && line["max_new_hits"] == NOT_CHECKED
    });
}

#[test]
fn a_rejected_certificate_is_red_although_a_ca_waits() {
    let scene = Scene::new(|it| it);
    scene.clients.iter().for_each(|client| scene.admits(client));
    scene.publish_other_ca();
    scene.waits(0, 3);
    let is_condition = |level, problems: [&str; 2]| {
        scene.keygate.wait_for_status(level, |status| {
            let first = &status["attention"][0];
            first["level"] == level && problems.iter().all(|it| contains(&first["problem"], it))
        })
    };
    is_condition("amber", ["an update waits (new_hits)", "would reject 3 of the clients"]);
    scene.publish("server.pem", "no certificate");
    is_condition("red", ["rejected (content)", "would reject 3 of the clients"]);
}
