//! Checks a service: names, TLS, forwarding, limits and policy.

use std::net::IpAddr;
use std::time::Duration;

use hyper::header::HeaderName;
use ipnet::IpNet;
use keygate_core::guard::{Decision, Policy, RejectWith};

use super::super::{
    AlpnProtocol, ClientAuthMode, ForwardConfig, LimitsConfig, Networks, Protocol, SendProxy,
    ServiceConfig, TlsConfig, raw,
};
use super::Checker;
use crate::config::units::quoted;

/// Default of `evict_within`.
const EVICT_WITHIN: Duration = Duration::from_secs(10);

/// Header names that `policy.header` must not use: fields that frame a message or belong to one
/// connection, credentials of the client, and fields that keygate writes into requests or answers.
const RESERVED: [&str; 27] = [
    "authorization",
    "cache-control",
    "client-cert",
    "client-cert-chain",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

impl Checker<'_> {
    /// Checks the service at `path`.
    pub(super) fn service(
        &self,
        path: &str,
        service: raw::RawService,
        policy: &raw::RawPolicy,
    ) -> ServiceConfig {
        let at = |key: &str| format!("{path}.{key}");
        let auth = &service.client_auth;
        let allow = self.allow(&at("client_auth"), auth.mode, auth.allow.as_ref());
        let merged = Policy { allow, ..merge(policy, &service.policy) };
        if service.client_auth.mode == ClientAuthMode::Optional
            && merged.on_unchecked == Decision::Reject
        {
            let problem = "\"optional\" admits clients without a certificate, but on_unchecked = \"reject\" rejects them; set on_unchecked to \"flag\" or \"header\"";
            self.conflict(at("client_auth.mode"), problem);
        }
        if service.protocol == Protocol::Tcp {
            self.without_http(path, &merged);
        }
        let names = service.server_names.iter().enumerate();
        let names = names
            .map(|(index, name)| self.server_name(&at(&format!("server_names[{index}]")), name));
        ServiceConfig {
            name: self.name(path, service.name),
            listen: self.address(&at("listen"), &service.listen),
            server_names: names.collect(),
            protocol: service.protocol,
            accept_proxy: self.networks(
                &at("accept_proxy.from"),
                service.accept_proxy.as_ref().map_or(&[], |it| &it.from),
            ),
            request_id_from: self.networks(&at("request_id_from"), &service.request_id_from),
            trace_context_from: self
                .networks(&at("trace_context_from"), &service.trace_context_from),
            tls: self.tls(&at("tls"), service.tls, service.protocol),
            trust_anchors: self
                .path(&at("client_auth.trust_anchors"), &service.client_auth.trust_anchors),
            intermediates: (service.client_auth.intermediates.as_deref())
                .map(|path| self.path(&at("client_auth.intermediates"), path)),
            crls: self.paths(&at("client_auth.crls"), &service.client_auth.crls),
            expired_crl: service.client_auth.expired_crl,
            revocation: service.client_auth.revocation,
            max_new_hits: service.client_auth.max_new_hits,
            client_auth_mode: service.client_auth.mode,
            forward: self.forward(&at("forward.send_proxy"), service.forward, service.protocol),
            upstream: self.upstream(&at("upstream"), service.upstream, service.protocol),
            limits: limits(&service.limits),
            policy: merged,
            allow_compromised_own_key: (service.policy.allow_compromised_own_key)
                .or(policy.allow_compromised_own_key)
                .unwrap_or(false),
            evict_within: (service.policy.evict_within.or(policy.evict_within))
                .map_or(EVICT_WITHIN, |within| within.0),
            status_header: self.status_header(policy, &service.policy, &at("policy.header")),
        }
    }

    /// Returns the name in lower case and without the dot of a fully qualified name.
    fn server_name(&self, path: &str, server_name: &str) -> String {
        let name = server_name.strip_suffix('.').unwrap_or(server_name).to_ascii_lowercase();
        let host = name.strip_prefix("*.").unwrap_or(&name);
        if let Some(problem) = host_name_problem(host) {
            self.invalid(path, format!("{} {problem}", quoted(server_name)));
        }
        name
    }

    /// Parses networks; an address alone is a network of one address.
    pub(super) fn networks(&self, path: &str, texts: &[String]) -> Networks {
        let networks = texts.iter().enumerate().filter_map(|(index, text)| {
            let address = || text.parse::<IpAddr>().map(IpNet::from);
            let network = text.parse::<IpNet>().or_else(|_| address()).ok();
            if network.is_none() {
                let problem =
                    format!("{} is not a network, such as \"10.0.0.0/8\" or \"::1\"", quoted(text));
                self.invalid(format!("{path}[{index}]"), problem);
            }
            network
        });
        Networks(networks.collect())
    }

    /// Rejects HTTP-only policy settings for TCP services.
    fn without_http(&self, path: &str, policy: &Policy) {
        if policy.reject_with == RejectWith::Http403 {
            let problem =
                "\"http-403\" needs HTTP requests, but protocol is \"tcp\"; write \"alert\"";
            self.conflict(format!("{path}.policy.reject_with"), problem);
        }
        for (key, action) in [
            ("on_cleared", policy.on_cleared),
            ("on_confirmed", policy.on_confirmed),
            ("on_listed", policy.on_listed),
            ("on_probable", policy.on_probable),
            ("on_unchecked", policy.on_unchecked),
            ("on_weak", policy.on_weak),
        ] {
            if action == Decision::Annotate {
                let problem = "\"header\" needs HTTP requests, but protocol is \"tcp\"; write \"flag\" for a log line";
                self.conflict(format!("{path}.policy.{key}"), problem);
            }
        }
    }

    fn forward(&self, path: &str, forward: ForwardConfig, protocol: Protocol) -> ForwardConfig {
        if forward.send_proxy != SendProxy::Off && protocol == Protocol::Http {
            let problem =
                "\"v2\" needs protocol = \"tcp\"; remove it, because HTTP upstreams get headers";
            self.conflict(path, problem);
        }
        forward
    }

    fn tls(&self, path: &str, tls: raw::RawTls, protocol: Protocol) -> TlsConfig {
        let at = |key: &str| format!("{path}.{key}");
        if tls.alpn.as_ref().is_some_and(Vec::is_empty) {
            self.invalid(at("alpn"), "empty; give \"h2\", \"http/1.1\" or both");
        }
        if protocol == Protocol::Tcp && tls.alpn.is_some() {
            self.conflict(at("alpn"), "has no effect with protocol = \"tcp\"; remove it");
        }
        let alpn = match protocol {
            Protocol::Http => tls.alpn.unwrap_or(vec![AlpnProtocol::H2, AlpnProtocol::Http11]),
            Protocol::Tcp => Vec::new(),
        };
        TlsConfig {
            certificate: self.path(&at("certificate"), &tls.certificate),
            private_key: self.path(&at("private_key"), &tls.private_key),
            min_version: tls.min_version,
            alpn,
            resumption: tls.resumption,
        }
    }

    pub(super) fn status_header(
        &self,
        policy: &raw::RawPolicy,
        service: &raw::RawPolicy,
        path: &str,
    ) -> HeaderName {
        const DEFAULT: HeaderName = HeaderName::from_static("client-key-status");
        let (path, name) = match (&service.header, &policy.header) {
            (Some(name), _) => (path, name.as_str()),
            (None, Some(name)) => ("policy.header", name.as_str()),
            (None, None) => return DEFAULT,
        };
        let Ok(header) = name.parse::<HeaderName>() else {
            self.invalid(
                path,
                format!("{} is not a header name; write one like \"X-Key\"", quoted(name)),
            );
            return DEFAULT;
        };
        if is_reserved(&header) {
            self.invalid(path, format!("{} is reserved; give a name like \"X-Key\"", quoted(name)));
        }
        header
    }
}

