//! Badkeys blocklists over real handshakes: verdict, finding, updates.
//!
//! Guards: `has_numbers` and `for_each_number` in `crates/core/src/guard.rs`, `find` in
//! `crates/core/src/badkeys/blocklist.rs`, `ensure_not_older` and `TooFew` in
//! `src/sources/list/read.rs`, `check_age` in `src/sources/guarded.rs`.

use std::fs::{create_dir, read_dir, remove_file, write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use keygate_core::spki::keys_in;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX, configuration};
use crate::support::blocklist::{Blocklist, replace};
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, system, wait_until, write_filter};

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

    /// The copies of lists in the state directory, with their content.
    fn copies(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = read_dir(self.pki.path("state")).unwrap().map(|it| it.unwrap().path());
        let copies = files.filter(|path| path.extension().is_some_and(|it| it == "dat"));
        copies.map(|path| (path.clone(), std::fs::read(path).unwrap_or_default())).collect()
    }

    /// Whether a copy has the original bytes of the metadata.
    fn has_copied_metadata(&self) -> bool {
        let metadata = std::fs::read(self.pki.path("bk/badkeysdata.json")).unwrap();
        let mut copies = self.copies().into_iter();
        copies.any(|(path, _)| {
            std::fs::read(path.with_extension("json")).is_ok_and(|copy| copy == metadata)
        })
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
    assert!(
        page.contains("badkeys: firmware") && page.contains("data-label=\"format\">badkeys<td"),
        "{page}"
    );
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
    let settings = "max_age = \"30d\"\nrollback = \"allow\"";
    let mut setting = Setting::new("on_listed = \"header\"", settings);
    setting.stop();
    remove_file(setting.pki.path("bk/badkeysdata.json")).unwrap();
    let output = setting.validate();
    let text = output_text(&output);
    assert!(text.contains("no badkeysdata.json with a date") && text.contains("max_age"), "{text}");
    setting.start();
    setting.admits(&setting.listed[1]);
    let status = "listed;list=\"badkeys\";finding=\"id5\"";
    assert_eq!(setting.origin.next().fields("client-key-status"), [status]);
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "the age of the list is unknown, it counts as stale"
    });
    let list = &setting.keygate.status()["lists"][0];
    assert_eq!((list.get("updated"), &list["stale"]), (None, &json!(true)));
    setting.keygate.wait_for_metric(STALE, 1.0);
    setting.list().with("date", today()).write_metadata(&setting.pki.path("bk"));
    setting.keygate.wait_for_metric(STALE, 0.0);
    // The age may not be hidden either: by a later removal of the file, nor by a later date.
    remove_file(setting.pki.path("bk/badkeysdata.json")).unwrap();
    setting.keygate.wait_for_metric(STALE, 1.0);
    setting.list().with("date", "2999-01-01".into()).write_metadata(&setting.pki.path("bk"));
    setting.keygate.wait_for("the future", |line| {
        line["message"] == "the age of the list is unknown, it counts as stale"
            && line["problem"].as_str().unwrap().contains("its date 2999-01-01 00:00:00 UTC (in ")
    });
    setting.keygate.wait_for_metric(STALE, 1.0);
}

fn today() -> Value {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string().into()
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
    setting.wait_for_rejection("record 4 (offset 64) does not sort after");
    let mut twice = list.clone();
    twice.records.insert(7, twice.records[7]);
    setting.write(&twice);
    setting.wait_for_rejection("record 8 (offset 128) does not sort after the record before it");
    setting.write(&list.clone().with("blocklist_sha256", "00".repeat(32).into()));
    setting.wait_for_rejection("but blocklist_sha256 in ");
    setting.write(&list.clone().with("bkformat", 1.into()));
    setting.wait_for_rejection("badkeysdata.json: bkformat: 1, and keygate reads 0");
    setting.write(&Blocklist::new(&[]).with_others(0, 49));
    setting.wait_for_rejection("records: 49, and min_records is 50");
    // As many records as before, but 6 clients and 48 others are gone.
    setting.write(&Blocklist::new(&[]).with_others(48, 106));
    setting.wait_for_rejection("it lacks 54 of the entries in use (106), more than half");
    remove_file(&file).unwrap();
    setting.wait_for_rejection("No such file");
    assert_eq!(setting.keygate.status()["generation"], 1);

    let good = (&setting.good.spki[..], 1);
    setting.write(&Blocklist::new(&[good]).with_others(47, 60)); // lacks 53, exactly half
    setting.keygate.wait_for_generation(2);
    setting.rejects(&setting.good);
    setting.admits(&setting.listed[1]);
    assert_eq!(setting.keygate.metric(SUCCESSFUL), 1.0);
    setting.keygate.wait_for("the update", |line| {
        line["message"] == "list loaded" && line["entries"] == 61 && line["before"] == 106
    });
}

