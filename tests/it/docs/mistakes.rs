//! Mistakes in a configuration: each key of the example is written wrong in turn, and the message
//! has the line, the key, the value and a remedy, without names of Rust types.

use std::path::Path;

use keygate::config::{Config, ConfigError};
use toml::Table;

use crate::support::keygate::keygate;
use crate::support::keys::{Kind, keys};
use crate::support::output_text;

/// The example with the keys that are off by default.
fn example() -> Vec<String> {
    let lines = include_str!("../../../config/keygate.toml").lines();
    let lines = lines.map(|line| match line.trim_start().strip_prefix("# ") {
        Some(key) if key.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')) => key,
        Some(table) if table.starts_with('[') => table,
        Some(_) | None => line,
    });
    lines.map(str::to_owned).collect()
}

/// A line of the example that sets a key.
struct Setting {
    /// Index of the line.
    line: usize,
    /// The tables around the key, such as `services.limits`.
    table: String,
    /// Names of the list and of the authorizer around the key, of which the example has two each.
    list: String,
    authorizer: String,
    key: String,
    value: String,
}

impl Setting {
    /// The key as messages name it.
    fn field(&self) -> String {
        let names = [
            ("filters", "pwnedkeys"),
            ("lists", self.list.as_str()),
            ("services", "orders"),
            ("authorizers", self.authorizer.as_str()),
        ];
        let mut words: Vec<&str> = self.table.split('.').filter(|word| !word.is_empty()).collect();
        if let Some((_, name)) = names.iter().find(|(array, _)| words.first() == Some(array)) {
            words.insert(1, name);
        }
        words.push(&self.key);
        words.join(".")
    }

    fn place(&self) -> String {
        format!("{}.{}", self.table, self.key).trim_start_matches('.').to_owned()
    }
}

fn settings() -> Vec<Setting> {
    let (mut table, mut list, mut authorizer) = (String::new(), String::new(), String::new());
    let mut settings = Vec::new();
    for (line, text) in example().iter().enumerate() {
        let code = text.split(" #").next().unwrap().trim();
        if let Some(header) = code.strip_prefix('[') {
            table = header.trim_matches(['[', ']']).to_owned();
        } else if let Some((key, value)) = code.split_once(" = ").filter(|_| !code.starts_with('#'))
        {
            match (table.as_str(), key) {
                ("authorizers", "name") => value.trim_matches('"').clone_into(&mut authorizer),
                ("lists", "name") => value.trim_matches('"').clone_into(&mut list),
                _ => {}
            }
            let (key, value) = (key.to_owned(), value.to_owned());
            let (table, list, authorizer) = (table.clone(), list.clone(), authorizer.clone());
            settings.push(Setting { line, table, list, authorizer, key, value });
        }
    }
    assert!(settings.len() > 80, "{}", settings.len());
    settings
}

/// The problems of the example with another line.
fn problems(line: usize, text: &str) -> Vec<String> {
    let mut lines = example();
    lines[line] = text.to_owned();
    match Config::parse(Path::new("keygate.toml"), &lines.join("\n")) {
        Ok(_) => Vec::new(),
        Err(error @ ConfigError::Invalid { .. }) => error.lines(),
        Err(error) => panic!("{error}"),
    }
}

/// Words of libraries and of Rust, which a message must not have.
const FORBIDDEN: [&str; 22] = [
    "expected",
    "struct",
    "enum",
    "variant",
    "usize",
    "u64",
    "u32",
    "i64",
    "string",
    "sequence",
    "boolean",
    "integer",
    "invalid type",
    "invalid value",
    "parse error",
    "field",
    "None",
    "Some(",
    "::",
    "Error",
    "Raw",
    "deserializ",
];

pub(super) fn assert_plain(message: &str) {
    let without_addresses = message.replace("[::]:8443", "").replace("\"::1\"", "");
    let without_addresses = without_addresses.replace("keygate::proxy=debug", "");
    // The key `access_log.fields`, and a misspelt one.
    let without_addresses =
        without_addresses.replace("access_log.field", "").replace("\"field", "\"");
    let without_addresses = without_addresses.replace("name at least one field", "");
    for word in FORBIDDEN {
        assert!(!without_addresses.contains(word), "{word:?} in: {message}");
    }
}

