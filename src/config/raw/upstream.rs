//! The table of an upstream as it is written.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::super::number::{Bounded, OneOrMore};
use super::super::units::{DurationText, SizeText};
use super::super::{Balance, Reuse, UpstreamHttp};
use super::Connections;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawUpstream {
    pub(in crate::config) servers: Vec<RawServer>,
    #[serde(default = "least_requests")]
    pub(in crate::config) balance: Balance,
    #[serde(default = "two_seconds")]
    pub(in crate::config) connect_timeout: DurationText,
    #[serde(default = "a_minute")]
    pub(in crate::config) response_timeout: DurationText,
    #[serde(default = "a_minute")]
    pub(in crate::config) body_timeout: DurationText,
    #[serde(default = "a_minute")]
    pub(in crate::config) idle_timeout: DurationText,
    pub(in crate::config) max_connection_age: Option<DurationText>,
    #[serde(default = "auto")]
    pub(in crate::config) http: UpstreamHttp,
    #[serde(default = "eight_kib")]
    pub(in crate::config) max_header_size: UpstreamHeaderSize,
    #[serde(default)]
    pub(in crate::config) request_trailers: bool,
    #[serde(default = "safe")]
    pub(in crate::config) reuse: Reuse,
    #[serde(default = "max_connections")]
    pub(in crate::config) max_connections: Connections,
    #[serde(default = "max_failures")]
    pub(in crate::config) max_failures: OneOrMore,
    #[serde(default = "ten_seconds")]
    pub(in crate::config) retry_after: DurationText,
    pub(in crate::config) health_check: Option<HealthCheck>,
    pub(in crate::config) tls: Option<UpstreamTls>,
}

/// Maximum size of a request head over HTTP/2, 1 KiB to 1 MiB.
pub(in crate::config) type UpstreamHeaderSize = SizeText<1024, { 1 << 20 }>;

/// A server with or without a weight.
#[derive(Debug)]
pub(in crate::config) struct RawServer {
    pub(in crate::config) url: String,
    pub(in crate::config) weight: u32,
}

impl<'de> Deserialize<'de> for RawServer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ServerVisitor)
    }
}

/// Weight of a server.
type Weight = Bounded<u32, 1, 1000>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightedServer {
    url: String,
    weight: Weight,
}

struct ServerVisitor;

impl<'de> Visitor<'de> for ServerVisitor {
    type Value = RawServer;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a URL in quotes, or a table with url and weight")
    }

    fn visit_str<E: Error>(self, url: &str) -> Result<RawServer, E> {
        Ok(RawServer { url: url.to_owned(), weight: 1 })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawServer, A::Error> {
        let server = WeightedServer::deserialize(MapAccessDeserializer::new(map))?;
        Ok(RawServer { url: server.url, weight: server.weight.0 })
    }
}

fn least_requests() -> Balance {
    Balance::LeastRequests
}

fn two_seconds() -> DurationText {
    DurationText(Duration::from_secs(2))
}

fn ten_seconds() -> DurationText {
    DurationText(Duration::from_secs(10))
}

fn a_minute() -> DurationText {
    DurationText(Duration::from_secs(60))
}

fn auto() -> UpstreamHttp {
    UpstreamHttp::Auto
}

fn safe() -> Reuse {
    Reuse::Safe
}

fn eight_kib() -> UpstreamHeaderSize {
    SizeText(8 << 10)
}

fn max_connections() -> Connections {
    Bounded(10_000)
}

fn max_failures() -> OneOrMore {
    Bounded(5)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct HealthCheck {
    pub(in crate::config) path: Option<String>,
    pub(in crate::config) interval: DurationText,
    pub(in crate::config) timeout: DurationText,
    pub(in crate::config) healthy: OneOrMore,
    pub(in crate::config) unhealthy: OneOrMore,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: None,
            interval: DurationText(Duration::from_secs(5)),
            timeout: two_seconds(),
            healthy: Bounded(2),
            unhealthy: Bounded(3),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct UpstreamTls {
    pub(in crate::config) trust_anchors: PathBuf,
    pub(in crate::config) certificate: Option<PathBuf>,
    pub(in crate::config) private_key: Option<PathBuf>,
    pub(in crate::config) server_name: Option<String>,
}
