//! Badkeys blocklists over real handshakes: verdict, finding, updates.
//!
//! Guards: `has_numbers` and `for_each_number` in `src/guard.rs`, `find` in
//! `src/badkeys/blocklist.rs`, `ensure_most_records_stay` and `TooFew` in
//! `src/snapshot/load/source/list/read.rs`, `has_same_content` and `check_age` in
//! `src/snapshot/load/source/list.rs`.

use std::fs::{create_dir, read_dir, remove_file, write};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::support::blocklist::{Blocklist, replace};
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, wait_until, write_filter};

const LIST: &str =
    "[[lists]]\nname = \"badkeys\"\nformat = \"badkeys\"\npath = \"bk/blocklist.dat\"\n";
const SUCCESSFUL: &str = "keygate_list_last_reload_successful{list=\"badkeys\"}";
const STALE: &str = "keygate_list_stale{list=\"badkeys\"}";

struct Setting {
    origin: Origin,
    keygate: Keygate,
    pki: Pki,
    good: Party,
    /// On the list, one for each kind of key.
    listed: Vec<Party>,
    configuration: Configuration,
}

impl Setting {
    /// A proxy with a blocklist, which has further `settings`.
    fn new(policy: &str, settings: &str) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let good = pki.client("good", Kind::P256);
        let kinds = Kind::ALL.into_iter().enumerate();
        let listed: Vec<_> =
            kinds.map(|(number, kind)| pki.client(&format!("listed-{number}"), kind)).collect();
        write_filter(&pki.path("lost.pkbf"), &[]);
        create_dir(pki.path("bk")).unwrap();
        create_dir(pki.path("state")).unwrap();
        let top = format!("state = {{ dir = \"state\" }}\n{LIST}{settings}\n");
        let policy = format!("policy = {{ {policy} }}");
        let configuration = Configuration::new(origin.address()).global(&top).service(&policy);
        blocklist(&listed).write(&pki.path("bk"));
        let keygate = configuration.clone().start(&pki);
        Self { origin, keygate, pki, good, listed, configuration }
    }

    fn write(&self, list: &Blocklist) {
        list.write(&self.pki.path("bk"));
    }

    fn list(&self) -> Blocklist {
        blocklist(&self.listed)
    }

    fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn rejects(&self, client: &Party) {
        let text = output_text(&self.keygate.curl(client, &[]));
        assert!(text.contains("access denied"), "{}: {text}", client.name);
    }

    /// Waits until an update is rejected with this error.
    fn wait_for_rejection(&self, error: &str) {
        self.keygate.wait_for(error, |line| {
            line["message"] == "list update rejected, keeping the one in use"
                && line["error"].as_str().unwrap().contains(error)
        });
        self.keygate.wait_for_status(error, |status| {
            let last = &status["lists"][0]["last_reload"];
            last["result"] == "refused" && last["error"].as_str().unwrap().contains(error)
        });
        self.keygate.wait_for_metric(SUCCESSFUL, 0.0);
        self.rejects(&self.listed[1]);
        self.admits(&self.good);
    }

    fn stop(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
    }

    fn start(&mut self) {
        self.keygate = self.configuration.clone().start(&self.pki);
    }

    fn validate(&self) -> std::process::Output {
        write(self.pki.path("check.toml"), self.configuration.text()).unwrap();
        keygate(&["validate", "--config", self.pki.path("check.toml").to_str().unwrap()])
    }
}

/// A list with `listed` and 100 other keys. The last client is in a collection without a name.
fn blocklist(listed: &[Party]) -> Blocklist {
    let ids = [1, 5, 1, 1, 1, 7].into_iter();
    let keys: Vec<_> = listed.iter().map(|client| &client.spki[..]).zip(ids).collect();
    Blocklist::new(&keys).with_others(0, 100)
}

