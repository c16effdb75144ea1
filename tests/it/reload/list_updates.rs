//! Updates of lists that need the operator: shrunk ones, and those that would reject recent clients.
//!
//! Guards: `ensure_may_be_used` in `src/sources/guarded.rs`, `Gate` in
//! `src/sources/gate.rs`, `ensure_canaries_listed` in
//! `src/sources/check/canary.rs`.

use std::fs::{create_dir, write};
use std::process::Output;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use keygate_core::spki::Fingerprint;
use serde_json::{Value, json};

use crate::support::keygate::{Keygate, keygate};
use crate::support::keys::written;
use crate::support::origin::Origin;
use crate::support::output_text;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::contains;
use crate::support::write_filter;

const ACCEPTED: &str = "keygate_list_updates_accepted_total{list=\"deny\"}";

/// A proxy with a list of `listed` and of other keys.
struct Scene {
    pki: Pki,
    keygate: Keygate,
    good: Party,
    listed: Party,
    _origin: Origin,
}

impl Scene {
    fn new(keys: &str) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, listed] = ["good", "listed"].map(|name| pki.client(name, Kind::P256));
        create_dir(pki.path("state")).unwrap();
        let list = list(&[&listed], 3);
        write(pki.path("deny.txt"), list).unwrap();
        let global = format!(
            "state = {{ dir = \"state\" }}\n[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n{keys}\n"
        );
        let configuration = Configuration::new(origin.address()).unset("filters").global(&global);
        let keygate = configuration.start(&pki);
        let scene = Self { pki, keygate, good, listed, _origin: origin };
        scene.is_as_it_was();
        scene
    }

    fn is_as_it_was(&self) {
        assert_eq!(self.keygate.curl(&self.good, &[]).stdout, b"hello\n");
        self.keygate.rejection(&self.listed);
        assert_eq!(self.keygate.status()["lists"][0]["entries"], 4);
    }

    fn publish(&self, content: &str) {
        write(self.pki.path("deny.txt"), content).unwrap();
    }

    fn waits(&self, reason: &str, problem: &str) -> Value {
        self.keygate.wait_for("an update that waits", |line| {
            line["message"] == "list update rejected, keeping the one in use"
                && line["reason"] == reason
                && contains(&line["error"], problem)
        })
    }

    fn has_waited_since_the_start(&self, reason: &str) {
        self.keygate.wait_for("the copy", |line| {
            line["message"] == "list file rejected at the start, using the last good list"
                && line["reason"] == reason
        });
        assert_eq!(self.keygate.status()["lists"][0]["acceptable"], true);
    }

    fn restart(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
        let text = std::fs::read_to_string(self.pki.path("keygate.toml")).unwrap();
        self.keygate = Keygate::configured(&self.pki, &text);
    }

    fn accept(&self, arguments: &[&str]) -> Output {
        let text = std::fs::read_to_string(self.pki.path("keygate.toml")).unwrap();
        let address = format!("listen = \"{}\"", self.keygate.admin_address());
        let config = self.pki.path("admin.toml");
        write(&config, text.replacen("listen = \"127.0.0.1:0\"", &address, 1)).unwrap();
        let own = ["list", "accept", "deny", "--config", config.to_str().unwrap()];
        keygate(&[&own[..], arguments].concat())
    }
}

fn list(parties: &[&Party], others: u32) -> String {
    let others = (0..others).map(|it| Fingerprint::of(&it.to_be_bytes()));
    let parties = parties.iter().map(|party| Fingerprint::of(&party.spki));
    parties.chain(others).map(|it| format!("{it}\n")).collect()
}

fn sha256(content: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, content.as_bytes()).as_ref())
}

