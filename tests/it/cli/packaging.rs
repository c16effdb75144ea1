//! Files for packages: shell completions and manual pages.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::keygate::keygate;
use crate::support::{output_text, skip, system};

fn printed(output: Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn script(shell: &str) -> String {
    printed(keygate(&["completions", shell]))
}

/// The completions of bash for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("keygate");
    std::fs::write(&path, script("bash")).unwrap();
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    // As bash calls the function that `complete -p` names.
    let script = format!(
        "source '{}'; f=$(complete -p keygate | sed 's/.*-F \\([^ ]*\\).*/\\1/')
         COMP_WORDS=({}); COMP_CWORD={}
         $f keygate \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        path.display(),
        quoted.join(" "),
        words.len() - 1
    );
    let offered = printed(system("bash", &["--norc", "-c", &script]));
    offered.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    for (words, expected) in [
        (&["keygate", "he"][..], &["healthcheck", "help"][..]),
        (&["keygate", "filter", "q"], &["query"]),
        (&["keygate", "filter", "create", "--hash-"], &["--hash-count", "--hash-length"]),
        (&["keygate", "healthcheck", "--t"], &["--timeout"]),
        (&["keygate", "proof", "v"], &["verify"]),
        (&["keygate", "completions", "z"], &["zsh"]),
        (&["keygate", "m"], &[]), // that is for packagers
    ] {
        let mut offered = completed(words);
        offered.sort();
        assert_eq!(offered, expected, "{words:?}");
    }
    let all = completed(&["keygate", ""]);
    for command in [
        "run",
        "validate",
        "demo",
        "healthcheck",
        "report",
        "filter",
        "key",
        "confirm",
        "proof",
        "completions",
    ] {
        assert!(all.iter().any(|offered| offered == command), "{command} is not in {all:?}");
    }
    let help = printed(keygate(&["--help"]));
    assert!(!help.contains("  man"), "{help}");
}

#[test]
fn the_help_of_the_program_names_every_kind_of_check() {
    let help = printed(keygate(&["--help"]));
    let text = help.split("\n\nUsage: ").next().unwrap().replace('\n', " ");
    for subject in
        ["filters and exact lists", "RSA keys that anybody can factor", "the rules of the service"]
    {
        assert!(text.contains(subject), "{subject}: {text}");
    }
}

/// A syntax error, or a function that is not there, ends it.
#[test]
fn zsh_and_fish_load_their_completions() {
    let directory = TempDir::new().unwrap();
    for (shell, file) in [("zsh", "_keygate"), ("fish", "keygate.fish")] {
        let path = directory.path().join(file);
        std::fs::write(&path, script(shell)).unwrap();
        if !skip::without(shell) {
            printed(system(shell, &["-n", path.to_str().unwrap()]));
        }
    }
    if !skip::without("zsh") {
        let loads = format!(
            "fpath=('{}' $fpath); autoload -U compinit; compinit -u -D; print $_comps[keygate]",
            directory.path().display()
        );
        assert_eq!(printed(system("zsh", &["-f", "-c", &loads])), "_keygate\n");
    }
}

/// The manual pages by their names.
fn pages(directory: &Path) -> BTreeMap<String, String> {
    let out = directory.join("made/for/it");
    xtask::man::write(&out).unwrap();
    let files = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap());
    let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    named.map(|(name, path)| (name, read_to_string(path).unwrap())).collect()
}

/// Without the signs of the typesetter.
fn plain(page: &str) -> String {
    ["\\fB", "\\fI", "\\fR", "\\"]
        .into_iter()
        .fold(page.to_owned(), |page, sign| page.replace(sign, ""))
}