#[test]
fn a_key_on_a_blocklist_is_rejected_and_the_log_names_the_finding() {
    let setting = Setting::new("", "");
    setting.admits(&setting.good);
    for (client, finding) in setting.listed.iter().zip(["debianssl", "firmware"]) {
        setting.rejects(client);
        let line = setting.keygate.wait_for("the line about the client", |line| {
            line["message"] == "client key rejected"
                && line["subject"] == format!("CN={}", client.name)
        });
        assert_eq!((&line["verdict"], &line["list"]), (&json!("listed"), &json!("badkeys")));
        assert_eq!(line["finding"], finding);
    }
    wait_until("the client in the report", || {
        let report: Value = serde_json::from_str(&setting.keygate.admin("/report").1).unwrap();
        let clients = report["clients"].as_array().unwrap();
        clients.iter().any(|it| it["finding"] == "firmware" && it["encoding"] == "ec-x")
    });
    let admin = format!("admin = {{ listen = \"{}\" }}", setting.keygate.admin_address());
    let config = setting.pki.path("admin.toml");
    write(&config, admin).unwrap();
    let shown = output_text(&keygate(&["report", config.to_str().unwrap()]));
    assert!(shown.contains("listed (in badkeys: firmware), reject"), "{shown}");
    let (_, page) = setting.keygate.admin("/");
    assert!(page.contains("badkeys: firmware") && page.contains("<td>badkeys<td"), "{page}");
    let list = &setting.keygate.status()["lists"][0];
    assert_eq!((&list["format"], &list["entries"]), (&json!("badkeys"), &json!(106)));
    assert_eq!((&list["updated"], &list["stale"]), (&json!(1_787_184_000), &json!(false)));
    assert_eq!(list["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(setting.keygate.metric("keygate_list_entries{list=\"badkeys\"}"), 106.0);
}

#[test]
fn the_status_header_has_the_finding_for_every_kind_of_key() {
    let setting = Setting::new("on_listed = \"header\"", "");
    let findings = ["debianssl", "firmware", "debianssl", "debianssl", "debianssl", "id7"];
    for (client, finding) in setting.listed.iter().zip(findings) {
        setting.admits(client);
        let status = format!("listed;list=\"badkeys\";finding=\"{finding}\"");
        assert_eq!(setting.origin.next().fields("client-key-status"), [status]);
    }
    setting.admits(&setting.good);
    assert_eq!(setting.origin.next().fields("client-key-status"), ["clean"]);
}

#[test]
fn a_blocklist_without_metadata_is_used_with_numbers_for_names() {
    let mut setting = Setting::new("on_listed = \"header\"", "max_age = \"30d\"");
    setting.stop();
    remove_file(setting.pki.path("bk/badkeysdata.json")).unwrap();
    let output = setting.validate();
    assert!(output_text(&output).contains("max_age has no effect"), "{}", output_text(&output));
    setting.start();
    setting.admits(&setting.listed[1]);
    let status = "listed;list=\"badkeys\";finding=\"id5\"";
    assert_eq!(setting.origin.next().fields("client-key-status"), [status]);
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "max_age has no effect on a list without a date"
    });
    assert!(setting.keygate.status()["lists"][0].get("updated").is_none());
}

#[test]
fn a_new_blocklist_is_used_and_a_wrong_one_is_not() {
    let setting = Setting::new("", "min_records = 50");
    let file = setting.pki.path("bk/blocklist.dat");
    setting.rejects(&setting.listed[1]);

    let list = setting.list();
    replace(&file, &list.content()[..list.content().len() - 1]);
    setting.wait_for_rejection("its size is 1695 bytes, which is not a multiple of 16");
    let mut unsorted = list.clone();
    unsorted.records.swap(3, 4);
    setting.write(&unsorted);
    setting.wait_for_rejection("record 4 (offset 64) sorts before");
    let mut twice = list.clone();
    twice.records.insert(7, twice.records[7]);
    setting.write(&twice);
    setting.wait_for_rejection("record 8 (offset 128) has the hash of the record before it");
    setting.write(&list.clone().with("blocklist_sha256", "00".repeat(32).into()));
    setting.wait_for_rejection("but blocklist_sha256 in ");
    setting.write(&list.clone().with("bkformat", 1.into()));
    setting.wait_for_rejection("badkeysdata.json: bkformat: 1, and keygate reads 0");
    setting.write(&Blocklist::new(&[]).with_others(0, 49));
    setting.wait_for_rejection("records: 49, and min_records is 50");
    setting.write(&Blocklist::new(&[]).with_others(51, 106));
    setting.wait_for_rejection("it lacks 57 of the records in use (106), more than half");
    remove_file(&file).unwrap();
    setting.wait_for_rejection("No such file");
    assert_eq!(setting.keygate.status()["generation"], 1);

    let good = (&setting.good.spki[..], 1);
    setting.write(&Blocklist::new(&[good]).with_others(0, 60));
    setting.keygate.wait_for_generation(2);
    setting.rejects(&setting.good);
    setting.admits(&setting.listed[1]);
    assert_eq!(setting.keygate.metric(SUCCESSFUL), 1.0);
    setting.keygate.wait_for("the update", |line| {
        line["message"] == "list loaded" && line["entries"] == 61 && line["before"] == 106
    });
}

