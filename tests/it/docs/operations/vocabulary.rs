//! Metrics and log lines on the page exist.

use std::collections::BTreeSet;
use std::fs::{read, read_to_string};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Scene, code, section, table};
use crate::support::{blocks, write_revision};

#[test]
fn the_metrics_on_the_page_exist() {
    let scene = Scene::new();
    let keygate = scene.keygate("state = { dir = \".\" }", "");
    let [commands] = blocks(section("## Alerts"), "sh").try_into().unwrap();
    let shown = scene.run(&commands, &keygate);
    for name in [
        "filter_stale",
        "filter_last_reload_successful",
        "config_last_reload_successful",
        "own_key_compromised",
    ] {
        assert!(shown.contains(&format!("\nkeygate_{name}")), "{name}: {shown}");
    }
    assert!(shown.contains("\nready\n") && shown.contains("\"generation\": 1"), "{shown}");
    let [command] = blocks(section("## Resources"), "sh").try_into().unwrap();
    let shown = scene.run(&command, &keygate);
    for name in ["process_open_fds", "process_max_fds", "process_resident_memory_bytes"] {
        assert!(shown.contains(name), "{name}: {shown}");
    }
    let unit = include_str!("../../../../deploy/systemd/keygate.service");
    assert!(unit.contains("LimitNOFILE=65536") && section("## Resources").contains("65536"));

    // The rollback state is the only file that keygate writes.
    let state = read_to_string(scene.pki.path("filters.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert!(state["filters"]["pwnedkeys"]["revision"].is_number(), "{state}");
}

/// All of `src`, one file after the other.
fn sources(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let texts = entries.map(|path| match path.is_dir() {
        true => sources(&path),
        false => read_to_string(path).unwrap(),
    });
    texts.collect()
}

#[test]
fn every_log_line_on_the_page_is_in_the_source_with_that_level() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let mut seen = 0;
    for row in table("## Logs") {
        let levels: Vec<_> = row[1].split(", ").collect();
        for (index, text) in code(row[0]).into_iter().enumerate() {
            // Some messages have a part that varies.
            let pieces = [("client ", "client {outcome}")];
            let is_written = sources.contains(&format!("\"{text}\""));
            let mut pieces = pieces.into_iter().filter(|_| !is_written);
            let piece = pieces.find(|(begin, _)| text.starts_with(begin));
            // The messages of filters and lists are the same but for the first word.
            let of_files = text.replacen("filter ", "{} ", 1).replacen("list ", "{} ", 1);
            let text = if is_written { text } else { &of_files };
            let written = piece.map_or(text, |(begin, written)| {
                let rest = format!("\"{}\"", &text[begin.len()..]);
                assert!(sources.contains(&rest), "{rest}");
                written
            });
            let called = |place: usize| {
                // A `Warning` is logged where it is in use.
                let levels = [
                    ("debug!(", "DEBUG"),
                    ("info!(", "INFO"),
                    ("warn!(", "WARN"),
                    ("error!(", "ERROR"),
                    ("Warning", "WARN"),
                ];
                let called = levels.iter().max_by_key(|(name, _)| sources[..place].rfind(*name));
                called.unwrap().1
            };
            let level = levels.get(index).unwrap_or(&levels[0]);
            let written = format!("\"{written}\"");
            let mut places = sources.match_indices(&written).map(|(place, _)| called(place));
            assert!(places.any(|called| called == *level), "{text}: {level}");
            seen += 1;
        }
    }
    assert!(seen > 25, "{seen}");
}

/// The example log lines on the page have the fields of real log lines, and the same values except
/// for keys, addresses and times.
#[test]
fn the_example_log_lines_are_real() {
    let scene = Scene::new();
    let [examples] = blocks(section("## Logs"), "json").try_into().unwrap();
    let keygate = scene.keygate("", "policy = { on_probable = \"flag\" }");
    scene.is_served(&keygate, &scene.billing);
    let anonymous = Command::new("curl")
        .args([
            "--silent",
            "--insecure",
            &format!("https://localhost:{}/", keygate.address().port()),
        ])
        .output()
        .unwrap();
    assert!(!anonymous.status.success());
    let first = read(scene.pki.path("pwnedkeys.pkbf")).unwrap();
    write_revision(&scene.pki.path("made"), &[&scene.billing.spki, &scene.shop.spki], 2);
    scene.replace("pwnedkeys.pkbf", read(scene.pki.path("made")).unwrap());
    keygate.wait_for_generation(2);
    scene.replace("pwnedkeys.pkbf", first);
    let other = scene.pki.server_for("other", &["localhost"]);
    scene.replace("orders.pem", read(other.certificate).unwrap());
    let mut seen = 0;
    for example in examples.lines() {
        let example: Value = serde_json::from_str(example).unwrap();
        let line = keygate
            .wait_for("the line of an example", |line| line["message"] == example["message"]);
        let fields = |line: &Value| -> BTreeSet<String> {
            line.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(fields(&line), fields(&example), "{line}");
        let same =
            ["level", "target", "reason", "result", "verdict", "action", "stage", "encoding"];
        for field in same {
            assert_eq!(line[field], example[field], "{field} of {line}");
        }
        seen += 1;
    }
    assert_eq!(seen, 6);
}
