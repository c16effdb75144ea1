//! Two processes with one state directory: only one of them writes it.
//!
//! Guard: `try_hold` in `src/saved_state/state_lock.rs`.

use std::fs::{create_dir, read, read_to_string, rename, write};

use serde_json::Value;

use crate::support::keygate::{BINARY, Keygate};
use crate::support::proxy::Configure;
use crate::support::scene::{Scene, contains};
use crate::support::{output_text, system, wait_until, write_filter, write_revision};

fn scene() -> Scene {
    Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            create_dir(pki.path("state")).unwrap();
        },
        |configuration| configuration.global("state = { dir = \"state\" }"),
    )
}

#[test]
fn a_process_of_another_configuration_does_not_start_with_the_same_state_directory() {
    let scene = scene();
    let (config, other) = (scene.pki.path("keygate.toml"), scene.pki.path("other.toml"));
    let state = scene.pki.path("state/filters.json");
    let before = read(&state).unwrap();
    write_filter(&scene.pki.path("foreign.pkbf"), &[]);
    let text = read_to_string(&config).unwrap();
    write(&other, text.replace("\"lost.pkbf\"", "\"foreign.pkbf\"")).unwrap();
    // A process that starts nevertheless would run for ever.
    let other = other.to_str().unwrap();
    let output = system("timeout", &["120", BINARY, "run", "--config", other]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let process = scene.keygate.pid();
    let config = config.canonicalize().unwrap();
    let problem = format!("process {process} with the configuration {}", config.display());
    assert!(output_text(&output).contains(&problem), "{}", output_text(&output));
    assert_eq!(read(&state).unwrap(), before);
}

#[test]
fn a_later_process_of_the_same_configuration_saves_its_state_once_the_earlier_one_has_ended() {
    let mut scene = scene();
    let text = read_to_string(scene.pki.path("keygate.toml")).unwrap();
    let later = Keygate::configured(&scene.pki, &text);
    let line = later.wait_for("the warning", |line| {
        line["message"]
            == "state directory is in use by another process, nothing is saved until it ends"
    });
    assert_eq!(line["process"], scene.keygate.pid().to_string());
    assert!(contains(&line["directory"], "state"), "{line}");

    // The earlier process holds the lock and does nothing else.
    scene.keygate.signal("STOP");
    let state = scene.pki.path("state/filters.json");
    let revision = || {
        let content: Value = serde_json::from_slice(&read(&state).unwrap()).unwrap();
        content["filters"]["lost"]["revision"].clone()
    };
    let kept = revision();
    // The second update is read after the attempt to save the first one.
    for next in [2, 3] {
        let staged = scene.pki.path("made/staged.pkbf");
        write_revision(&staged, &[&scene.lost.spki, &scene.next.spki], next);
        rename(staged, scene.pki.path("lost.pkbf")).unwrap();
        later.wait_for_status("the update", |status| status["filters"][0]["revision"] == next);
    }
    assert_eq!(revision(), kept);
    let waiting = "keygate_state_lock_waiting";
    assert_eq!(later.metric(waiting), 1.0);
    scene.keygate.signal("KILL");
    scene.keygate.ended();
    later.signal("HUP");
    later.wait_for("the lock", |line| {
        line["message"] == "state directory is free, this process saves its state"
    });
    wait_until("the state", || revision() == 3);
    assert_eq!(later.metric(waiting), 0.0);
    let lock = read_to_string(scene.pki.path("state/state.lock")).unwrap();
    assert!(lock.starts_with(&format!("{}\n", later.pid())), "{lock}");
}

#[test]
fn another_configuration_can_use_the_directory_of_a_process_that_was_killed() {
    let mut scene = scene();
    scene.keygate.signal("KILL");
    scene.keygate.ended();
    let lock = scene.pki.path("state/state.lock");
    let text = read_to_string(&lock).unwrap().replace("keygate.toml", "other.toml");
    write(&lock, text).unwrap();
    let text = read_to_string(scene.pki.path("keygate.toml")).unwrap();
    scene.keygate = Keygate::configured(&scene.pki, &text);
    scene.refuses(&scene.lost);
    assert!(scene.keygate.lines("cannot save rollback state").is_empty());
}
