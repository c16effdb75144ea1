//! Well-formed filter updates that are rejected: each with its own reason in the log, the status
//! and the metrics. The filter in use stays.

use std::fs::rename;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

use keygate_core::pkbf::{Filter, Overwrite, Parameters, create};
use keygate_core::spki::Fingerprint;
use serde_json::{Value, json};

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::{LOADED, REFUSED, SUCCESSFUL, Scene, contains, refusals};
use crate::support::{output_text, system, write_filter, write_revision};

const ACCEPTED: &str = "keygate_filter_updates_accepted_total{filter=\"lost\"}";

/// A scene whose filter has more keys in its configuration.
fn scene_with(keys: &str) -> Scene {
    scene_configured(|configuration| configuration.filter(keys))
}

fn scene_configured(change: impl FnOnce(Configuration) -> Configuration) -> Scene {
    Scene::configured(|pki, first| rename(first, pki.path("lost.pkbf")).unwrap(), change)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Scene {
    fn file(&self) -> PathBuf {
        self.pki.path("lost.pkbf")
    }

    /// An update that holds `lost` and `next`, of any age, renamed over the file.
    fn publish(&self, revision: u32, updated_at: u64) {
        let path = self.pki.path("made/published.pkbf");
        let mut filter = Filter::new(Parameters::for_entries(1000, 1e-9).unwrap()).unwrap();
        filter.insert(&self.lost.spki);
        filter.insert(&self.next.spki);
        filter.stamp_as(revision, updated_at);
        create(&filter, &path, Overwrite::Always).unwrap();
        rename(path, self.file()).unwrap();
    }

    /// An update with its bytes changed, renamed over the file.
    fn publish_changed(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let update = self.update();
        let mut content = std::fs::read(&update).unwrap();
        change(&mut content);
        std::fs::write(&update, content).unwrap();
        rename(update, self.file()).unwrap();
    }

    fn in_use(&self, revision: u32) {
        self.keygate.wait_for_status("the update", |status| {
            status["filters"][0]["revision"] == revision
                && status["filters"][0]["last_reload"]["result"] == "loaded"
        });
    }

    /// `run` or `validate` on the configuration of the scene.
    fn command(&self, command: &str) -> Output {
        keygate(&[command, "--config", self.pki.path("keygate.toml").to_str().unwrap()])
    }

    pub(super) fn accept(&self, arguments: &[&str]) -> Output {
        let config = self.pki.path("keygate.toml");
        // The configuration has port 0. The commands need the actual port.
        let text = std::fs::read_to_string(&config).unwrap();
        let text = text.replace(
            "admin = { listen = \"127.0.0.1:0\" }",
            &format!("admin = {{ listen = \"{}\" }}", self.keygate.admin_address()),
        );
        let config = self.pki.path("admin.toml");
        std::fs::write(&config, text).unwrap();
        let own = ["filter", "accept", "--config", config.to_str().unwrap()];
        keygate(&[&own[..], arguments].concat())
    }
}

fn sha256sum(path: &Path, as_name: &str) -> String {
    let output = system("sha256sum", &[path.to_str().unwrap()]);
    let line = String::from_utf8(output.stdout).unwrap();
    format!("{}  {as_name}\n", line.split(' ').next().unwrap())
}

#[test]
fn an_update_is_rejected_until_it_matches_its_checksum() {
    let scene = Scene::new();
    let update = scene.update();
    let sidecar = scene.pki.path("lost.pkbf.sha256");
    // The checksum arrives before its file.
    std::fs::write(&sidecar, sha256sum(&update, "lost.pkbf")).unwrap();
    scene.is_refused("checksum", "one of the two is damaged or outdated");
    scene.is_as_it_was();
    let content = std::fs::read(&update).unwrap();
    rename(update, scene.file()).unwrap();
    scene.is_replaced_by(&content);
    assert_eq!(scene.keygate.metric(&refusals("checksum")), 1.0);

    std::fs::write(&sidecar, "<html>not found</html>\n").unwrap();
    scene.is_refused("checksum", "lost.pkbf.sha256: it does not have the 64 hex digits");
    std::fs::remove_file(sidecar).unwrap();
    scene.keygate.wait_for_status("no checksum", |status| {
        status["filters"][0]["last_reload"]["result"] == "unchanged"
    });
}

#[test]
fn every_changed_byte_of_a_file_with_a_checksum_is_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pkbf");
    let mut filter = Filter::new(Parameters::new(3, 6).unwrap()).unwrap();
    filter.insert(b"a key");
    create(&filter, &path, Overwrite::Never).unwrap();
    std::fs::write(directory.path().join("a.pkbf.sha256"), sha256sum(&path, "a.pkbf")).unwrap();
    let whole = std::fs::read(&path).unwrap();
    assert!(keygate_core::pkbf::read(&path, 1 << 20).is_ok());
    for offset in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[offset] ^= 1 << bit;
            std::fs::write(&path, changed).unwrap();
            assert!(keygate_core::pkbf::read(&path, 1 << 20).is_err(), "byte {offset}, bit {bit}");
        }
    }
}

