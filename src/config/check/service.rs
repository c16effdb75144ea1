//! Checks a service: names, TLS, forwarding, limits and policy.

use std::net::IpAddr;
use std::time::Duration;

use hyper::header::{self, HeaderName};
use ipnet::IpNet;

use super::super::{
    AlpnProtocol, ClientAuthMode, ConfigError, ForwardConfig, LimitsConfig, Networks, Protocol,
    SendProxy, ServiceConfig, TlsConfig, raw,
};
use super::Checker;
use crate::guard::{Decision, Policy, RejectWith};

/// Range of `max_header_size`, in bytes. The minimum is hyper's smallest read buffer.
const HEADER_SIZES: std::ops::RangeInclusive<u64> = 8192..=(1 << 20);
/// Maximum of the connection limits; a larger number is a typing error.
const MAX_CONNECTIONS: usize = 1 << 24;
/// Maximum of `max_headers`; servers reject longer heads.
const MAX_HEADERS: usize = 1000;
/// Maximum of `max_streams`; a larger number is a typing error.
const MAX_STREAMS: usize = 10_000;
/// Default of `evict_within`.
const EVICT_WITHIN: Duration = Duration::from_secs(10);

/// Header names that `policy.header` must not use.
const RESERVED: [HeaderName; 14] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::FORWARDED,
    HeaderName::from_static("client-cert"),
    HeaderName::from_static("client-cert-chain"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
];

