//! The model of a service: address, names, TLS, client authentication, forwarding and limits.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use keygate_core::guard::{AllowRules, NameBounds};
use keygate_core::tls::ServerSettings;

use super::form::Form;
use super::input::{Input, Taken, Takes};
use super::keys::{table, words};
use super::texts::{Address, Name, ServerNameText, Until};
use super::units::{Bounded, Positive, SizeText};
use super::upstream::Connections;
use super::{
    AlpnProtocol, CrlConfig, ExpiredCrl, KeyExchange, KeyPlace, PolicyConfig, RevocationDepth,
    TlsVersion, UpstreamConfig,
};

table! {
    /// A service behind the proxy.
    #[derive(Clone, PartialEq, Eq)]
    pub struct ServiceConfig "An array of tables, at least one: `[[services]]`.", check {
        pub name: String as Name => AtOnce
            "Name in logs and metrics.",
        pub listen: SocketAddr as Address => AtOnce
            r#"Address and port: `"0.0.0.0:8443"`, `"[::]:8443"`. Services may share one: the name in the handshake (SNI) selects the service."#,
        pub server_names: Vec<String> as Vec<ServerNameText> = [] => AtOnce
            "Hosts of the service; `*.` stands for one label. Empty: the service is the default of its address, for clients that name another host or none. Case and one trailing dot do not matter. International names are written as A-labels (`xn--...`). Each name once for an address.",
        pub protocol: Protocol = "http" => NewConnections
            "HTTP/1.1 and HTTP/2, or raw bytes.",
        pub request_id_from: Networks = [] => NewConnections
            "Networks of peers whose `X-Request-Id` is forwarded. Other requests get a new one.",
        pub trace_context_from: Networks = [] => NewConnections
            "Networks of peers whose `traceparent` is continued, with `[traces]`. Other requests begin a new trace.",
        /// Peers that begin each connection with a PROXY header. Other peers must not send one.
        pub accept_proxy: Networks as ProxyPeers,
        /// Certificate and protocol versions.
        pub tls: TlsConfig,
        /// The verification of clients.
        pub client_auth: ClientAuthConfig,
        /// Client data that is forwarded to the upstream.
        pub forward: ForwardConfig = {},
        /// The servers that requests are forwarded to.
        pub upstream: UpstreamConfig,
        /// Timeouts and limits for clients.
        pub limits: LimitsConfig = {},
        pub policy: PolicyConfig = {} =>
            "Every key of [`policy`](#policy), for this service only. Keys that are absent have the value of `policy`.",
    }
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
        let own = [&self.tls.certificate, &self.tls.private_key].into_iter();
        let alternative = self.tls.alternative.iter();
        let own = own.chain(alternative.flat_map(|it| [&it.certificate, &it.private_key]));
        let own = own.chain(&self.tls.ticket_secret);
        let own = own.chain(self.policy.signing_keys().iter().map(|key| &key.file));
        let mut files: Vec<&PathBuf> = own.chain(self.client_auth.files()).collect();
        if let Some(tls) = &self.upstream.tls {
            files.push(&tls.trust_anchors);
            files.extend(tls.certificate.iter().chain(&tls.private_key));
        }
        files.into_iter().map(PathBuf::as_path).collect()
    }
}

table! {
    struct RawProxyPeers "Off unless the table is there." {
        from: Networks => NewConnections
            "Networks of peers that begin each connection with a PROXY header, version 1 or 2. Equal for all services on an address.",
    }
}

/// The networks of peers that send PROXY headers; none without the table.
#[derive(Debug)]
pub(super) struct ProxyPeers;

impl Takes for ProxyPeers {
    const IS_OPTIONAL: bool = true;

    type Value = Networks;

    fn form() -> Form {
        RawProxyPeers::form()
    }

    fn take(input: &Input<'_>) -> Taken<Networks> {
        RawProxyPeers::take(input).map(|peers| peers.from)
    }

    fn absent(_: &Input<'_>, _: &str) -> Taken<Networks> {
        Ok(Networks::default())
    }
}

