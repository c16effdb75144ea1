//! The model of an authorizer: address, protocol, askers, verification, limits and policy.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use ipnet::IpNet;
use keygate_core::guard::JudgedAt;
use keygate_core::tls::ServerSettings;

use super::keys::{table, words};
use super::policy::AskedPolicy;
use super::texts::{CertificateHeader, Mode, Name};
use super::units::{Bounded, DurationText, Positive, SizeText};
use super::{
    AlpnProtocol, ClientAuthConfig, KeyPlace, ListenAddress, Networks, PolicyConfig, TlsVersion,
};

table! {
    /// An authorizer, which answers questions of other proxies about their clients.
    #[derive(Clone, PartialEq, Eq)]
    pub struct AuthorizerConfig "An authorizer answers the questions of other proxies about their clients ([authorizers](authorizers.md)). A configuration with authorizers needs no service. An authorizer is identified by its `name`; services use the same names.", check {
        pub name: String as Name => AtOnce
            "Name in metrics, logs and the report.",
        pub listen: ListenAddress => AtOnce
            r#"Address with a port, or `"unix:/PATH"`; the path has at most 107 bytes. No service and no other authorizer has it. An address that is not loopback needs `tls.client_ca` or `askers.from`. A change closes the connections of the old address."#,
        pub socket_mode: u32 as Mode = "0660" => AtOnce
            "Permissions of the Unix socket, set before the first connection is possible. An inherited socket keeps its own. A mode that lets every user connect is a warning without `askers.uids`.",
        pub socket_group: Option<SocketGroup> => AtOnce
            "Group of the Unix socket, as a name in `/etc/group` or as a number. keygate must be a member of it. An unknown group is an error. Without the key a reload leaves the group as it is.",
        pub protocol: AuthorizerProtocol => AtOnce
            "`http`: 200 or 403. `ext-authz`: `envoy.service.auth.v3.Authorization/Check` over gRPC. `spop`: HAProxy's SPOP 2.0. `step-ca`: an AUTHORIZING webhook of step-ca. `admission`: a validating admission webhook of Kubernetes. A change closes the connections of the old protocol.",
        pub certificate_from: CertificateSource as QuestionCertificate => NextRequest
            r#"The one place of the client's certificate, required with `http`. `http`: `"client-cert"` (RFC 9440), `"xfcc"`, `"traefik"`, `"ingress-nginx"`, or `{ header = "X-SSL-Cert", encoding = "escaped-pem", verify = "X-SSL-Verify" }` with the encodings `escaped-pem`, `base64-der` and `rfc9440`. `ext-authz`: `"attributes"`, the default there, or `"xfcc"`. `spop`: always the argument `cert`; the key is an error. `step-ca` and `admission`: always the body; the key is an error."#,
        pub address_from: Option<HeaderName> as Option<CertificateHeader> => NextRequest
            "`http`: header with the address of the client, for logs and the report. The other protocols have the address.",
        pub cache_for: Duration as DurationText = "0s" => NextRequest
            r#"`http`: an answer has `Cache-Control: max-age` with this time; `"0s"`: `no-store`. A cached answer outlives a reload."#,
        /// The webhooks of step-ca that ask. Only step-ca has any.
        pub webhooks: Vec<WebhookConfig> = [],
        /// Peers that may ask. Default: all that can connect.
        pub askers: AskersConfig = {},
        /// TLS towards askers; `None` uses none.
        pub tls: Option<AuthorizerTls>,
        pub client_auth: ClientAuthConfig = {} => NextRequest
            r#"Checks of the client's certificate, in addition to the host's. With `trust_anchors` or `cas`, keygate verifies chain, dates and CRLs of what the host sends, with each question. `trust_anchors` may hold intermediates, because most hosts send the leaf alone. `intermediates` complete the chains of clients. With `mode = "optional"`, a certificate whose key cannot be checked is denied."#,
        /// Limits for askers.
        pub limits: AuthorizerLimits = {},
        pub policy: PolicyConfig as AskedPolicy = {} =>
            r#"Every key of [`policy`](#policy) for this authorizer only, except `reject_with` and `evict_within`, which are errors here: the host has the connections. Keys that are absent have the value of `policy`. `judge = "chain"` needs `client_auth.trust_anchors`, because a question may lack issuers of the client."#,
    }
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
        let secrets = self.webhooks.iter().map(|webhook| &webhook.secret);
        let secrets = secrets.chain(self.policy.signing_keys().iter().map(|key| &key.file));
        tls.chain(self.client_auth.files()).chain(secrets).map(PathBuf::as_path).collect()
    }
}

table! {
    /// A webhook of step-ca.
    #[derive(Clone, PartialEq, Eq)]
    pub struct WebhookConfig "An array of tables, one or more with `protocol = \"step-ca\"`: the webhooks whose questions are answered. `step ca provisioner webhook add` prints both values." {
        pub id: String as Name => NextRequest
            "The id of the webhook, which a question has in `X-Smallstep-Webhook-ID`.",
        pub secret: PathBuf => NextRequest
            "File with the signing secret of the webhook in base64, 16 bytes or more. A question without its HMAC-SHA256 in `X-Smallstep-Signature` is denied.",
    }
}