#[test]
fn a_list_that_lost_half_of_its_keys_waits_for_the_operator() {
    let mut scene = Scene::new("");
    for (content, entries) in [("# all clear\n".to_owned(), 0), (list(&[], 2), 2)] {
        scene.publish(&content);
        scene.waits("shrunk", &format!("the number of entries falls from 4 to {entries}"));
        scene.is_as_it_was();
        scene.restart();
        scene.has_waited_since_the_start("shrunk");
        scene.is_as_it_was();
    }
    let status = scene.keygate.status();
    let waiting = &status["lists"][0]["waiting"];
    assert_eq!(
        (&waiting["sha256"], &waiting["entries"]),
        (&sha256(&list(&[], 2)).into(), &2.into())
    );
    let condition = &status["attention"][0];
    assert_eq!(condition["level"], "amber", "{condition}");
    assert!(contains(&condition["command"], "keygate list accept deny"), "{condition}");
    let page = scene.keygate.admin("/").1;
    assert!(page.contains("keygate list accept deny"), "{page}");

    let output = scene.accept(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    assert!(output_text(&output).contains("deny: an update with 2 entries waits"));
    let another = scene.accept(&["--sha256", &"0".repeat(64)]);
    assert_eq!(another.status.code(), Some(3), "{}", output_text(&another));
    let output = scene.accept(&["--yes", "--json"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let accepted: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&accepted["list"], &accepted["entries"]), (&json!("deny"), &json!(2)));
    assert_eq!(scene.keygate.curl(&scene.listed, &[]).stdout, b"hello\n");
    assert_eq!(scene.keygate.metric(ACCEPTED), 1.0);
    scene.keygate.wait_for("the record", |line| {
        line["message"] == "list update accepted by an operator" && line["list"] == "deny"
    });
    assert_eq!(scene.accept(&["--yes"]).status.code(), Some(3), "nothing waits any more");
    // An update that passes is used at once.
    scene.publish(&list(&[&scene.listed], 2));
    scene.keygate.wait_for_status("the update", |status| status["lists"][0]["entries"] == 3);
}

#[test]
fn a_list_whose_keys_were_replaced_by_as_many_others_waits_for_the_operator() {
    let mut scene = Scene::new("");
    let others = (10_u32..13).map(|it| Fingerprint::of(&it.to_be_bytes()));
    let others: String = others.map(|it| format!("{it}\n")).collect();
    scene.publish(&format!("{}{others}", list(&[], 1)));
    scene.waits("shrunk", "it lacks 3 of the entries in use (4), more than half");
    scene.is_as_it_was();
    scene.restart();
    scene.has_waited_since_the_start("shrunk");
    scene.is_as_it_was();
    let half = list(&[&scene.listed], 1);
    scene.publish(&format!("{half}{others}"));
    scene.keygate.wait_for_status("the update", |status| status["lists"][0]["entries"] == 5);
    scene.keygate.rejection(&scene.listed);
}

#[test]
fn a_list_that_would_reject_recent_clients_waits_for_the_operator() {
    let mut scene = Scene::new("max_new_hits = 0");
    let update = list(&[&scene.listed, &scene.good], 3);
    scene.publish(&update);
    let line = scene.waits("new_hits", "would reject 1 of the clients admitted recently");
    assert!(contains(&line["clients"], "CN=good (test)"), "{line}");
    assert_eq!(line["sha256"], sha256(&update).as_str());
    scene.is_as_it_was();
    scene.restart();
    scene.has_waited_since_the_start("new_hits");
    assert_eq!(scene.keygate.status()["lists"][0]["waiting"]["clients"][0]["subject"], "CN=good");
    scene.is_as_it_was();
    let path = "/lists/deny/accept";
    let body = format!("{{\"sha256\":\"{}\"}}", sha256(&update));
    let (status, response) = scene.keygate.post(path, "application/json", &body);
    assert_eq!(status, 200, "{response}");
    scene.keygate.rejection(&scene.good);
    assert_eq!(scene.keygate.post("/lists/found/accept", "application/json", &body).0, 404);

    // The status names an update that was tried on nobody.
    scene.restart();
    scene.publish(&list(&[&scene.listed, &scene.good], 5));
    scene.keygate.wait_for_status("the update", |status| {
        status["lists"][0]["max_new_hits"] == "not checked: no recent client"
    });
}

#[test]
fn a_list_without_its_canaries_or_with_too_few_keys_is_rejected() {
    let scene = Scene::new("min_records = 3\ncanaries = [\"listed.pem\"]");
    scene.publish(&list(&[&scene.good], 3));
    scene.waits("canary", "listed.pem is not in the list: keys were lost");
    scene.is_as_it_was();
    scene.publish(&list(&[&scene.listed], 1));
    scene.waits("shrunk", "records: 2, and min_records is 3");
    scene.publish(&list(&[&scene.listed, &scene.good], 3));
    scene.keygate.wait_for_status("the update", |status| status["lists"][0]["entries"] == 5);
}

#[test]
fn a_list_that_shrank_is_used_if_the_configuration_allows_it() {
    let scene = Scene::new("");
    scene.publish(&list(&[&scene.good], 0));
    scene.waits("shrunk", "the number of entries falls from 4 to 1");
    let config = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("path = \"deny.txt\"", "path = \"deny.txt\", shrink = \"allow\"");
    write(config, text).unwrap();
    scene.keygate.wait_for_status("the update", |status| status["lists"][0]["entries"] == 1);
    scene.keygate.rejection(&scene.good);
}

#[test]
fn new_hits_of_several_updates_count_together_for_seven_days() {
    let mut scene = Scene::new("max_new_hits = 1");
    let clients = ["one", "two"].map(|name| scene.pki.client(name, Kind::P256));
    for client in &clients {
        assert_eq!(scene.keygate.curl(client, &[]).stdout, b"hello\n");
    }
    let [one, two] = &clients;
    scene.publish(&list(&[&scene.listed, one], 3));
    scene.keygate.wait_for_generation(2);
    scene.keygate.rejection(one);
    scene.restart();
    assert_eq!(scene.keygate.curl(two, &[]).stdout, b"hello\n");
    scene.publish(&list(&[&scene.listed, one, two], 3));
    scene.waits("new_hits", "max_new_hits allows 1 in seven days, and earlier updates had 1");
    assert_eq!(scene.keygate.curl(two, &[]).stdout, b"hello\n");
    assert!(scene.accept(&["--yes"]).status.success());
    scene.keygate.rejection(two);
}

#[test]
fn a_list_that_is_removed_and_added_again_is_compared_with_its_entries_before() {
    let scene = Scene::new("");
    let path = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    write_filter(&scene.pki.path("lost.pkbf"), &[b"another"]);
    let mut without: toml::Table = text.parse().unwrap();
    without.remove("lists");
    let filters = "filters = [{ name = \"lost\", path = \"lost.pkbf\" }]";
    without.extend(filters.parse::<toml::Table>().unwrap());
    write(&path, written(&without)).unwrap();
    scene.keygate.wait_for_generation(2);
    scene.publish(&list(&[], 1));
    write(&path, &text).unwrap();
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(&line["problem"], "the number of entries falls from 4 to 1")
            && contains(&line["problem"], "or set shrink = ")
    });
}

#[test]
fn a_list_that_is_removed_and_added_again_is_tried_on_recent_clients() {
    let scene = Scene::new("max_new_hits = 0");
    let listed = list(&[&scene.listed, &scene.good], 2);
    scene.publish(&listed);
    scene.waits("new_hits", "would reject 1 of the clients admitted recently");
    let config = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let without = text.replace("\"deny\"", "\"other\"").replace("\"deny.txt\"", "\"other.txt\"");
    write(scene.pki.path("other.txt"), list(&[&scene.listed], 3)).unwrap();
    write(&config, without).unwrap();
    scene.keygate.wait_for_status("the other list", |status| status["lists"][0]["name"] == "other");
    scene.publish(&list(&[&scene.listed], 4));
    write(&config, text).unwrap();
    scene.keygate.wait_for_status("the list", |status| {
        let list = &status["lists"][0];
        list["name"] == "deny" && list["entries"] == 5
    });
}
