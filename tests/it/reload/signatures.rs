//! Filters and lists that must be signed. The signatures are made by minisign itself.
//!
//! Guards: `verify_beside` and `verify_saved` in `src/sources/signed.rs`, `signature_paths`
//! there (the signature and the keys are watched), `verify` in `crates/core/src/signature/keys.rs`.

use std::fs::{copy, create_dir, read, remove_file, rename, write};
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::support::blocklist::{Blocklist, replace};
use crate::support::keygate::{Keygate, keygate};
use crate::support::keys::written;
use crate::support::minisign::{Minisign, beside};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::{SUCCESSFUL, Scene, contains, refusals};
use crate::support::{output_text, skip, write_filter, write_revision};

const SIGNED: &str = "minisign_key = \"keys.pub\"";

/// A scene with a state directory, whose filter must be signed by `signer`.
struct SignedScene {
    scene: Scene,
    signer: Minisign,
}

impl std::ops::Deref for SignedScene {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

/// `None` skips the test.
fn signed_scene() -> Option<SignedScene> {
    if skip::without("minisign") {
        return None;
    }
    let signer = Minisign::new();
    let scene = Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            signer.sign(&pki.path("lost.pkbf"), "revision 1");
            copy(signer.public_key(), pki.path("keys.pub")).unwrap();
            create_dir(pki.path("state")).unwrap();
        },
        |configuration| configuration.global("state = { dir = \"state\" }").filter(SIGNED),
    );
    Some(SignedScene { scene, signer })
}

impl SignedScene {
    fn file(&self) -> PathBuf {
        self.pki.path("lost.pkbf")
    }

    /// Renames a copy of the file at `from` over the signature.
    fn place_signature(&self, from: &Path) {
        replace(&beside(&self.file()), &read(from).unwrap());
    }

    fn replace_keys(&self, keys: &[&Minisign]) {
        let keys: Vec<_> = keys.iter().map(|it| read(it.public_key()).unwrap()).collect();
        replace(&self.pki.path("keys.pub"), &keys.concat());
    }

    fn stop(&mut self) {
        self.scene.keygate.signal("TERM");
        assert!(self.scene.keygate.ended().success());
    }

    fn start(&mut self) {
        let text = std::fs::read_to_string(self.pki.path("keygate.toml")).unwrap();
        self.scene.keygate = Keygate::configured(&self.scene.pki, &text);
    }

    fn command(&self, command: &str) -> Output {
        keygate(&[command, "--config", self.pki.path("keygate.toml").to_str().unwrap()])
    }

    /// `run` ends because of `problem`, which is in its log. `validate` reports it, too.
    fn cannot_start(&self, problem: &str) {
        let output = self.command("run");
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains(problem), "{problem}: {}", output_text(&output));
        let output = self.command("validate");
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    }

    fn in_use(&self, revision: u32) {
        self.keygate.wait_for_status("the update", |status| {
            status["filters"][0]["revision"] == revision
                && contains(&status["filters"][0]["last_reload"]["result"], "loaded")
        });
        assert_eq!(self.keygate.metric(SUCCESSFUL), 1.0);
    }
}

/// Waits until the last check of the filter found the content in use.
fn wait_for_unchanged(keygate: &Keygate) -> Value {
    keygate.wait_for_status("the file in use", |status| {
        status["filters"][0]["last_reload"]["result"] == "unchanged"
    })
}

