//! State that outlives a restart: the last good filter, and the updates that wait for the operator.
//!
//! Guards: `copy` in `src/sources/guarded/first_value.rs` (the copy),
//! `check` in `src/sources/gate.rs` (waiting
//! updates), `keep` in `src/saved_state/copies.rs` (written from memory), `save` in
//! `src/saved_state/rollback_state.rs` (failed writes), `read` in
//! `src/saved_state/copies.rs` (the copy of a list).

use std::fs::{File, create_dir_all, read_dir, remove_dir_all, remove_file, rename, write};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use keygate_core::spki::Fingerprint;
use serde_json::Value;

use crate::support::keygate::{BINARY, Keygate, keygate};
use crate::support::proxy::Configure;
use crate::support::scene::{Scene, contains};
use crate::support::strace::Strace;
use crate::support::{output_text, skip, wait_until, write_filter, write_revision};

const LAST_GOOD: &str = "keygate_filter_last_good_in_use{filter=\"lost\"}";
const WRITE_FAILURES: &str = "keygate_state_write_failures_total";

fn scene(filter: &str) -> Scene {
    Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            std::fs::create_dir(pki.path("state")).unwrap();
        },
        |configuration| configuration.global("state = { dir = \"state\" }").filter(filter),
    )
}

impl Scene {
    fn filter(&self) -> PathBuf {
        self.pki.path("lost.pkbf")
    }

    /// Renames a filter that holds `lost` and `next` over the file, and waits until it is in use.
    fn replace(&self, revision: u32) {
        self.stage(&[&self.lost.spki, &self.next.spki], revision);
        self.keygate.wait_for_status("the update", |status| {
            status["filters"][0]["revision"] == revision
                && status["filters"][0]["last_reload"]["result"] == "loaded"
        });
    }

    /// Renames a filter of these keys over the file.
    fn stage(&self, keys: &[&[u8]], revision: u32) {
        let staged = self.pki.path("made/staged.pkbf");
        write_revision(&staged, keys, revision);
        rename(staged, self.filter()).unwrap();
    }

    fn stop(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
    }

    fn start(&mut self) {
        let text = std::fs::read_to_string(self.pki.path("keygate.toml")).unwrap();
        self.keygate = Keygate::configured(&self.pki, &text);
    }

    fn validate(&self, more: &[&str]) -> Output {
        let config = self.pki.path("keygate.toml");
        keygate(&[&["validate", "--config", config.to_str().unwrap()], more].concat())
    }

    /// The copies in the state directory.
    fn copies(&self) -> Vec<PathBuf> {
        let files = read_dir(self.pki.path("state")).unwrap().map(|it| it.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|it| it == "pkbf")).collect()
    }

    fn waiting(&self) -> Value {
        self.keygate.status()["filters"][0]["waiting"].clone()
    }
}