/// The commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let lines = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let lines = lines.lines().take_while(|line| !line.is_empty());
    let names = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_a_man_page_with_every_option_and_section() {
    let directory = TempDir::new().unwrap();
    let mut pages = pages(directory.path());
    let mut known = Vec::new();
    let mut below = vec![Vec::<String>::new()];
    while let Some(path) = below.pop() {
        let arguments = [path.clone(), vec!["--help".to_owned()]].concat();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let help = printed(keygate(&arguments));
        let name = [vec!["keygate".to_owned()], path.clone()].concat().join("-") + ".1";
        let page = pages.remove(&name).unwrap_or_else(|| panic!("no {name} in {pages:?}"));
        let shown = plain(&page);
        let words = help.split(|character: char| !(character == '-' || character.is_alphabetic()));
        for option in words.filter(|word| word.starts_with("--") && word.len() > 2) {
            assert!(shown.contains(option), "{option} is not in {name}");
        }
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"] {
            let heading = format!(".SH {heading}").replace("EXIT STATUS", "\"EXIT STATUS\"");
            let heading = heading.replace("SEE ALSO", "\"SEE ALSO\"");
            assert_eq!(page.matches(&heading).count(), 1, "{heading} in {name}");
        }
        let codes = help.split("\nExit codes:\n").nth(1).unwrap_or_else(|| panic!("{help}"));
        let codes = codes.split("\n\n").next().unwrap().replace('`', "");
        let codes: Vec<_> = codes.split_whitespace().map(|it| it.trim_matches(':')).collect();
        let section = shown.split(".SH \"EXIT STATUS\"\n").nth(1).unwrap();
        let section = section.split("\n.SH ").next().unwrap().replace(".TP\n", "");
        let section: Vec<_> = section.split_whitespace().map(|it| it.trim_matches(':')).collect();
        assert_eq!(codes, section, "the help has the exit codes of {name}");
        let examples = shown.split("\n.SH EXAMPLES\n").nth(1).unwrap_or_default();
        let examples = examples.split("\n.SH ").next().unwrap();
        let has_example = examples.contains("keygate ");
        assert!(has_example || !commands(&help).is_empty(), "{name} has no example");
        for example in examples.lines().filter(|line| line.starts_with("keygate ")) {
            assert!(help.contains(&format!("\n    {example}")), "{example} is not in {help}");
        }
        for command in commands(&help) {
            below.push([path.clone(), vec![command]].concat());
        }
        known.push((name, shown));
    }
    assert!(known.len() > 12, "{known:?}");
    assert_eq!(pages.into_keys().collect::<Vec<_>>(), ["keygate.toml.5"]);
    let names: Vec<_> = known.iter().map(|(name, _)| name.replace(".1", "(1)")).collect();
    for (name, page) in &known {
        let others = page.split(".SH \"SEE ALSO\"\n").nth(1).unwrap().trim_end();
        for other in others.split(", ") {
            let is_there = other == "keygate.toml(5)" || names.iter().any(|name| name == other);
            assert!(is_there, "{name} names {other}");
        }
    }
}

#[test]
fn the_page_on_the_program_has_the_documented_exit_codes() {
    let directory = TempDir::new().unwrap();
    let page = plain(&pages(directory.path())["keygate.1"]);
    let page_of_operations = include_str!("../../../docs/operations.md");
    let rows = page_of_operations.split("| exit code | |\n| --- | --- |\n").nth(1).unwrap();
    let rows: Vec<_> = rows.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), 7, "{rows:?}");
    for row in rows {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        assert!(page.contains(&format!("\n{}\n{}\n", cells[1], cells[2])), "{row}");
    }
}

