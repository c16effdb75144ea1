//! The model of a service: address, names, TLS, client authentication, forwarding and limits.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use ipnet::IpNet;
use keygate_core::guard::Policy;
use keygate_core::tls::ServerSettings;

use super::keys::table;
use super::{AlpnProtocol, ExpiredCrl, KeyPlace, RevocationDepth, TlsVersion, UpstreamConfig};

/// A service behind the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Unique name of 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Address that clients connect to. Services can share one.
    pub listen: SocketAddr,
    /// Protocol inside TLS. Default: HTTP.
    pub protocol: Protocol,
    /// Peers that begin each connection with a PROXY header, version 1 or 2. Other peers
    /// must not send one.
    pub accept_proxy: Networks,
    /// Peers whose `X-Request-Id` is forwarded. Requests of other peers get a new one.
    pub request_id_from: Networks,
    /// Peers whose traces are continued. Requests of other peers begin new ones.
    pub trace_context_from: Networks,
    /// Host names in lower case; a leading `*.` stands for one label. Empty: the service is the
    /// default of its address.
    pub server_names: Vec<String>,
    /// Certificate and protocol versions.
    pub tls: TlsConfig,
    /// PEM file of the CAs whose clients are accepted.
    pub trust_anchors: PathBuf,
    /// PEM file of intermediate CAs whose CRLs are accepted, in addition to those of
    /// `trust_anchors`.
    pub intermediates: Option<PathBuf>,
    /// CRL files. If there are any, each client's issuer must have one.
    pub crls: Vec<PathBuf>,
    /// How to treat an expired CRL. Default: reject.
    pub expired_crl: ExpiredCrl,
    /// The certificates of a path whose revocation is checked. Default: all.
    pub revocation: RevocationDepth,
    /// Maximum number of recent clients that a change may newly reject. `None` sets no maximum.
    pub max_new_hits: Option<usize>,
    /// Whether a client must present a certificate. Default: required.
    pub client_auth_mode: ClientAuthMode,
    /// Client data that is forwarded to the upstream.
    pub forward: ForwardConfig,
    /// The servers that requests are forwarded to.
    pub upstream: UpstreamConfig,
    /// Timeouts and limits for clients.
    pub limits: LimitsConfig,
    /// Decision for each verdict.
    pub policy: Policy,
    /// Whether the service starts although its own key, or that of a trust anchor, is a hit.
    /// Default: false.
    pub allow_compromised_own_key: bool,
    /// Maximum time for an evicted connection to finish before it is closed. Default: 10 s.
    pub evict_within: Duration,
    /// Header that carries the verdict, if the policy requires one. Default: `Client-Key-Status`.
    pub status_header: HeaderName,
}

impl ServiceConfig {
    /// The key of its address.
    #[must_use]
    pub fn listen_place(&self) -> KeyPlace {
        KeyPlace::in_table("services", &self.name, "listen")
    }

    /// The paths of all files that the service names.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let own = [&self.tls.certificate, &self.tls.private_key, &self.trust_anchors];
        let mut files: Vec<&PathBuf> =
            own.into_iter().chain(&self.intermediates).chain(&self.crls).collect();
        if let Some(tls) = &self.upstream.tls {
            files.push(&tls.trust_anchors);
            let identity = tls.identity.iter();
            files.extend(identity.flat_map(|files| [&files.certificate, &files.private_key]));
        }
        files.into_iter().map(PathBuf::as_path).collect()
    }
}

/// The protocol inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 or HTTP/2. Requests can be rejected and annotated.
    Http,
    /// Any protocol. Bytes are forwarded unchanged.
    Tcp,
}

/// A set of networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNet>);

impl Networks {
    /// Whether a network contains `address`. An IPv4-mapped IPv6 address counts as the IPv4
    /// address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Certificate and protocol versions of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file of the certificate chain, leaf first.
    pub certificate: PathBuf,
    /// PEM file of the private key: PKCS#8, PKCS#1 or SEC1.
    pub private_key: PathBuf,
    /// Minimum protocol version. Default: TLS 1.2.
    pub min_version: TlsVersion,
    /// Protocols offered by ALPN, preferred first. Default: h2, http/1.1; empty for TCP services.
    pub alpn: Vec<AlpnProtocol>,
    /// Whether clients can resume sessions. A resumed session is judged like a new one. Default:
    /// true.
    pub resumption: bool,
}

