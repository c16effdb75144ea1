//! The configuration reference is true: each key on the page is compared with the code that reads
//! configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;

use keygate::config::{Config, ConfigError};
use toml::{Table, Value};

use crate::support::TIMEOUT;
use crate::support::client::Client;
use crate::support::keys::{Kind, keys, with, written};
use crate::support::origin::Origin;
use crate::support::pki::{Kind as KeyKind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::write_filter;

const PAGE: &str = include_str!("../../../docs/configuration.md");

/// A row of the page.
#[derive(Debug)]
struct Row {
    takes: &'static str,
    default: &'static str,
    changed: &'static str,
}

/// The rows by the place of their key.
fn rows() -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    let mut table = String::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading
                .strip_prefix('`')
                .map_or_else(String::new, |name| format!("{}.", name.trim_end_matches('`')));
        }
        let cells: Vec<_> = line.split(" | ").collect();
        if let [key, takes, default, changed, _] = cells[..]
            && let Some(key) = key.strip_prefix("| `")
        {
            let key = format!("{table}{}", key.trim_end_matches('`'));
            let row = Row { takes, default, changed };
            assert!(rows.insert(key.clone(), row).is_none(), "{key} is there twice");
        }
    }
    rows
}

/// A configuration that has every key.
fn example() -> Table {
    let lines = include_str!("../../../config/keygate.toml").lines();
    let lines = lines.map(|line| match line.trim_start().strip_prefix("# ") {
        Some(key) if key.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')) => key,
        Some(table) if table.starts_with('[') => table,
        Some(_) | None => line,
    });
    toml::from_str(&lines.collect::<Vec<_>>().join("\n")).unwrap()
}

/// The example without the policy of the service if `key` is in the global policy, which the other
/// hides.
fn example_for(key: &str) -> Table {
    let mut example = example();
    if key.starts_with("policy.") {
        example = with(&example, "services.policy", None);
        return with(&example, "authorizers.policy", None);
    }
    if key == "lists.format" {
        // The first list is a blocklist, and has keys that are for no other format.
        for key in ["lists.max_age", "lists.rollback"] {
            example = with(&example, key, None);
        }
    }
    let of_unix_socket = ["askers.uids", "socket_group", "socket_mode"];
    if key.strip_prefix("authorizers.").is_some_and(|key| of_unix_socket.contains(&key)) {
        // The first authorizer is meant, and the second one has a Unix socket.
        example["authorizers"].as_array_mut().unwrap().swap(0, 1);
    }
    if key.starts_with("authorizers.webhooks.") {
        // Only the third one has webhooks.
        example["authorizers"].as_array_mut().unwrap().swap(0, 2);
    }
    example
}

fn read(table: &Table) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/keygate/keygate.toml"), &written(table))
}

/// The configuration of this page with another value for a key, or without it.
fn read_with(key: &str, value: Option<Value>) -> Result<Config, ConfigError> {
    read(&with(&example_for(key), key, value))
}

fn value(text: &str) -> Value {
    let table: Table = toml::from_str(&format!("it = {text}")).unwrap();
    table["it"].clone()
}

#[test]
fn the_page_has_every_key_and_its_type() {
    let found = keys(&example());
    let policy = |place: &str| -> BTreeSet<String> {
        found.keys().filter_map(|key| key.strip_prefix(place)).map(str::to_owned).collect()
    };
    assert_eq!(policy("services.policy."), policy("policy."), "the page has one sentence for both");
    let mut asked = policy("policy.");
    asked.retain(|key| !["reject_with", "evict_within"].contains(&key.as_str()));
    assert_eq!(policy("authorizers.policy."), asked, "a host has the connections");
    for table in ["services.policy", "authorizers.policy"] {
        assert!(PAGE.contains(&format!("\n## `{table}`\n")));
    }
    let rows = rows();
    let has_row = |key: &&String| {
        !["services.policy.", "authorizers.policy."].iter().any(|table| key.starts_with(table))
    };
    let expected: BTreeSet<_> = found.keys().filter(has_row).collect();
    assert_eq!(rows.keys().collect::<BTreeSet<_>>(), expected);
    for (key, row) in &rows {
        let words = |words: &[String]| {
            words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
        };
        let takes = match &found[key] {
            Kind::Boolean => "`true`, `false`".to_owned(),
            Kind::Date => "date".to_owned(),
            Kind::Duration => "duration".to_owned(),
            Kind::Integer => "number".to_owned(),
            Kind::Integers => "list of numbers".to_owned(),
            Kind::List(of) if of.is_empty() => "list of text".to_owned(),
            Kind::List(of) => format!("list of {}", words(of)),
            Kind::Servers => "list of text or table".to_owned(),
            Kind::Size => "size".to_owned(),
            Kind::Source => "text or table".to_owned(),
            Kind::Text => "text".to_owned(),
            Kind::Word(of) => words(of),
        };
        let (kind, _) = split(row.takes);
        assert_eq!(kind, takes, "{key}");
    }
}

