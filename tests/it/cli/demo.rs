//! `keygate demo`, as somebody who tries it for the first time sees it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use crate::support::keygate::{BINARY, keygate};
use crate::support::{PATIENCE, said, system};

/// The directory of a demo, by what it says.
fn directory(said: &str) -> &Path {
    let line = said.lines().find(|line| line.starts_with("A CA and two clients")).unwrap();
    Path::new(line.rsplit("  ").next().unwrap().trim())
}

#[test]
fn the_demo_shows_an_admitted_and_a_refused_client_and_leaves_nothing_behind() {
    let output = keygate(&["demo", "--once"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said(&output));
    assert!(shown.contains("\"good\" is admitted:  HTTP/1.1 200 OK"), "{shown}");
    assert!(shown.contains("\"lost\" is refused:   received fatal alert"), "{shown}");
    assert!(shown.contains("AccessDenied") || shown.contains("access_denied"), "{shown}");
    assert!(!shown.contains("Serving until"), "{shown}");
    let directory = directory(&shown);
    assert!(directory.is_absolute() && !directory.exists(), "{}", directory.display());
}

#[test]
fn the_commands_that_the_demo_prints_work_until_ctrl_c() {
    let mut child = Command::new(BINARY).arg("demo").stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().for_each(|line| drop(sender.send(line.unwrap())));
    });
    let mut shown = String::new();
    while !shown.contains("Serving until Ctrl-C") {
        let line =
            lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it stopped at\n{shown}"));
        shown.push_str(&line);
        shown.push('\n');
    }
    let directory = directory(&shown);
    assert!(directory.join("keygate.toml").exists(), "{shown}");

    let commands: Vec<_> = shown.lines().filter(|line| line.starts_with("  curl ")).collect();
    let [good, lost] = commands.as_slice() else { panic!("two commands are expected in\n{shown}") };
    let admitted = system("sh", &["-c", good]);
    assert!(admitted.status.success(), "{}", said(&admitted));
    assert!(admitted.stdout.starts_with(b"The origin received:\n\nGET /"), "{}", said(&admitted));
    let refused = system("sh", &["-c", lost]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{}", said(&refused));
    assert!(said(&refused).contains("access denied"), "{}", said(&refused));

    assert!(system("kill", &["-s", "INT", &child.id().to_string()]).status.success());
    // Its output ends when it has ended.
    let end = lines.recv_timeout(PATIENCE);
    if end != Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {
        child.kill().unwrap();
        panic!("Ctrl-C did not end the demo: {end:?}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!directory.exists(), "{} is still there", directory.display());
}