#[test]
fn the_page_on_the_configuration_has_every_line_of_the_example() {
    let directory = TempDir::new().unwrap();
    let page = plain(&pages(directory.path())["keygate.toml.5"]);
    let example = include_str!("../../../config/keygate.toml");
    let example = example.trim_start_matches("#:schema keygate.schema.json\n");
    let words = |text: &str| {
        let kept = text.replace(['#', '"'], " ").replace("*(Aq", "'").replace("(bu", " ");
        kept.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let shown = words(&page).join(" ");
    for line in example.lines() {
        for part in line.split(" # ").map(|part| words(part).join(" ")) {
            assert!(shown.contains(&part), "{part:?} of {line:?}");
        }
    }
}

#[test]
fn the_man_pages_render_without_a_warning() {
    let directory = TempDir::new().unwrap();
    for name in pages(directory.path()).into_keys() {
        let path = directory.path().join("made/for/it").join(name);
        let path = path.to_str().unwrap();
        if !skip::without("groff") {
            printed(system("groff", &["-ww", "-man", "-Tutf8", "-z", path]));
        }
        if !skip::without("mandoc") {
            let output = system("mandoc", &["-T", "lint", "-W", "warning", path]);
            let warnings = String::from_utf8_lossy(&output.stdout);
            // The pages have no date. The generator puts breaks between the values of an argument.
            let known = ["missing date, using \"\"", "skipping paragraph macro: br "];
            let unknown = warnings.lines().find(|line| !known.iter().any(|it| line.contains(it)));
            assert_eq!(unknown, None);
        }
    }
}

/// The build script outside of a repository: in the archive of `cargo package`, and in an archive
/// of the sources.
#[test]
fn the_version_has_the_commit_of_a_package_without_git() {
    let directory = TempDir::new().unwrap();
    let program = directory.path().join("build-script");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
    let compiled = ["--edition", "2024", "-o", program.to_str().unwrap(), source.to_str().unwrap()];
    printed(system("rustc", &compiled));
    // A repository around the archive has nothing to do with it.
    let outer = directory.path().to_str().unwrap();
    printed(system("git", &["init", "--quiet", outer]));
    let unpacked = directory.path().join("keygate-0.1.0");
    std::fs::create_dir(&unpacked).unwrap();
    let commit = |given: &str| {
        let mut command = Command::new(&program);
        command.current_dir(&unpacked).envs([("PROFILE", "release"), ("TARGET", "a-target")]);
        let output = printed(command.env("KEYGATE_COMMIT", given).output().unwrap());
        assert!(output.contains("cargo:rustc-env=KEYGATE_TARGET=a-target\n"), "{output}");
        let line = output.lines().find_map(|it| it.strip_prefix("cargo:rustc-env=KEYGATE_COMMIT="));
        line.unwrap().to_owned()
    };
    let (packaged, given) = ("a".repeat(40), "b".repeat(40));
    assert_eq!(commit(""), "unknown");
    let info = format!("{{\n  \"git\": {{\n    \"sha1\": \"{packaged}\"\n  }}\n}}\n");
    std::fs::write(unpacked.join(".cargo_vcs_info.json"), info).unwrap();
    assert_eq!(commit(""), packaged);
    assert_eq!(commit(&given), given, "the packager decides");
    assert_eq!(commit("v1.0; rm"), packaged);
}

/// The package has the files at these places below its documents.
#[test]
fn every_relative_link_of_the_packaged_documents_leads_to_a_file_of_the_package() {
    if skip::without("perl") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = TempDir::new().unwrap();
    let documents = directory.path().to_str().unwrap();
    printed(system(root.join("deploy/debian/documents").to_str().unwrap(), &[documents]));
    let manifest = include_str!("../../../Cargo.toml");
    let is_packaged = |file: &str| {
        let (place, _) = file.rsplit_once('/').unwrap_or(("", file));
        let has_directory = |it: &str| manifest.contains(&format!("keygate/{it}/\""));
        directory.path().join(file).exists()
            || file == "README.Debian"
            || file.starts_with("examples/")
                && root.join(file.replace("examples", "config")).exists()
            || file == "deploy/authorizer"
            || root.join(file).exists() && (has_directory(place) || has_directory(file))
    };
    let mut count = 0;
    for page in walkdir::WalkDir::new(directory.path()) {
        let page = page.unwrap();
        if page.path().extension().is_none_or(|it| it != "md") {
            continue;
        }
        let text = read_to_string(page.path()).unwrap();
        let links = text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap());
        for link in links.filter(|link| !link.is_empty() && !link.starts_with("http")) {
            let place = if page.depth() == 1 { "" } else { "docs/" };
            let file = match link.strip_prefix("../") {
                Some(file) => file.to_owned(),
                None => format!("{place}{link}"),
            };
            assert!(is_packaged(&file), "{}: {link}", page.path().display());
            count += 1;
        }
    }
    assert!(count > 200, "{count}");
}