/// The type of a key and its bounds.
fn split(takes: &'static str) -> (&'static str, &'static str) {
    let bounded = ["number", "size", "duration"].into_iter();
    let mut bounded = bounded.filter_map(|kind| Some((kind, takes.strip_prefix(kind)?)));
    bounded.next().map_or((takes, ""), |(kind, bounds)| (kind, bounds.trim_start_matches(", ")))
}

#[test]
fn every_bound_on_the_page_is_enforced() {
    let mut seen = 0;
    for (key, row) in rows() {
        let takes = |value: Value| read_with(&key, Some(value)).is_ok();
        let number = |number: i64| takes(Value::Integer(number));
        let text = |text: &str| takes(Value::String(text.to_owned()));
        match split(row.takes) {
            // As its meaning has it.
            ("duration", _) if key == "policy.assertion.life" => {
                assert!(text("2s") && text("5m") && !text("1999ms") && !text("301s"), "{key}");
            }
            ("duration", bounds) => {
                assert!(text("1ms") && text("365d") && !text("366d"), "{key}");
                assert_eq!(text("0s"), bounds.is_empty(), "{key}");
                assert!(["", "not 0"].contains(&bounds), "{key}");
            }
            ("number", "") => assert!(number(0) && number(1 << 40), "{key}"),
            ("number", "from 1") => {
                assert!(!number(0) && number(1) && number(u32::MAX.into()), "{key}");
            }
            ("number", bounds) => {
                let (least, most) = bounds.split_once(" to ").unwrap();
                let (least, most): (i64, i64) = (least.parse().unwrap(), most.parse().unwrap());
                assert!(number(least) && number(most), "{key}");
                assert!(!number(least - 1) && !number(most + 1), "{key}");
            }
            ("size", "") => assert!(text("0B") && text("1TiB"), "{key}"),
            ("size", bounds) => {
                let (least, most) = bounds.split_once(" to ").unwrap();
                let bytes = |text: &str| text.parse::<bytesize::ByteSize>().unwrap().as_u64();
                assert!(text(least) && text(most), "{key}");
                assert!(!text(&format!("{}B", bytes(least) - 1)), "{key}");
                assert!(!text(&format!("{}B", bytes(most) + 1)), "{key}");
            }
            (_, "") => continue,
            (_, bounds) => panic!("{key}: {bounds}"),
        }
        seen += 1;
    }
    assert!(seen > 25, "{seen}");
}

#[test]
fn every_default_on_the_page_is_that_of_the_code() {
    for (key, row) in rows() {
        let without = read_with(&key, None);
        let (_, last) = key.rsplit_once('.').unwrap_or(("", &key));
        match row.default {
            "required" => {
                let problem = without.unwrap_err().to_string();
                let missing = format!(".{last}: the key is missing");
                assert!(problem.contains(&missing), "{key}: {problem}");
            }
            // The key may be left out, except for keys that belong together.
            "off" => {
                let together = [
                    "certificate and private_key belong together",
                    "certificate_from: the key is missing; name the one header",
                    "confirm.api_key: there is no URL that the key is for",
                    "needs trust_anchors or cas, the CAs whose clients are accepted",
                    "confirm.trust_anchors: the key is missing; https:// needs the CAs of the source",
                    "traces.trust_anchors: the key is missing; https:// needs the CAs of the collector",
                ];
                let is_fine = without.as_ref().map_or_else(
                    |problem| together.iter().any(|text| problem.to_string().contains(text)),
                    |_| true,
                );
                assert!(is_fine, "{key}: {without:?}");
            }
            default => {
                let text = default.strip_prefix('`').unwrap().strip_suffix('`').unwrap();
                let given = read_with(&key, Some(value(text)));
                assert_eq!(
                    format!("{:?}", without.unwrap()),
                    format!("{:?}", given.unwrap()),
                    "{key}"
                );
            }
        }
    }
}