impl Checker<'_> {
    pub(super) fn service(
        self,
        service: raw::RawService,
        policy: &raw::RawPolicy,
    ) -> Result<ServiceConfig, ConfigError> {
        let name = self.name("services", &service.name)?;
        let field = |key: &str| format!("services.{name}.{key}");
        let names = service.server_names.iter();
        let merged = merge(policy, &service.policy);
        if service.client_auth.mode == ClientAuthMode::Optional
            && merged.on_unchecked == Decision::Reject
        {
            let problem = "\"optional\" admits clients without a certificate, but on_unchecked = \"reject\" rejects them; set on_unchecked to \"flag\" or \"header\"";
            return Err(self.invalid(field("client_auth.mode"), problem));
        }
        if service.protocol == Protocol::Tcp {
            self.without_http(&name, &merged)?;
        }
        Ok(ServiceConfig {
            listen: self.address(&field("listen"), &service.listen)?,
            server_names: names
                .map(|server_name| self.server_name(&field("server_names"), server_name))
                .collect::<Result<_, _>>()?,
            protocol: service.protocol,
            accept_proxy: self.networks(&field("accept_proxy.from"), &service.accept_proxy.from)?,
            request_id_from: self.networks(&field("request_id_from"), &service.request_id_from)?,
            tls: self.tls(&field("tls.alpn"), service.tls, service.protocol)?,
            trust_anchors: self.path(&service.client_auth.trust_anchors),
            crls: service.client_auth.crls.iter().map(|path| self.path(path)).collect(),
            expired_crl: service.client_auth.expired_crl,
            client_auth_mode: service.client_auth.mode,
            forward: self.forward(
                &field("forward.send_proxy"),
                service.forward,
                service.protocol,
            )?,
            upstream: self.upstream(&field("upstream"), service.upstream, service.protocol)?,
            limits: self.limits(&field("limits"), &service.limits)?,
            policy: merged,
            allow_compromised_own_key: (service.policy.allow_compromised_own_key)
                .or(policy.allow_compromised_own_key)
                .unwrap_or(false),
            evict_within: (service.policy.evict_within.or(policy.evict_within))
                .map_or(EVICT_WITHIN, |within| within.0),
            status_header: self.status_header(policy, &service.policy, &field("policy.header"))?,
            name,
        })
    }

    fn server_name(self, field: &str, server_name: &str) -> Result<String, ConfigError> {
        let lower = server_name.to_ascii_lowercase();
        let host = lower.strip_prefix("*.").unwrap_or(&lower);
        match rustls::pki_types::DnsName::try_from(host) {
            Ok(_) => Ok(lower),
            Err(_) => Err(self.invalid(
                field,
                format!("{server_name:?} is not a host name, nor '*.' and a host name"),
            )),
        }
    }

    /// Parses networks; an address alone is a network of one address.
    fn networks(self, field: &str, texts: &[String]) -> Result<Networks, ConfigError> {
        let networks = texts.iter().map(|text| {
            let address = || text.parse::<IpAddr>().map(IpNet::from);
            text.parse::<IpNet>().or_else(|_| address()).map_err(|_| {
                let problem =
                    format!("{text:?} is not a network, such as \"10.0.0.0/8\" or \"::1\"");
                self.invalid(field, problem)
            })
        });
        Ok(Networks(networks.collect::<Result<_, _>>()?))
    }

    /// Rejects HTTP-only policy settings for TCP services.
    fn without_http(self, service: &str, policy: &Policy) -> Result<(), ConfigError> {
        let field = |key: &str| format!("services.{service}.policy.{key}");
        let problem = "a service with protocol = \"tcp\" has no requests to";
        if policy.reject_with == RejectWith::Http403 {
            return Err(
                self.invalid(field("reject_with"), format!("{problem} respond to with 403"))
            );
        }
        let actions = [
            ("on_confirmed", policy.on_confirmed),
            ("on_listed", policy.on_listed),
            ("on_probable", policy.on_probable),
            ("on_unchecked", policy.on_unchecked),
        ];
        match actions.iter().find(|(_, action)| *action == Decision::Annotate) {
            None => Ok(()),
            Some((key, _)) => {
                Err(self.invalid(field(key), format!("{problem} add a header to; \"flag\" logs")))
            }
        }
    }

    fn forward(
        self,
        field: &str,
        forward: ForwardConfig,
        protocol: Protocol,
    ) -> Result<ForwardConfig, ConfigError> {
        if forward.send_proxy != SendProxy::Off && protocol == Protocol::Http {
            let problem = "needs protocol = \"tcp\"; HTTP upstreams get headers";
            return Err(self.invalid(field, problem));
        }
        Ok(forward)
    }

    fn tls(
        self,
        field: &str,
        tls: raw::RawTls,
        protocol: Protocol,
    ) -> Result<TlsConfig, ConfigError> {
        let alpn = match (protocol, tls.alpn) {
            (Protocol::Http, None) => vec![AlpnProtocol::H2, AlpnProtocol::Http11],
            (Protocol::Http, Some(alpn)) if alpn.is_empty() => {
                return Err(self.invalid(field, "empty; give \"h2\", \"http/1.1\" or both"));
            }
            (Protocol::Http, Some(alpn)) => alpn,
            (Protocol::Tcp, None) => Vec::new(),
            (Protocol::Tcp, Some(_)) => {
                return Err(self.invalid(field, "has no effect with protocol = \"tcp\"; remove it"));
            }
        };
        Ok(TlsConfig {
            certificate: self.path(&tls.certificate),
            private_key: self.path(&tls.private_key),
            min_version: tls.min_version,
            alpn,
            resumption: tls.resumption,
        })
    }

    fn limits(self, field: &str, raw: &raw::Limits) -> Result<LimitsConfig, ConfigError> {
        let positive = |key: &str, duration| self.positive(&format!("{field}.{key}"), duration);
        let size = raw.max_header_size.0;
        let max_header_size = HEADER_SIZES.contains(&size).then(|| u32::try_from(size).ok());
        let Some(max_header_size) = max_header_size.flatten() else {
            let problem = format!("{size} bytes are not between 8KiB and 1MiB");
            return Err(self.invalid(format!("{field}.max_header_size"), problem));
        };
        if !(1..=MAX_CONNECTIONS).contains(&raw.max_connections) {
            let problem = format!("{} is not between 1 and {MAX_CONNECTIONS}", raw.max_connections);
            return Err(self.invalid(format!("{field}.max_connections"), problem));
        }
        for (key, value, max) in [
            ("max_connections_per_ip", raw.max_connections_per_ip, MAX_CONNECTIONS),
            ("max_headers", raw.max_headers, MAX_HEADERS),
            ("max_streams", usize::try_from(raw.max_streams).unwrap_or(usize::MAX), MAX_STREAMS),
        ] {
            if !(1..=max).contains(&value) {
                let problem = format!("{value} is not between 1 and {max}");
                return Err(self.invalid(format!("{field}.{key}"), problem));
            }
        }
        let optional =
            |key: &str, time: Option<_>| time.map(|time| positive(key, time)).transpose();
        Ok(LimitsConfig {
            handshake_timeout: positive("handshake_timeout", raw.handshake_timeout)?,
            header_timeout: positive("header_timeout", raw.header_timeout)?,
            body_timeout: positive("body_timeout", raw.body_timeout)?,
            idle_timeout: positive("idle_timeout", raw.idle_timeout)?,
            request_timeout: optional("request_timeout", raw.request_timeout)?,
            max_connection_age: optional("max_connection_age", raw.max_connection_age)?,
            max_connections: raw.max_connections,
            max_connections_per_ip: raw.max_connections_per_ip,
            max_header_size,
            max_headers: raw.max_headers,
            max_body_size: raw.max_body_size.map(|size| size.0),
            max_streams: raw.max_streams,
        })
    }

    fn status_header(
        self,
        policy: &raw::RawPolicy,
        service: &raw::RawPolicy,
        field: &str,
    ) -> Result<HeaderName, ConfigError> {
        let (field, name) = match (&service.header, &policy.header) {
            (Some(name), _) => (field, name.as_str()),
            (None, Some(name)) => ("policy.header", name.as_str()),
            (None, None) => return Ok(HeaderName::from_static("client-key-status")),
        };
        let unusable = |problem| self.invalid(field, format!("{name:?} {problem}"));
        let header: HeaderName = name.parse().map_err(|_| unusable("is not a header name"))?;
        if RESERVED.contains(&header) {
            return Err(unusable("is reserved; give a name like \"X-Key\""));
        }
        Ok(header)
    }
}

fn merge(policy: &raw::RawPolicy, service: &raw::RawPolicy) -> Policy {
    let default = Policy::default();
    Policy {
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
        judge: service.judge.or(policy.judge).unwrap_or(default.judge),
        reject_with: service.reject_with.or(policy.reject_with).unwrap_or(default.reject_with),
    }
}