#[test]
fn a_value_of_the_wrong_type_is_reported_with_its_line_its_key_and_its_value() {
    for setting in settings() {
        let Setting { line, key, value, .. } = &setting;
        let wrong: &[&str] = match value.chars().next().unwrap() {
            '"' | '{' => &["7", "true", "2026-12-31", "[[1]]"],
            '[' if key == "uids" => &["7", "[\"x\"]", "\"x\"", "true"],
            '[' => &["7", "[7]", "\"x\"", "true"],
            't' | 'f' => &["7", "\"yes\"", "\"true\""],
            _ if setting.place() == "exceptions.until" => &["\"tomorrow\"", "7", "[]"],
            _ => &["\"four\"", "1.5", "-1", "true", "[]"],
        };
        for wrong in wrong {
            let found = problems(*line, &format!("{key} = {wrong}"));
            let [message] = &found[..] else { panic!("{}: {wrong}: {found:#?}", setting.field()) };
            let position = format!("keygate.toml:{}:", line + 1);
            assert!(message.starts_with(&position), "{position} {message}");
            // Without a valid name, the table is known by its line.
            let field = if key == "name" { setting.place() } else { setting.field() };
            assert!(message.contains(&format!(": {field}: ")), "{message}");
            let shown = wrong.trim_matches(['[', ']']);
            assert!(
                message.contains(shown)
                    || [": a list is", ": the value is"].iter().any(|it| message.contains(it)),
                "{wrong}: {message}"
            );
            assert_plain(message);
        }
    }
}

