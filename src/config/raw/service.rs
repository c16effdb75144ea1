//! The table of a service as it is written.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::number::Bounded;
use super::super::units::{self, DurationText, SizeText};
use super::super::{
    AlpnProtocol, ClientAuthMode, ExpiredCrl, ForwardConfig, Protocol, RevocationDepth, TlsVersion,
};
use super::{Connections, RawAllow, RawPolicy, RawUpstream};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawService {
    pub(in crate::config) name: String,
    #[serde(deserialize_with = "units::listen")]
    pub(in crate::config) listen: String,
    #[serde(default)]
    pub(in crate::config) server_names: Vec<String>,
    #[serde(default = "http")]
    pub(in crate::config) protocol: Protocol,
    #[serde(default)]
    pub(in crate::config) accept_proxy: ProxyPeers,
    #[serde(default)]
    pub(in crate::config) request_id_from: Vec<String>,
    #[serde(default)]
    pub(in crate::config) trace_context_from: Vec<String>,
    pub(in crate::config) tls: RawTls,
    pub(in crate::config) client_auth: RawClientAuth,
    #[serde(default)]
    pub(in crate::config) forward: ForwardConfig,
    pub(in crate::config) upstream: RawUpstream,
    #[serde(default)]
    pub(in crate::config) limits: Limits,
    #[serde(default)]
    pub(in crate::config) policy: RawPolicy,
}

fn http() -> Protocol {
    Protocol::Http
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct ProxyPeers {
    pub(in crate::config) from: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawTls {
    pub(in crate::config) certificate: PathBuf,
    pub(in crate::config) private_key: PathBuf,
    #[serde(default)]
    pub(in crate::config) min_version: TlsVersion,
    #[serde(default)]
    pub(in crate::config) alpn: Option<Vec<AlpnProtocol>>,
    #[serde(default = "super::enabled")]
    pub(in crate::config) resumption: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawClientAuth {
    pub(in crate::config) trust_anchors: PathBuf,
    #[serde(default)]
    pub(in crate::config) mode: ClientAuthMode,
    #[serde(default)]
    pub(in crate::config) intermediates: Option<PathBuf>,
    #[serde(default)]
    pub(in crate::config) crls: Vec<PathBuf>,
    #[serde(default)]
    pub(in crate::config) expired_crl: ExpiredCrl,
    #[serde(default)]
    pub(in crate::config) revocation: RevocationDepth,
    pub(in crate::config) max_new_hits: Option<usize>,
    pub(in crate::config) allow: Option<RawAllow>,
}

/// Size of a request head. The minimum is hyper's smallest read buffer.
pub(in crate::config) type HeaderSize = SizeText<8192, { 1 << 20 }>;
/// Number of fields in a request head; servers reject longer heads.
pub(in crate::config) type HeaderCount = Bounded<usize, 1, 1000>;
/// Number of concurrent requests on a connection.
pub(in crate::config) type StreamCount = Bounded<u32, 1, 10_000>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Limits {
    pub(in crate::config) handshake_timeout: DurationText,
    pub(in crate::config) header_timeout: DurationText,
    pub(in crate::config) body_timeout: DurationText,
    pub(in crate::config) idle_timeout: DurationText,
    pub(in crate::config) request_timeout: Option<DurationText>,
    pub(in crate::config) max_connection_age: Option<DurationText>,
    pub(in crate::config) max_connections: Connections,
    pub(in crate::config) max_connections_per_ip: Connections,
    pub(in crate::config) max_header_size: HeaderSize,
    pub(in crate::config) max_headers: HeaderCount,
    pub(in crate::config) max_body_size: Option<SizeText>,
    pub(in crate::config) max_streams: StreamCount,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = |seconds| DurationText(Duration::from_secs(seconds));
        Self {
            handshake_timeout: seconds(10),
            header_timeout: seconds(10),
            body_timeout: seconds(60),
            idle_timeout: seconds(60),
            request_timeout: None,
            max_connection_age: None,
            max_connections: Bounded(10_000),
            max_connections_per_ip: Bounded(1000),
            max_header_size: SizeText(32 << 10),
            max_headers: Bounded(100),
            max_body_size: None,
            max_streams: Bounded(100),
        }
    }
}