/// The program badkeys writes the metadata first, and downloads the list then.
#[test]
fn the_two_files_of_an_update_may_arrive_in_either_order() {
    let mut setting = Setting::new("", "");
    let directory = setting.pki.path("bk");
    wait_until("the copy of the list", || setting.copies().len() == 1);
    let wait_for_rejection = |setting: &Setting| {
        setting.wait_for_rejection("but blocklist_sha256 in ");
        let list = &setting.keygate.status()["lists"][0];
        assert_eq!(list["last_reload"]["result"], "refused");
    };
    let one = setting.list().with_others(200, 1);
    one.write_metadata(&directory);
    wait_for_rejection(&setting);
    one.write_records(&directory);
    setting.keygate.wait_for_generation(2);
    setting.keygate.wait_for_metric(SUCCESSFUL, 1.0);
    let other = setting.list().with_others(200, 2);
    other.write_records(&directory);
    wait_for_rejection(&setting);
    other.write_metadata(&directory);
    setting.keygate.wait_for_generation(3);
    setting.keygate.wait_for_metric(SUCCESSFUL, 1.0);
    // A metadata file that is removed and written again takes no list away.
    remove_file(directory.join("badkeysdata.json")).unwrap();
    setting.wait_for_rejection("rollback: it has no date");
    other.write_metadata(&directory);
    setting.keygate.wait_for_metric(SUCCESSFUL, 1.0);
    wait_until("the copy of the list", || setting.copies()[0].1.ends_with(other.content()));

    // A start between the two files uses the copy in the state directory, and then the new list.
    setting.stop();
    let last = setting.list().with_others(200, 3);
    last.write_metadata(&directory);
    setting.start();
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "list file rejected at the start, using the last good list"
            && line.to_string().contains("but blocklist_sha256 in ")
    });
    setting.rejects(&setting.listed[1]);
    assert_eq!(setting.keygate.status()["lists"][0]["entries"], 108);
    last.write_records(&directory);
    setting.keygate.wait_for_generation(2);
    assert_eq!(setting.keygate.status()["lists"][0]["entries"], 109);
    setting.keygate.wait_for_metric(SUCCESSFUL, 1.0);
}

#[test]
fn a_damaged_copy_is_reported_and_never_used() {
    let mut setting = Setting::new("", "");
    wait_until("the copy of the list", || setting.copies().len() == 1);
    setting.stop();
    let damage = |setting: &Setting| {
        let (path, mut content) = setting.copies().remove(0);
        *content.last_mut().unwrap() ^= 1;
        write(path, content).unwrap();
    };
    damage(&setting);
    setting.start();
    setting.keygate.wait_for("the damage", |line| {
        line["message"] == "the copy of the last good list cannot be used"
            && line["error"].as_str().unwrap().contains("SHA-256")
    });
    setting.rejects(&setting.listed[1]);
    assert_eq!(setting.keygate.metric(SUCCESSFUL), 1.0);
    setting.stop();
    damage(&setting);
    write(setting.pki.path("bk/blocklist.dat"), &setting.list().content()[1..]).unwrap();
    let output = setting.validate();
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("its size is 1695 bytes"), "{text}");
}

