//! The table of an authorizer as it is written.

use std::path::PathBuf;

use serde::Deserialize;

use super::super::keys::{Form, Takes, table};
use super::super::units::{Bounded, DurationText, Positive, SizeText};
use super::super::{
    AuthorizerProtocol, ClientAuthMode, ExpiredCrl, HeaderEncoding, RevocationDepth, TlsVersion,
};
use super::{RawAllow, RawAskedPolicy};

table! {
    pub(in crate::config) struct RawAuthorizer "An authorizer answers the questions of other proxies about their clients ([authorizers](authorizers.md)). A configuration with authorizers needs no service. An authorizer is identified by its `name`; services use the same names." {
        pub(in crate::config) name: String => AtOnce
            "Name in metrics, logs and the report.",
        pub(in crate::config) listen: String => AtOnce
            r#"Address with a port, or `"unix:/PATH"`; the path has at most 107 bytes. No service and no other authorizer has it. An address that is not loopback needs `tls.client_ca` or `askers.from`. A change closes the connections of the old address."#,
        pub(in crate::config) socket_mode: Option<String> = "0660" => AtOnce
            "Permissions of the Unix socket, set before the first connection is possible. An inherited socket keeps its own. A mode that lets every user connect is a warning without `askers.uids`.",
        pub(in crate::config) socket_group: Option<String> => AtOnce
            "Group of the Unix socket, as a name in `/etc/group` or as a number. keygate must be a member of it. An unknown group is an error. Without the key a reload leaves the group as it is.",
        pub(in crate::config) protocol: AuthorizerProtocol => AtOnce
            "`http`: 200 or 403. `ext-authz`: `envoy.service.auth.v3.Authorization/Check` over gRPC. `spop`: HAProxy's SPOP 2.0. A change closes the connections of the old protocol.",
        pub(in crate::config) certificate_from: Option<RawCertificateSource> => NextRequest
            r#"The one place of the client's certificate, required with `http`. `http`: `"client-cert"` (RFC 9440), `"xfcc"`, `"traefik"`, `"ingress-nginx"`, or `{ header = "X-SSL-Cert", encoding = "escaped-pem", verify = "X-SSL-Verify" }` with the encodings `escaped-pem`, `base64-der` and `rfc9440`. `ext-authz`: `"attributes"`, the default there, or `"xfcc"`. `spop`: always the argument `cert`; the key is an error."#,
        pub(in crate::config) address_from: Option<String> => NextRequest
            "`http`: header with the address of the client, for logs and the report. The other protocols have the address.",
        pub(in crate::config) cache_for: Option<DurationText> = "0s" => NextRequest
            r#"`http`: an answer has `Cache-Control: max-age` with this time; `"0s"`: `no-store`. A cached answer outlives a reload."#,
        pub(in crate::config) askers: RawAskers = {},
        pub(in crate::config) tls: Option<RawAuthorizerTls>,
        pub(in crate::config) client_auth: RawChecks = {},
        pub(in crate::config) limits: RawAuthorizerLimits = {},
        pub(in crate::config) policy: RawAskedPolicy = {} =>
            r#"Every key of [`policy`](#policy) for this authorizer only, except `reject_with` and `evict_within`, which are errors here: the host has the connections. Keys that are absent have the value of `policy`. `judge = "chain"` needs `client_auth.trust_anchors`, because a question may lack issuers of the client."#,
    }
}

/// A dialect by its name, or a header with its encoding.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::config) enum RawCertificateSource {
    Header(RawHeader),
    Name(String),
}

table! {
    pub(in crate::config) struct RawHeader "" {
        pub(in crate::config) header: String,
        pub(in crate::config) encoding: HeaderEncoding,
        pub(in crate::config) verify: Option<String>,
    }
}

impl Takes for RawCertificateSource {
    fn form() -> Form {
        RawHeader::form().or_text()
    }
}