#[test]
fn a_filter_without_a_valid_signature_is_rejected_and_the_one_in_use_stays() {
    let Some(scene) = signed_scene() else { return };
    let update = scene.update();
    let content = read(&update).unwrap();
    let other = scene.pki.path("made/other.pkbf");
    write_filter(&other, &[b"another list"]);
    let good = read(scene.signer.signature(&update, "revision 2")).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let stranger = Minisign::new();

    let wrong = scene.pki.path("made/wrong.minisig");
    let place = |content: &[u8]| {
        write(&wrong, content).unwrap();
        scene.place_signature(&wrong);
    };
    // The file arrives before its signature.
    rename(&update, scene.file()).unwrap();
    scene.is_refused("signature", "lost.pkbf.minisig is not the signature of this content");
    let update = scene.file();
    scene.place_signature(&stranger.signature(&update, "revision 2"));
    let problem = format!("was made with the key {}, but minisign_key ", stranger.id());
    scene.is_refused("signature", &problem);
    let status = scene.keygate.status();
    let known = format!("keys.pub has {}: sign the file again", scene.signer.id());
    assert!(contains(&status["filters"][0]["last_reload"]["error"], &known), "{status}");
    scene.place_signature(&scene.signer.legacy_signature(&update));
    scene.is_refused("signature", "a legacy signature (algorithm Ed), which is not accepted");
    scene.place_signature(&scene.signer.signature(&other, "revision 2"));
    scene.is_refused("signature", "is not the signature of this content");
    place(text.replace("revision 2", "revision 3").as_bytes());
    scene.is_refused("signature", "is not the signature of this content");
    place(&good[..good.len() / 2]);
    scene.is_refused("signature", "lost.pkbf.minisig: line ");
    place(lines[..3].join("\n").as_bytes());
    scene.is_refused(
        "signature",
        "line 4 is not the signature of the trusted comment; sign the file again",
    );
    place(format!("{text}\n{text}").as_bytes());
    scene.is_refused("signature", "line 5 is not the end of the file; sign the file again");
    place(b"");
    scene.is_refused("signature", "line 1 is not the untrusted comment of a signature");
    place(&content);
    scene.is_refused("signature", "not UTF-8 text");
    place(&[&good[..], &[b' '; 16 << 10]].concat());
    scene.is_refused(
        "signature",
        " KiB); sign the file again with `minisign -S`, or fetch the signature",
    );
    remove_file(beside(&scene.file())).unwrap();
    scene.is_refused("signature", "lost.pkbf.minisig is missing: sign the file");
    std::os::unix::fs::symlink("nowhere", beside(&scene.file())).unwrap();
    scene.is_as_it_was();
    let page = scene.keygate.admin("/").1;
    assert!(page.contains("(signature): "), "{page}");

    place(&good);
    scene.is_replaced_by(&content);
}

#[test]
fn the_file_and_its_signature_may_be_replaced_in_either_order() {
    let Some(scene) = signed_scene() else { return };
    let update = scene.update();
    // The signature arrives before its file.
    scene.place_signature(&scene.signer.signature(&update, "revision 2"));
    scene.is_refused("signature", "is not the signature of this content");
    scene.is_as_it_was();
    rename(&update, scene.file()).unwrap();
    scene.in_use(2);

    // The file arrives first.
    let update = scene.pki.path("made/third.pkbf");
    write_revision(&update, &[&scene.lost.spki, &scene.next.spki, &scene.good.spki], 3);
    let signature = scene.pki.path("made/third.minisig");
    copy(scene.signer.signature(&update, "revision 3"), &signature).unwrap();
    let before = scene.keygate.metric(&refusals("signature"));
    rename(&update, scene.file()).unwrap();
    scene.keygate.wait_for_counter(&refusals("signature"), before + 1.0);
    scene.admits(&scene.good);
    rename(signature, beside(&scene.file())).unwrap();
    scene.in_use(3);
    scene.refuses(&scene.good);
}

#[test]
fn the_signature_in_use_is_shown_and_the_commands_verify_it() {
    let Some(scene) = signed_scene() else { return };
    let id = scene.signer.id();
    let line = &scene.keygate.lines("filter loaded")[0];
    assert_eq!((&line["signed_by"], &line["comment"]), (&json!(id), &json!("revision 1")));
    let signature = &scene.keygate.status()["filters"][0]["signature"];
    assert_eq!(*signature, json!({ "key_id": id, "comment": "revision 1" }));
    let shown = format!("{id} (revision 1)");
    for path in ["/", "/status.txt"] {
        let page = scene.keygate.admin(path).1;
        assert!(
            page.to_lowercase().contains(&format!("signed with the key {shown}").to_lowercase()),
            "{page}"
        );
    }
    let output = output_text(&scene.command("validate"));
    assert!(output.contains(&format!("filter lost: signed with the key {shown}")), "{output}");

    let file = scene.pki.path("made/shown.pkbf");
    copy(scene.file(), &file).unwrap();
    let (path, keys) = (file.to_str().unwrap(), scene.pki.path("keys.pub"));
    let keys = ["--minisign-key", keys.to_str().unwrap()];
    let info = |options: &[&str]| keygate(&[&["filter", "info", path, "--json"], options].concat());
    let shown = |output: Output| -> Value {
        assert!(output.status.success(), "{}", output_text(&output));
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        info["signature"].clone()
    };
    assert_eq!(shown(info(&[])), Value::Null);
    let output = info(&keys);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains("shown.pkbf.minisig is missing"));
    scene.signer.sign(&file, "by hand");
    let signature = beside(&file);
    let expected = |verified: bool, key_id: Value, comment: Value| json!({ "path": signature, "verified": verified, "key_id": key_id, "comment": comment });
    assert_eq!(shown(info(&keys)), expected(true, json!(id), json!("by hand")));
    assert_eq!(shown(info(&[])), expected(false, Value::Null, Value::Null));
    let output = output_text(&keygate(&["filter", "info", path, keys[0], keys[1]]));
    assert!(output.contains(&format!("valid, with the key {id} (by hand)")), "{output}");

    // A changed filter has a signature of its previous content.
    let output = keygate(&["filter", "add", path, scene.pki.path("next.pem").to_str().unwrap()]);
    let text = output_text(&output);
    assert!(output.status.success() && text.contains("sign the file again"), "{text}");
    assert_eq!(info(&keys).status.code(), Some(3));
}

