//! The table of a service as it is written.

use std::path::PathBuf;

use super::super::keys::table;
use super::super::units::{Bounded, Positive, SizeText};
use super::super::{
    AlpnProtocol, ClientAuthMode, ExpiredCrl, ForwardConfig, Protocol, RevocationDepth, TlsVersion,
};
use super::{Connections, RawAllow, RawPolicy, RawUpstream};

table! {
    pub(in crate::config) struct RawService "An array of tables, at least one: `[[services]]`." {
        pub(in crate::config) name: String => AtOnce
            "Name in logs and metrics.",
        pub(in crate::config) listen: String => AtOnce
            r#"Address and port: `"0.0.0.0:8443"`, `"[::]:8443"`. Services may share one: the name in the handshake (SNI) selects the service."#,
        pub(in crate::config) server_names: Vec<String> = [] => AtOnce
            "Hosts of the service; `*.` stands for one label. Empty: the service is the default of its address, for clients that name another host or none. Case and one trailing dot do not matter. International names are written as A-labels (`xn--...`). Each name once for an address.",
        pub(in crate::config) protocol: Protocol = "http" => NewConnections
            "HTTP/1.1 and HTTP/2, or raw bytes.",
        pub(in crate::config) request_id_from: Vec<String> = [] => NewConnections
            "Networks of peers whose `X-Request-Id` is forwarded. Other requests get a new one.",
        pub(in crate::config) trace_context_from: Vec<String> = [] => NewConnections
            "Networks of peers whose `traceparent` is continued, with `[traces]`. Other requests begin a new trace.",
        pub(in crate::config) accept_proxy: Option<ProxyPeers>,
        pub(in crate::config) tls: RawTls,
        pub(in crate::config) client_auth: RawClientAuth,
        pub(in crate::config) forward: ForwardConfig = {},
        pub(in crate::config) upstream: RawUpstream,
        pub(in crate::config) limits: Limits = {},
        pub(in crate::config) policy: RawPolicy = {} =>
            "Every key of [`policy`](#policy), for this service only. Keys that are absent have the value of `policy`.",
    }
}

table! {
    pub(in crate::config) struct ProxyPeers "Off unless the table is there." {
        pub(in crate::config) from: Vec<String> => NewConnections
            "Networks of peers that begin each connection with a PROXY header, version 1 or 2. Equal for all services on an address.",
    }
}

table! {
    pub(in crate::config) struct RawTls "" {
        pub(in crate::config) certificate: PathBuf => NewConnections
            "PEM, the service's own certificate first, then its intermediates.",
        pub(in crate::config) private_key: PathBuf => NewConnections
            "PEM: PKCS #8, PKCS #1 or SEC1; without a passphrase. May be the same file.",
        pub(in crate::config) min_version: TlsVersion = "1.2" => NewConnections
            "Minimum version of TLS.",
        pub(in crate::config) alpn: Option<Vec<AlpnProtocol>> = ["h2", "http/1.1"] => NewConnections
            r#"Protocols offered to clients, preferred first. Not with `protocol = "tcp"`."#,
        pub(in crate::config) resumption: bool = true => NewConnections
            "Whether sessions are resumed. A resumed session is judged like a new one.",
    }
}

table! {
    pub(in crate::config) struct RawClientAuth "" {
        pub(in crate::config) trust_anchors: PathBuf => AtOnce
            "PEM: the CAs whose clients are accepted, and [pinned certificates](policy.md#trust-anchors) of clients. A CA outside its validity is not used.",
        pub(in crate::config) mode: ClientAuthMode = "required" => AtOnce
            "`optional`: a client without a certificate is `unchecked`, for which `on_unchecked` must be `flag` or `header`.",
        pub(in crate::config) crls: Vec<PathBuf> = [] => AtOnce
            "Files with CRLs, 128 MiB each at most: one CRL in DER, or any number in PEM. Text outside of the PEM sections is ignored. Binary data and base64 of DER there, and a CRL in a section with another label than `X509 CRL`, are an error. If there are any, the issuer of each client needs one. They are [verified when they are loaded](policy.md#revocation-lists).",
        pub(in crate::config) intermediates: Option<PathBuf> => AtOnce
            "PEM: intermediate CAs whose CRLs are accepted. Each must have been issued by a CA in `trust_anchors` or by another one in the file. Clients present their intermediates themselves.",
        pub(in crate::config) expired_crl: ExpiredCrl = "reject" => AtOnce
            "Handling of an expired CRL. `reject`: a new one does not replace one in use, and one in use rejects its clients, after a start too. `accept`: it is used, with a warning.",
        pub(in crate::config) revocation: RevocationDepth = "path" => AtOnce
            "The certificates that are looked up in the CRLs. `path`: the client's own, and each intermediate whose issuer has a CRL. `leaf`: the client's own.",
        pub(in crate::config) max_new_hits: Option<usize> => AtOnce
            "Maximum number of recently admitted clients that a change may newly reject. An update of CAs or CRLs above it [waits](policy.md#an-update-that-rejects-many-clients) for `keygate service accept`; a configuration above it is rejected.",
        pub(in crate::config) allow: Option<RawAllow>,
    }
}

/// Size of a request head. The minimum is hyper's smallest read buffer.
pub(in crate::config) type HeaderSize = SizeText<8192, { 1 << 20 }>;
/// Number of fields in a request head; servers reject longer heads.
pub(in crate::config) type HeaderCount = Bounded<usize, 1, 1000>;
/// Number of concurrent requests on a connection.
pub(in crate::config) type StreamCount = Bounded<u32, 1, 10_000>;

table! {
    pub(in crate::config) struct Limits "" {
        pub(in crate::config) handshake_timeout: Positive = "10s" => NewConnections
            "From the accepted connection to the end of the handshake. Services on one address use the longest of theirs.",
        pub(in crate::config) header_timeout: Positive = "10s" => NewConnections
            "From the first byte of a request head to its last (HTTP/1.1).",
        pub(in crate::config) body_timeout: Positive = "60s" => NewConnections
            "Between two pieces of a request body, and for the client to take a piece of its response. A stream of HTTP/2 that exceeds it is reset.",
        pub(in crate::config) idle_timeout: Positive = "60s" => NewConnections
            r#"From the end of a response to the next request. With `protocol = "tcp"` and after an upgrade: without a byte in either direction."#,
        pub(in crate::config) request_timeout: Option<Positive> => NewConnections
            "From the head of a request to the end of its response.",
        pub(in crate::config) max_connection_age: Option<Positive> => NewConnections
            "Older connections finish their in-flight requests and close.",
        pub(in crate::config) max_connections: Connections = 10000 => NewConnections
            "Maximum open connections. Services on one address share the sum. At the maximum, a new connection replaces the oldest unfinished handshake of the address (IPv6: /48) with most of them; without one it waits in the kernel.",
        pub(in crate::config) max_connections_per_ip: Connections = 1000 => NewConnections
            r#"Maximum open connections from one IPv4 address, or from one /64 of IPv6. Further ones get 429, above twice the limit they are closed; with `protocol = "tcp"` further ones are closed."#,
        pub(in crate::config) max_header_size: HeaderSize = "32KiB" => NewConnections
            "Maximum size of a request head.",
        pub(in crate::config) max_headers: HeaderCount = 100 => NewConnections
            "Maximum number of fields in a request head.",
        pub(in crate::config) max_body_size: Option<SizeText> => NewConnections
            "Maximum size of a request body.",
        pub(in crate::config) max_streams: StreamCount = 100 => NewConnections
            "Maximum concurrent requests on one HTTP/2 connection.",
    }
}
