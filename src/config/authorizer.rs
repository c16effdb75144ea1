//! The model of an authorizer: address, protocol, askers, verification, limits and policy.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use ipnet::IpNet;
use keygate_core::guard::Policy;
use keygate_core::tls::ServerSettings;

use super::{
    AlpnProtocol, ClientAuthMode, ExpiredCrl, KeyPlace, ListenAddress, Networks, RevocationDepth,
    TlsVersion,
};

/// An authorizer, which answers questions of other proxies about their clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizerConfig {
    /// Unique name of 1 to 64 letters, digits, `.`, `_` and `-`. Services use the same name space.
    pub name: String,
    /// Address that askers connect to. No service and no other authorizer has it.
    pub listen: ListenAddress,
    /// Permission bits of the Unix socket. Default: 0660.
    pub socket_mode: u32,
    /// Group of the Unix socket. Default: that of the process.
    pub socket_group: Option<SocketGroup>,
    /// Protocol of the questions.
    pub protocol: AuthorizerProtocol,
    /// Where a question has the client's certificate.
    pub certificate_from: CertificateSource,
    /// Header with the address of the client, for logs only. HTTP only. Default: none.
    pub address_from: Option<HeaderName>,
    /// Time for which the host may cache an answer. HTTP only. Default: 0, not at all.
    pub cache_for: Duration,
    /// Peers that may ask. Default: all that can connect.
    pub askers: AskersConfig,
    /// TLS towards askers; `None` uses none.
    pub tls: Option<AuthorizerTls>,
    /// Checks of the client's certificate.
    pub client_auth: ClientChecks,
    /// Limits for askers.
    pub limits: AuthorizerLimits,
    /// Decision for each verdict.
    pub policy: Policy,
    /// Whether the authorizer starts although its own key, or that of a trust anchor, is a hit.
    /// Default: false.
    pub allow_compromised_own_key: bool,
    /// Header that carries the verdict in an answer over HTTP and gRPC. Default:
    /// `Client-Key-Status`.
    pub status_header: HeaderName,
}

impl AuthorizerConfig {
    /// The key of its address.
    #[must_use]
    pub fn listen_place(&self) -> KeyPlace {
        KeyPlace::in_table("authorizers", &self.name, "listen")
    }

    /// The paths of all files that the authorizer names.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let tls = self
            .tls
            .iter()
            .flat_map(|tls| [&tls.certificate, &tls.private_key].into_iter().chain(&tls.client_ca));
        let ClientChecks { trust_anchors, intermediates, crls, .. } = &self.client_auth;
        let clients = trust_anchors.iter().chain(intermediates).chain(crls);
        tls.chain(clients).map(PathBuf::as_path).collect()
    }
}

/// Access for peers that nobody has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenAccess {
    /// These permission bits of the Unix socket let every user of the machine connect.
    Mode(u32),
    /// This network of `askers.from` is larger than any private network.
    Network(IpNet),
}

/// Length of the prefix of the largest private networks: 10.0.0.0/8 (RFC 1918) and fc00::/7
/// (RFC 4193).
const PRIVATE_PREFIX: (u8, u8) = (8, 7);

impl AuthorizerConfig {
    /// Access for peers that nobody has chosen. They can ask about copied certificates.
    #[must_use]
    pub fn open_access(&self) -> Option<OpenAccess> {
        match &self.listen {
            ListenAddress::Tcp(address) => {
                let names_hosts = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
                if names_hosts || address.ip().is_loopback() {
                    return None;
                }
                let is_public = |network: &&IpNet| match network {
                    IpNet::V4(network) => network.prefix_len() < PRIVATE_PREFIX.0,
                    IpNet::V6(network) => network.prefix_len() < PRIVATE_PREFIX.1,
                };
                self.askers.from.0.iter().find(is_public).copied().map(OpenAccess::Network)
            }
            ListenAddress::Unix(_) => {
                let is_open = self.socket_mode & OTHERS_CONNECT != 0 && self.askers.uids.is_empty();
                is_open.then_some(OpenAccess::Mode(self.socket_mode))
            }
        }
    }
}

/// Write permission of users who are neither the owner nor in the group: on Linux they may connect.
const OTHERS_CONNECT: u32 = 0o002;

/// The group of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketGroup {
    /// Numeric id.
    Id(u32),
    /// Name, which is looked up when the socket is bound.
    Name(String),
}

/// The protocol of an authorizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthorizerProtocol {
    /// Envoy's gRPC service `envoy.service.auth.v3.Authorization`.
    ExtAuthz,
    /// HTTP/1.0, HTTP/1.1 or HTTP/2: 200 or 403.
    Http,
    /// HAProxy's Stream Processing Offload Protocol, version 2.0.
    Spop,
}

impl AuthorizerProtocol {
    /// The name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExtAuthz => "ext-authz",
            Self::Http => "http",
            Self::Spop => "spop",
        }
    }

    /// The protocols that are offered by ALPN.
    fn alpn(self) -> &'static [AlpnProtocol] {
        match self {
            Self::ExtAuthz => &[AlpnProtocol::H2],
            Self::Http => &[AlpnProtocol::H2, AlpnProtocol::Http11],
            Self::Spop => &[],
        }
    }
}