#[test]
fn a_start_with_a_rejected_file_uses_the_last_good_filter_and_warns() {
    let mut scene = scene("");
    let older = scene.pki.path("made/older.pkbf");
    std::fs::copy(scene.filter(), &older).unwrap();
    scene.replace(7);
    let good = std::fs::read(scene.filter()).unwrap();
    let mut damaged = good.clone();
    damaged[24..].fill(0xff);
    let older = std::fs::read(older).unwrap();
    for (content, reason) in [
        (Some(&b"<html>"[..]), "marker"),
        (None, "io"),
        (Some(&older), "rollback"),
        (Some(&damaged), "plausibility"),
    ] {
        scene.stop();
        match content {
            Some(content) => write(scene.filter(), content).unwrap(),
            None => remove_file(scene.filter()).unwrap(),
        }
        let output = scene.validate(&[]);
        assert!(output.status.success(), "{}", output_text(&output));
        let warning = "the last good filter in state.dir is in use";
        assert!(output_text(&output).contains(warning), "{}", output_text(&output));
        let shown = "filter lost: copy in state.dir, revision 7, ";
        assert!(output_text(&output).contains(shown), "{}", output_text(&output));
        assert_eq!(scene.validate(&["--strict"]).status.code(), Some(2));

        scene.start();
        scene.refuses(&scene.next);
        scene.refuses(&scene.lost);
        scene.admits(&scene.good);
        let line = scene.keygate.wait_for("the warning", |line| {
            line["message"] == "filter file rejected at the start, using the last good filter"
        });
        assert!(contains(&line["problem"], "lost.pkbf"), "{line}");
        assert_eq!(line["reason"], reason);
        let loaded = &scene.keygate.lines("filter loaded")[0];
        assert_eq!((&loaded["revision"], &loaded["entries"]), (&7.into(), &2.into()));
        assert_eq!(loaded["sha256"], scene.keygate.status()["filters"][0]["sha256"]);
        scene.keygate.wait_for("the reason", |line| {
            line["message"] == "filter update rejected, keeping the one in use"
                && line["reason"] == reason
        });
        assert_eq!(scene.keygate.metric(LAST_GOOD), 1.0);
        let filter = &scene.keygate.status()["filters"][0];
        assert_eq!((&filter["revision"], &filter["last_good_in_use"]), (&7.into(), &true.into()));
        assert_eq!(filter["last_reload"]["reason"], reason);
        assert_eq!(scene.keygate.admin("/readyz").0, 200);
        assert!(scene.keygate.admin("/").1.contains("last good filter in use"));

        write(scene.filter(), &good).unwrap();
        scene
            .keygate
            .wait_for("the repair", |line| line["message"] == "filter file is usable again");
        scene.keygate.wait_for_metric(LAST_GOOD, 0.0);
    }
    scene.replace(8);
    assert_eq!(scene.copies().len(), 1, "{:?}", scene.copies());
}

#[test]
fn a_copy_does_not_change_with_its_file_and_a_damaged_copy_is_not_used() {
    let mut scene = scene("");
    scene.replace(7);
    scene.stop();
    // The reference implementation writes in place.
    let file = File::options().write(true).open(scene.filter()).unwrap();
    file.write_all_at(&[0xff; 64], 24).unwrap();
    scene.start();
    scene.refuses(&scene.next);
    scene.stop();
    let [copy] = &scene.copies()[..] else { panic!("{:?}", scene.copies()) };
    let copy = File::options().write(true).open(copy).unwrap();
    copy.write_all_at(&[0; 1], 100_000).unwrap();
    copy.set_len(24).unwrap();
    let output = scene.validate(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
}

#[test]
fn the_last_good_filter_passes_every_check_again() {
    let mut scene = scene("");
    scene.stop();
    write(scene.filter(), b"damaged").unwrap();
    assert!(scene.validate(&[]).status.success());
    let config = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let name = "name = \"lost\"";
    assert!(text.contains(name), "{text}");
    for setting in ["canaries = [\"next.pem\"]", "max_size = \"100B\""] {
        write(&config, text.replace(name, &format!("{name}, {setting}"))).unwrap();
        let output = scene.validate(&[]);
        assert_eq!(output.status.code(), Some(3), "{setting}: {}", output_text(&output));
    }
}

#[test]
fn a_waiting_update_waits_after_other_settings_of_its_filter() {
    let scene = scene("max_new_hits = 0");
    scene.stage(&[&scene.lost.spki, &scene.next.spki], 2);
    scene.is_refused("new_hits", "would reject 1 of");
    let config = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    write(&config, text.replace("max_new_hits = 0", "max_new_hits = 0, max_age = \"300d\""))
        .unwrap();
    scene.keygate.wait_for("the configuration", |line| line["message"] == "configuration loaded");
    scene.is_as_it_was();
    assert_eq!(scene.waiting()["new_hits"], 1);
    // Also under another name, which has no filter in use that could stay.
    write(&config, text.replace("name = \"lost\"", "name = \"other\"")).unwrap();
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(&line["problem"], "raise or remove max_new_hits to add the filter")
    });
    scene.is_as_it_was();
    // A limit that allows it is the decision of the operator.
    write(&config, text.replace("max_new_hits = 0", "max_new_hits = 1")).unwrap();
    scene.keygate.wait_for_generation(3);
    scene.refuses(&scene.next);
}