#[test]
fn a_deprecated_format_is_a_warning_also_for_the_copy() {
    let mut setting = Setting::new("", "");
    let warning = "the format of the list is deprecated, it may not be updated any more";
    let deprecated = setting.list().with("deprecated", "\u{1b}[31muse v1\nforged".into());
    setting.write(&deprecated);
    setting.keygate.wait_for("the warning", |line| line["message"] == warning);
    setting.rejects(&setting.listed[1]);
    wait_until("the copy of the list", || setting.has_copied_metadata());
    setting.stop();
    write(setting.pki.path("bk/blocklist.dat"), b"").unwrap();
    let text = output_text(&setting.validate());
    assert!(text.contains("badkeysdata.json calls its format deprecated"), "{text}");
    assert!(!text.contains("forged"), "the text of the publisher is not repeated: {text}");
    setting.start();
    setting.keygate.wait_for("the warning", |line| line["message"] == warning);
}

#[test]
fn the_own_key_of_a_service_may_not_be_on_a_blocklist() {
    let setting = Setting::new("", "");
    let alarm = "keygate_own_key_compromised{role=\"server\",service=\"test\"}";
    let own = spki_of_file(&setting.pki.path("server.pem"));
    setting.write(&Blocklist::new(&[(&own, 1)]).with_others(0, 100));
    setting.keygate.wait_for("the alarm", |line| {
        line["message"] == "own key is compromised"
            && line["error"].as_str().unwrap().contains("is on list \"badkeys\" (debianssl)")
    });
    setting.keygate.wait_for_metric(alarm, 1.0);
    let output = setting.validate();
    let text = output_text(&output);
    assert!(!output.status.success() && text.contains("allow_compromised_own_key"), "{text}");
    assert!(text.contains("is on list \"badkeys\" (debianssl)"), "{text}");
}

fn spki_of_file(certificate: &Path) -> Vec<u8> {
    keys_in(&std::fs::read(certificate).unwrap()).remove(0).key.unwrap()
}

/// Hosts verify clients by themselves, some of them with algorithms that rustls does not have.
#[test]
fn an_authorizer_judges_keys_of_algorithms_that_no_handshake_has() {
    let pki = Pki::new();
    let made = |name: &str, options: &[&str]| {
        let path = |end: &str| pki.path(&format!("{name}.{end}")).to_str().unwrap().to_owned();
        let (key, certificate) = (path("key"), path("pem"));
        system("openssl", &[&["genpkey", "-out", &key][..], options].concat());
        let subject = format!("/CN={name}");
        let request = ["req", "-x509", "-new", "-key", &key, "-subj", &subject];
        system("openssl", &[&request[..], &["-out", &certificate]].concat());
        let der = system("openssl", &["x509", "-in", &certificate, "-outform", "DER"]).stdout;
        (der, spki_of_file(Path::new(&certificate)))
    };
    let parameters = pki.path("dsa").to_str().unwrap().to_owned();
    let dsa = ["-genparam", "-algorithm", "DSA", "-out", &parameters];
    let bits = ["-pkeyopt", "dsa_paramgen_bits:1024", "-pkeyopt", "dsa_paramgen_q_bits:160"];
    system("openssl", &[&["genpkey"], &dsa[..], &bits].concat());
    let brainpool = ["-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:brainpoolP256r1"];
    let kinds: [(&str, &[&str]); 3] = [
        ("dsa", &["-paramfile", &parameters]),
        ("ed448", &["-algorithm", "ed448"]),
        ("brainpool", &brainpool),
    ];
    let listed = kinds.map(|(name, options)| made(&format!("listed-{name}"), options));
    let unknown = kinds.map(|(name, options)| made(&format!("unknown-{name}"), options));
    let records: Vec<_> = listed.iter().map(|(_, spki)| (&spki[..], 1)).collect();
    create_dir(pki.path("bk")).unwrap();
    Blocklist::new(&records).with_others(0, 10).write(&pki.path("bk"));
    let scene = AskedKeygate::configured(pki, &format!("{}{LIST}", configuration(UNIX)));
    let mut asker = scene.connect();
    for ((listed, _), (unknown, _)) in listed.iter().zip(&unknown) {
        let reply = asker.ask(&[listed]);
        assert_eq!((reply.status, reply.field("client-key-status")), (403, Some("listed")));
        let reply = asker.ask(&[unknown]);
        assert_eq!((reply.status, reply.field("client-key-status")), (403, Some("unchecked")));
    }
    assert_eq!(asker.ask_about(&scene.good).status, 200);
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
    wait_until("the copy of the list", || setting.copies().len() == 1);
    setting.write(&shrunk);
    setting.wait_for_rejection("the number of entries falls");
    setting.stop();

    // A restart does not let it through, because the state directory has a copy.
    let output = setting.validate();
    assert!(output.status.success(), "{}", output_text(&output));
    let warning = "21: inspect the update, then accept it";
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
            && line["problem"].as_str().unwrap().contains("the number of entries falls")
    });
    setting.rejects(&setting.listed[1]);
    configure("shrink = \"allow\"");
    setting.keygate.wait_for_generation(2);
    setting.rejects(&setting.good);
    setting.admits(&setting.listed[1]);
}

