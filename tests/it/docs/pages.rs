//! The pages in `docs/` are true: their commands run and their configurations load.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use keygate::metrics::Label;
use keygate::sources::RejectionReason;
use serde_json::Value;

use crate::support::keygate::keygate;
use crate::support::keys::written;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{blocks, output_text, shell, skip};

const FILTERS: &str = include_str!("../../../docs/filters.md");

/// A directory with the files that the page on filters names.
fn directory() -> Pki {
    let pki = Pki::new();
    std::fs::create_dir(pki.path("leaked")).unwrap();
    std::fs::create_dir(pki.path("clients")).unwrap();
    for name in ["old-client", "newly-lost", "canary"] {
        pki.client(name, Kind::P256);
    }
    let leaked = pki.client("leaked-client", Kind::P256).private_key;
    std::fs::rename(leaked, pki.path("leaked/one.key")).unwrap();
    std::fs::copy(pki.path("newly-lost.pem"), pki.path("clients/a.pem")).unwrap();
    std::fs::copy(pki.path("canary.pem"), pki.path("clients/b.pem")).unwrap();
    let key = pki.path("ssh");
    let made = ["-q", "-t", "ed25519", "-N", "", "-f", key.to_str().unwrap()];
    crate::support::system("ssh-keygen", &made);
    let public = std::fs::read_to_string(pki.path("ssh.pub")).unwrap();
    std::fs::write(pki.path("authorized_keys"), format!("# gone\nno-pty {public}")).unwrap();
    pki
}

#[test]
fn the_commands_on_the_filters_page_work_as_described() {
    let pki = directory();
    let has_minisign = !skip::without("minisign");
    let mut commands = blocks(FILTERS, "sh");
    commands.retain(|block| has_minisign || !block.contains("minisign"));
    let output = shell(pki.directory(), &commands.concat());
    let shown = output_text(&output);
    for part in [
        "hash length (L) 19 (64.0 KiB of bits)",
        "2 keys read, 4 entries added",
        "1 key read, 1 entry added",
        "probable ",
        "clean -> probable ",
        "next.pkbf: OK",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let info = keygate(&["filter", "info", "--json", pki.path("lost.pkbf").to_str().unwrap()]);
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["entries"], 7, "the update was renamed over it");

    let [signed, settings] = blocks(FILTERS, "toml").try_into().unwrap();
    if has_minisign {
        assert!(shown.contains("(pwnedkeys, revision 7)"), "{shown}");
        validates(&pki, &signed);
    }
    let add = [
        "filter",
        "add",
        pki.path("lost.pkbf").to_str().unwrap(),
        pki.path("canary.pem").to_str().unwrap(),
    ]
    .map(str::to_owned);
    assert!(keygate(&add.each_ref().map(String::as_str)).status.success());
    std::fs::create_dir(pki.path("state")).unwrap();
    validates(&pki, &settings);
}

/// `settings` of filters are valid, with a service around them.
fn validates(pki: &Pki, settings: &str) {
    let text = Configuration::new("127.0.0.1:9").unset("filters").global(settings).text();
    let text = text.replace("/var/lib/keygate", "state");
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
    let valid = keygate(&["validate", "--config", pki.path("keygate.toml").to_str().unwrap()]);
    assert!(valid.status.success(), "{}", output_text(&valid));
}

#[test]
fn the_commands_on_the_confirmation_page_work_as_described() {
    let pki = directory();
    let page = include_str!("../../../docs/confirm.md");
    let output = shell(pki.directory(), &blocks(page, "sh").concat());
    let shown = output_text(&output);
    assert!(output.status.success(), "{shown}");
    assert_eq!(shown.matches("proved ").count(), 2, "{shown}");
    assert_eq!(shown.matches("\nconfirmed ").count(), 1, "{shown}");
}

#[test]
fn every_reason_to_reject_a_proof_is_explained() {
    use keygate_core::proof::BadProof;
    let page = include_str!("../../../docs/confirm.md");
    for reason in [
        BadProof::Algorithm,
        BadProof::Base64,
        BadProof::Header,
        BadProof::Json,
        BadProof::Key,
        BadProof::KeyId,
        BadProof::Members,
        BadProof::Payload,
        BadProof::Signature,
        BadProof::Size,
        BadProof::Text,
    ] {
        let row = format!("| `{}` |\n", reason.as_str());
        assert!(page.contains(&row), "{row}");
    }
}