#[test]
fn a_waiting_update_waits_after_a_restart_until_it_is_accepted() {
    let mut scene = scene("max_new_hits = 0");
    scene.stage(&[&scene.lost.spki, &scene.next.spki], 2);
    scene.is_refused("new_hits", "would reject 1 of");
    let sha256 = scene.waiting()["sha256"].clone();
    scene.stop();
    scene.start();
    scene.is_as_it_was();
    assert_eq!(scene.waiting()["sha256"], sha256);
    assert_eq!(scene.waiting()["clients"][0]["subject"], "CN=next");
    assert_eq!(scene.keygate.metric(LAST_GOOD), 1.0);

    // Another look at the same file, with fewer recent clients than before.
    scene.stop();
    scene.start();
    File::open(scene.filter()).unwrap().set_modified(SystemTime::now()).unwrap();
    let is_rejected = |line: &Value| {
        line["message"] == "filter update rejected, keeping the one in use"
            && line["reason"] == "new_hits"
    };
    scene.keygate.wait_for_lines("two rejections", 2, is_rejected);
    scene.is_as_it_was();

    // Another update that nothing can be said about.
    scene.stop();
    scene.stage(&[&scene.lost.spki, &scene.next.spki], 3);
    scene.start();
    scene.is_as_it_was();
    scene.is_refused("new_hits", "waited before the restart");
    let output = scene.accept(&["lost", "--yes"]);
    assert!(output.status.success(), "{}", output_text(&output));
    scene.refuses(&scene.next);
    assert_eq!(scene.keygate.metric(LAST_GOOD), 0.0);
    scene.stop();
    scene.start();
    scene.refuses(&scene.next);
    assert_eq!(scene.keygate.metric(LAST_GOOD), 0.0);
}

#[test]
fn a_waiting_update_waits_although_its_file_was_unusable_meanwhile() {
    let mut scene = scene("max_new_hits = 0");
    scene.stage(&[&scene.lost.spki, &scene.next.spki], 2);
    scene.is_refused("new_hits", "would reject 1 of");
    let (update, waiting) = (std::fs::read(scene.filter()).unwrap(), scene.waiting());
    for (content, reason) in [(None, "io"), (Some("<html>"), "marker")] {
        match content {
            Some(content) => write(scene.filter(), content).unwrap(),
            None => remove_file(scene.filter()).unwrap(),
        }
        for _ in 0..2 {
            scene.keygate.wait_for_status("the rejection", |status| {
                status["filters"][0]["last_reload"]["reason"] == reason
            });
            assert_eq!(scene.waiting(), waiting);
            scene.stop();
            scene.start();
        }
        let staged = scene.pki.path("made/staged.pkbf");
        write(&staged, &update).unwrap();
        rename(staged, scene.filter()).unwrap();
        scene.keygate.wait_for("the update to wait", |line| {
            line["message"] == "filter update rejected, keeping the one in use"
                && line["reason"] == "new_hits"
        });
        scene.is_as_it_was();
        assert_eq!(scene.waiting(), waiting);
    }
}

#[test]
fn a_filter_that_lost_half_of_its_entries_waits_for_the_operator() {
    let mut scene = scene("");
    scene.replace(2);
    for (keys, entries) in [(&[&scene.lost.spki[..]][..], 1), (&[], 0)] {
        scene.stage(keys, 3);
        scene.is_refused("shrunk", &format!("the number of entries falls from 2 to {entries}"));
        scene.refuses(&scene.next);
        assert_eq!(scene.waiting()["entries"], entries);
    }
    scene.stop();
    scene.start();
    scene.refuses(&scene.next);
    scene.is_refused("shrunk", "the number of entries falls from 2 to 0");
    assert!(scene.keygate.admin("/").1.contains("an update waits (shrunk)"));
    assert!(scene.accept(&["lost", "--yes"]).status.success());
    scene.admits(&scene.lost);
    scene
        .keygate
        .wait_for("the warning", |line| line["message"] == "the filter in use has no entries");
    let output = scene.validate(&[]);
    assert!(output_text(&output).contains("no entries, so no key is a hit"));
}