/// Values that a key could have.
fn candidates(kind: &Kind) -> Vec<Value> {
    let texts =
        |texts: &[&str]| texts.iter().map(|text| Value::String((*text).to_owned())).collect();
    match kind {
        Kind::Boolean => vec![Value::Boolean(true), Value::Boolean(false)],
        Kind::Date => vec![value("2027-06-30")],
        Kind::Duration => texts(&["7s"]),
        Kind::Integer => vec![Value::Integer(7)],
        Kind::Integers => vec![value("[7]")],
        Kind::List(of) if of.is_empty() => vec![value("[\"10.1.0.0/16\"]"), value("[\"other\"]")],
        Kind::List(of) => of.iter().map(|word| value(&format!("[{word:?}]"))).collect(),
        Kind::Servers => vec![value("[\"http://127.0.0.1:7\"]")],
        Kind::Size => texts(&["9KiB", "9MiB"]),
        Kind::Source => texts(&["xfcc"]),
        Kind::Text => texts(&["127.0.0.1:7", "other", "/other", &"0".repeat(64)]),
        Kind::Word(of) => of.iter().cloned().map(Value::String).collect(),
    }
}

/// Another value of a key changes the configuration or is rejected for its own reason, so that no
/// key is read and then ignored.
#[test]
fn every_key_has_an_effect_and_needs_a_restart_as_described() {
    let found = keys(&example());
    for (key, row) in rows() {
        let before = read(&example_for(&key)).unwrap();
        let (_, last) = key.rsplit_once('.').unwrap_or(("", &key));
        let outcomes =
            candidates(&found[&key]).into_iter().map(|value| read_with(&key, Some(value)));
        let outcomes: Vec<_> = outcomes.collect();
        let changed: Vec<_> = outcomes
            .iter()
            .flatten()
            .filter(|config| format!("{config:?}") != format!("{before:?}"))
            .collect();
        let is_about_it = |problem: &ConfigError| match problem {
            ConfigError::Invalid { problems, .. } => problems.iter().any(|it| {
                it.field.ends_with(&format!(".{last}"))
                    || it.problem.contains(&format!("{last} = "))
            }),
            ConfigError::Read { .. } => false,
        };
        let is_refused = outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(is_about_it));
        assert!(!changed.is_empty() || is_refused, "{key}: {outcomes:?}");
        for config in changed {
            let needs_restart = !config.needs_restart(&before).is_empty();
            assert_eq!(needs_restart, row.changed == "restart", "{key}");
        }
        let known = ["at once", "next request", "new connections", "restart"];
        assert!(known.contains(&row.changed), "{key}: {}", row.changed);
    }
    for changed in ["at once", "next request", "new connections", "restart"] {
        assert!(PAGE.contains(&format!("\n| {changed} | ")), "{changed} is explained");
    }
    let first = with(&example(), "filters.max_new_hits", None);
    let first = with(&first, "lists.max_new_hits", None);
    let first = with(&first, "services.client_auth.max_new_hits", None);
    let first = read(&with(&first, "authorizers.client_auth.max_new_hits", None)).unwrap();
    assert_eq!(read(&example()).unwrap().needs_restart(&first), ["max_new_hits"]);
}