#[test]
fn an_older_filter_is_rejected_by_time_and_then_by_revision() {
    let scene = Scene::new();
    scene.publish(7, 1_750_000_000);
    scene.in_use(7);
    for (revision, at, updated) in
        [(8, 1_749_999_999, "2025-06-15 15:06:39"), (6, 1_750_000_000, "2025-06-15 15:06:40")]
    {
        scene.publish(revision, at);
        let problem = format!("revision {revision} of {updated} UTC is older than revision 7");
        scene.is_refused("rollback", &problem);
        scene.refuses(&scene.next);
    }
    assert_eq!(scene.keygate.metric(&refusals("rollback")), 2.0);
    // An equal time with a higher revision, and a later time with a lower revision.
    scene.publish(8, 1_750_000_000);
    scene.in_use(8);
    scene.publish(1, 1_750_000_001);
    scene.in_use(1);
}

#[test]
fn an_older_filter_is_loaded_if_configured() {
    let scene = scene_with("rollback = \"allow\"");
    scene.publish(9, 1_500_000_000);
    scene.in_use(9);
    scene.refuses(&scene.next);
}

#[test]
fn an_older_filter_is_rejected_after_a_restart_too() {
    let mut scene = scene_with_state();
    let first = scene.pki.path("made/older.pkbf");
    std::fs::copy(scene.file(), &first).unwrap();
    scene.publish(7, 1_750_000_000);
    scene.in_use(7);
    scene.keygate.signal("TERM");
    assert!(scene.keygate.ended().success());

    rename(&first, scene.file()).unwrap();
    let state = scene.pki.path("state/filters.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    let kept = &kept["filters"]["lost"];
    assert_eq!((&kept["updated"], &kept["revision"]), (&json!(1_750_000_000), &json!(7)));
    // Without the copy of the last good filter there is nothing to start with.
    let copy = format!("state/last-good-{}.pkbf", kept["last_good"].as_str().unwrap());
    std::fs::remove_file(scene.pki.path(&copy)).unwrap();
    for command in ["run", "validate"] {
        let output = scene.command(command);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains("older than revision 7"), "{}", output_text(&output));
    }
    // An invalid state file is an error and not an empty state; an operator may delete the file.
    std::fs::write(&state, "{").unwrap();
    let output = scene.command("run");
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains("state/filters.json"), "{}", output_text(&output));
    std::fs::remove_file(&state).unwrap();
    let text = std::fs::read_to_string(scene.pki.path("keygate.toml")).unwrap();
    scene.keygate = Keygate::configured(&scene.pki, &text);
    scene.admits(&scene.next);
    assert!(state.exists(), "what is in use now is remembered");
}

fn scene_with_state() -> Scene {
    Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            std::fs::create_dir(pki.path("state")).unwrap();
        },
        |configuration| configuration.global("state = { dir = \"state\" }"),
    )
}