#[test]
fn a_blocklist_that_is_written_again_unchanged_judges_no_connection_again() {
    let setting = Setting::new("", "");
    let unchanged = "keygate_list_reloads_total{list=\"badkeys\",result=\"unchanged\"}";
    assert_eq!(setting.keygate.metric(unchanged), 0.0);
    replace(&setting.pki.path("bk/blocklist.dat"), setting.list().content());
    setting.keygate.wait_for_metric(unchanged, 1.0);
    assert_eq!(setting.keygate.status()["generation"], 1);
    // Other names are another value.
    setting.write(&setting.list().with("blocklists", json!([{ "id": 5, "name": "cameras" }])));
    setting.keygate.wait_for_generation(2);
    setting.rejects(&setting.listed[1]);
    setting.keygate.wait_for("the new name", |line| line["finding"] == "cameras");
}

#[test]
fn a_blocklist_that_shrank_is_used_if_the_configuration_allows_it() {
    let mut setting = Setting::new("", "");
    let shrunk = Blocklist::new(&[(&setting.good.spki, 1)]).with_others(0, 20);
    let copies = || {
        let files = read_dir(setting.pki.path("state")).unwrap().map(|it| it.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|it| it == "dat")).count()
    };
    wait_until("the copy of the list", || copies() == 1);
    setting.write(&shrunk);
    setting.wait_for_rejection("more than half");
    setting.stop();

    // A restart does not let it through, because the state directory has a copy.
    let output = setting.validate();
    assert!(output.status.success(), "{}", output_text(&output));
    let warning = "more than half: fetch it again, or set shrink = \"allow\"";
    assert!(output_text(&output).contains(warning), "{}", output_text(&output));
    setting.start();
    setting.rejects(&setting.listed[1]);
    setting.keygate.wait_for("the finding, which the copy has", |it| it["finding"] == "firmware");
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "list file rejected at the start, using the last good list"
    });
    assert_eq!(setting.keygate.status()["lists"][0]["updated"], 1_787_184_000);

    // Another setting does not let it through either.
    let configure = |key: &str| {
        let text = setting.configuration.clone().add("lists", key).text();
        write(setting.pki.path("keygate.toml"), text).unwrap();
        setting.keygate.signal("HUP");
    };
    configure("min_records = 1");
    setting.keygate.wait_for("a rejected configuration", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && line["problem"].as_str().unwrap().contains("more than half")
    });
    setting.rejects(&setting.listed[1]);
    configure("shrink = \"allow\"");
    setting.keygate.wait_for_generation(2);
    setting.rejects(&setting.good);
    setting.admits(&setting.listed[1]);
}

#[test]
fn an_old_blocklist_is_reported_as_stale() {
    let setting = Setting::new("", "max_age = \"30d\"");
    let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    setting.write(&setting.list().with("date", today.into()));
    setting.keygate.wait_for_metric(STALE, 0.0);
    setting.write(&setting.list().with("date", "2020-01-01T00:00:00Z".into()));
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "the list in use is stale: keys that leaked since are not on it"
            && line["max_age"] == "30days"
    });
    setting.keygate.wait_for_metric(STALE, 1.0);
    setting.keygate.wait_for_status("the age", |status| status["lists"][0]["stale"] == true);
    let (_, page) = setting.keygate.admin("/");
    assert!(page.contains(", stale"), "{page}");
}

#[test]
fn lists_and_exceptions_take_moduli_and_x_coordinates() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let kinds = [("ec", Kind::P384), ("rsa", Kind::Rsa2048), ("other", Kind::Rsa2048)];
    let [ec, rsa, other] = kinds.map(|(name, kind)| pki.client(name, kind));
    let numbers = |client: &Party| {
        let output = keygate(&["key", "--lists", client.certificate.to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned()
    };
    let lines = [&ec, &rsa].map(|client| numbers(client) + "\n").concat();
    assert!(lines.starts_with("ec-x:") && lines.contains("\nrsa-modulus:"), "{lines}");
    write(pki.path("deny.txt"), lines).unwrap();
    write_filter(&pki.path("lost.pkbf"), &[&other.spki]);
    let exception = format!(
        "[[exceptions]]\nfingerprint = \"{}\"\nuntil = 2999-12-31\nreason = \"ordered\"\n",
        numbers(&other)
    );
    let top = format!("[[lists]]\nname = \"own\"\npath = \"deny.txt\"\n{exception}");
    let keygate = Configuration::new(origin.address()).global(&top).start(&pki);
    for client in [&ec, &rsa] {
        let text = output_text(&keygate.curl(client, &[]));
        assert!(text.contains("access denied"), "{}: {text}", client.name);
    }
    let response = keygate.curl(&other, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    assert_eq!(keygate.status()["exceptions"][0]["fingerprint"], numbers(&other));
}
