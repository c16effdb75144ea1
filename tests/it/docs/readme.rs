//! The commands in the README work as written.

use std::path::Path;

use data_encoding::BASE64;

use crate::support::blocklist::Blocklist;
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Pki};
use crate::support::program::reserved_address;
use crate::support::{output_text, shell, system, write_filter};

const README: &str = include_str!("../../../README.md");

/// The section that goes from nothing to a protected service, and all others.
fn sections() -> (&'static str, String) {
    let (before, rest) = README.split_once("## Quick start\n").unwrap();
    let (section, after) = rest.split_once("\n## ").unwrap();
    (section, [before, after].join("\n## "))
}

fn blocks(language: &str) -> Vec<String> {
    crate::support::blocks(&sections().1, language)
}

/// The key that the section calls published.
const PUBLISHED: &str = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

#[test]
fn the_quick_start_leads_from_nothing_to_a_protected_service_without_internet() {
    let directory = tempfile::tempdir().unwrap();
    let script = crate::support::blocks(sections().0, "sh").concat();
    run_quick_start(directory.path(), script, "deny.txt, 1 key");
}

/// A mirror of the public list has the published key as well.
#[test]
fn the_public_list_takes_the_place_of_the_list_of_the_quick_start() {
    let directory = tempfile::tempdir().unwrap();
    let script = crate::support::blocks(sections().0, "sh").concat();
    let port = reserved_address().port();
    let mirror = format!("http://127.0.0.1:{port}");
    std::fs::create_dir(directory.path().join("mirror")).unwrap();
    Blocklist::new(&[(&BASE64.decode(PUBLISHED.as_bytes()).unwrap(), 1)])
        .with_others(0, 1000)
        .with("blocklist_url", format!("{mirror}/blocklist.dat").into())
        .write(&directory.path().join("mirror"));
    let fetch = "keygate fetch --badkeys badkeys\n";
    let public = blocks("sh").into_iter().find(|block| block.contains(fetch)).unwrap();
    let mirrored = format!(
        "python3 -m http.server --bind 127.0.0.1 --directory ../mirror {port} &\n\
         until curl -so /dev/null {mirror}; do sleep 0.1; done\n\
         keygate fetch --badkeys badkeys --url {mirror}/badkeysdata.json\n"
    );
    let public = public.replace(fetch, &mirrored);
    let validate = "keygate validate --config keygate.toml\n";
    assert!(script.contains(validate), "{script}");
    let script = format!("{script}{public}{validate}");
    run_quick_start(directory.path(), script, "badkeys/blocklist.dat, 1001 keys");
}

#[test]
fn the_public_list_is_installed_without_internet() {
    let (directory, mirror) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let address = format!("http://{}", reserved_address());
    let list = Blocklist::new(&[]).with_others(0, 1000);
    let list = list.with("blocklist_url", format!("{address}/blocklist.dat.xz").into());
    let path = list.write(mirror.path());
    system("xz", &[path.to_str().unwrap()]);
    let page = include_str!("../../../docs/lists.md").split_once("### Without internet").unwrap().1;
    let commands = crate::support::blocks(page.split_once("### ").unwrap().0, "sh").concat();
    let commands = commands
        .replace("https://update.badkeys.info/v0", &address)
        .replace("/var/lib/keygate-lists", directory.path().join("lists").to_str().unwrap());
    let (_, port) = address.rsplit_once(':').unwrap();
    let script = format!(
        "trap 'pkill -P $$' EXIT\n\
         python3 -m http.server --bind 127.0.0.1 --directory {mirror} {port} &\n\
         until curl -so /dev/null {address}; do sleep 0.1; done\n{commands}{commands}",
        mirror = mirror.path().display()
    );
    let output_text = output_text(&shell(directory.path(), &script));
    assert_eq!(output_text.matches("entries  1000\n").count(), 2, "{output_text}");
}