#[test]
fn a_start_needs_a_valid_signature_or_a_signed_copy() {
    let Some(mut scene) = signed_scene() else { return };
    let signature = read(beside(&scene.file())).unwrap();
    scene.stop();
    remove_file(beside(&scene.file())).unwrap();
    // The copy of the last good filter was kept with its signature.
    scene.start();
    scene.refuses(&scene.lost);
    scene.admits(&scene.good);
    scene.keygate.wait_for("the warning", |line| {
        line["message"] == "filter file rejected at the start, using the last good filter"
            && line["reason"] == "signature"
    });
    let filter = &scene.keygate.status()["filters"][0];
    assert_eq!(filter["signature"]["key_id"], scene.signer.id());
    write(beside(&scene.file()), &signature).unwrap();
    wait_for_unchanged(&scene.keygate);
    scene.stop();

    // A copy in a directory that another program has changed is not used.
    remove_file(beside(&scene.file())).unwrap();
    let files = std::fs::read_dir(scene.pki.path("state")).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let state = files.find(|path| path.extension().is_some_and(|it| it == "minisig")).unwrap();
    let kept = std::fs::read_to_string(&state).unwrap();
    remove_file(&state).unwrap();
    scene.cannot_start("has no signature, because minisign_key was not set");
    write(&state, kept.replace("revision 1", "revision 9")).unwrap();
    scene.cannot_start("the copy of the last good filter cannot be used");
    write(&state, kept).unwrap();

    // A copy that was signed with a key that is not configured any more is not used.
    let next = Minisign::new();
    scene.replace_keys(&[&next]);
    scene.cannot_start(&format!("was made with the key {}", scene.signer.id()));
    remove_file(scene.pki.path("keys.pub")).unwrap();
    scene.cannot_start("keys.pub: No such file");
    scene.replace_keys(&[&next]);
    next.sign(&scene.file(), "revision 1, again");
    scene.start();
    scene.refuses(&scene.lost);
}

#[test]
fn a_key_is_replaced_without_a_time_in_which_updates_are_rejected() {
    let Some(mut scene) = signed_scene() else { return };
    let next = Minisign::new();
    // Both keys are trusted for a while.
    scene.replace_keys(&[&scene.signer, &next]);
    let status = wait_for_unchanged(&scene.keygate);
    assert_eq!(status["filters"][0]["signature"]["key_id"], scene.signer.id());
    next.sign(&scene.file(), "by the next key");
    let key_in_use = |key: &Minisign| {
        let id = key.id();
        scene.keygate.wait_for_status("the key", |status| {
            status["filters"][0]["signature"]["key_id"] == id.as_str()
        });
    };
    key_in_use(&next);
    scene.replace_keys(&[&next]);
    scene.signer.sign(&scene.file(), "by the old key");
    scene.is_refused("signature", &format!("was made with the key {}", scene.signer.id()));
    scene.is_as_it_was();
    key_in_use(&next);
    // The copy has the signature of the key in use.
    scene.stop();
    scene.start();
    scene.refuses(&scene.lost);
    assert_eq!(scene.keygate.status()["filters"][0]["last_good_in_use"], true);
    for keys in [&b""[..], b"untrusted comment: none\n", b"\xff"] {
        replace(&scene.pki.path("keys.pub"), keys);
        scene.is_refused("signature", "minisign_key ");
    }
    replace(&scene.pki.path("keys.pub"), &read(next.secret_key()).unwrap());
    scene
        .is_refused("signature", "keys.pub: a secret key of minisign; give the file of the public");
    scene.replace_keys(&[&scene.signer]);
    wait_for_unchanged(&scene.keygate);
    assert_eq!(scene.keygate.metric(SUCCESSFUL), 1.0);
}

#[test]
fn a_checksum_and_a_signature_are_both_checked() {
    let Some(scene) = signed_scene() else { return };
    let update = scene.update();
    let content = read(&update).unwrap();
    let sidecar = scene.pki.path("lost.pkbf.sha256");
    write(&sidecar, format!("{}  lost.pkbf\n", "0".repeat(64))).unwrap();
    scene.place_signature(&scene.signer.signature(&update, "revision 2"));
    rename(&update, scene.file()).unwrap();
    scene.is_refused("checksum", "one of the two is damaged or outdated");
    remove_file(sidecar).unwrap();
    scene.is_replaced_by(&content);
}