#[test]
fn a_filter_from_the_future_is_rejected_with_some_tolerance_for_clocks() {
    let scene = Scene::new();
    scene.publish(2, now() + 3 * 86_400);
    scene.is_refused("future", "more than one day in the future");
    scene.is_as_it_was();
    let output = scene.command("validate");
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("more than one day in the future"),
        "{}",
        output_text(&output)
    );
    scene.publish(3, now() + 3600);
    scene.in_use(3);
    scene.refuses(&scene.next);
}

#[test]
fn a_filter_whose_bits_contradict_its_header_is_rejected_with_the_reason() {
    let scene = Scene::new();
    scene.publish_changed(|file| file[24..].fill(0xff));
    scene.is_refused("plausibility", "more bits are set than");
    scene.publish_changed(|file| {
        file[24..].fill(0xff);
        file[18..22].copy_from_slice(&1_000_000_u32.to_be_bytes());
    });
    scene.is_refused("plausibility", "100.0 % of the bits are set: nearly every key is a hit");
    scene.publish_changed(|file| {
        file[24..].fill(0);
        file[18..22].copy_from_slice(&1000_u32.to_be_bytes());
    });
    scene.is_refused("plausibility", "standard deviations fewer bits are set");
    assert_eq!(scene.keygate.metric(&refusals("plausibility")), 3.0);
    scene.is_as_it_was();
    let output = scene.command("run");
    assert_eq!(output.status.code(), Some(3), "no filter is better than this one");
}

#[test]
fn an_implausible_filter_is_loaded_with_a_warning_if_configured() {
    let scene = scene_with("implausible = \"warn\"");
    // An entry was lost from the count, as with a writer that does not keep it.
    scene.publish_changed(|file| file[18..22].copy_from_slice(&1_u32.to_be_bytes()));
    scene.in_use(2);
    scene.refuses(&scene.next);
    scene.keygate.wait_for("a warning", |line| {
        line["message"] == "the filter is implausible" && line["filter"] == "lost"
    });
    assert_eq!(scene.keygate.status()["filters"][0]["plausible"], false);
    // A filter that would reject every client is rejected even then, because random keys are hits.
    scene.publish_changed(|file| file[24..].fill(0xff));
    scene.is_refused("canary", "512 of 512 random keys are hits");
}

#[test]
fn a_filter_without_its_canaries_is_rejected() {
    let scene = Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            std::fs::copy(pki.path("lost.pem"), pki.path("canary.pem")).unwrap();
        },
        |configuration| configuration.filter("canaries = [\"canary.pem\"]"),
    );
    let other = scene.pki.path("made/other.pkbf");
    write_filter(&other, &[b"another list"]);
    rename(other, scene.file()).unwrap();
    scene.is_refused("canary", "is not in the filter: keys were lost, or it is another list");
    scene.is_as_it_was();

    scene.publish(2, 1_750_000_000);
    scene.in_use(2);
    // A changed file of canaries causes a check. An unusable one rejects the filter.
    std::fs::write(scene.pki.path("canary.pem"), "nothing\n").unwrap();
    scene.keygate.wait_for_status("a look", |status| {
        status["filters"][0]["last_reload"]["result"] == "unchanged"
    });
    scene.publish(3, 1_750_000_001);
    scene.is_refused("canary", "canary.pem: ");
    std::fs::copy(&scene.next.certificate, scene.pki.path("canary.pem")).unwrap();
    scene.in_use(3);
    assert_eq!(scene.keygate.metric(&refusals("canary")), 2.0);
}

