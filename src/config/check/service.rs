//! One service: its names, its side of TLS, its upstream, its limits and its policy.

use std::time::Duration;

use hyper::Uri;
use hyper::header::{self, HeaderName};
use hyper::http::uri::Scheme;

use super::super::{
    ClientAuthMode, ConfigError, ForwardConfig, LimitsConfig, ServiceConfig, TlsConfig,
    UpstreamConfig, raw,
};
use super::Place;
use crate::guard::{Decision, Policy};

/// hyper's smallest read buffer, and the largest head that makes sense.
const HEADER_SIZES: std::ops::RangeInclusive<u64> = 8192..=(1 << 20);
/// What tokio's semaphore can count is far above; this is what a process can have open.
const MAX_CONNECTIONS: usize = 1 << 24;
/// How long a connection that became a hit may drain, unless the operator says.
const EVICT_WITHIN: Duration = Duration::from_secs(10);

/// What a verdict must not be written over: framing, and what upstreams are told besides.
const TAKEN: [HeaderName; 14] = [
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

impl Place<'_> {
    pub(super) fn service(
        self,
        service: raw::Service,
        policy: &raw::Policy,
    ) -> Result<ServiceConfig, ConfigError> {
        let name = self.name("services", &service.name)?;
        let field = |key: &str| format!("services.{name}.{key}");
        let names = service.server_names.iter();
        let merged = merge(policy, &service.policy);
        if service.client_auth.mode == ClientAuthMode::Optional
            && merged.on_unchecked == Decision::Reject
        {
            let problem = "\"optional\" lets clients without a certificate in, and on_unchecked = \"reject\" refuses them; say on_unchecked = \"flag\" or \"header\"";
            return Err(self.invalid(field("client_auth.mode"), problem));
        }
        Ok(ServiceConfig {
            listen: self.address(&field("listen"), &service.listen)?,
            server_names: names
                .map(|server_name| self.server_name(&field("server_names"), server_name))
                .collect::<Result<_, _>>()?,
            tls: self.tls(&field("tls.alpn"), service.tls)?,
            trust_anchors: self.path(&service.client_auth.trust_anchors),
            crls: service.client_auth.crls.iter().map(|path| self.path(path)).collect(),
            expired_crl: service.client_auth.expired_crl,
            client_auth_mode: service.client_auth.mode,
            forward: ForwardConfig {
                client_cert: service.forward.client_cert,
                x_forwarded: service.forward.forwarded == raw::Forwarded::XForwarded,
            },
            upstream: self.upstream(&field("upstream"), &service.upstream)?,
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

    fn tls(self, field: &str, tls: raw::Tls) -> Result<TlsConfig, ConfigError> {
        if tls.alpn.is_empty() {
            return Err(self.invalid(field, "empty; give \"h2\", \"http/1.1\" or both"));
        }
        Ok(TlsConfig {
            certificate: self.path(&tls.certificate),
            private_key: self.path(&tls.private_key),
            min_version: tls.min_version,
            alpn: tls.alpn,
            resumption: tls.resumption,
        })
    }

    fn upstream(self, field: &str, raw: &raw::Upstream) -> Result<UpstreamConfig, ConfigError> {
        let servers = format!("{field}.servers");
        let [server] = raw.servers.as_slice() else {
            let problem = format!("{} servers; exactly one is supported", raw.servers.len());
            return Err(self.invalid(servers, problem));
        };
        let problem = || {
            format!("{server:?} is not an upstream; write \"http://HOST\" or \"http://HOST:PORT\"")
        };
        let uri: Uri = server.parse().map_err(|_| self.invalid(&servers, problem()))?;
        let (Some(authority), "/") = (uri.authority(), uri.path()) else {
            return Err(self.invalid(servers, problem()));
        };
        if uri.scheme() != Some(&Scheme::HTTP) || uri.query().is_some() || server.contains('@') {
            return Err(self.invalid(servers, problem()));
        }
        let positive = |key: &str, duration| self.positive(&format!("{field}.{key}"), duration);
        Ok(UpstreamConfig {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            connect_timeout: positive("connect_timeout", raw.connect_timeout)?,
            response_timeout: positive("response_timeout", raw.response_timeout)?,
            idle_timeout: positive("idle_timeout", raw.idle_timeout)?,
        })
    }

    fn limits(self, field: &str, raw: &raw::Limits) -> Result<LimitsConfig, ConfigError> {
        let positive = |key: &str, duration| self.positive(&format!("{field}.{key}"), duration);
        let size = raw.max_header_size.0;
        let max_header_size = HEADER_SIZES.contains(&size).then(|| u32::try_from(size).ok());
        let Some(max_header_size) = max_header_size.flatten() else {
            let problem = format!("{size} bytes; a request head may have 8KiB to 1MiB");
            return Err(self.invalid(format!("{field}.max_header_size"), problem));
        };
        if !(1..=MAX_CONNECTIONS).contains(&raw.max_connections) {
            let problem = format!("{}; 1 to {MAX_CONNECTIONS} are possible", raw.max_connections);
            return Err(self.invalid(format!("{field}.max_connections"), problem));
        }
        Ok(LimitsConfig {
            handshake_timeout: positive("handshake_timeout", raw.handshake_timeout)?,
            header_timeout: positive("header_timeout", raw.header_timeout)?,
            idle_timeout: positive("idle_timeout", raw.idle_timeout)?,
            max_connections: raw.max_connections,
            max_header_size,
        })
    }

    fn status_header(
        self,
        policy: &raw::Policy,
        service: &raw::Policy,
        field: &str,
    ) -> Result<HeaderName, ConfigError> {
        let (field, name) = match (&service.header, &policy.header) {
            (Some(name), _) => (field, name.as_str()),
            (None, Some(name)) => ("policy.header", name.as_str()),
            (None, None) => return Ok(HeaderName::from_static("client-key-status")),
        };
        let unusable = |problem| self.invalid(field, format!("{name:?} {problem}"));
        let header: HeaderName =
            name.parse().map_err(|_| unusable("is not the name of a header"))?;
        if TAKEN.contains(&header) {
            return Err(unusable("has a meaning of its own; give a name like \"X-Key\""));
        }
        Ok(header)
    }
}

fn merge(policy: &raw::Policy, service: &raw::Policy) -> Policy {
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
