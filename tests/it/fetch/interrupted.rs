//! Updates that end between the first check and the last rename: killed, or by an error.
//!
//! Guards: `install` and `from_earlier_run` in `src/fetch/install.rs`, `complete_earlier_run` in
//! `src/fetch/update.rs`.

use std::fs::{copy, create_dir, read, remove_dir};
use std::process::Command;

use super::badkeys_scene::BadkeysScene;
use super::scene::{Scene, names, rejected};
use crate::support::keygate::BINARY;
use crate::support::proxy::Configure;
use crate::support::skip;

impl BadkeysScene {
    /// Kills an update at a system call. `None` if there is none with this number; otherwise
    /// whether the files in use did not fit each other. Another run completes the update.
    fn kill_update_at(&mut self, call: &str, number: u32) -> Option<bool> {
        let (old, new) = (self.list(1000), self.list(1500));
        let directory = self.pki.path("badkeys");
        let _ = std::fs::remove_dir_all(&directory); // of the last time
        self.publish(&old);
        self.fetched();
        self.publish(&new);
        let inject = format!("inject={call}:signal=KILL:when={number}");
        let killed = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject])
            .args([BINARY, "fetch", "--badkeys", directory.to_str().unwrap()])
            .args(["--url", &self.url()])
            .args(["--trust-anchors", self.pki.path("ca.pem").to_str().unwrap()])
            .output()
            .unwrap();
        if killed.status.success() {
            return None;
        }
        let read = keygate_core::badkeys::read(&directory.join("blocklist.dat"), 1 << 30);
        let is_torn = read.is_err();
        assert!(self.has(&old) || self.has(&new) || is_torn, "{call} {number}");
        if is_torn {
            self.mirror.kill();
            rejected(&self.run(&[]), "Connection refused");
            assert!(self.has(&new), "the next run completes the update without the source");
            self.mirror.restart();
        }
        self.fetched();
        assert!(self.has(&new), "{call} {number}");
        let left = names(&directory.join(".blocklist.dat.fetch"));
        assert!(!left.contains(&"next".to_owned()), "{left:?}");
        assert!(!names(&directory).iter().any(|name| name.ends_with(".fetched")));
        Some(is_torn)
    }
}

/// SIGKILL at each rename of a run. The pair in use is the old one, the new one, or one that a
/// reader rejects; the next run completes the update before its first request.
#[test]
fn an_update_that_is_killed_between_two_renames_is_completed_by_the_next_run() {
    if skip::without("strace") {
        return;
    }
    let Some(mut scene) = BadkeysScene::new() else { return };
    let (mut killed, mut torn) = (0, 0);
    // strace counts each system call by itself. Not every machine has all of them.
    for call in ["?rename", "?renameat", "?renameat2"] {
        for number in 1.. {
            match scene.kill_update_at(call, number) {
                None => break,
                Some(was_torn) => torn += u32::from(was_torn),
            }
            killed += 1;
        }
    }
    // The records of the part, of the checked version and of the state; metadata and list.
    assert_eq!((killed, torn), (5, 1));
}

#[test]
fn an_error_between_two_renames_leaves_a_pair_that_is_rejected_and_the_next_run_completes_it() {
    let Some(mut scene) = BadkeysScene::new() else { return };
    let (old, new) = (scene.list(1000), scene.list(1500));
    scene.publish(&old);
    scene.fetched();
    scene.publish(&new);
    // The name of the last link is taken, after the metadata were renamed.
    let taken = scene.pki.path("badkeys/.blocklist.dat.fetched");
    create_dir(&taken).unwrap();
    rejected(&scene.run(&[]), "/badkeys/blocklist.dat: Is a directory");
    let read = keygate_core::badkeys::read(&scene.pki.path("badkeys/blocklist.dat"), 1 << 30);
    let problem = read.unwrap_err().to_string();
    assert!(problem.contains("but blocklist_sha256 in "), "{problem}");
    remove_dir(taken).unwrap();
    scene.mirror.kill();
    rejected(&scene.run(&[]), "Connection refused");
    assert!(scene.has(&new));
}

#[test]
fn a_checked_version_of_another_source_or_without_a_checksum_is_never_installed() {
    let changes = [
        ("filters.source.stall_timeout", toml::Value::from("20s"), "Connection refused"),
        ("filters.source.url", "".into(), "/other.pkbf: Connection refused"),
        ("filters.source.trust_anchors", "other.pem".into(), "Connection refused"),
        ("filters.source.checksum", true.into(), "Connection refused"),
    ];
    for (key, value, problem) in changes {
        let Some(mut scene) = Scene::new("") else { return };
        let first = scene.publish(1);
        scene.fetched();
        let second = scene.publish(2);
        let taken = scene.pki.path(".lost.pkbf.fetched");
        create_dir(&taken).unwrap();
        scene.fails("/lost.pkbf: Is a directory");
        remove_dir(taken).unwrap();
        assert!(scene.pki.path(".lost.pkbf.fetch/next/.checked").exists());

        copy(scene.pki.path("ca.pem"), scene.pki.path("other.pem")).unwrap();
        let url = toml::Value::from(scene.mirror.url("other.pkbf"));
        let value = if key == "filters.source.url" { url } else { value };
        scene.configuration = scene.configuration.set(key, value);
        scene.configure();
        scene.mirror.kill();
        rejected(&scene.run(&[]), problem);
        // The control: another setting of the same source.
        let expected = if key == "filters.source.stall_timeout" { second } else { first };
        assert!(read(scene.target()).unwrap() == expected, "{key}");
    }
}