/// Each block of settings on the page on proxying is loaded in a separate service.
#[test]
fn the_settings_on_the_proxying_page_are_valid() {
    let page = include_str!("../../../docs/proxying.md");
    let settings = blocks(page, "toml");
    assert_eq!(settings.len(), 3);
    for settings in settings {
        let pki = Pki::new();
        pki.client("keygate-client", Kind::P256);
        std::fs::copy(pki.path("ca.pem"), pki.path("internal-ca.pem")).unwrap();
        crate::support::write_filter(&pki.path("lost.pkbf"), &[]);
        // The page shows keys of a service.
        let table: toml::Table = format!("[[services]]\n{settings}").parse().unwrap();
        let service = written(table["services"][0].as_table().unwrap());
        let text = Configuration::new("127.0.0.1:9").unset("services.upstream").service(&service);
        std::fs::write(pki.path("keygate.toml"), text.text()).unwrap();
        let config = pki.path("keygate.toml");
        let valid = keygate(&["validate", "--config", config.to_str().unwrap()]);
        assert!(valid.status.success(), "{settings}: {}", output_text(&valid));
    }
}

#[test]
fn the_page_on_fetching_has_valid_settings_and_every_metric() {
    let page = include_str!("../../../docs/fetch.md");
    let [settings, crls, network] = blocks(page, "toml").try_into().unwrap();
    let parse = |settings: &str| {
        let text = Configuration::new("127.0.0.1:9").unset("filters").global(settings).text();
        keygate::config::Config::parse(Path::new("/etc/keygate/keygate.toml"), &text).unwrap()
    };
    let config = parse(&settings);
    assert!(config.filters[0].source.is_some() && config.lists[0].source.is_some());
    let config = parse(&format!("[[filters]]\nname = \"a\"\npath = \"b\"\n{crls}"));
    assert_eq!(config.services[0].client_auth.crls[0].sources.len(), 2);
    let config = parse(&format!("[[filters]]\nname = \"a\"\npath = \"b\"\n{network}"));
    let source = config.filters[0].source.clone().unwrap();
    assert!(source.proxy.is_some() && source.identity().is_some() && source.headers.is_some());
    let pki = Pki::new();
    let (directory, textfile) = (pki.path("badkeys"), pki.path("fetch.prom"));
    let arguments = ["fetch", "--badkeys", directory.to_str().unwrap(), "--url"];
    let more = ["http://127.0.0.1:1/a", "--textfile", textfile.to_str().unwrap()];
    let run = keygate(&[&arguments[..], &more[..]].concat());
    assert_eq!(run.status.code(), Some(3), "{}", output_text(&run));
    let written = std::fs::read_to_string(textfile).unwrap();
    let names = written.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = names.map(|line| line.split(' ').next().unwrap()).collect();
    let described = code(page).filter(|word| word.starts_with("keygate_"));
    let mut described: Vec<_> = described.collect();
    described.sort_unstable();
    assert_eq!(described, names);
}

#[test]
fn the_settings_on_the_systemd_page_are_valid() {
    let [settings] = blocks(include_str!("../../../docs/systemd.md"), "toml").try_into().unwrap();
    let pki = Pki::new();
    crate::support::write_filter(&pki.path("lost.pkbf"), &[]);
    let text = Configuration::new("127.0.0.1:9").global(&settings).text();
    std::fs::write(pki.path("keygate.toml"), text).unwrap();
    let config = pki.path("keygate.toml");
    let valid = keygate(&["validate", "--config", config.to_str().unwrap()]);
    assert!(valid.status.success(), "{}", output_text(&valid));
}

#[test]
fn every_rejection_reason_is_explained() {
    for reason in RejectionReason::OF_FILTERS {
        let row = format!("| `{}` | ", reason.as_str());
        assert!(FILTERS.contains(&row), "{row}");
    }
    for reason in RejectionReason::OF_LISTS {
        let row = format!("| `{}` | ", reason.as_str());
        assert!(include_str!("../../../docs/lists.md").contains(&row), "{row}");
    }
}