#[test]
fn a_failed_write_of_the_state_is_counted_logged_once_and_tried_again() {
    let scene = scene("");
    assert_eq!(scene.keygate.metric(WRITE_FAILURES), 0.0);
    let state = scene.pki.path("state/filters.json");
    remove_file(&state).unwrap();
    create_dir_all(state.join("in the way")).unwrap();
    scene.replace(2);
    scene.refuses(&scene.next);
    let is_failure = |line: &Value| line["message"] == "cannot save rollback state";
    let line = scene.keygate.wait_for("the failure", is_failure);
    assert!(contains(&line["error"], "filters.json: "), "{line}");
    assert!(scene.keygate.metric(WRITE_FAILURES) >= 1.0);
    remove_dir_all(&state).unwrap();
    scene.keygate.signal("HUP");
    wait_until("the state", || state.is_file());
    assert_eq!(scene.keygate.lines("cannot save rollback state").len(), 1);
}

#[test]
fn a_state_that_another_process_has_changed_is_written_again() {
    let scene = scene("");
    scene.replace(2);
    let state = scene.pki.path("state/filters.json");
    let written = std::fs::read(&state).unwrap();
    let older = "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":1}}}";
    for content in [older, "{"] {
        write(&state, content).unwrap();
        scene.keygate.signal("HUP");
        wait_until("the state", || std::fs::read(&state).unwrap() == written);
    }
}

/// strace holds every call on the state file for longer than any deadline.
#[test]
fn a_state_directory_that_hangs_does_not_stop_reloads() {
    if skip::without("strace") {
        return;
    }
    let scene = scene("");
    let state = scene.pki.path("state/filters.json");
    let calls = "openat,rename,renameat,renameat2,statx";
    let faults = Strace::attach(scene.keygate.pid(), calls, "delay_enter=600s", &[&state]);
    scene.replace(2);
    scene.keygate.wait_for("the failure", |line| {
        line["message"] == "cannot save rollback state"
            && contains(&line["error"], "no response from the file system")
    });
    scene.replace(3);
    scene.refuses(&scene.next);
    let has_revision = |revision: u32| {
        let content: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
        content["filters"]["lost"]["revision"] == revision
    };
    assert!(has_revision(1), "the write hangs");
    drop(faults);
    wait_until("the state", || has_revision(3));
}

/// strace holds every call on a file of the state for longer than any deadline.
#[test]
fn a_start_ends_if_the_state_directory_hangs() {
    if skip::without("strace") {
        return;
    }
    let mut scene = scene("");
    scene.stop();
    let config = scene.pki.path("keygate.toml");
    let calls = "openat,statx";
    for (command, name) in
        [("validate", "filters.json"), ("run", "revocation-lists.json"), ("run", "state.lock")]
    {
        let path = scene.pki.path("state").join(name);
        let mut strace = Command::new("strace");
        strace.args(["-f", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        strace.args(["-e", &format!("inject={calls}:delay_enter=600s"), "-P"]).arg(path);
        strace.args([BINARY, command]).arg(&config);
        let mut strace = strace.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(strace.stderr.take().unwrap()).lines().map(Result::unwrap);
        let error = lines.find(|line| line.starts_with("keygate: "));
        // strace would wait for the end of the call that it holds.
        strace.kill().unwrap();
        strace.wait().unwrap();
        let error = error.unwrap();
        assert!(error.contains("no response from the file system"), "{name}: {error}");
    }
}

#[test]
fn a_start_names_what_is_wrong_with_the_state_directory() {
    let mut scene = scene("");
    scene.stop();
    let state = scene.pki.path("state");
    write(state.join("filters.json"), "{").unwrap();
    for problem in ["filters.json: not JSON: EOF while parsing", "No such file or directory"] {
        let output = scene.validate(&[]);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains(problem), "{}", output_text(&output));
        let _ = remove_dir_all(&state);
    }
    write_filter(&scene.filter(), &[]);
}

const LIST_FILE_IN_USE: &str = "keygate_list_last_reload_successful{list=\"incident\"}";

/// A list with `next` is in use.
fn scene_with_list() -> Scene {
    let scene = scene("");
    let line = format!("{}\n", Fingerprint::of(&scene.next.spki));
    write(scene.pki.path("deny.txt"), &line).unwrap();
    let list = "\n[[lists]]\nname = \"incident\"\npath = \"deny.txt\"\n";
    let config = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&config).unwrap() + list;
    write(config, text).unwrap();
    scene.keygate.signal("HUP");
    scene.keygate.wait_for("the list", |line| line["message"] == "list loaded");
    wait_until("the copy of the list", || !scene.list_copies().is_empty());
    scene.refuses(&scene.next);
    scene
}