table! {
    /// The verification of the clients of a service or an authorizer.
    #[derive(Clone, Default, PartialEq, Eq)]
    pub struct ClientAuthConfig "" {
        pub trust_anchors: Option<PathBuf> => AtOnce
            "PEM: the CAs whose clients are accepted, and [pinned certificates](policy.md#trust-anchors) of clients. A CA outside its validity is not used. A service needs this key or `cas`.",
        /// The CAs that may vouch for some names only.
        pub cas: Vec<BoundCa> = [],
        pub mode: ClientAuthMode = "required" => AtOnce
            "`optional`: a client without a certificate is `unchecked`, for which `on_unchecked` must be `flag` or `header`.",
        pub crls: Vec<CrlConfig> = [] => AtOnce
            "Files with CRLs, 128 MiB each at most: one CRL in DER, or any number in PEM. `{ path = \"clients.crl\", source = [\"http://pki.example.com/clients.crl\"] }` is a file that [`keygate fetch`](fetch.md#crls) downloads. Comments outside of the PEM sections are ignored. Binary data and lines of base64 there, and a section with another label than `X509 CRL` and `CERTIFICATE`, are an error. If there are any, the issuer of each client needs one. They are [verified when they are loaded](policy.md#revocation-lists).",
        pub intermediates: Option<PathBuf> => AtOnce
            "PEM: intermediate CAs whose CRLs are accepted. Each must have been issued by a CA in `trust_anchors` or by another one in the file. Clients of a service present their intermediates themselves.",
        pub expired_crl: ExpiredCrl = "reject" => AtOnce
            "Handling of an expired CRL. `reject`: a new one does not replace one in use, and one in use rejects its clients, after a start too. `accept`: it is used, with a warning.",
        pub revocation: RevocationDepth = "path" => AtOnce
            "The certificates that are looked up in the CRLs. `path`: the client's own, and each intermediate whose issuer has a CRL. `leaf`: the client's own.",
        pub accept_server_auth_until: Option<SystemTime> as Option<Until> => AtOnce
            "Until when clients are accepted whose certificates have `serverAuth` as their [only purpose](policy.md#certificates-of-servers). A date includes its day in UTC. Without the key they are rejected.",
        pub max_new_hits: Option<usize> => AtOnce
            "Maximum number of recently admitted clients that a change may newly reject. An update of CAs or CRLs above it [waits](policy.md#an-update-that-rejects-many-clients) for `keygate service accept`; a configuration above it is rejected.",
        /// Rules by name; `None` admits every client of the CAs.
        pub allow: Option<Arc<AllowRules>>,
    }
}

impl ClientAuthConfig {
    /// Whether there are CAs. An authorizer without any trusts the verification of the host.
    #[must_use]
    pub fn has_cas(&self) -> bool {
        self.trust_anchors.is_some() || !self.cas.is_empty()
    }

    /// The paths of the files with CAs and CRLs.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let cas = self.trust_anchors.iter().chain(self.cas.iter().map(|ca| &ca.file));
        cas.chain(&self.intermediates).chain(self.crls.iter().map(|crl| &crl.path))
    }
}

/// A file with CAs that may vouch for some names only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundCa {
    /// PEM file of the CAs.
    pub file: PathBuf,
    /// The names that they may vouch for.
    pub bounds: Arc<NameBounds>,
}

table! {
    pub(super) struct RawBoundCa "An array of tables: CAs, each file with the names that its CAs [may vouch for](policy.md#who-may-vouch-for-whom). A client whose certificate has another name is rejected. A kind of names counts if a rule in `allow` or one of these tables has it. SPIFFE IDs always count. A table or a list without a name is an error. A CA that is in `trust_anchors` as well has these bounds." {
        pub(super) file: PathBuf => AtOnce
            "PEM: the CAs and pinned certificates, as in `trust_anchors`.",
        pub(super) spiffe: Option<Vec<String>> => AtOnce
            "Trust domains of SPIFFE IDs, such as `example.org`, without wildcards.",
        pub(super) dns: Option<Vec<String>> => AtOnce
            r#"DNS names. `"*.example.com"` stands for one label, `"**.example.com"` for one or more; neither for `example.com`."#,
        pub(super) email: Option<Vec<String>> => AtOnce
            "Hosts of email addresses, in the form of `dns`.",
        pub(super) common_names: Option<Vec<String>> => AtOnce
            "Common names of the subject, character for character.",
        pub(super) organizational_units: Option<Vec<String>> => AtOnce
            "Organizational units of the subject, character for character.",
    }
}

words! {
    /// The protocol inside TLS.
    pub enum Protocol {
        /// HTTP/1.1 or HTTP/2. Requests can be rejected and annotated.
        Http = "http",
        /// Any protocol. Bytes are forwarded unchanged.
        Tcp = "tcp",
    }
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

table! {
    /// Certificate and protocol versions of a service.
    #[derive(Clone, PartialEq, Eq)]
    pub struct TlsConfig "", check {
        pub certificate: PathBuf => NewConnections
            "PEM, the service's own certificate first, then its intermediates.",
        pub private_key: PathBuf => NewConnections
            "PEM: PKCS #8, PKCS #1 or SEC1; without a passphrase. May be the same file.",
        pub alternative: Option<AlternativeCertificate> =>
            "The certificate for clients that offer no signature scheme of the first one's key, such as RSA beside ECDSA, or ECDSA beside ML-DSA.",
        pub min_version: TlsVersion = "1.2" => NewConnections
            "Minimum version of TLS.",
        pub key_exchange: Vec<KeyExchange> = [] => NewConnections
            "Groups of the key exchange, preferred first; the client may take no other. Empty: all, in the order of the client ([post-quantum](post-quantum.md)).",
        pub alpn: Vec<AlpnProtocol> = ["h2", "http/1.1"] => NewConnections
            r#"Protocols offered to clients, preferred first. Not with `protocol = "tcp"`."#,
        pub resumption: bool = true => NewConnections
            "Whether sessions are resumed. A resumed session is judged like a new one.",
        pub ticket_secret: Option<PathBuf> => NewConnections
            "File with a secret on each line, one to eight, which [processes with the same content](fleet.md#session-tickets) share: they resume the sessions of each other. The first secret encrypts, all decrypt. Without the key, each process and each snapshot has ticket keys of its own.",
    }
}

table! {
    /// The alternative certificate of a service.
    #[derive(Clone, PartialEq, Eq)]
    pub struct AlternativeCertificate "" {
        pub certificate: PathBuf => NewConnections
            "PEM, as `services.tls.certificate`.",
        pub private_key: PathBuf => NewConnections
            "PEM, as `services.tls.private_key`.",
    }
}

impl TlsConfig {
    /// The offers of the service to its clients.
    #[must_use]
    pub fn server_settings(&self) -> ServerSettings<'_> {
        ServerSettings {
            min_version: self.min_version,
            alpn: &self.alpn,
            key_exchange: &self.key_exchange,
            resumption: self.resumption,
        }
    }
}