#[test]
fn every_size_in_the_table_is_what_create_makes() {
    let rows = FILTERS.lines().filter(|line| line.ends_with("iB |"));
    let mut seen = 0;
    for row in rows {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace(',', "")).collect();
        let (entries, k, l): (u64, u8, u8) =
            (cells[1].parse().unwrap(), cells[2].parse().unwrap(), cells[3].parse().unwrap());
        let parameters = keygate_core::pkbf::Parameters::for_entries(entries, 1e-6).unwrap();
        assert_eq!((parameters.hash_count(), parameters.hash_length()), (k, l), "{row}");
        let size = bytesize::ByteSize((1 << l) / 8).to_string().replace(".0", "");
        assert_eq!(cells[4], size, "{row}");
        seen += 1;
    }
    assert_eq!(seen, 6);
}

/// Every page of the repository for operators and developers.
pub(super) fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = walkdir::WalkDir::new(root.join("docs")).into_iter();
    let docs = docs.map(|entry| entry.unwrap().into_path());
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benches/README.md"];
    docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain(others.map(|page| root.join(page)))
        .collect()
}

#[test]
fn every_file_and_heading_that_is_linked_exists() {
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.starts_with("http")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let directory = page.parent().unwrap();
            let file = if file.is_empty() { page.clone() } else { directory.join(file) };
            assert!(file.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&file).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|line| anchor_of(line.trim_start_matches('#')));
                assert!(anchors.any(|found| found == anchor), "{}: {link}", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

/// The anchor of a heading, as code hosts make it.
fn anchor_of(heading: &str) -> String {
    let kept = |letter: &char| letter.is_ascii_alphanumeric() || " -_".contains(*letter);
    heading.trim().chars().filter(kept).collect::<String>().to_lowercase().replace(' ', "-")
}

/// Everything between backquotes on a page.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_path_of_the_repository_on_a_page_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rooms = ["src/", "crates/", "tests/", "config/", "deploy/", "docs/", "scripts/"];
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let paths = code(&text).filter(|word| rooms.iter().any(|room| word.starts_with(room)));
        for path in paths.filter(|path| !path.contains([' ', '*'])) {
            assert!(root.join(path).exists(), "{}: {path}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}

/// `just advisories`, for a scheduler, is a line of two pages and run by no test.
#[test]
fn every_recipe_on_a_page_is_in_the_justfile() {
    let justfile = include_str!("../../../justfile");
    let has_recipe = |name: &str| {
        let mut rests = justfile.lines().filter_map(|line| line.strip_prefix(name));
        rests.any(|rest| rest.starts_with([':', ' ']))
    };
    let mut named = HashSet::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let commands = code(&text).filter_map(|word| word.strip_prefix("just "));
        for command in commands.filter(|command| !command.starts_with('-')) {
            let name = command.split_whitespace().next().unwrap();
            assert!(has_recipe(name), "{}: just {command}", page.display());
            named.insert(name.to_owned());
        }
    }
    assert!(named.contains("advisories"), "{named:?}");
    assert!(
        justfile.contains("\nadvisories:\n    {{ tools }}/cargo-deny --locked check advisories\n")
    );
}

/// The page describes what Envoy Gateway makes, and the test of Envoy runs that file.
#[test]
fn the_column_of_envoy_gateway_is_what_its_file_has() {
    let page = include_str!("../../../docs/authorizers.md");
    let file = include_str!("../../vectors/envoy/envoy-gateway.yaml");
    let cell = |point: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("| {point} | "))).unwrap();
        row.split(" | ").nth(2).unwrap()
    };
    let timeout = cell("timeout");
    assert!(file.contains(&format!("timeout: {}\n", timeout.replace(' ', ""))), "{timeout}");
    let own = "{ path_separated_prefix: /own }\n                route: { cluster: ";
    let (_, own) = file.split_once(own).unwrap();
    let is_judged = own.lines().nth(1).unwrap().contains("typed_per_filter_config");
    assert!(!is_judged && cell("each route is judged").contains("without `mergeType`"));
}

/// All Rust files below `src`, `crates` and `tests`.
fn sources() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files =
        ["src", "crates", "tests"].map(|directory| walkdir::WalkDir::new(root.join(directory)));
    files
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

const SECURITY: &str = include_str!("../../../docs/security.md");

