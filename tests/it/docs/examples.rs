//! The example configurations load and show every key.

use std::path::Path;
use std::time::Duration;

use keygate::config::{
    self, AlpnProtocol, Config, Forwarded, ListenAddress, LogFormat, TlsVersion,
};
use keygate_core::guard::Decision;

use crate::support::keys::merge;

const COMPLETE: &str = include_str!("../../../config/keygate.toml");

fn example(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    Config::read(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_shortest_configuration_has_the_documented_defaults() {
    let config = example("minimal.toml");
    let seconds = Duration::from_secs;
    assert_eq!(config.admin.listen, ListenAddress::Tcp("127.0.0.1:9464".parse().unwrap()));
    assert_eq!(config.log.format, LogFormat::Auto);
    assert_eq!(config.filters[0].max_size, (1 << 30) + 24);
    assert_eq!(config.shutdown.readiness_delay, seconds(5));
    assert_eq!(config.shutdown.drain_timeout, seconds(30));

    let service = &config.services[0];
    assert!(service.server_names.is_empty());
    assert_eq!(service.tls.min_version, TlsVersion::V1_2);
    assert_eq!(service.tls.alpn, [AlpnProtocol::H2, AlpnProtocol::Http11]);
    assert!(service.tls.resumption);
    assert!(service.forward.client_cert && service.forward.forwarded == Forwarded::XForwarded);
    assert_eq!(service.upstream.connect_timeout, seconds(2));
    assert_eq!(service.upstream.response_timeout, seconds(60));
    assert_eq!(service.limits.handshake_timeout, seconds(10));
    assert_eq!(service.limits.header_timeout, seconds(10));
    assert_eq!(service.limits.idle_timeout, seconds(60));
    assert_eq!(service.limits.max_connections, 10_000);
    assert_eq!(service.limits.max_header_size, 32 << 10);
    assert_eq!(service.policy.decisions.on_probable, Decision::Reject);
    assert_eq!(service.policy.decisions.on_unchecked, Decision::Reject);
    assert_eq!(service.policy.header, "client-key-status");
}

#[test]
fn the_complete_configuration_equals_the_shortest_one_with_every_default() {
    let mut complete = example("keygate.toml");
    for service in &mut complete.services {
        service.server_names.clear(); // they have no default that could be shown
    }
    assert_eq!(format!("{complete:#?}"), format!("{:#?}", example("minimal.toml")));
}

#[test]
fn the_complete_configuration_has_every_key_there_is() {
    has_every_key(&config::schema(), "", &toml::from_str(&uncommented()).unwrap());
}

#[test]
fn settings_that_are_off_by_default_are_shown_as_valid_comments() {
    let config = Config::parse(Path::new("/etc/keygate/keygate.toml"), &uncommented()).unwrap();
    assert_eq!(config.state.dir.as_deref(), Some(Path::new("/var/lib/keygate")));
    assert_eq!(config.filters[0].max_age, Some(Duration::from_secs(30 * 86_400)));
    assert_eq!(config.filters[0].max_new_hits, Some(5));
    assert_eq!(config.lists[1].name, "incident-2026-11");
    let service = &config.services[0];
    assert_eq!(service.limits.max_body_size, Some(64 << 20));
    let check = service.upstream.health_check.as_ref().unwrap();
    assert_eq!((check.path.as_deref(), check.unhealthy), (Some("/healthz"), 3));
    assert!(service.upstream.tls.as_ref().unwrap().identity().is_some());
    let end = std::time::UNIX_EPOCH + Duration::from_secs(1_798_761_600);
    assert_eq!(config.exceptions[0].until, end, "the end of 2026");
}

/// The complete configuration with the keys that are off by default turned on.
fn uncommented() -> String {
    let lines = COMPLETE.lines().map(|line| match line.trim_start().strip_prefix("# ") {
        Some(key) if key.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')) => key,
        Some(table) if table.starts_with('[') => table,
        Some(_) | None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Checks that `table` has every key of `schema`.
fn has_every_key(schema: &serde_json::Value, place: &str, table: &toml::Table) {
    for (key, schema) in schema["properties"].as_object().unwrap() {
        let place = format!("{place}.{key}");
        let value = table.get(key).unwrap_or_else(|| panic!("{place} is not in the example"));
        let inner = if schema["type"] == "array" { &schema["items"] } else { schema };
        // Policies of services and authorizers differ.
        if inner["type"] == "object" && place != ".authorizers.policy" {
            has_every_key(inner, &place, &joined(value));
        }
    }
}

/// A table, or all tables of an array in one, because some keys exclude each other.
fn joined(value: &toml::Value) -> toml::Table {
    let mut joined = toml::Table::new();
    let tables = value.as_array().map_or_else(|| vec![value], |tables| tables.iter().collect());
    for table in tables.into_iter().rev() {
        merge(&mut joined, table.as_table().unwrap().clone());
    }
    joined
}