#[test]
fn an_update_over_max_new_hits_waits_for_the_operator() {
    let scene = scene_with("max_new_hits = 0");
    let update = scene.update();
    let sha256 = sha256sum(&update, "").trim().to_owned();
    assert_eq!(scene.accept(&["lost"]).status.code(), Some(3), "nothing waits");
    rename(update, scene.file()).unwrap();
    scene.is_refused("new_hits", "would reject 1 of the clients admitted recently");
    scene.is_as_it_was();
    let status = scene.keygate.status();
    let waiting = &status["filters"][0]["waiting"];
    assert_eq!(waiting["sha256"], sha256.as_str());
    assert_eq!((&waiting["new_hits"], &waiting["max_new_hits"]), (&json!(1), &json!(0)));
    assert_eq!((&waiting["revision"], &waiting["entries"]), (&json!(2), &json!(2)));
    let fingerprint = Fingerprint::of(&scene.next.spki).to_string();
    let clients = json!([{ "service": "test", "fingerprint": fingerprint, "subject": "CN=next" }]);
    assert_eq!(waiting["clients"], clients);
    let line = scene.keygate.wait_for("the clients in the log", |line| {
        line["message"] == "filter update rejected, keeping the one in use"
            && line["clients"] == format!("{fingerprint} CN=next (test)")
    });
    assert_eq!(line["sha256"], sha256.as_str());
    assert!(scene.keygate.admin("/").1.contains(&fingerprint), "the page names the client");

    // Without a decision of the operator the command shows the update and changes nothing.
    let output = scene.accept(&["lost"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    for part in ["would reject: 1", &fingerprint, "CN=next (test)", &sha256] {
        assert!(output_text(&output).contains(part), "{}", output_text(&output));
    }
    // The command that it prints accepts the update.
    let config = scene.pki.path("admin.toml");
    let command =
        format!("keygate filter accept lost --sha256 {sha256} --config {}\n", config.display());
    assert!(output_text(&output).contains(&command), "{}", output_text(&output));
    let short = scene.accept(&["lost", "--sha256", "abcd"]);
    assert_eq!(short.status.code(), Some(2), "{}", output_text(&short));
    assert!(output_text(&short).contains("64 hex digits"), "{}", output_text(&short));
    let preview: Value = serde_json::from_slice(&scene.accept(&["lost", "--json"]).stdout).unwrap();
    assert_eq!((&preview["clients"], &preview["generation"]), (&clients, &Value::Null));
    assert_eq!(scene.keygate.metric(ACCEPTED), 0.0);

    for (arguments, problem) in [
        (&["found"][..], "no filter \"found\""),
        (
            &["lost", "--sha256", &"0".repeat(64)],
            "inspect it with `keygate filter diff`, then accept it",
        ),
    ] {
        let output = scene.accept(arguments);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains(problem), "{}", output_text(&output));
    }
    scene.is_as_it_was();

    let output = scene.accept(&["lost", "--sha256", &sha256, "--json"]);
    assert!(output.status.success(), "{}", output_text(&output));
    let accepted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!({
        "filter": "lost", "sha256": sha256, "revision": 2, "entries": 2, "new_hits": 1,
        "clients": clients, "generation": 2,
    });
    assert_eq!(accepted, expected);
    scene.refuses(&scene.next);
    scene.admits(&scene.good);
    let status = scene.keygate.status();
    assert_eq!(status["filters"][0]["revision"], 2);
    assert_eq!(status["filters"][0]["waiting"], Value::Null);
    assert_eq!(scene.keygate.metric(&refusals("new_hits")), 1.0);
    assert_eq!(scene.keygate.metric(LOADED), 2.0);
    assert_eq!(scene.keygate.metric(SUCCESSFUL), 1.0);
    assert_eq!(scene.accept(&["lost"]).status.code(), Some(3), "nothing waits any more");
    let line = scene
        .keygate
        .wait_for("the record", |line| line["message"] == "filter update accepted by an operator");
    assert_eq!((&line["filter"], &line["new_hits"]), (&json!("lost"), &json!(1)));
    assert_eq!(line["sha256"], sha256.as_str());
    assert_eq!(line["clients"], format!("{fingerprint} CN=next (test)"));
    assert!(contains(&line["peer"], "127.0.0.1:"), "{line}");
    assert_eq!(scene.keygate.metric(ACCEPTED), 1.0);
}

#[test]
fn an_update_with_the_key_of_an_issuer_waits_if_the_chain_is_judged() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (client, intermediate) = pki.client_of_intermediate("client");
    write_filter(&pki.path("lost.pkbf"), &[b"another"]);
    let configuration =
        Configuration::new(origin.address()).policy("judge = \"chain\"").filter("max_new_hits = 0");
    let keygate = configuration.start(&pki);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
    write_revision(&pki.path("lost.pkbf"), &[b"another", &intermediate], 2);
    let status = keygate.wait_for_status("the update to wait", |status| {
        status["filters"][0]["waiting"]["new_hits"] == 1
    });
    assert_eq!(status["filters"][0]["waiting"]["clients"][0]["subject"], "CN=client");
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
}