/// Where a question has the client's certificate. An authorizer reads no other place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// The argument `cert` of a SPOP message; the argument `chain` has the issuers.
    Argument,
    /// `attributes.source.certificate` of an ext-authz request.
    Attributes,
    /// `Client-Cert` and `Client-Cert-Chain` (RFC 9440).
    ClientCert,
    /// A header with one certificate.
    Header {
        /// Name of the header.
        header: HeaderName,
        /// Encoding of its value.
        encoding: HeaderEncoding,
        /// Header with the result of the host's verification, as `$ssl_client_verify` of nginx.
        verify: Option<HeaderName>,
    },
    /// `ssl-client-cert` and `ssl-client-verify` of ingress-nginx.
    IngressNginx,
    /// `X-Forwarded-Tls-Client-Cert` of Traefik, with the chain.
    Traefik,
    /// `X-Forwarded-Client-Cert` of Envoy: exactly one element with `Cert` or `Chain`.
    Xfcc,
}

/// The place as it is written in messages.
impl fmt::Display for CertificateSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument => formatter.write_str("argument cert"),
            Self::Attributes => formatter.write_str("attributes"),
            Self::ClientCert => formatter.write_str("client-cert"),
            Self::Header { header, encoding, .. } => {
                write!(formatter, "{header} ({})", encoding.as_str())
            }
            Self::IngressNginx => formatter.write_str("ingress-nginx"),
            Self::Traefik => formatter.write_str("traefik"),
            Self::Xfcc => formatter.write_str("xfcc"),
        }
    }
}

/// The encoding of a certificate in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderEncoding {
    /// DER in base64, without line ends.
    Base64Der,
    /// PEM in percent encoding.
    EscapedPem,
    /// DER as a byte sequence between colons (RFC 9440).
    Rfc9440,
}

impl HeaderEncoding {
    /// The name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base64Der => "base64-der",
            Self::EscapedPem => "escaped-pem",
            Self::Rfc9440 => "rfc9440",
        }
    }
}

/// Peers that may ask. Empty sets permit all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskersConfig {
    /// User ids of the processes that may connect to the Unix socket.
    pub uids: Vec<u32>,
    /// Networks that may connect over TCP.
    pub from: Networks,
}

impl AskersConfig {
    /// Whether a process of user `uid` may connect to the Unix socket.
    #[must_use]
    pub fn permits_uid(&self, uid: u32) -> bool {
        self.uids.is_empty() || self.uids.contains(&uid)
    }

    /// Whether a peer with this address may connect over TCP.
    #[must_use]
    pub fn permits_address(&self, address: std::net::IpAddr) -> bool {
        self.from.0.is_empty() || self.from.contains(address)
    }
}

/// TLS towards askers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizerTls {
    /// PEM file of the certificate chain, leaf first.
    pub certificate: PathBuf,
    /// PEM file of the private key: PKCS#8, PKCS#1 or SEC1.
    pub private_key: PathBuf,
    /// PEM file of the CAs whose askers are accepted; `None` asks for no certificate.
    pub client_ca: Option<PathBuf>,
    /// Minimum protocol version. Default: TLS 1.2.
    pub min_version: TlsVersion,
    /// Whether askers can resume sessions. Default: true.
    pub resumption: bool,
}

impl AuthorizerTls {
    /// What the server of an authorizer with this protocol offers.
    #[must_use]
    pub fn server_settings(&self, protocol: AuthorizerProtocol) -> ServerSettings<'static> {
        ServerSettings {
            min_version: self.min_version,
            alpn: protocol.alpn(),
            resumption: self.resumption,
        }
    }
}

/// Checks of the client's certificate, besides those of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientChecks {
    /// Whether a client must have a certificate. Default: required.
    pub mode: ClientAuthMode,
    /// PEM file of the CAs whose clients are accepted. It may hold intermediates, because most
    /// hosts send the leaf alone. `None` trusts the verification of the host.
    pub trust_anchors: Option<PathBuf>,
    /// PEM file of further intermediate CAs, which complete paths and whose CRLs are accepted.
    pub intermediates: Option<PathBuf>,
    /// CRL files. If there are any, each client's issuer must have one.
    pub crls: Vec<PathBuf>,
    /// How to treat an expired CRL. Default: reject.
    pub expired_crl: ExpiredCrl,
    /// The certificates of a path whose revocation is checked. Default: all.
    pub revocation: RevocationDepth,
    /// Maximum number of recent clients that a change may newly reject. `None` sets no maximum.
    pub max_new_hits: Option<usize>,
}

/// Limits for askers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthorizerLimits {
    /// Maximum number of open connections of one asker. All askers together may have a quarter
    /// more. As many again wait for a short time. Default: 1000.
    pub max_connections: usize,
    /// Maximum number of concurrent questions on one connection. Default: 1000.
    pub max_streams: u32,
    /// Maximum size of one question, in bytes: the header section, the gRPC message or the SPOP
    /// frame. A larger question is denied. Default: 64 KiB.
    pub max_question_size: u32,
    /// Maximum time without a question on a connection, which is closed then. Default: 10 min.
    pub idle_timeout: Duration,
}