fn limits(raw: &raw::Limits) -> LimitsConfig {
    LimitsConfig {
        handshake_timeout: raw.handshake_timeout.0,
        header_timeout: raw.header_timeout.0,
        body_timeout: raw.body_timeout.0,
        idle_timeout: raw.idle_timeout.0,
        request_timeout: raw.request_timeout.map(|time| time.0),
        max_connection_age: (raw.max_connection_age).map(|time| time.0),
        max_connections: raw.max_connections.0,
        max_connections_per_ip: raw.max_connections_per_ip.0,
        max_header_size: u32::try_from(raw.max_header_size.0).unwrap_or(u32::MAX),
        max_headers: raw.max_headers.0,
        max_body_size: raw.max_body_size.map(|size| size.0),
        max_streams: raw.max_streams.0,
    }
}

/// Whether `policy.header` must not use this name in any spelling. Servers that turn names into
/// variables, such as those of CGI, take `x_request_id` for `X-Request-Id`.
fn is_reserved(header: &HeaderName) -> bool {
    let dashed = header.as_str().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    RESERVED.contains(&dashed.as_str())
}

/// Why a client cannot send `host`, in lower case, as SNI (RFC 6066, section 3).
fn host_name_problem(host: &str) -> Option<&'static str> {
    if host.contains('*') {
        Some("has '*' elsewhere than for the whole first label; write \"*.example.com\"")
    } else if !host.is_ascii() {
        Some("is not in ASCII; write the A-label of each label (xn--...)")
    } else if host.parse::<IpAddr>().is_ok() || host.starts_with('[') {
        Some("is an address, and clients send no SNI for one; leave server_names out")
    } else if host.split('.').any(str::is_empty) {
        Some("has an empty label; write labels with one dot between them")
    } else if host.contains([':', '/', '@']) {
        Some("is not a host name; write it without scheme, user, port and path")
    } else if rustls::pki_types::DnsName::try_from(host).is_err() {
        Some(
            "is not a host name; write \"www.example.com\", or \"*.example.com\" for one label in front",
        )
    } else {
        None
    }
}

/// The policy of a service or an authorizer, whose own settings go before those of `[policy]`.
pub(super) fn merge(policy: &raw::RawPolicy, service: &raw::RawPolicy) -> Policy {
    let default = Policy::default();
    Policy {
        on_cleared: service.on_cleared.or(policy.on_cleared).map_or(default.on_cleared, Into::into),
        on_confirmed: service
            .on_confirmed
            .or(policy.on_confirmed)
            .map_or(default.on_confirmed, Into::into),
        on_listed: service.on_listed.or(policy.on_listed).map_or(default.on_listed, Into::into),
        on_probable: service
            .on_probable
            .or(policy.on_probable)
            .map_or(default.on_probable, Into::into),
        on_unchecked: service
            .on_unchecked
            .or(policy.on_unchecked)
            .map_or(default.on_unchecked, Into::into),
        on_weak: service.on_weak.or(policy.on_weak).map_or(default.on_weak, Into::into),
        allow: None,
        judge: service.judge.or(policy.judge).unwrap_or(default.judge),
        reject_with: service.reject_with.or(policy.reject_with).unwrap_or(default.reject_with),
    }
}