/// The rows of the tables on the security page whose first column is headed by one of `columns`.
fn security_rows(columns: &[&str]) -> Vec<Vec<&'static str>> {
    let cells = |row: &'static str| row.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>();
    let tables = SECURITY.split("\n\n").filter(|text| text.starts_with("| "));
    let tables = tables.filter(|table| columns.contains(&cells(table)[0]));
    tables.flat_map(|table| table.lines().skip(2)).map(cells).collect()
}

#[test]
fn every_attack_on_the_security_page_has_tests_that_exist() {
    let (appendix, sources) = (include_str!("../../../docs/security-tests.md"), sources());
    let mut tested = Vec::new();
    for entry in appendix.split("\n* **").skip(1) {
        let (attack, tests) = entry.split("\n\n").next().unwrap().split_once("**\n").unwrap();
        let tests: Vec<_> = code(tests).collect();
        assert!(!tests.is_empty(), "{attack}");
        for test in tests {
            assert!(sources.contains(&format!("fn {test}()")), "{attack}: {test}");
        }
        tested.push(attack);
    }
    let attacks = security_rows(&["attack", "fact"]);
    assert!(attacks.len() > 100, "{}", attacks.len());
    assert_eq!(tested, attacks.iter().map(|row| row[0]).collect::<Vec<_>>());
}

#[test]
fn every_setting_on_the_security_page_is_a_key_of_the_configuration() {
    let reference = include_str!("../../../docs/configuration.md");
    let mut seen = 0;
    for row in security_rows(&["attack"]) {
        let [attack, _, setting] = row[..] else { panic!("{row:?}") };
        // A link leads to a page instead.
        for key in code(setting).filter(|_| !setting.starts_with('[')) {
            let last = key.rsplit('.').next().unwrap();
            let places = [format!("\n| `{last}` | "), format!(".{last}`\n")];
            assert!(places.iter().any(|it| reference.contains(it)), "{attack}: {key}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn the_rows_of_the_security_page_are_short() {
    for line in SECURITY.lines() {
        assert!(line.chars().count() <= 300, "{line}");
    }
}

#[test]
fn the_changelog_has_this_version_and_names_existing_commands() {
    let page = include_str!("../../../docs/changelog.md");
    assert!(page.contains(&format!("\n## [{}] ", env!("CARGO_PKG_VERSION"))));
    let paragraph = page.split("\n\n").find(|text| text.starts_with("**The command line.**"));
    let commands: Vec<_> = paragraph.unwrap().split('`').skip(1).step_by(2).collect();
    let mut group = String::new();
    let mut seen = 0;
    for command in commands.into_iter().filter(|command| !command.starts_with("--")) {
        let words: Vec<_> = command.trim_start_matches("keygate ").split(' ').collect();
        // `keygate filter create` begins a group: what comes after is in it, too.
        match words[..] {
            [first, _] => group = first.to_owned(),
            _ if command.starts_with("keygate ") => group.clear(),
            _ => {}
        }
        let last = words[words.len() - 1];
        let arguments = [group.as_str(), last, "--help"];
        let arguments: Vec<_> = arguments.into_iter().filter(|word| !word.is_empty()).collect();
        let output = keygate(&arguments);
        assert!(output.status.success(), "{command}: {}", output_text(&output));
        seen += 1;
    }
    assert!(seen > 9, "{seen}");
}

/// The headers of test files point to the code that they guard, as `` `item` in `src/file.rs` ``.
#[test]
fn every_pointer_from_a_test_to_the_source_resolves() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pointers = 0;
    for entry in walkdir::WalkDir::new(root.join("tests/it")) {
        let path = entry.unwrap().into_path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let header = text.lines().map_while(|line| line.strip_prefix("//!"));
        let header = header.map(str::trim).collect::<Vec<_>>().join(" ");
        for (at, _) in header.match_indices("` in `") {
            let (before, after) = header.split_at(at);
            let item = before.rsplit('`').next().unwrap();
            let file = after.split('`').nth(2).unwrap();
            if !file.starts_with("src/") && !file.starts_with("crates/") {
                continue;
            }
            let source = std::fs::read_to_string(root.join(file));
            let source =
                source.unwrap_or_else(|error| panic!("{}: {file}: {error}", path.display()));
            assert!(source.contains(item), "{}: no {item} in {file}", path.display());
            pointers += 1;
        }
    }
    assert!(pointers > 20, "{pointers} pointers");
}