#[test]
fn an_unknown_word_is_reported_with_the_known_ones() {
    let table: Table = toml::from_str(&example().join("\n")).unwrap();
    let kinds = keys(&table);
    let mut seen = 0;
    for setting in settings() {
        let (wrong, words) = match kinds.get(&setting.place()) {
            Some(Kind::Word(words)) => ("\"no-such-word\"", words),
            Some(Kind::List(words)) if !words.is_empty() => ("[\"no-such-word\"]", words),
            _ => continue,
        };
        let found = problems(setting.line, &format!("{} = {wrong}", setting.key));
        let [message] = &found[..] else { panic!("{}: {found:#?}", setting.field()) };
        assert!(message.starts_with(&format!("keygate.toml:{}:", setting.line + 1)), "{message}");
        for part in words.iter().map(String::as_str).chain([&*setting.field(), "\"no-such-word\""])
        {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert_plain(message);
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn a_misspelt_key_is_reported_with_the_right_one() {
    for Setting { line, key, value, .. } in settings() {
        let (first, last) = key.split_at(key.len() - 1);
        for misspelt in [format!("{key}{last}"), format!("{first}x{last}"), key.to_uppercase()] {
            let found = problems(line, &format!("{misspelt} = {value}"));
            let message = found.iter().find(|it| it.contains(&format!("no key {misspelt:?}")));
            let message = message.unwrap_or_else(|| panic!("{misspelt}: {found:#?}"));
            assert!(message.starts_with(&format!("keygate.toml:{}:", line + 1)), "{message}");
            let hint = format!("did you mean {key:?}?");
            assert!(message.ends_with(&hint), "{message}");
            found.iter().for_each(|message| assert_plain(message));
        }
    }
}

#[test]
fn a_value_out_of_range_is_reported_with_its_line() {
    for (place, wrong, remedy) in [
        ("workers", "1025", "1025 is not between 0 and 1024"),
        ("admin.listen", "\"localhost:9464\"", "is not an address and a port"),
        ("log.level", "\"warning\"", "\"warning\" is not a level; did you mean \"warn\"?"),
        ("log.repeat_after", "\"5 parsecs\"", "\"5 parsecs\" is not a duration"),
        ("filters.name", "\"a b\"", "\"a b\": a name has 1 to 64 letters"),
        ("filters.max_size", "\"64 kibble\"", "\"64 kibble\" is not a size"),
        ("exceptions.until", "2026-12-31T12:00:00", "2026-12-31T12:00:00: write a date"),
        ("services.listen", "\"8443\"", "\"8443\" is not an address and a port"),
        ("services.server_names", "[\"a..b\"]", "\"a..b\" is not a host name"),
        (
            "services.accept_proxy",
            "{ from = [\"10.0.0.0/33\"] }",
            "\"10.0.0.0/33\" is not a network",
        ),
        ("services.upstream.servers", "[\"ftp://a\"]", "\"ftp://a\" is not an upstream"),
        ("services.upstream.max_failures", "0", "0; give 1 or more"),
        ("services.limits.idle_timeout", "\"0s\"", "0 would expire at once"),
        ("services.limits.max_streams", "10001", "10001 is not between 1 and 10000"),
        ("services.policy.header", "\"Host\"", "\"Host\" is reserved"),
        ("shutdown.drain_timeout", "\"2y\"", "\"2y\" is longer than a year"),
    ] {
        let settings = settings();
        let setting = settings.iter().find(|setting| setting.place() == place).unwrap();
        let found = problems(setting.line, &format!("{} = {wrong}", setting.key));
        let [message] = &found[..] else { panic!("{place}: {found:#?}") };
        assert!(message.starts_with(&format!("keygate.toml:{}:", setting.line + 1)), "{message}");
        let field = if setting.key == "name" { setting.place() } else { setting.field() };
        assert!(message.contains(remedy) && message.contains(&field), "{message}");
        assert_plain(message);
    }
}

#[test]
fn all_mistakes_are_reported_in_one_pass_in_the_order_of_their_lines() {
    let text = r#"workers = "four"
[admin]
listen = "nowhere"
[log]
formatt = "json"
level = "warning"
[[filters]]
name = "a b"
path = 7
[[services]]
name = "orders"
listen = "0.0.0.0:8443"
server_names = ["a..example"]
tls = { private_key = "orders.key" }
client_auth = { trust_anchors = "ca.pem", mode = "never" }
upstream = { servers = ["ftp://a", 7, { url = "http://a:1", wait = 3 }], balance = "best" }
limits = { idle_timeout = "0s", max_headers = 0 }
[[services]]
listen = "0.0.0.0:8443"
tls = { certificate = "a.pem", private_key = "a.key" }
client_auth = { trust_anchors = "ca.pem" }
upstream = { servers = ["http://a"], tsl = {} }
"#;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keygate.toml");
    std::fs::write(&path, text).unwrap();
    let output = keygate(&["validate", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    let text = String::from_utf8(output.stderr).unwrap();
    let prefix = format!("keygate: {}:", path.display());
    let lines: Vec<_> = text.lines().map(|line| line.strip_prefix(&prefix).unwrap()).collect();
    let expected = [
        "1:11: workers: \"four\" is not a whole number",
        "3:10: admin.listen: \"nowhere\" is not an address and a port",
        "5:1: log.formatt: there is no key \"formatt\"; did you mean \"format\"?",
        "6:9: log.level: \"warning\" is not a level",
        "8:8: filters.name: \"a b\": a name has 1 to 64",
        "9:8: filters.path: 7 is not text in quotes",
        "13:17: services.orders.server_names: \"a..example\" is not a host name",
        "14:7: services.orders.tls.certificate: the key is missing",
        "15:50: services.orders.client_auth.mode: \"never\" is not one of",
        "16:25: services.orders.upstream.servers: \"ftp://a\" is not an upstream",
        "16:36: services.orders.upstream.servers: 7 is not text in quotes, or a table",
        "16:39: services.orders.upstream.servers.weight: the key is missing",
        "16:61: services.orders.upstream.servers.wait: there is no key \"wait\"",
        "16:84: services.orders.upstream.balance: \"best\" is not one of",
        "17:27: services.orders.limits.idle_timeout: 0 would expire at once",
        "17:47: services.orders.limits.max_headers: 0 is not between 1 and 1000",
        "18:1: services.name: the key is missing",
        "22:38: services.upstream.tsl: there is no key \"tsl\"; did you mean \"tls\"?",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
        assert_plain(line);
    }
}