words! {
    /// Whether a client must present a certificate.
    #[derive(Default)]
    pub enum ClientAuthMode {
        /// Clients without a certificate are unchecked. Untrusted certificates are rejected.
        Optional = "optional",
        /// Clients without a certificate are rejected.
        #[default]
        Required = "required",
    }
}

table! {
    /// Client data that is forwarded to the upstream, in addition to the verdict.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct ForwardConfig "Fields and headers for the upstream, apart from the verdict." {
        pub client_cert: bool = true => NewConnections
            "`Client-Cert` (RFC 9440).",
        pub client_cert_chain: bool = false => NewConnections
            "`Client-Cert-Chain` (RFC 9440): the intermediates of the [verified path](policy.md#the-verified-path), at most six.",
        pub xfcc: bool = false => NewConnections
            "`X-Forwarded-Client-Cert`, in Envoy's form: `Hash`, `Cert`, `Subject`, `URI`, `DNS`.",
        pub forwarded: Forwarded = "x-forwarded" => NewConnections
            "`X-Forwarded-For`, `-Host` and `-Proto`; `Forwarded`; both; none.",
        pub send_proxy: SendProxy = "off" => NewConnections
            r#"A PROXY header with the client's certificate. Only with `protocol = "tcp"`."#,
    }
}

words! {
    /// The headers with the origin of a request.
    pub enum Forwarded {
        /// `Forwarded` and `X-Forwarded-*`.
        Both = "both",
        /// No header.
        Off = "off",
        /// `Forwarded` (RFC 7239).
        Rfc7239 = "rfc7239",
        /// `X-Forwarded-For`, `-Proto` and `-Host`.
        XForwarded = "x-forwarded",
    }
}

words! {
    /// The PROXY header to a TCP upstream.
    pub enum SendProxy {
        /// No PROXY header.
        Off = "off",
        /// Version 2, with the TLS version, the client's name and its certificate.
        V2 = "v2",
    }
}

/// Size of a request head. The minimum is hyper's smallest read buffer.
type HeaderSize = SizeText<u32, 8192, { 1 << 20 }>;
/// Number of fields in a request head; servers reject longer heads.
type HeaderCount = Bounded<usize, 1, 1000>;
/// Number of concurrent requests on a connection.
type StreamCount = Bounded<u32, 1, 10_000>;

table! {
    /// Timeouts and limits for clients.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct LimitsConfig "" {
        pub handshake_timeout: Duration as Positive = "10s" => NewConnections
            "From the accepted connection to the end of the handshake. Services on one address use the longest of theirs.",
        pub header_timeout: Duration as Positive = "10s" => NewConnections
            "From the first byte of a request head to its last (HTTP/1.1).",
        pub body_timeout: Duration as Positive = "60s" => NewConnections
            "Between two pieces of a request body, and for the client to take a piece of its response. A stream of HTTP/2 that exceeds it is reset.",
        pub idle_timeout: Duration as Positive = "60s" => NewConnections
            r#"From the end of a response to the next request. With `protocol = "tcp"` and after an upgrade: without a byte in either direction."#,
        pub request_timeout: Option<Duration> as Option<Positive> => NewConnections
            "From the head of a request to the end of its response.",
        pub max_connection_age: Option<Duration> as Option<Positive> => NewConnections
            "Older connections finish their in-flight requests and close.",
        pub max_connections: usize as Connections = 10000 => NewConnections
            "Maximum open connections. Services on one address share the sum. One client has three quarters of them. At the maximum, a new connection replaces the oldest unfinished handshake of the address (IPv6: /48) with most of them; without one it waits in the kernel.",
        pub max_connections_per_ip: usize as Connections = 1000 => NewConnections
            r#"Maximum open connections from one IPv4 address, or from one /64 of IPv6. Further ones get 429, above twice the limit they are closed; with `protocol = "tcp"` further ones are closed."#,
        pub max_header_size: u32 as HeaderSize = "32KiB" => NewConnections
            "Maximum size of a request head.",
        pub max_headers: usize as HeaderCount = 100 => NewConnections
            "Maximum number of fields in a request head.",
        pub max_body_size: Option<u64> as Option<SizeText> => NewConnections
            "Maximum size of a request body.",
        pub max_streams: u32 as StreamCount = 100 => NewConnections
            "Maximum concurrent requests on one HTTP/2 connection.",
    }
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