#[test]
fn an_older_blocklist_is_rejected_after_a_restart_too() {
    let mut setting = Setting::new("", "rollback = \"allow\"");
    let dated = |setting: &Setting, others, date: &str| {
        setting.list().with_others(100, others).with("date", date.into())
    };
    setting.write(&dated(&setting, 1, "2024-02-01"));
    setting.keygate.wait_for_generation(2);
    wait_until("the copy of the list", || setting.has_copied_metadata());
    setting.stop();
    setting.configuration = setting.configuration.unset("lists.rollback");
    setting.start();
    setting.write(&dated(&setting, 2, "2024-01-31"));
    let problem =
        "rollback: it is of 2024-01-31 00:00:00 UTC, and the list in use is of 2024-02-01 00";
    setting.wait_for_rejection(problem);
    let refusals = "keygate_list_refusals_total{list=\"badkeys\",reason=\"rollback\"}";
    assert_eq!(setting.keygate.metric(refusals), 1.0);
    setting.stop();
    setting.start();
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "list file rejected at the start, using the last good list"
            && line["reason"] == "rollback"
            && line.to_string().contains(problem)
    });
    setting.rejects(&setting.listed[1]);
    // A list without a date may be of any age.
    let directory = setting.pki.path("bk");
    remove_file(directory.join("badkeysdata.json")).unwrap();
    setting.wait_for_rejection("rollback: it has no date, and the list in use is of 2024-02-01");
    setting.write(&dated(&setting, 3, "2024-02-01T00:00:01Z"));
    setting.keygate.wait_for_generation(2);
    assert_eq!(setting.keygate.status()["lists"][0]["entries"], 109);
}

#[test]
fn an_old_blocklist_is_reported_as_stale() {
    let setting = Setting::new("", "max_age = \"30d\"\nrollback = \"allow\"");
    setting.write(&setting.list().with("date", today()));
    setting.keygate.wait_for_metric(STALE, 0.0);
    setting.write(&setting.list().with("date", "2020-01-01T00:00:00Z".into()));
    setting.keygate.wait_for("the warning", |line| {
        line["message"] == "the list in use is stale: keys that leaked since are not on it"
            && line["max_age"] == "30days"
    });
    setting.keygate.wait_for_metric(STALE, 1.0);
    setting.keygate.wait_for_status("the age", |status| status["lists"][0]["stale"] == true);
    let (_, page) = setting.keygate.admin("/");
    assert!(page.contains("<span class=\"state warn\">stale</span>"), "{page}");
    setting.keygate.wait_for_metric(
        "keygate_list_updated_timestamp_seconds{list=\"badkeys\"}",
        1_577_836_800.0,
    );
    let output = output_text(&setting.validate());
    assert!(
        output.contains("list \"badkeys\": it is ") && output.contains("max_age is 30days"),
        "{output}"
    );
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
