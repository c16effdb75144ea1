//! The table of an upstream as it is written.

use std::path::PathBuf;

use serde::Deserialize;

use super::super::keys::{Form, Takes, table};
use super::super::units::{Bounded, OneOrMore, Positive, SizeText};
use super::super::{Balance, Reuse, UpstreamHttp};
use super::Connections;

table! {
    pub(in crate::config) struct RawUpstream "" {
        pub(in crate::config) servers: Vec<RawServer> => NextRequest
            r#"1 to 1000. `"http://HOST:PORT"`, `"https://HOST:PORT"`, `"h2c://HOST:PORT"`, `"unix:/PATH"`; with `protocol = "tcp"` `"HOST:PORT"`, `"tls://HOST:PORT"`, `"unix:/PATH"`. With a weight of 1 to 1000: `{ url = "http://10.0.0.5:8080", weight = 3 }`."#,
        pub(in crate::config) balance: Balance = "least-requests" => NextRequest
            "Selection of the server for a request. `least-requests` compares two random servers.",
        pub(in crate::config) connect_timeout: Positive = "2s" => NextRequest
            "Maximum time to connect, TLS included.",
        pub(in crate::config) response_timeout: Positive = "60s" => NextRequest
            "From the end of the request, or the last piece of it that the upstream took, to the head of the response.",
        pub(in crate::config) body_timeout: Positive = "60s" => NextRequest
            "Between two pieces of a response.",
        pub(in crate::config) idle_timeout: Positive = "60s" => NextRequest
            "Unused connections are closed after this time.",
        pub(in crate::config) max_connection_age: Option<Positive> => NextRequest
            "Older HTTP/1.1 connections get no further requests. Older HTTP/2 connections get none either.",
        pub(in crate::config) http: UpstreamHttp = "auto" => NextRequest
            "Versions of HTTP that are offered to `https://` servers. `1.1` turns HTTP/2 off.",
        pub(in crate::config) max_header_size: UpstreamHeaderSize = "8KiB" => NextRequest
            "HTTP/2 only: maximum head of a request with the fields that keygate adds, name, value and 32 bytes for each. The server's own `SETTINGS_MAX_HEADER_LIST_SIZE` applies if it is lower. A larger head gets 431.",
        pub(in crate::config) request_trailers: bool = false => NextRequest
            "HTTP/2 only: whether trailers of requests are forwarded. nginx ends the connection at a trailer.",
        pub(in crate::config) reuse: Reuse = "safe" => NextRequest
            "HTTP/1.1 only. `safe`: a connection that carried a request body serves only the same client afterwards. `always`: it serves all clients.",
        pub(in crate::config) max_connections: Connections = 10000 => NextRequest
            "Maximum connections to all servers together. At the maximum, an idle connection is closed for a new one; without one the request gets 503. One client gets three quarters of them.",
        pub(in crate::config) max_failures: OneOrMore = 5 => NextRequest
            "Consecutive failures after which a server is ejected, unless it is the only one. Broken responses eject at most half of the servers, late ones none. If all are ejected, each request tries one.",
        pub(in crate::config) retry_after: Positive = "10s" => NextRequest
            "Maximum duration of an ejection. The first one lasts an eighth of it, each further one in a row twice as long as the one before.",
        pub(in crate::config) health_check: Option<HealthCheck>,
        pub(in crate::config) tls: Option<UpstreamTls>,
    }
}

/// Maximum size of a request head over HTTP/2, 1 KiB to 1 MiB.
pub(in crate::config) type UpstreamHeaderSize = SizeText<1024, { 1 << 20 }>;

/// A server with or without a weight.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::config) enum RawServer {
    Url(String),
    Weighted(WeightedServer),
}

impl RawServer {
    pub(in crate::config) fn url_and_weight(&self) -> (&str, u32) {
        match self {
            Self::Url(url) => (url, 1),
            Self::Weighted(WeightedServer { url, weight }) => (url, weight.0),
        }
    }
}

impl Takes for RawServer {
    fn form() -> Form {
        WeightedServer::form().or_text()
    }
}

/// Weight of a server.
type Weight = Bounded<u32, 1, 1000>;

table! {
    pub(in crate::config) struct WeightedServer "" {
        pub(in crate::config) url: String,
        pub(in crate::config) weight: Weight,
    }
}

table! {
    pub(in crate::config) struct HealthCheck "Off unless the table is there." {
        pub(in crate::config) path: Option<String> => NextRequest
            r#"Target of a GET whose response must be 2xx or 3xx. Without it, a connection must be possible. Not with `protocol = "tcp"`."#,
        pub(in crate::config) interval: Positive = "5s" => NextRequest
            "From one check to the next.",
        pub(in crate::config) timeout: Positive = "2s" => NextRequest
            "Maximum time for a response.",
        pub(in crate::config) healthy: OneOrMore = 2 => NextRequest
            "Consecutive good results after which a server is used again.",
        pub(in crate::config) unhealthy: OneOrMore = 3 => NextRequest
            "Consecutive bad results after which a server gets no requests.",
    }
}

table! {
    pub(in crate::config) struct UpstreamTls "Required for `https://` and `tls://`." {
        pub(in crate::config) trust_anchors: PathBuf => NextRequest
            "PEM: the CAs that certify the servers.",
        pub(in crate::config) certificate: Option<PathBuf> => NextRequest
            "PEM: keygate's own certificate, for servers that request one; with `private_key`.",
        pub(in crate::config) private_key: Option<PathBuf> => NextRequest
            "PEM; with `certificate`.",
        pub(in crate::config) server_name: Option<String> => NextRequest
            "Name that the certificates of the servers must have. Without it: the host of each.",
    }
}