#[test]
fn a_running_proxy_can_be_told_to_need_signatures() {
    if skip::without("minisign") {
        return;
    }
    let (scene, signer) = (Scene::new(), Minisign::new());
    let config = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut table: toml::Table = text.parse().unwrap();
    let filter = table["filters"][0].as_table_mut().unwrap();
    filter.insert("minisign_key".to_owned(), "keys.pub".into());
    let text = written(&table);
    copy(signer.public_key(), scene.pki.path("keys.pub")).unwrap();
    replace(&config, text.as_bytes());
    scene.keygate.wait_for_status("the error", |status| {
        contains(&status["configuration"]["error"], "lost.pkbf.minisig is missing")
    });
    scene.is_as_it_was();
    signer.sign(&scene.pki.path("lost.pkbf"), "revision 1");
    scene.keygate.signal("HUP");
    scene.keygate.wait_for_status("the signature", |status| {
        status["filters"][0]["signature"]["key_id"] == signer.id().as_str()
    });
}

/// A proxy with a signed list of each format.
struct Lists {
    pki: Pki,
    keygate: Keygate,
    configuration: Configuration,
    signer: Minisign,
    good: Party,
    listed: [Party; 2],
    _origin: Origin,
}

impl Lists {
    /// `None` skips the test.
    fn new() -> Option<Self> {
        if skip::without("minisign") {
            return None;
        }
        let (pki, origin, signer) = (Pki::new(), Origin::start(), Minisign::new());
        let [good, one, two] = ["good", "one", "two"].map(|name| pki.client(name, Kind::P256));
        let listed = [one, two];
        write_filter(&pki.path("lost.pkbf"), &[b"another"]);
        for directory in ["bk", "state"] {
            create_dir(pki.path(directory)).unwrap();
        }
        copy(signer.public_key(), pki.path("keys.pub")).unwrap();
        let blocklist = Blocklist::new(&[(&listed[0].spki, 1)]).with_others(0, 10);
        let path = blocklist.write(&pki.path("bk"));
        signer.sign(&path, "list 1");
        signer.sign(&pki.path("bk/badkeysdata.json"), "names 1");
        write(pki.path("deny.txt"), deny(&listed[1])).unwrap();
        signer.sign(&pki.path("deny.txt"), "deny 1");
        let lists = format!(
            "state = {{ dir = \"state\" }}\n[[lists]]\nname = \"badkeys\"\nformat = \"badkeys\"\n\
             path = \"bk/blocklist.dat\"\n{SIGNED}\n[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n{SIGNED}"
        );
        let configuration = Configuration::new(origin.address()).global(&lists);
        let keygate = configuration.clone().start(&pki);
        Some(Self { pki, keygate, configuration, signer, good, listed, _origin: origin })
    }

    fn rejects_listed(&self) {
        for client in &self.listed {
            let text = self.keygate.rejection(client);
            assert!(text.contains("access denied"), "{}: {text}", client.name);
        }
        assert_eq!(self.keygate.curl(&self.good, &[]).stdout, b"hello\n");
    }

    /// Waits until an update of the list at this index is rejected with this error.
    fn is_refused(&self, index: usize, problem: &str) {
        let name = ["badkeys", "deny"][index];
        self.keygate.wait_for(problem, |line| {
            line["message"] == "list update rejected, keeping the one in use"
                && line["list"] == name
                && line["reason"] == "signature"
                && contains(&line["error"], problem)
        });
        self.keygate.wait_for_status(problem, |status| {
            let last = &status["lists"][index]["last_reload"];
            last["reason"] == "signature" && contains(&last["error"], problem)
        });
        let refusals =
            format!("keygate_list_refusals_total{{list=\"{name}\",reason=\"signature\"}}");
        assert!(self.keygate.metric(&refusals) >= 1.0);
        self.rejects_listed();
    }

    fn stop(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
    }

    fn start(&mut self) {
        self.keygate = self.configuration.clone().start(&self.pki);
    }

    fn validate(&self) -> Output {
        write(self.pki.path("check.toml"), self.configuration.text()).unwrap();
        keygate(&["validate", "--config", self.pki.path("check.toml").to_str().unwrap()])
    }
}

fn deny(client: &Party) -> String {
    format!("# signed as it is\n{}\n", keygate_fingerprint(client))
}

fn keygate_fingerprint(client: &Party) -> String {
    ::keygate_core::spki::Fingerprint::of(&client.spki).to_string()
}