#[test]
fn values_are_written_as_the_page_shows() {
    let duration = |text: &str| {
        let config = read_with("shutdown.drain_timeout", Some(Value::String(text.to_owned())));
        config.unwrap().shutdown.drain_timeout.as_millis()
    };
    for (text, milliseconds) in
        [("250ms", 250), ("5s", 5000), ("1h 30m", 5_400_000), ("30d", 2_592_000_000)]
    {
        assert!(PAGE.contains(&format!("`\"{text}\"`")), "{text}");
        assert_eq!(duration(text), milliseconds);
    }
    let size = |text: &str| {
        let config = read_with("filters.max_size", Some(Value::String(text.to_owned())));
        config.unwrap().filters[0].max_size
    };
    for (text, bytes) in [("64KiB", 65_536), ("1GiB", 1 << 30), ("500B", 500)] {
        assert!(PAGE.contains(&format!("`\"{text}\"`")), "{text}");
        assert_eq!(size(text), bytes);
    }
    assert_eq!((size("1KiB"), size("1kB")), (1024, 1000));
    for unit in ["B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"] {
        assert!(PAGE.contains(&format!("`{unit}`")) && size(&format!("1 {unit}")) > 0, "{unit}");
    }
    for network in ["10.0.0.0/8", "2001:db8::/32"] {
        assert!(PAGE.contains(&format!("`\"{network}\"`")), "{network}");
        let value = value(&format!("[{network:?}]"));
        assert!(read_with("services.accept_proxy.from", Some(value)).is_ok());
    }
    let long = "x".repeat(64);
    assert!(read_with("lists.name", Some(Value::String(long.clone()))).is_ok());
    assert!(read_with("lists.name", Some(Value::String(long + "x"))).is_err());
    assert!(read_with("exceptions.until", Some(value("2026-12-31T12:00:00Z"))).is_ok());
    assert!(read_with("exceptions.until", Some(value("2026-12-31T12:00:00"))).is_err());
    let server = "{ url = \"http://10.0.0.5:8080\", weight = 3 }";
    assert!(PAGE.contains(server));
    let servers =
        |server: &str| read_with("services.upstream.servers", Some(value(&format!("[{server}]"))));
    assert_eq!(servers(server).unwrap().services[0].upstream.servers[0].weight, 3);
    let weight = |weight: u32| servers(&server.replace('3', &weight.to_string())).is_ok();
    assert!(weight(1) && weight(1000) && !weight(0) && !weight(1001));
    let other = server.replace('}', ", no-such-key = 1 }");
    assert!(servers(&other).is_err(), "an unknown key is an error here, too");
    let many = |count: usize| servers(&vec![server; count].join(", ")).is_ok();
    assert!(!many(0) && many(1000) && !many(1001));
}

/// The four values of the column on reloads, for connections from before a reload and new ones.
#[test]
fn open_connections_keep_settings_over_a_reload_as_described() {
    let rows = rows();
    let (pki, origin) = (Pki::new(), Origin::start());
    let good = pki.client("good", KeyKind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let configuration = Configuration::new(origin.address());
    let keygate = configuration.clone().limits("handshake_timeout = \"1h\"").start(&pki);
    let send_get = |client: &mut Client, length: usize| {
        let body = "x".repeat(length);
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        client.head()[9..12].parse::<u16>().unwrap()
    };
    let mut open = Client::connect(&pki, keygate.address(), &good);
    assert_eq!(send_get(&mut open, 100), 200);
    open.exactly(6);
    let before = origin.next();
    assert!(before.fields("x-forwarded-client-cert").is_empty());
    assert!(before.fields("x-verdict").is_empty());

    let changed = configuration
        .limits("handshake_timeout = \"700ms\", max_body_size = \"50B\"")
        .service("forward = { xfcc = true }")
        .policy("header = \"X-Verdict\", on_unchecked = \"header\"");
    std::fs::write(pki.path("keygate.toml"), changed.text()).unwrap();
    keygate.wait_for_generation(2);

    assert_eq!(rows["policy.header"].changed, "next request");
    for key in ["services.forward.xfcc", "services.limits.max_body_size"] {
        assert_eq!(rows[key].changed, "new connections", "{key}");
    }
    assert_eq!(send_get(&mut open, 100), 200, "its limits are those that it began with");
    open.exactly(6);
    let kept = origin.next();
    assert!(kept.fields("x-forwarded-client-cert").is_empty());
    assert_eq!(kept.fields("x-verdict"), ["clean"]);
    let mut new = Client::connect(&pki, keygate.address(), &good);
    assert_eq!(send_get(&mut new, 10), 200);
    new.exactly(6);
    assert_eq!(origin.next().fields("x-forwarded-client-cert").len(), 1);
    assert_eq!(send_get(&mut new, 100), 413);

    let mut silent = TcpStream::connect(keygate.address()).unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it is closed after 700 ms, not after an hour");
}
