//! Files that cannot be read for a time, that block, or whose writer is not done.

use std::fs::{File, OpenOptions, read, rename};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::Value;

use crate::support::keygate::{BINARY, Keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::{REFUSED, SUCCESSFUL, Scene, contains, refusals};
use crate::support::strace::Strace;
use crate::support::{output_text, skip, system, write_filter};

const LIST: &str = "[[lists]]
name = \"deny\"
path = \"deny.txt\"";

fn fingerprint(spki: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, spki).as_ref()) + "\n"
}

/// A proxy with a list, and with its own file for the CA of the clients.
fn scene() -> Scene {
    Scene::configured(
        |pki, first| {
            rename(first, pki.path("lost.pkbf")).unwrap();
            std::fs::write(pki.path("deny.txt"), "# nothing yet\n").unwrap();
            std::fs::copy(pki.path("ca.pem"), pki.path("clients.pem")).unwrap();
        },
        |configuration| configuration.global(LIST).client_auth("trust_anchors = \"clients.pem\""),
    )
}

/// Renames a file with this content over the one at `path`.
fn replace(scene: &Scene, path: &str, content: impl AsRef<[u8]>) {
    let made = scene.pki.path("made/next");
    std::fs::write(&made, content).unwrap();
    rename(made, scene.pki.path(path)).unwrap();
}

fn rejected(keygate: &Keygate, message: &str) {
    keygate.wait_for(message, |line| {
        let error = if line["error"].is_null() { &line["problem"] } else { &line["error"] };
        line["message"] == message && contains(error, "Input/output error")
    });
}

/// strace makes each attempt to open the files fail, and the metadata can still be read.
#[test]
fn files_that_could_not_be_read_are_read_again_although_they_have_not_changed() {
    if skip::without("strace") {
        return;
    }
    let scene = scene();
    let keygate = &scene.keygate;
    let third = scene.pki.client("third", Kind::P256);
    let stranger = Pki::named("Another CA");
    let configuration = std::fs::read_to_string(scene.pki.path("keygate.toml")).unwrap();
    let paths =
        ["lost.pkbf", "deny.txt", "clients.pem", "keygate.toml"].map(|name| scene.pki.path(name));
    let paths = paths.each_ref().map(|path| path.as_path());
    let faults = Strace::attach(keygate.pid(), "openat", "error=EIO", &paths);

    let update = read(scene.update()).unwrap();
    replace(&scene, "lost.pkbf", &update);
    replace(&scene, "deny.txt", fingerprint(&third.spki));
    let both = [read(scene.pki.path("ca.pem")), read(stranger.path("ca.pem"))];
    replace(&scene, "clients.pem", both.map(Result::unwrap).concat());
    replace(&scene, "keygate.toml", format!("{configuration}# changed\n"));
    scene.is_refused("io", "Input/output error");
    rejected(keygate, "list update rejected, keeping the one in use");
    rejected(keygate, "certificate update rejected, keeping those in use");
    rejected(keygate, "configuration rejected, keeping the one in use");
    scene.is_as_it_was();
    scene.admits(&third);
    // Several looks later there is still one line.
    for _ in 0..2 {
        keygate.signal("HUP");
        let before = keygate.metric("keygate_files_checked_timestamp_seconds");
        crate::support::wait_until("a look", || {
            keygate.metric("keygate_files_checked_timestamp_seconds") > before
        });
    }
    assert_eq!(keygate.metric(&refusals("io")), 1.0);
    assert_eq!(keygate.metric(REFUSED), 1.0);
    assert_eq!(keygate.lines("filter update rejected, keeping the one in use").len(), 1);

    drop(faults);
    keygate.wait_for_lines("the filter", 2, |line| line["message"] == "filter loaded");
    keygate.wait_for_lines("the list", 2, |line| line["message"] == "list loaded");
    keygate.wait_for("the CA", |line| line["message"] == "certificates loaded");
    keygate.wait_for_metric("keygate_config_last_reload_successful", 1.0);
    keygate.wait_for_metric(SUCCESSFUL, 1.0);
    scene.refuses(&scene.next);
    scene.refuses(&third);
    scene.admits(&stranger.client("stranger", Kind::P256));
}

/// strace holds every call on the configuration for longer than any deadline.
#[test]
fn a_file_system_that_hangs_under_one_file_does_not_stop_reloads_of_the_others() {
    if skip::without("strace") {
        return;
    }
    let scene = scene();
    let hung = scene.pki.path("keygate.toml");
    let faults = Strace::attach(scene.keygate.pid(), "statx,openat", "delay_enter=600s", &[&hung]);
    let update = scene.update();
    let content = read(&update).unwrap();
    rename(update, scene.pki.path("lost.pkbf")).unwrap();
    scene.is_replaced_by(&content);
    let line = scene.keygate.wait_for("the hung file", |line| {
        line["message"] == "file does not respond, others are read meanwhile"
    });
    assert_eq!((line["file"].as_str(), &line["timeout"]), (hung.to_str(), &"10s".into()));
    assert_eq!(scene.keygate.metric("keygate_files_hung"), 1.0);
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(
                &line["problem"],
                "/keygate.toml: cannot read the configuration: no response",
            )
    });

    drop(faults);
    scene.keygate.wait_for("the file", |line| line["message"] == "file responds again");
    scene.keygate.wait_for_metric("keygate_files_hung", 0.0);
    scene.keygate.wait_for_metric("keygate_config_last_reload_successful", 1.0);
}