#[test]
fn an_update_within_max_new_hits_is_loaded_at_once() {
    let scene = scene_with("max_new_hits = 1");
    scene.publish(2, 1_750_000_000);
    scene.in_use(2);
    scene.refuses(&scene.next);
    assert_eq!(scene.keygate.metric(REFUSED), 0.0);
}

#[test]
fn flagged_clients_do_not_count_as_new_hits() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let next = pki.client("next", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text = Configuration::new(origin.address()).policy("on_probable = \"flag\"");
    let text = text.filter("max_new_hits = 0");
    let keygate = text.start(&pki);
    assert_eq!(keygate.curl(&next, &[]).stdout, b"hello\n");
    write_revision(&pki.path("lost.pkbf"), &[&next.spki], 2);
    keygate.wait_for_generation(2);
    assert_eq!(keygate.curl(&next, &[]).stdout, b"hello\n");
    assert_eq!(keygate.metric(REFUSED), 0.0);
}

#[test]
fn clients_with_an_exception_or_on_a_list_do_not_count_as_new_hits() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [excepted, listed] = ["excepted", "listed"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[b"another"]);
    std::fs::write(pki.path("deny.txt"), "# nothing yet\n").unwrap();
    let fingerprint = |spki: &[u8]| Fingerprint::of(spki).to_string();
    let tables = format!(
        "[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n[[exceptions]]\nfingerprint = \"{}\"\n\
         until = 2999-01-01\nreason = \"replacement ordered\"\n",
        fingerprint(&excepted.spki)
    );
    let text = Configuration::new(origin.address()).global(&tables).filter("max_new_hits = 0");
    let keygate = text.start(&pki);
    for client in [&excepted, &listed] {
        assert_eq!(keygate.curl(client, &[]).stdout, b"hello\n");
    }
    std::fs::write(pki.path("deny.txt"), fingerprint(&listed.spki)).unwrap();
    keygate.wait_for_generation(2);
    write_revision(&pki.path("lost.pkbf"), &[b"another", &excepted.spki, &listed.spki], 2);
    keygate.wait_for_generation(3);
    assert_eq!(keygate.curl(&excepted, &[]).stdout, b"hello\n");
    assert_eq!(keygate.metric(REFUSED), 0.0);
}

