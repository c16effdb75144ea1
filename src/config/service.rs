//! One service: its address and names, its side of TLS, whom it lets in, what its upstream is told.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use ipnet::IpNet;

use super::UpstreamConfig;
use crate::guard::Policy;

/// One service behind the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Letters, digits, `.`, `_` and `-`; unique.
    pub name: String,
    /// The address that clients connect to; services may share one.
    pub listen: SocketAddr,
    /// What is spoken inside TLS.
    pub protocol: Protocol,
    /// Peers that begin every connection with a PROXY header, version 1 or 2. Nobody else may.
    pub accept_proxy: Networks,
    /// Peers whose `X-Request-Id` is believed.
    pub request_id_from: Networks,
    /// Lower case; a leading `*.` stands for one label. None: the default of the address.
    pub server_names: Vec<String>,
    /// The service's own side of TLS.
    pub tls: TlsConfig,
    /// PEM file of the CAs whose clients are accepted.
    pub trust_anchors: PathBuf,
    /// Files of revocation lists. If there are any, each client's issuer must have one.
    pub crls: Vec<PathBuf>,
    /// What a revocation list counts for that is no longer up to date.
    pub expired_crl: ExpiredCrl,
    /// Whether a client must have a certificate.
    pub client_auth_mode: ClientAuthMode,
    /// What the upstream is told.
    pub forward: ForwardConfig,
    /// Where requests go.
    pub upstream: UpstreamConfig,
    /// What a client may take.
    pub limits: LimitsConfig,
    /// What happens to which key.
    pub policy: Policy,
    /// Whether the service starts although a key of its own, or of its trust anchors, is a hit.
    pub allow_compromised_own_key: bool,
    /// How long a connection whose client is to be refused by now may take to finish.
    pub evict_within: Duration,
    /// The header that carries the verdict when the policy says so.
    pub status_header: HeaderName,
}

impl ServiceConfig {
    /// Every file that is named by path.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let own = [&self.tls.certificate, &self.tls.private_key, &self.trust_anchors];
        let mut files: Vec<&PathBuf> = own.into_iter().chain(&self.crls).collect();
        if let Some(tls) = &self.upstream.tls {
            files.push(&tls.trust_anchors);
            files.extend(tls.identity.iter().flat_map(|(certificate, key)| [certificate, key]));
        }
        files.into_iter().map(PathBuf::as_path).collect()
    }
}

/// What is spoken inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 or HTTP/2: requests are checked and annotated.
    Http,
    /// Anything: bytes go on as they are.
    Tcp,
}

/// Networks, in CIDR notation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNet>);

impl Networks {
    /// Whether one of them has this address. An IPv4 address is one also when it came over IPv6.
    #[must_use]
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// A service's own certificate and protocol choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file, leaf first.
    pub certificate: PathBuf,
    /// PEM file: PKCS#8, PKCS#1 or SEC1.
    pub private_key: PathBuf,
    /// The oldest protocol version that is spoken.
    pub min_version: TlsVersion,
    /// Protocols offered by ALPN, preferred first; not empty.
    pub alpn: Vec<AlpnProtocol>,
    /// Whether clients may resume sessions. A resumed one is judged like a new one.
    pub resumption: bool,
}

/// A TLS protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

/// What a revocation list counts for that is no longer up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpiredCrl {
    /// As much as before.
    Accept,
    /// Clients that it would have to speak for are refused.
    Reject,
}

/// Whether a client must have a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuthMode {
    /// One without is unchecked; one with a certificate of nobody we trust is refused.
    Optional,
    /// One without is refused.
    Required,
}

/// A protocol that clients may choose by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum AlpnProtocol {
    /// HTTP/2.
    #[serde(rename = "h2")]
    H2,
    /// HTTP/1.1.
    #[serde(rename = "http/1.1")]
    Http11,
}

impl AlpnProtocol {
    /// The name in the ALPN extension (RFC 7301).
    #[must_use]
    pub fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::H2 => b"h2",
            Self::Http11 => b"http/1.1",
        }
    }
}

/// What the upstream is told of the client besides the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardConfig {
    /// `Client-Cert` (RFC 9440).
    pub client_cert: bool,
    /// `Client-Cert-Chain` (RFC 9440).
    pub client_cert_chain: bool,
    /// `X-Forwarded-Client-Cert`, as Envoy has it.
    pub xfcc: bool,
    /// Where the request came from.
    pub forwarded: Forwarded,
    /// For [`Protocol::Tcp`]: what goes before the client's bytes.
    pub send_proxy: SendProxy,
}

/// In which headers the upstream is told where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Forwarded {
    /// Both.
    #[serde(rename = "both")]
    Both,
    /// None.
    #[serde(rename = "off")]
    Off,
    /// `Forwarded` (RFC 7239).
    #[serde(rename = "rfc7239")]
    Rfc7239,
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    #[serde(rename = "x-forwarded")]
    XForwarded,
}

/// Whether a TCP upstream is told of the client in a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendProxy {
    /// It is not.
    Off,
    /// Version 2, with the TLS version, the client's name and its certificate.
    V2,
}

/// What a client may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsConfig {
    /// From the accepted connection to the finished handshake.
    pub handshake_timeout: Duration,
    /// From the first byte of a request head to its last (HTTP/1.1).
    pub header_timeout: Duration,
    /// Between two pieces of a request body, and for the client to take a piece of a response.
    pub body_timeout: Duration,
    /// Between the end of a response and the next request.
    pub idle_timeout: Duration,
    /// From a request's head to the end of its response.
    pub request_timeout: Option<Duration>,
    /// How long a connection is used.
    pub max_connection_age: Option<Duration>,
    /// Open connections; services on one address share the sum.
    pub max_connections: usize,
    /// Open connections from one address.
    pub max_connections_per_ip: usize,
    /// Bytes of a request head.
    pub max_header_size: u32,
    /// Fields of a request head.
    pub max_headers: usize,
    /// Bytes of a request body.
    pub max_body_size: Option<u64>,
    /// Requests at a time on one HTTP/2 connection.
    pub max_streams: u32,
}