table! {
    /// A header with a certificate.
    pub(super) struct RawHeader "" {
        pub(super) header: HeaderName as CertificateHeader,
        pub(super) encoding: HeaderEncoding,
        pub(super) verify: Option<HeaderName> as Option<CertificateHeader>,
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

words! {
    /// The protocol of an authorizer.
    pub enum AuthorizerProtocol {
        /// The validating admission webhooks of Kubernetes.
        Admission = "admission",
        /// Envoy's gRPC service `envoy.service.auth.v3.Authorization`.
        ExtAuthz = "ext-authz",
        /// HTTP/1.0, HTTP/1.1 or HTTP/2: 200 or 403.
        Http = "http",
        /// HAProxy's Stream Processing Offload Protocol, version 2.0.
        Spop = "spop",
        /// The webhooks of step-ca that decide before it issues a certificate.
        StepCa = "step-ca",
    }
}

impl AuthorizerProtocol {
    /// The protocols that are offered by ALPN.
    #[must_use]
    pub fn alpn(self) -> &'static [AlpnProtocol] {
        match self {
            Self::ExtAuthz => &[AlpnProtocol::H2],
            Self::Admission | Self::Http | Self::StepCa => {
                &[AlpnProtocol::H2, AlpnProtocol::Http11]
            }
            Self::Spop => &[],
        }
    }

    /// The moment at which the keys of its questions are judged.
    #[must_use]
    pub fn stage(self) -> JudgedAt {
        match self {
            Self::ExtAuthz | Self::Http | Self::Spop => JudgedAt::Asked,
            Self::Admission | Self::StepCa => JudgedAt::Requested,
        }
    }
}

/// The place of the certificate, whose default depends on the protocol.
#[derive(Debug)]
pub(super) struct QuestionCertificate;

/// Where a question has the client's certificate. An authorizer reads no other place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// The argument `cert` of a SPOP message; the argument `chain` has the issuers.
    Argument,
    /// `attributes.source.certificate` of an ext-authz request.
    Attributes,
    /// The body of a question about a certificate that a CA has not issued yet.
    Body,
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
            Self::Body => formatter.write_str("body"),
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

words! {
    /// The encoding of a certificate in a header.
    pub enum HeaderEncoding {
        /// DER in base64, without line ends.
        Base64Der = "base64-der",
        /// PEM in percent encoding.
        EscapedPem = "escaped-pem",
        /// DER as a byte sequence between colons (RFC 9440).
        Rfc9440 = "rfc9440",
    }
}

table! {
    /// Peers that may ask. Empty sets permit all.
    #[derive(Clone, Default, PartialEq, Eq)]
    pub struct AskersConfig "" {
        pub uids: Vec<u32> = [] => AtOnce
            "User ids of the processes that may ask over a Unix socket (`SO_PEERCRED`). Empty: every process that may open the socket.",
        pub from: Networks = [] => AtOnce
            "Networks that may ask over TCP. Empty: every peer. A network larger than any private one, such as `0.0.0.0/0`, is a warning without `tls.client_ca`.",
    }
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

table! {
    /// TLS towards askers.
    #[derive(Clone, PartialEq, Eq)]
    pub struct AuthorizerTls "TLS towards askers. Without this table there is none. A Unix socket has none." {
        pub certificate: PathBuf => NewConnections
            "PEM of the certificate chain, leaf first.",
        pub private_key: PathBuf => NewConnections
            "PEM of the key: PKCS#8, PKCS#1 or SEC1.",
        pub client_ca: Option<PathBuf> => AtOnce
            "PEM: the CAs of the proxies that may ask. Each asker must present a certificate, whose key is judged as well: an asker with a compromised key is rejected, whatever the policy.",
        pub min_version: TlsVersion = "1.2" => NewConnections
            "Minimum TLS version.",
        pub resumption: bool = true => NewConnections
            "Whether askers may resume sessions.",
    }
}

impl AuthorizerTls {
    /// The offers of an authorizer with this protocol to its hosts.
    #[must_use]
    pub fn server_settings(&self, protocol: AuthorizerProtocol) -> ServerSettings<'static> {
        ServerSettings {
            min_version: self.min_version,
            alpn: protocol.alpn(),
            key_exchange: &[],
            resumption: self.resumption,
        }
    }
}

/// Number of connections of askers.
type AskerConnections = Bounded<usize, 1, { 1 << 20 }>;
/// Number of concurrent questions on a connection.
type QuestionCount = Bounded<u32, 1, 100_000>;
/// Size of a question. The minimum is hyper's smallest read buffer, the maximum the default limit
/// of gRPC messages.
type QuestionSize = SizeText<u32, 8192, { 4 << 20 }>;

table! {
    /// Limits for askers.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct AuthorizerLimits "" {
        pub max_connections: usize as AskerConnections = 1000 => NewConnections
            "Maximum open connections of one asker: a user, an IPv4 address, or a /64 of IPv6. As many again wait for 150 ms; others get 503 with `http`, and are closed with other protocols. All askers together have a quarter more; above that, connections wait in the kernel.",
        pub max_streams: u32 as QuestionCount = 1000 => NewConnections
            "Maximum concurrent questions on one connection. Envoy uses one connection for each of its threads.",
        pub max_question_size: u32 as QuestionSize = "64KiB" => NewConnections
            "Maximum size of a header section, a body, a gRPC message or a SPOP frame. A larger question is denied.",
        pub idle_timeout: Duration as Positive = "10m" => NewConnections
            "Maximum time without a question; the connection is closed after it.",
    }
}