#[test]
fn a_pipe_in_the_place_of_a_file_does_not_stop_reloads_of_the_others() {
    let scene = scene();
    let names = ["keygate.toml", "clients.pem", "server.key", "deny.txt", "deny.txt.sha256"];
    for name in names {
        let pipe = scene.pki.path("made/pipe");
        let made = system("mkfifo", &[pipe.to_str().unwrap()]);
        assert!(made.status.success(), "{}", output_text(&made));
        rename(pipe, scene.pki.path(name)).unwrap();
    }
    let problem = "not a regular file";
    for (message, field) in [
        ("configuration rejected, keeping the one in use", "problem"),
        ("certificate update rejected, keeping those in use", "error"),
        ("list update rejected, keeping the one in use", "error"),
    ] {
        scene.keygate.wait_for(message, |line| {
            line["message"] == message && contains(&line[field], problem)
        });
    }
    let update = scene.update();
    let content = read(&update).unwrap();
    rename(update, scene.pki.path("lost.pkbf")).unwrap();
    scene.is_replaced_by(&content);
}

/// Ends the loop of a thread, also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_filter_that_is_renamed_over_without_a_pause_is_loaded() {
    let scene = Scene::new();
    let content = read(scene.update()).unwrap();
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                replace(&scene, "lost.pkbf", &content);
                std::thread::sleep(Duration::from_millis(50)); // no file settles in so short a time
            }
        });
        let _stop = StopOnDrop(&stops);
        let is_update = |line: &Value| line["message"] == "filter loaded" && line["revision"] == 2;
        scene.keygate.wait_for("the filter", is_update);
    });
    // A further rename may have left the filter unchanged by now.
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.next);
    scene.admits(&scene.good);
    let is_in_use = |status: &Value| status["filters"][0]["revision"] == 2;
    scene.keygate.wait_for_status("revision 2", is_in_use);
}

/// A filter of which the writer, who holds the lock, has written one half, and the other half.
fn half_written(pki: &Pki) -> (File, Vec<u8>) {
    let path = pki.path("lost.pkbf");
    write_filter(&path, &[]);
    let content = read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.lock().unwrap();
    file.set_len(content.len() as u64 / 2).unwrap();
    (file, content)
}

#[test]
fn a_start_waits_for_the_writer_of_a_file() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let config = pki.path("keygate.toml");
    std::fs::write(&config, Configuration::new(origin.address()).text()).unwrap();
    let (file, content) = half_written(&pki);
    let mut command = Command::new(BINARY);
    command.args(["run", "--config"]).arg(&config).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let wanted = "\"message\":\"waiting for the writer of a file\"";
    let waiting = lines.find(|line| line.contains(wanted)).unwrap();
    assert!(waiting.contains("lost.pkbf"), "{waiting}");
    file.write_all_at(&content, 0).unwrap();
    file.unlock().unwrap();
    let ready = lines.find(|line| line.contains("\"message\":\"ready\""));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready.is_some());
}

#[test]
fn a_start_fails_if_the_writer_of_a_file_is_not_done_in_time() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let config = pki.path("keygate.toml");
    std::fs::write(&config, Configuration::new(origin.address()).text()).unwrap();
    let (_locked, _) = half_written(&pki);
    for command in ["run", "validate"] {
        let output = system(BINARY, &[command, "--config", config.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{command}: {}", output_text(&output));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("lost.pkbf: the file is being written to"), "{printed}");
    }
}

#[test]
fn a_command_does_not_wait_for_a_pipe_in_the_place_of_a_filter_or_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], code: i32| {
        let in_directory = ["--chdir", directory.path().to_str().unwrap(), BINARY];
        let output = system("env", &[&in_directory[..], arguments].concat());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
        assert!(printed.contains("not a regular file"), "{arguments:?}: {printed}");
    };
    std::fs::create_dir(directory.path().join("directory")).unwrap();
    system("mkfifo", &[directory.path().join("pipe").to_str().unwrap()]);
    for path in ["directory", "pipe", "/dev/zero"] {
        run(&["validate", "--config", path], 2);
        run(&["run", "--config", path], 2);
        for command in ["add", "query"] {
            run(&["filter", command, path, "/dev/null"], 3);
        }
        run(&["filter", "info", path], 3);
        run(&["filter", "create", path, "--hash-count", "3", "--hash-length", "8", "--force"], 3);
    }
}
