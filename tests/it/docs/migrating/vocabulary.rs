//! Directives and configuration keys on the page exist.

use std::collections::BTreeSet;

use super::{PAGE, Scene, code, table};
use crate::support::keys::keys;
use crate::support::{output_text, skip, system};

#[test]
fn every_directive_on_the_page_exists() {
    if !skip::without("nginx") {
        let scene = Scene::new();
        for row in table("## nginx", "| nginx | keygate |") {
            for directive in code(row[0]) {
                // A parameter of a server ends in `=`.
                let text = match directive.ends_with('=') {
                    true => format!("upstream one {{ server 127.0.0.1 {directive}1; }}"),
                    false => format!("{directive} ;"),
                };
                let output = scene.nginx_command(&text).arg("-t").output().unwrap();
                let is_one = ["unknown directive", "invalid parameter"]
                    .iter()
                    .all(|problem| !output_text(&output).contains(problem));
                assert!(is_one, "{directive}: {}", output_text(&output));
            }
        }
    }
    if !skip::without("haproxy") {
        let scene = Scene::new();
        let all = system("haproxy", &["-dKall", "-q", "-c", "-f", "/dev/null"]);
        let all = String::from_utf8_lossy(&all.stdout).into_owned();
        let words: BTreeSet<_> = all.split([' ', '\t', '\n', '[', ']', ':']).collect();
        for row in table("### TCP", "| HAProxy | keygate |") {
            for keyword in code(row[0]) {
                // Not all keywords are in that list: the others are tried.
                let is_accepted = |line: &str| {
                    let text = format!("defaults\n mode http\n {line}\n");
                    let output = scene.haproxy_command(&text).arg("-c").output().unwrap();
                    let output_text = output_text(&output);
                    let problems = ["unknown keyword", "unknown option", "'timeout' supports"];
                    !problems.iter().any(|problem| output_text.contains(problem))
                };
                assert!(!is_accepted("timeout nonsense 1s") && !is_accepted("option nonsense"));
                assert!(!is_accepted("nonsense 1"));
                let is_one = match keyword.split_once(' ') {
                    Some(("option", _)) => is_accepted(keyword),
                    Some(_) => is_accepted(&format!("{keyword} 1s")),
                    None => words.contains(keyword) || is_accepted(&format!("{keyword} 1")),
                };
                assert!(is_one, "{keyword}");
            }
        }
    }
}

/// Keys in tables and in sentences, which may omit `services.`.
#[test]
fn every_configuration_key_on_the_page_exists() {
    let minimal = include_str!("../../../../config/minimal.toml");
    let example = format!(
        "{minimal}\n\
         [[lists]]\nname = \"a\"\npath = \"b\"\n\
         [[authorizers]]\nname = \"b\"\nlisten = \"unix:c\"\nprotocol = \"spop\"\n\
         [[exceptions]]\nfingerprint = \"{}\"\nuntil = 2030-01-01\nreason = \"c\"\n",
        "0".repeat(64)
    );
    let known = keys(&toml::from_str(&example).unwrap());
    let tables: BTreeSet<_> = known.keys().flat_map(|key| key.split('.').rev().skip(1)).collect();
    let mut seen = 0;
    for word in PAGE.split('`').skip(1).step_by(2) {
        let key = word.split(' ').next().unwrap();
        let is_plain = |letter: char| letter.is_ascii_lowercase() || "._".contains(letter);
        let first = key.split('.').next().unwrap();
        if !key.contains('.') || !key.chars().all(is_plain) || !tables.contains(first) {
            continue;
        }
        let is_one = [key.to_owned(), format!("services.{key}")].iter().any(|key| {
            known.contains_key(key) || known.keys().any(|it| it.starts_with(&format!("{key}.")))
        });
        assert!(is_one, "{key}");
        seen += 1;
    }
    assert!(seen > 80, "{seen}");
}
