//! Directories and files of other users.
//!
//! Guards: `create_parent` in `src/fetch/work_directory.rs`, `adopt` in `src/fetch/install.rs`.

use std::fs::{Permissions, create_dir, read, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Command, Output};

use super::scene::{Scene, rejected};
use crate::support::keygate::BINARY;
use crate::support::proxy::Configure;
use crate::support::{output_text, skip};

/// The user that runs `keygate fetch`.
const USER: u32 = 65533;

/// A filter in `state/filters`, where `state` belongs to [`USER`]. `None` skips the test.
fn scene() -> Option<Scene> {
    let mut scene = Scene::new("")?;
    let state = scene.pki.path("state");
    create_dir(&state).unwrap();
    if skip::unless(chown(&state, Some(USER), Some(USER)).is_ok(), "it needs root") {
        return None;
    }
    scene.configuration = scene.configuration.set("filters.path", "state/filters/lost.pkbf");
    scene.configure();
    for file in ["", "ca.pem", "keygate.toml"] {
        set_permissions(scene.pki.path(file), Permissions::from_mode(0o755)).unwrap();
    }
    Some(scene)
}

fn run_as_user(scene: &Scene) -> Output {
    scene.mirror.date_files();
    let (id, config) = (USER.to_string(), scene.pki.path("keygate.toml"));
    let program = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", BINARY, "fetch", "--config"])
        .arg(config)
        .output();
    program.unwrap()
}

fn succeeds(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", output_text(output));
}

#[test]
fn missing_directories_are_made_by_the_user_that_fetches() {
    let Some(scene) = scene() else { return };
    scene.publish(1);
    let target = scene.pki.path("state/filters/lost.pkbf");
    rejected(&scene.run(&[]), "state: it belongs to user 65533, and keygate fetch runs as user 0");
    assert!(!scene.pki.path("state/filters").exists(), "root has made a directory for itself");
    succeeds(&run_as_user(&scene));
    let metadata = target.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (USER, 0o644));
    let directory = scene.pki.path("state/filters").metadata().unwrap();
    assert_eq!((directory.uid(), directory.mode() & 0o022), (USER, 0));
    scene.publish(2);
    succeeds(&run_as_user(&scene));
}

#[test]
fn a_directory_of_root_is_given_to_the_user_that_fetches() {
    let Some(scene) = scene() else { return };
    scene.publish(1);
    let directory = scene.pki.path("state/filters");
    for path in [directory.clone(), directory.join(".lost.pkbf.fetch")] {
        create_dir(path).unwrap();
    }
    let part = directory.join(".lost.pkbf.fetch");
    let remedy = format!("give it to this user with chown -R {USER} {}", part.display());
    rejected(&run_as_user(&scene), &remedy);
    for path in [directory.clone(), directory.join(".lost.pkbf.fetch")] {
        chown(path, Some(USER), None).unwrap();
    }
    succeeds(&run_as_user(&scene));
}

#[test]
fn an_error_about_the_owner_of_the_file_in_use_names_that_owner() {
    let Some(scene) = scene() else { return };
    let first = scene.publish(1);
    succeeds(&run_as_user(&scene));
    let target = scene.pki.path("state/filters/lost.pkbf");
    chown(&target, Some(0), Some(0)).unwrap();
    set_permissions(&target, Permissions::from_mode(0o640)).unwrap();
    scene.publish(2);
    let output = run_as_user(&scene);
    rejected(&output, "the file in use belongs to user 0 and group 0 (mode 0640)");
    assert!(!output_text(&output).contains("writable"), "{}", output_text(&output));
    assert!(read(&target).unwrap() == first);
    set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
    succeeds(&run_as_user(&scene));
}
