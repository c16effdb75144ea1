//! The files of `deploy/fleet` that no other test starts.

use std::fs::{create_dir, read_to_string, write};

use crate::support::{output_text, skip, system};

fn file(name: &str) -> String {
    read_to_string(format!("deploy/fleet/{name}")).unwrap()
}

#[test]
fn the_manifests_render_with_the_script_and_the_gate_in_them() {
    if skip::without("kubectl") {
        return;
    }
    let rendered = system("kubectl", &["kustomize", "deploy/fleet"]);
    let text = output_text(&rendered);
    assert!(rendered.status.success(), "{text}");
    for part in
        ["kind: CronJob", "name: keygate-promote-2", "promtool query instant", "offset SOAK"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_units_are_valid() {
    if skip::without("systemd-analyze") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let units = directory.path().join("units");
    create_dir(&units).unwrap();
    for name in ["keygate-promote@.service", "keygate-promote@.timer"] {
        let unit = file(&format!("systemd/{name}"));
        // The script is not installed here.
        write(units.join(name), unit.replace("/usr/local/bin/keygate-rings", "/bin/true")).unwrap();
    }
    for kind in ["service", "timer"] {
        let unit = units.join(format!("keygate-promote@1.{kind}"));
        let checked = system("systemd-analyze", &["verify", "--man=no", unit.to_str().unwrap()]);
        let text = output_text(&checked);
        assert!(checked.status.success() && !text.contains("keygate-promote"), "{text}");
    }
}

#[test]
fn the_analysis_template_has_the_gate_of_the_script() {
    let words =
        |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let gate: String = file("gate.promql")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .fold(String::new(), |gate, line| gate + line + "\n");
    let gate = [
        ("SHA256", "{{args.sha256}}"),
        ("MAX_NEW_HITS", "{{args.max-new-hits}}"),
        ("MIN_HANDSHAKES", "100"),
        ("RING", "{{args.ring}}"),
        ("LIST", "{{args.list}}"),
        ("JOB", "keygate"),
        ("SOAK", "10m"),
        ("EVIDENCE", "1h"),
    ]
    .iter()
    .fold(gate, |gate, (name, value)| gate.replace(name, value));
    let template = file("argo/analysis-template.yaml");
    let (_, query) = template.split_once("query: |\n").unwrap();
    assert_eq!(words(query), words(&gate));
    assert!(template.starts_with("# Not run: "));
}