impl TlsConfig {
    /// What the server of the service offers.
    #[must_use]
    pub fn server_settings(&self) -> ServerSettings<'_> {
        ServerSettings {
            min_version: self.min_version,
            alpn: &self.alpn,
            resumption: self.resumption,
        }
    }
}

/// Whether a client must present a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuthMode {
    /// Clients without a certificate are unchecked. Untrusted certificates are rejected.
    Optional,
    /// Clients without a certificate are rejected.
    #[default]
    Required,
}

table! {
    /// Client data that is forwarded to the upstream, in addition to the verdict.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct ForwardConfig "Fields and headers for the upstream, apart from the verdict." {
        /// Whether to send `Client-Cert` (RFC 9440). Default: true.
        pub client_cert: bool = true => NewConnections
            "`Client-Cert` (RFC 9440).",
        /// Whether to send `Client-Cert-Chain` (RFC 9440). Default: false.
        pub client_cert_chain: bool = false => NewConnections
            "`Client-Cert-Chain` (RFC 9440): the intermediates of the [verified path](policy.md#the-verified-path), at most six.",
        /// Whether to send `X-Forwarded-Client-Cert` in Envoy's form. Default: false.
        pub xfcc: bool = false => NewConnections
            "`X-Forwarded-Client-Cert`, in Envoy's form: `Hash`, `Cert`, `Subject`, `URI`, `DNS`.",
        /// Headers with the origin of a request. Default: `X-Forwarded-*`.
        pub forwarded: Forwarded = "x-forwarded" => NewConnections
            "`X-Forwarded-For`, `-Host` and `-Proto`; `Forwarded`; both; none.",
        /// PROXY header before the client's bytes, for [`Protocol::Tcp`] only. Default: off.
        pub send_proxy: SendProxy = "off" => NewConnections
            r#"A PROXY header with the client's certificate. Only with `protocol = "tcp"`."#,
    }
}

/// The headers with the origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Forwarded {
    /// `Forwarded` and `X-Forwarded-*`.
    #[serde(rename = "both")]
    Both,
    /// No header.
    #[serde(rename = "off")]
    Off,
    /// `Forwarded` (RFC 7239).
    #[serde(rename = "rfc7239")]
    Rfc7239,
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    #[serde(rename = "x-forwarded")]
    XForwarded,
}

/// The PROXY header to a TCP upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendProxy {
    /// No PROXY header.
    Off,
    /// Version 2, with the TLS version, the client's name and its certificate.
    V2,
}

/// Timeouts and limits for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Maximum time from the accepted connection to the finished handshake. Default: 10 s.
    pub handshake_timeout: Duration,
    /// Maximum time from the first byte of a request head to its last (HTTP/1.1). Default: 10 s.
    pub header_timeout: Duration,
    /// Maximum time between two pieces of a request body, and for the client to read a piece of a
    /// response. Default: 60 s.
    pub body_timeout: Duration,
    /// Maximum time between the end of a response and the next request. For TCP and after an
    /// upgrade, maximum time without a byte in either direction. Default: 60 s.
    pub idle_timeout: Duration,
    /// Maximum time from a request's head to the end of its response. Default: none.
    pub request_timeout: Option<Duration>,
    /// Maximum age of a connection. An older one finishes its in-flight requests and closes.
    /// Default: none.
    pub max_connection_age: Option<Duration>,
    /// Maximum number of open connections. Services on one address share the sum. Further
    /// connections wait in the kernel. Default: 10,000.
    pub max_connections: usize,
    /// Maximum number of open connections from one address. Further ones get 429, and above twice
    /// the limit they are closed; TCP services close all further ones. Default: 1000.
    pub max_connections_per_ip: usize,
    /// Maximum size of a request head, in bytes. Default: 32 KiB.
    pub max_header_size: u32,
    /// Maximum number of fields in a request head. Default: 100.
    pub max_headers: usize,
    /// Maximum size of a request body, in bytes. Default: none.
    pub max_body_size: Option<u64>,
    /// Maximum number of concurrent requests on one HTTP/2 connection. Default: 100.
    pub max_streams: u32,
}

impl LimitsConfig {
    /// Maximum time without an acknowledgement from a client: the longer of `body_timeout` and
    /// `idle_timeout`, and at least five seconds. A shorter one would abort connections that lose a
    /// few packets in a row.
    #[must_use]
    pub fn unacknowledged_timeout(&self) -> Duration {
        const MIN: Duration = Duration::from_secs(5);
        self.body_timeout.max(self.idle_timeout).max(MIN)
    }
}