/// Runs the commands in an empty directory, with reserved ports. A trap ends the programs that they
/// started.
fn run_quick_start(directory: &Path, mut script: String, valid: &str) {
    for port in [8080, 8443, 9464] {
        let free = reserved_address().port();
        script = script.replace(&port.to_string(), &free.to_string());
    }
    // On a loaded machine the server may start later than the first request.
    let wait = |line: &str| {
        let mut words = line.split_whitespace().rev().skip(1);
        let port = line.contains("http.server").then(|| words.next().unwrap());
        port.map_or_else(String::new, |port| {
            format!("until curl -so /dev/null http://127.0.0.1:{port}; do sleep 0.1; done\n")
        })
    };
    // A client is recorded just after its alert is sent.
    let recorded = |line: &str| {
        let is_report = line.contains("keygate report");
        is_report.then(|| {
            format!("for i in $(seq 600); do {line} | grep -q mallory && break; sleep 0.1; done\n")
        })
    };
    let script: String = script
        .lines()
        .map(|line| format!("{}{line}\n{}", recorded(line).unwrap_or_default(), wait(line)))
        .collect();
    let script = format!("trap 'pkill -P $$' EXIT\n{script}");
    let output_text = output_text(&shell(directory, &script));
    for expected in [
        "keygate.toml: valid",
        valid,
        "Hello from orders.",
        "alert access denied",
        "rejected\n",
        "1 client rejected since",
        "CN=mallory",
    ] {
        assert!(output_text.contains(expected), "no {expected} in {output_text}");
    }
}

/// A directory as the README describes it, with a client.
fn directory() -> Pki {
    let pki = Pki::new();
    for (ours, theirs) in
        [("server.pem", "orders.pem"), ("server.key", "orders.key"), ("ca.pem", "clients-ca.pem")]
    {
        std::fs::copy(pki.path(ours), pki.path(theirs)).unwrap();
    }
    pki.client("client", Kind::P256);
    pki.client("old-client", Kind::P256);
    let [configuration] = blocks("toml").try_into().unwrap();
    std::fs::write(pki.path("keygate.toml"), configuration).unwrap();
    pki
}

#[test]
fn the_inspection_commands_succeed() {
    let pki = directory();
    let blocks: String = blocks("sh")
        .into_iter()
        .filter(|block| block.contains("keygate validate") || block.contains("filter create"))
        .collect();
    let output_text = output_text(&shell(pki.directory(), &blocks));
    for expected in [
        "keygate.toml: valid",
        "revision        1",
        "clean ",
        "negated-compressed",
        "2 entries added",
    ] {
        assert!(output_text.contains(expected), "no {expected} in {output_text}");
    }
}

#[test]
fn the_configuration_serves_on_free_ports() {
    let pki = directory();
    let [configuration] = blocks("toml").try_into().unwrap();
    write_filter(&pki.path("pwnedkeys.pkbf"), &[]);
    let free = configuration.replace("0.0.0.0:8443", "127.0.0.1:0");
    let keygate =
        Keygate::configured(&pki, &format!("admin = {{ listen = \"127.0.0.1:0\" }}\n{free}"));
    assert_eq!(keygate.admin("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(keygate.admin("/livez"), (200, "alive\n".to_owned()));
    assert_eq!(keygate.status()["services"][0]["name"], "orders");
    assert_eq!(keygate.metric("keygate_filter_revision{filter=\"pwnedkeys\"}"), 1.0);
    assert_eq!(keygate.admin("/nowhere").0, 404);
}

#[test]
fn the_demo_and_test_commands_are_in_the_readme() {
    let blocks = blocks("sh");
    assert_eq!(blocks[0], "cargo run -- demo\n");
    assert_eq!(blocks[1], "scripts/install-test-packages tests && cargo test --locked\n");
}

#[test]
fn the_performance_figures_are_those_of_the_page() {
    let page = include_str!("../../../docs/performance.md");
    let (_, section) = README.split_once("## Performance\n").unwrap();
    let rows: Vec<_> = section
        .split("\n## ")
        .next()
        .unwrap()
        .lines()
        .skip_while(|line| !line.contains("---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 2, "{rows:?}");
    for row in rows {
        // The page has further columns: other proxies, the floor, the ratio.
        assert!(page.lines().any(|line| line.starts_with(row)), "{row}");
    }
}

#[test]
fn every_file_that_is_linked_exists() {
    let links = README.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    let files: Vec<_> = links.filter(|link| !link.starts_with("http")).collect();
    assert!(files.len() > 4, "{files:?}");
    for link in files {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        assert!(path.exists(), "{link}");
        if !anchor.is_empty() {
            let text = std::fs::read_to_string(path).unwrap();
            let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
            let mut anchors =
                headings.map(|heading| heading.to_lowercase().replace([',', '?'], ""));
            assert!(anchors.any(|heading| heading.replace(' ', "-") == anchor), "{link}");
        }
    }
}
