//! The memory of state directory and process about filters: names, paths, numbers of entries,
//! copies.
//!
//! Guards: `FileRecord` and `History` in `src/saved_state/file_record.rs`, `entries` in
//! `src/sources/gate.rs`, `keep` in `src/saved_state/copies.rs`.

use std::fs::{File, read, read_dir, remove_file, rename, write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::support::keygate::{Keygate, keygate};
use crate::support::proxy::Configure;
use crate::support::scene::{Scene, contains};
use crate::support::{output_text, wait_until, write_revision};

/// A scene with a state directory.
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
    /// Renames a filter of `lost` and `others` other keys over the file.
    fn stage_entries(&self, others: u32, revision: u32) {
        let keys: Vec<_> = (0..others).map(|it| it.to_be_bytes()).collect();
        let others = keys.iter().map(|key| &key[..]);
        let staged = self.pki.path("made/staged.pkbf");
        write_revision(
            &staged,
            &[&self.lost.spki[..]].into_iter().chain(others).collect::<Vec<_>>(),
            revision,
        );
        rename(staged, self.pki.path("lost.pkbf")).unwrap();
    }

    fn uses(&self, revision: u32) {
        self.keygate.wait_for_status("the update", |status| {
            status["filters"][0]["revision"] == revision
                && status["filters"][0]["last_reload"]["result"] == "loaded"
        });
    }

    fn waits(&self, problem: &str) {
        self.keygate.wait_for("an update that waits", |line| {
            line["message"] == "filter update rejected, keeping the one in use"
                && contains(&line["error"], problem)
        });
    }

    fn end(&mut self) {
        self.keygate.signal("TERM");
        assert!(self.keygate.ended().success());
    }

    fn begin(&mut self) {
        let text = std::fs::read_to_string(self.pki.path("keygate.toml")).unwrap();
        self.keygate = Keygate::configured(&self.pki, &text);
    }

    fn checked(&self) -> Output {
        keygate(&["validate", "--config", self.pki.path("keygate.toml").to_str().unwrap()])
    }

    fn rename_filter(&self, from: &str, to: &str) {
        let config = self.pki.path("keygate.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let (from, to) = (format!("name = \"{from}\""), format!("name = \"{to}\""));
        assert!(text.contains(&from), "{text}");
        write(&config, text.replace(&from, &to)).unwrap();
    }

    fn copy(&self) -> PathBuf {
        let files = read_dir(self.pki.path("state")).unwrap().map(|it| it.unwrap().path());
        let mut copies = files.filter(|path| path.extension().is_some_and(|it| it == "pkbf"));
        copies.next().unwrap()
    }
}

/// The state directory was too small for the copy.
#[test]
fn a_filter_that_shrank_is_not_used_after_a_restart_without_a_copy() {
    let mut scene = scene("");
    scene.stage_entries(9, 2);
    scene.uses(2);
    let good = read(scene.pki.path("lost.pkbf")).unwrap();
    scene.stage_entries(1, 3);
    scene.waits("the number of entries falls from 10 to 2");
    scene.end();
    let state = scene.pki.path("state/filters.json");
    let mut records: Value = serde_json::from_slice(&read(&state).unwrap()).unwrap();
    records["filters"]["lost"].as_object_mut().unwrap().remove("last_good").unwrap();
    write(&state, records.to_string()).unwrap();
    remove_file(scene.copy()).unwrap();
    let output = scene.checked();
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let problem = "the number of entries falls from 10 to 2: restore the file that was in use, or \
                   remove filters.json from state.dir";
    assert!(output_text(&output).contains(problem), "{}", output_text(&output));
    write(scene.pki.path("lost.pkbf"), good).unwrap();
    scene.begin();
    scene.refuses(&scene.lost);
}

#[test]
fn another_name_of_a_filter_lets_no_update_through() {
    let mut scene = scene("");
    let older = read(scene.pki.path("lost.pkbf")).unwrap();
    scene.stage_entries(9, 2);
    scene.uses(2);
    scene.end();
    scene.rename_filter("lost", "other");
    scene.stage_entries(1, 3);
    scene.begin();
    scene.waits("the number of entries falls from 10 to 2");
    assert_eq!(scene.keygate.status()["filters"][0]["entries"], 10);
    scene.end();
    scene.rename_filter("other", "third");
    scene.begin();
    scene.waits("the number of entries falls from 10 to 2");
    scene.end();
    scene.rename_filter("third", "fourth");
    write(scene.pki.path("lost.pkbf"), older).unwrap();
    scene.begin();
    scene.waits("rollback: revision 1");

    // In the running process.
    scene.stage_entries(9, 4);
    scene.uses(4);
    scene.rename_filter("fourth", "fifth");
    scene.stage_entries(1, 5);
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(&line["problem"], "the number of entries falls from 10 to 2")
    });
    assert_eq!(scene.keygate.status()["filters"][0]["entries"], 10);
}

#[test]
fn a_filter_that_shrinks_step_by_step_waits_for_the_operator() {
    let mut scene = scene("");
    scene.stage_entries(119, 2);
    scene.uses(2);
    scene.stage_entries(65, 3);
    scene.uses(3);
    scene.stage_entries(36, 4);
    scene.waits("the number of entries falls from 120 to 37");
    scene.end();
    scene.begin();
    scene.stage_entries(37, 5);
    scene.keygate.wait_for_status("the update to wait", |status| {
        let waiting = &status["filters"][0]["waiting"];
        waiting["entries"] == 38 && waiting["entries_before"] == 120
    });
    assert!(scene.accept(&["lost", "--yes"]).status.success());
    // The decision of the operator is the new measure.
    scene.stage_entries(20, 6);
    scene.uses(6);
}

#[test]
fn bits_and_not_the_header_show_that_an_implausible_filter_shrank() {
    let scene = scene("implausible = \"warn\"");
    scene.stage_entries(99, 2);
    scene.uses(2);
    let (forged, others) = (scene.pki.path("made/forged.pkbf"), [b"one", b"two", b"six"]);
    let others = others.map(|key| &key[..]);
    write_revision(&forged, &[&[&scene.lost.spki[..]], &others[..]].concat(), 3);
    let entries = 100_u32.to_be_bytes();
    File::options().write(true).open(&forged).unwrap().write_all_at(&entries, 18).unwrap();
    rename(forged, scene.pki.path("lost.pkbf")).unwrap();
    scene.waits("the number of entries falls from 100 to 4:");
}

#[test]
fn a_copy_with_a_wrong_byte_is_written_again_at_a_start() {
    let mut scene = scene("");
    scene.end();
    let copy = scene.copy();
    let file = File::options().write(true).open(&copy).unwrap();
    file.write_all_at(b"?", 3).unwrap();
    scene.begin();
    let good = read(scene.pki.path("lost.pkbf")).unwrap();
    wait_until("the copy", || read(&copy).unwrap() == good);
}