table! {
    pub(in crate::config) struct RawAskers "" {
        pub(in crate::config) uids: Vec<u32> = [] => AtOnce
            "User ids of the processes that may ask over a Unix socket (`SO_PEERCRED`). Empty: every process that may open the socket.",
        pub(in crate::config) from: Vec<String> = [] => AtOnce
            "Networks that may ask over TCP. Empty: every peer. A network larger than any private one, such as `0.0.0.0/0`, is a warning without `tls.client_ca`.",
    }
}

table! {
    pub(in crate::config) struct RawAuthorizerTls "TLS towards askers. Without this table there is none. A Unix socket has none." {
        pub(in crate::config) certificate: PathBuf => NewConnections
            "PEM of the certificate chain, leaf first.",
        pub(in crate::config) private_key: PathBuf => NewConnections
            "PEM of the key: PKCS#8, PKCS#1 or SEC1.",
        pub(in crate::config) client_ca: Option<PathBuf> => AtOnce
            "PEM: the CAs of the proxies that may ask. Each asker must present a certificate, whose key is judged as well: an asker with a compromised key is rejected, whatever the policy.",
        pub(in crate::config) min_version: TlsVersion = "1.2" => NewConnections
            "Minimum TLS version.",
        pub(in crate::config) resumption: bool = true => NewConnections
            "Whether askers may resume sessions.",
    }
}

table! {
    pub(in crate::config) struct RawChecks "" {
        pub(in crate::config) mode: ClientAuthMode = "required" => NextRequest
            "`optional`: a client without a certificate is `unchecked`, for which `on_unchecked` must be `flag` or `header`. A certificate whose key cannot be checked is denied.",
        pub(in crate::config) trust_anchors: Option<PathBuf> => NextRequest
            "PEM: the CAs whose clients are accepted. keygate then verifies chain, dates and CRLs of what the host sends, with each question. The file may hold intermediates, because most hosts send the leaf alone.",
        pub(in crate::config) intermediates: Option<PathBuf> => NextRequest
            "PEM: further intermediate CAs. They complete the chains of clients, and their CRLs are accepted.",
        pub(in crate::config) crls: Vec<PathBuf> = [] => NextRequest
            "As [`services.client_auth.crls`](#servicesclient_auth).",
        pub(in crate::config) expired_crl: Option<ExpiredCrl> = "reject" => NextRequest
            "As [`services.client_auth.expired_crl`](#servicesclient_auth).",
        pub(in crate::config) revocation: Option<RevocationDepth> = "path" => NextRequest
            "As [`services.client_auth.revocation`](#servicesclient_auth).",
        pub(in crate::config) max_new_hits: Option<usize> => NextRequest
            "As [`services.client_auth.max_new_hits`](#servicesclient_auth).",
        pub(in crate::config) allow: Option<RawAllow> => NextRequest
            r#"The clients for which the answer is "allow", if their keys are accepted. As [`services.client_auth.allow`](#servicesclient_authallow)."#,
    }
}

/// Number of connections of askers.
pub(in crate::config) type AskerConnections = Bounded<usize, 1, { 1 << 20 }>;
/// Number of concurrent questions on a connection.
pub(in crate::config) type QuestionCount = Bounded<u32, 1, 100_000>;
/// Size of a question. The minimum is hyper's smallest read buffer, the maximum the default limit
/// of gRPC messages.
pub(in crate::config) type QuestionSize = SizeText<8192, { 4 << 20 }>;

table! {
    pub(in crate::config) struct RawAuthorizerLimits "" {
        pub(in crate::config) max_connections: AskerConnections = 1000 => NewConnections
            "Maximum open connections of one asker: a user, an IPv4 address, or a /64 of IPv6. As many again wait for 300 ms; others get 503 with `http`, and are closed with other protocols. All askers together have a quarter more; above that, connections wait in the kernel.",
        pub(in crate::config) max_streams: QuestionCount = 1000 => NewConnections
            "Maximum concurrent questions on one connection. Envoy uses one connection for each of its threads.",
        pub(in crate::config) max_question_size: QuestionSize = "64KiB" => NewConnections
            "Maximum size of a header section, a gRPC message or a SPOP frame. A larger question is denied.",
        pub(in crate::config) idle_timeout: Positive = "10m" => NewConnections
            "Maximum time without a question; the connection is closed after it.",
    }
}