#[test]
fn lists_and_the_metadata_of_a_blocklist_must_be_signed() {
    let Some(lists) = Lists::new() else { return };
    lists.rejects_listed();
    let status = lists.keygate.status();
    for (index, comment) in [(0, "list 1"), (1, "deny 1")] {
        let expected = json!({ "key_id": lists.signer.id(), "comment": comment });
        assert_eq!(status["lists"][index]["signature"], expected);
    }
    let page = lists.keygate.admin("/").1;
    assert!(page.contains(&format!("{} (deny 1)", lists.signer.id())), "{page}");

    // A longer list, an emptied one, and one with an older signature.
    let text = lists.pki.path("deny.txt");
    replace(&text, b"# nothing\n");
    lists.is_refused(1, "deny.txt.minisig is not the signature of this content");
    replace(&text, deny(&lists.listed[1]).as_bytes());
    lists.keygate.wait_for_status("the list", |status| {
        status["lists"][1]["last_reload"]["error"] == Value::Null
    });

    let file = lists.pki.path("bk/blocklist.dat");
    let metadata = lists.pki.path("bk/badkeysdata.json");
    let update = Blocklist::new(&[(&lists.listed[0].spki, 1)]).with_others(0, 12);
    update.write(&lists.pki.path("bk"));
    lists.is_refused(0, "blocklist.dat.minisig is not the signature");
    lists.signer.sign(&file, "list 2");
    lists.is_refused(0, "badkeysdata.json.minisig is not the signature");
    // A date that hides the age of the list.
    update.clone().with("date", json!("2999-01-01")).write(&lists.pki.path("bk"));
    lists.is_refused(0, "badkeysdata.json.minisig is not the signature");
    remove_file(beside(&metadata)).unwrap();
    lists.is_refused(0, "badkeysdata.json.minisig is missing");
    update.write(&lists.pki.path("bk"));
    lists.signer.sign(&metadata, "names 2");
    lists.keygate.wait_for_status("the update", |status| status["lists"][0]["entries"] == 13);
    lists.rejects_listed();

    let info = |options: &[&str]| keygate(&[&["list", "info", "--json"], options].concat());
    let keys = lists.pki.path("keys.pub");
    for (path, comment) in [(&file, "list 2"), (&text, "deny 1")] {
        let path = path.to_str().unwrap();
        let output = info(&[path, "--minisign-key", keys.to_str().unwrap()]);
        assert!(output.status.success(), "{}", output_text(&output));
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(shown["signature"]["comment"], comment);
        let shown: Value = serde_json::from_slice(&info(&[path]).stdout).unwrap();
        assert_eq!(shown["signature"]["verified"], false);
    }
    remove_file(beside(&metadata)).unwrap();
    let output = info(&[file.to_str().unwrap(), "--minisign-key", keys.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
}

#[test]
fn the_copies_of_lists_are_verified_again_at_a_start() {
    let Some(mut lists) = Lists::new() else { return };
    let files = ["bk/blocklist.dat", "deny.txt"].map(|name| lists.pki.path(name));
    lists.stop();
    files.iter().for_each(|path| remove_file(beside(path)).unwrap());
    lists.start();
    lists.rejects_listed();
    for index in 0..2 {
        let list = &lists.keygate.status()["lists"][index];
        assert_eq!(list["signature"]["key_id"], lists.signer.id());
        assert_eq!(list["last_reload"]["reason"], "signature");
    }
    // The copies stay signed when nothing else is in use.
    lists.stop();
    lists.start();
    lists.rejects_listed();
    lists.stop();

    let next = Minisign::new();
    replace(&lists.pki.path("keys.pub"), &read(next.public_key()).unwrap());
    let output = lists.validate();
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let text = output_text(&output);
    for name in ["badkeys", "deny"] {
        assert!(text.contains(&format!("list \"{name}\": ")), "{text}");
    }
    files.iter().for_each(|path| next.sign(path, "again"));
    next.sign(&lists.pki.path("bk/badkeysdata.json"), "again");
    lists.start();
    lists.rejects_listed();
    // The copies of lists without signatures are not used once signatures are needed.
    lists.stop();
    let signed = lists.configuration.clone();
    lists.configuration = signed.clone().unset("lists.minisign_key");
    lists.start();
    lists.stop();
    remove_file(beside(&files[0])).unwrap();
    lists.configuration = signed;
    write(lists.pki.path("check.toml"), lists.configuration.text()).unwrap();
    let output = keygate(&["run", "--config", lists.pki.path("check.toml").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains("has no signature, because"), "{}", output_text(&output));
}
