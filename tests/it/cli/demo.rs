//! `keygate demo`, as a new user sees it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use crate::support::keygate::{BINARY, keygate};
use crate::support::{TIMEOUT, output_text, system, wait_for};

/// The directory that the output of a demo names.
fn directory(shown: &str) -> &Path {
    let line = shown.lines().find(|line| line.starts_with("CA, certificates and keys:")).unwrap();
    Path::new(line.rsplit("  ").next().unwrap().trim())
}

#[test]
fn the_demo_shows_an_admitted_and_a_rejected_client_and_deletes_its_files() {
    let output = keygate(&["demo", "--once"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", output_text(&output));
    for line in [
        "Status page:                 http://127.0.0.1:",
        "good is admitted:     HTTP/1.1 200 OK\n",
        "mallory is rejected:  TLS alert ",
        "her key is in the filter, and the source has a proof\n",
        "carol is admitted:    HTTP/1.1 200 OK\n",
        "the source does not know her key: the hit is a false positive\n",
    ] {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    assert!(!shown.contains("Serving until"), "{shown}");
    let directory = directory(&shown);
    assert!(directory.is_absolute() && !directory.exists(), "{}", directory.display());
}

/// Runs a printed command in a shell, from another directory than the demo's.
fn run(command: &str) -> std::process::Output {
    system("sh", &["-c", &format!("cd /; {command}")])
}

/// A running demo; ends with the test.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

#[test]
fn the_commands_that_the_demo_prints_work_until_ctrl_c() {
    let parent = tempfile::TempDir::new().unwrap();
    let odd = parent.path().join("it's $HOME");
    std::fs::create_dir(&odd).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("demo").env("TMPDIR", &odd).stdout(Stdio::piped());
    let mut demo = Demo(command.spawn().unwrap());
    let stdout = demo.0.stdout.take().unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().for_each(|line| drop(sender.send(line.unwrap())));
    });
    let mut shown = String::new();
    while !shown.contains("Serving until Ctrl-C") {
        let line = lines.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("it stopped at\n{shown}"));
        shown.push_str(&line);
        shown.push('\n');
    }
    let directory = directory(&shown);
    assert!(directory.join("keygate.toml").exists(), "{shown}");
    assert!(directory.starts_with(&odd), "{shown}");

    let commands: Vec<_> = shown.lines().filter(|line| line.starts_with("  ")).collect();
    let commands: Vec<_> = commands.iter().filter(|line| !line.contains("because")).collect();
    let [good, mallory, carol, add, create] = commands.as_slice() else {
        panic!("five commands are expected in\n{shown}")
    };
    let is_admitted = |output: &std::process::Output| {
        output.status.success() && output.stdout.starts_with(b"The upstream received:\n\nGET /")
    };
    for client in [good, carol] {
        let admitted = run(client);
        assert!(is_admitted(&admitted), "{}", output_text(&admitted));
    }
    // An alert in the handshake, or the end of a connection that was held for an answer.
    let is_rejected =
        |output: &std::process::Output| !output.status.success() && output.stdout.is_empty();
    let rejected = run(mallory);
    assert!(is_rejected(&rejected), "{}", output_text(&rejected));

    // Adds the key of good to the filter, which the running demo reloads. The source clears it. A
    // connection that is open at the reload is evicted before the source answers.
    let added = run(add);
    assert!(added.status.success(), "{}", output_text(&added));
    let page = shown.lines().find_map(|line| line.strip_prefix("Status page:")).unwrap().trim();
    wait_for("the filter with the two encodings of the key", || {
        let metrics = run(&format!("curl --silent --show-error {page}metrics"));
        let metrics = output_text(&metrics);
        let is_in_use = metrics.contains("keygate_filter_entries{filter=\"compromised\"} 4\n");
        is_in_use.then_some(()).ok_or(metrics)
    });
    wait_for("good to be admitted", || {
        let output = run(good);
        is_admitted(&output).then_some(()).ok_or_else(|| output_text(&output))
    });
    // A proof in the directory confirms it.
    let created = run(create);
    assert!(created.status.success(), "{}", output_text(&created));
    wait_for("good to be rejected", || {
        let output = run(good);
        if is_rejected(&output) {
            return Ok(());
        }
        assert!(output.status.success(), "{}", output_text(&output));
        Err(output_text(&output))
    });

    assert!(system("kill", &["-s", "INT", &demo.0.id().to_string()]).status.success());
    // The output ends when the process has exited.
    let end = lines.recv_timeout(TIMEOUT);
    if end != Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {
        panic!("Ctrl-C did not end the demo: {end:?}");
    }
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
    assert!(!directory.exists(), "{} is still there", directory.display());
}