#[test]
fn an_accepted_update_that_was_replaced_meanwhile_is_checked_again() {
    let scene = scene_with("max_new_hits = 0");
    scene.publish(2, 1_750_000_000);
    scene.is_refused("new_hits", "would reject 1 of");
    let first = scene.keygate.status()["filters"][0]["waiting"]["sha256"].clone();
    scene.publish(3, 1_750_000_001);
    scene.keygate.wait_for_status("the next update", |status| {
        status["filters"][0]["waiting"]["revision"] == 3
    });
    let output = scene.accept(&["lost", "--sha256", first.as_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    scene.is_as_it_was();
}

/// The file that the operator would accept has gone, with the update in memory.
#[test]
fn a_waiting_update_that_has_gone_is_not_offered_and_not_accepted() {
    let scene = scene_with("max_new_hits = 0");
    scene.publish(2, 1_750_000_000);
    scene.is_refused("new_hits", "would reject 1 of");
    let waiting = scene.keygate.status()["filters"][0]["waiting"]["sha256"].clone();
    scene.publish(3, 1_600_000_000);
    scene.is_refused("rollback", "older");
    let status = scene.keygate.status();
    assert_eq!(status["filters"][0]["acceptable"], false, "{status}");
    assert!(!scene.keygate.admin("/").1.contains("filter accept"));
    let condition = &status["attention"][0];
    let look = format!("keygate filter info {}", scene.pki.path("lost.pkbf").display());
    assert_eq!((&condition["level"], &condition["command"]), (&"red".into(), &look.into()));
    assert!(contains(&condition["problem"], "rejected (rollback): "), "{condition}");
    for arguments in [&["lost", "--yes"][..], &["lost", "--sha256", waiting.as_str().unwrap()]] {
        let output = scene.accept(arguments);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains("no longer in "), "{}", output_text(&output));
    }
    let body = format!("{{\"sha256\":{waiting}}}");
    assert_eq!(scene.keygate.post("/filters/lost/accept", "application/json", &body).0, 409);
    assert_eq!(scene.keygate.metric(ACCEPTED), 0.0);
    scene.is_as_it_was();

    // The update comes back, and waits again.
    scene.publish(2, 1_750_000_000);
    scene
        .keygate
        .wait_for_status("the update", |status| status["filters"][0]["acceptable"] == true);
    assert_eq!(scene.keygate.status()["filters"][0]["waiting"]["sha256"], waiting);
    assert!(scene.accept(&["lost", "--yes"]).status.success());
    assert_eq!(scene.keygate.metric(ACCEPTED), 1.0);
}

#[test]
fn the_accept_call_requires_json_that_names_the_update() {
    let scene = scene_with("max_new_hits = 0");
    let path = "/filters/lost/accept";
    let (json, zeros) = ("application/json", format!("{{\"sha256\":\"{}\"}}", "0".repeat(64)));
    // A content type that an HTML form can send.
    assert_eq!(scene.keygate.post(path, "text/plain", &zeros).0, 415);
    assert_eq!(scene.keygate.post(path, json, "{}").0, 400);
    assert_eq!(scene.keygate.post(path, json, "{\"sha256\":\"12\"}").0, 400);
    assert_eq!(scene.keygate.post(path, json, &" ".repeat(10_000)).0, 400);
    assert_eq!(scene.keygate.post(path, json, &zeros).0, 409);
    assert_eq!(scene.keygate.post("/filters/found/accept", json, &zeros).0, 404);
    assert_eq!(scene.keygate.admin(path).0, 405);

    scene.publish(2, 1_750_000_000);
    scene.is_refused("new_hits", "would reject 1 of");
    let sha256 = scene.keygate.status()["filters"][0]["waiting"]["sha256"].clone();
    let (status, body) = scene.keygate.post(path, json, &format!("{{\"sha256\":{sha256}}}"));
    assert_eq!(status, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(reply, json!({ "filter": "lost", "sha256": sha256, "generation": 2 }));
    scene.refuses(&scene.next);
}

#[test]
fn a_filter_that_is_too_old_is_reported_and_used() {
    let scene = scene_with("max_age = \"30d\"");
    let stale = "keygate_filter_stale{filter=\"lost\"}";
    scene.keygate.wait_for("a warning", |line| {
        contains(&line["message"], "the filter in use is stale") && line["max_age"] == "30days"
    });
    assert_eq!(scene.keygate.metric(stale), 1.0);
    assert_eq!(scene.keygate.status()["filters"][0]["stale"], true);
    scene.publish(2, now());
    scene.in_use(2);
    scene.refuses(&scene.next);
    assert_eq!(scene.keygate.metric(stale), 0.0);
    assert_eq!(scene.keygate.status()["filters"][0]["stale"], false);
    assert_eq!(scene.keygate.metric(REFUSED), 0.0);
}

#[test]
fn an_update_over_max_size_is_rejected() {
    let scene = scene_with("max_size = \"64KiB\"");
    let path = scene.pki.path("made/large.pkbf");
    let large = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
    create(&large, &path, Overwrite::Never).unwrap();
    rename(path, scene.file()).unwrap();
    scene.is_refused("size", "the file is 131096 bytes (128.0 KiB) long, max_size allows 64 KiB");
    scene.is_as_it_was();
}
