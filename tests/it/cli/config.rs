//! `keygate config show` and `keygate config schema`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;

use keygate::config::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::keygate::keygate;
use crate::support::program::python_with;
use crate::support::{output_text, system};

const EXAMPLE: &str = include_str!("../../../config/keygate.toml");
const MINIMAL: &str = include_str!("../../../config/minimal.toml");

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", output_text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The example with every key that is off by default.
fn uncommented() -> String {
    let lines = EXAMPLE.lines();
    let lines = lines.map(|line| match line.trim_start().strip_prefix("# ") {
        Some(key) if key.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')) => key,
        Some(table) if table.starts_with('[') => table,
        Some(_) | None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_schema_in_the_repository_is_the_one_that_is_printed() {
    let printed = printed(&keygate(&["config", "schema"]));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/keygate.schema.json");
    let stored = std::fs::read_to_string(file).unwrap_or_default();
    let remedy = "run: keygate config schema > config/keygate.schema.json";
    assert!(stored == printed, "config/keygate.schema.json is out of date; {remedy}");
    for example in [EXAMPLE, MINIMAL] {
        assert!(example.starts_with("#:schema keygate.schema.json\n"));
    }
}

/// The errors that a validator finds in each of these texts.
fn errors(texts: &[String]) -> Option<Vec<Vec<String>>> {
    let python = python_with("jsonschema, tomllib")?;
    let program = "
import json, sys, tomllib
from jsonschema import Draft7Validator
schema = json.load(open('config/keygate.schema.json'))
Draft7Validator.check_schema(schema)
validator = Draft7Validator(schema)
found = []
for text in json.load(open(sys.argv[1])):
    # TOML has dates, JSON has text.
    config = json.loads(json.dumps(tomllib.loads(text), default=str))
    found.append([error.message for error in validator.iter_errors(config)])
print(json.dumps(found))
";
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("texts.json");
    std::fs::write(&file, serde_json::to_string(texts).unwrap()).unwrap();
    let output = system(python, &["-c", program, file.to_str().unwrap()]);
    Some(serde_json::from_str(&printed(&output)).unwrap())
}

#[test]
fn the_schema_accepts_the_examples_and_rejects_what_keygate_rejects() {
    let wrong = [
        ("workers = 0", "workers = 1025", "1025 is greater than the maximum of 1024"),
        ("workers = 0", "workers = \"two\"", "'two' is not of type 'integer'"),
        ("workers = 0", "wrokers = 0", "'wrokers' was unexpected"),
        ("balance = \"least-requests\"", "balance = \"leastconn\"", "'leastconn' is not one of"),
        ("resumption = true", "resumption = \"yes\"", "'yes' is not of type 'boolean'"),
        ("name = \"orders\"", "", "'name' is a required property"),
        (
            "  [services.client_auth]\n",
            "  [services.client_auht]\n",
            "'client_auth' is a required property",
        ),
        ("alpn = [\"h2\", \"http/1.1\"]", "alpn = [\"h3\"]", "'h3' is not one of"),
        ("idle_timeout = \"60s\"", "idle_timeout = 60", "60 is not of type 'string'"),
    ];
    let mut texts = vec![EXAMPLE.to_owned(), MINIMAL.to_owned(), uncommented()];
    let right = texts.len();
    for (before, after, _) in wrong {
        assert!(EXAMPLE.contains(before), "{before}");
        texts.push(EXAMPLE.replacen(before, after, 1));
    }
    let Some(found) = errors(&texts) else { return };
    for (text, errors) in texts.iter().zip(&found).take(right) {
        assert!(errors.is_empty(), "{errors:?} in {text}");
    }
    for ((_, after, expected), errors) in wrong.iter().zip(&found[right..]) {
        assert!(errors.iter().any(|error| error.contains(expected)), "{after}: {errors:?}");
    }
}

/// The schema and the checker agree about each form of a size.
#[test]
fn the_schema_accepts_the_sizes_that_keygate_accepts() {
    let valid = ["1B", "8kB", "1 MB", " 64KiB ", "1.5GiB", "0B", "1TB", "1TiB", "007B"];
    let wrong = [
        "1048576", "1m", "1M", "1k", "1K", "1g", "1KB", "1kib", "1mb", "1Mb", "1b", "", "B", "KiB",
        "-1B", "+1B", "1e3B", ".5GiB", "1.GiB", "1,5GiB", "1_000B", "1B B", "1PiB", "1\tB", "0x1B",
    ];
    let sizes: Vec<_> = valid.iter().chain(&wrong).collect();
    let default = "max_header_size = \"32KiB\"";
    assert!(EXAMPLE.contains(default));
    let with = |size: &&&str| {
        let key = format!("max_body_size = {}", json!(size));
        EXAMPLE.replacen(default, &format!("{default}\n  {key}"), 1)
    };
    let texts: Vec<String> = sizes.iter().map(with).collect();
    for (index, (text, size)) in texts.iter().zip(&sizes).enumerate() {
        let parsed = Config::parse(Path::new("keygate.toml"), text);
        assert_eq!(parsed.is_ok(), index < valid.len(), "{size:?}: {parsed:?}");
    }
    let Some(found) = errors(&texts) else { return };
    for (index, (errors, size)) in found.iter().zip(&sizes).enumerate() {
        assert_eq!(errors.is_empty(), index < valid.len(), "{size:?}: {errors:?}");
    }
}

/// The tables that the schema requires are those without which keygate accepts no configuration.
#[test]
fn a_required_table_of_the_schema_is_required() {
    let schema: Value = serde_json::from_str(&printed(&keygate(&["config", "schema"]))).unwrap();
    let service = &schema["properties"]["services"]["items"];
    let example: toml::Table = uncommented().parse().unwrap();
    let (mut required, mut optional) = (0, 0);
    for (name, property) in service["properties"].as_object().unwrap() {
        let services = example["services"].as_array().unwrap();
        let has_it = services[0].as_table().unwrap().contains_key(name);
        if property["type"] != "object" || !has_it {
            continue;
        }
        let mut without = example.clone();
        without["services"][0].as_table_mut().unwrap().remove(name);
        let text = toml_text(&without);
        let parsed = Config::parse(Path::new("/etc/keygate/keygate.toml"), &text);
        let missing = format!(".{name}: the table is missing");
        let is_missing = parsed.is_err_and(|error| {
            error.to_string().contains(&missing)
                || error.to_string().contains(&format!(".{name}: the key is missing"))
        });
        let is_required = service["required"].as_array().unwrap().contains(&json!(name));
        assert_eq!(is_missing, is_required, "{name}");
        if is_required { required += 1 } else { optional += 1 }
    }
    assert!(required >= 3 && optional >= 3, "{required} {optional}");
}

fn toml_text(table: &toml::Table) -> String {
    crate::support::keys::written(table)
}

/// The printed text is a configuration with the same meaning, and every line has its origin.
#[test]
fn the_effective_values_are_those_of_the_configuration_with_their_lines() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("keygate.toml");
    for text in [MINIMAL.to_owned(), EXAMPLE.to_owned(), uncommented()] {
        std::fs::write(&file, &text).unwrap();
        let shown = printed(&keygate(&["config", "show", file.to_str().unwrap()]));
        let config = Config::parse(&file, &text).unwrap();
        let again = Config::parse(&file, &shown).unwrap_or_else(|error| panic!("{error}: {shown}"));
        assert_eq!(format!("{again:?}"), format!("{config:?}"), "{shown}");
        let lines: Vec<&str> = text.lines().collect();
        let mut from_file = 0;
        for line in shown.lines().filter(|line| line.contains(" = ")) {
            let (setting, origin) = line.rsplit_once(" # ").unwrap();
            let key = setting.split(" = ").next().unwrap();
            if origin == "default" {
                continue;
            }
            let number: usize = origin.strip_prefix("keygate.toml:").unwrap().parse().unwrap();
            assert!(lines[number - 1].contains(key), "{line}: {}", lines[number - 1]);
            from_file += 1;
        }
        assert!(from_file >= 8, "{shown}");
    }
    let rows = printed(&keygate(&["config", "show", "--json", file.to_str().unwrap()]));
    let rows: Vec<Value> = rows.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let value = |header: &str, key: &str| {
        let row = rows.iter().find(|row| row["header"] == header).unwrap();
        let values = row["values"].as_array().unwrap().iter();
        values.into_iter().find(|it| it["key"] == key).unwrap_or_else(|| panic!("{row}"))
    };
    // Text, a number, a list, true or false and a date, of the file and of the defaults.
    let service = "[[services]]";
    let listen = value(service, "listen");
    assert!(listen["value"].as_str().unwrap().parse::<SocketAddr>().is_ok(), "{listen}");
    assert!(listen["line"].is_u64(), "{listen}");
    assert_eq!(value("", "workers")["value"], 0);
    assert!(value(service, "server_names")["value"].is_array());
    assert_eq!(value("[services.tls]", "resumption")["value"], true);
    let until = value("[[exceptions]]", "until");
    assert!(until["value"].as_str().unwrap().starts_with("20"), "{until}");
    for value in rows.iter().flat_map(|row| row["values"].as_array().unwrap()) {
        let is_quoted =
            value["value"].as_str().is_some_and(|text| text.starts_with(['"', '[', '{']));
        assert!(!value["value"].is_null() && !is_quoted, "{value}");
    }

    std::fs::write(&file, MINIMAL.replace("[policy]", "[polciy]") + "\nwrokers = 1").unwrap();
    let wrong = keygate(&["config", "show", "-c", file.to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(2), "{}", output_text(&wrong));
    assert!(output_text(&wrong).contains("wrokers"), "{}", output_text(&wrong));
}

/// A policy of a service has the value of the global policy, with the place of that.
#[test]
fn an_inherited_value_has_its_own_origin() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("keygate.toml");
    std::fs::write(&file, format!("policy.on_listed = \"flag\"\n{MINIMAL}")).unwrap();
    let shown = printed(&keygate(&["config", "show", file.to_str().unwrap()]));
    let service = shown.split("\n[services.policy]\n").nth(1).unwrap_or_else(|| panic!("{shown}"));
    let line = service.lines().find(|line| line.starts_with("on_listed")).unwrap();
    assert!(
        line.starts_with("on_listed = \"flag\" ") && line.ends_with("# keygate.toml:1"),
        "{line}"
    );
    let line = service.lines().find(|line| line.starts_with("on_probable")).unwrap();
    assert!(line.starts_with("on_probable = \"reject\" ") && line.ends_with("# default"), "{line}");
}