impl Scene {
    /// The copies of lists in the state directory.
    fn list_copies(&self) -> Vec<PathBuf> {
        let files = read_dir(self.pki.path("state")).unwrap().map(|it| it.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|it| it == "txt")).collect()
    }
}

#[test]
fn a_start_with_a_rejected_list_uses_the_last_good_list_and_warns() {
    let mut scene = scene_with_list();
    let list = scene.pki.path("deny.txt");
    let good = std::fs::read(&list).unwrap();
    for content in [Some("<html>"), Some(""), None] {
        scene.stop();
        match content {
            Some(content) => write(&list, content).unwrap(),
            None => remove_file(&list).unwrap(),
        }
        let output = scene.validate(&[]);
        assert!(output.status.success(), "{}", output_text(&output));
        let warning = "the last good list in state.dir is in use";
        assert!(output_text(&output).contains(warning), "{}", output_text(&output));
        let shown = ": copy in state.dir, 1 key\n";
        assert!(output_text(&output).contains(shown), "{}", output_text(&output));
        assert_eq!(scene.validate(&["--strict"]).status.code(), Some(2));

        scene.start();
        assert_eq!(scene.keygate.status()["lists"][0]["last_good_in_use"], true);
        assert!(scene.keygate.admin("/").1.contains("last good list in use, file rejected"));
        scene.refuses(&scene.next);
        scene.admits(&scene.good);
        let line = scene.keygate.wait_for("the warning", |line| {
            line["message"] == "list file rejected at the start, using the last good list"
        });
        assert!(contains(&line["problem"], "deny.txt"), "{line}");
        assert_eq!(scene.keygate.metric(LIST_FILE_IN_USE), 0.0);
        assert_eq!(scene.list_copies().len(), 1);
    }
    write(&list, &good).unwrap();
    scene.keygate.wait_for_metric(LIST_FILE_IN_USE, 1.0);
    scene
        .keygate
        .wait_for_status("the file", |status| status["lists"][0]["last_good_in_use"] == false);
    let valid = output_text(&scene.validate(&["--strict"]));
    assert!(!valid.contains("state.dir"), "{valid}");
    scene.refuses(&scene.next);
}

#[test]
fn a_damaged_copy_of_a_list_is_not_used_and_the_copy_of_a_removed_list_is_removed() {
    let mut scene = scene_with_list();
    let (list, config) = (scene.pki.path("deny.txt"), scene.pki.path("keygate.toml"));
    let good = std::fs::read(&list).unwrap();
    scene.stop();
    let copy = scene.list_copies().remove(0);
    let damaged = std::fs::read_to_string(&copy).unwrap();
    assert_eq!(damaged.as_bytes(), good, "the original bytes");
    write(&copy, "# damaged\n").unwrap();
    write(&list, "<html>").unwrap();
    let output = scene.validate(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains("deny.txt"), "{}", output_text(&output));

    write(&list, &good).unwrap();
    scene.start();
    wait_until("the copy", || std::fs::read_to_string(&copy).unwrap() == damaged);
    let text = std::fs::read_to_string(&config).unwrap();
    let (without, _) = text.rsplit_once("[[lists]]").unwrap();
    write(&config, without).unwrap();
    scene.keygate.signal("HUP");
    wait_until("the removal of the copy", || scene.list_copies().is_empty());
    scene.admits(&scene.next);
}
