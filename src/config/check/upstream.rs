//! Checks an upstream: servers, timeouts, health checks and TLS.

use std::path::Path;

use hyper::Uri;
use rustls::pki_types::ServerName;

use super::super::{
    ClientCertificateFiles, HealthCheckConfig, Protocol, Scheme, ServerAddress, ServerConfig,
    SourceUrl, UpstreamConfig, UpstreamHttp, UpstreamTlsConfig, raw,
};
use super::Checker;
use super::values::port_above_maximum;
use crate::config::units::quoted;

/// Maximum number of servers.
const MAX_SERVERS: usize = 1000;

impl Checker<'_> {
    /// Checks the upstream at `path`.
    pub(super) fn upstream(
        &self,
        path: &str,
        raw: raw::RawUpstream,
        protocol: Protocol,
    ) -> UpstreamConfig {
        let at = |key: &str| format!("{path}.{key}");
        if !(1..=MAX_SERVERS).contains(&raw.servers.len()) {
            let problem = format!("{} servers; give 1 to {MAX_SERVERS}", raw.servers.len());
            self.invalid(at("servers"), problem);
        }
        let servers = raw.servers.iter().enumerate();
        let servers = servers.filter_map(|(index, server)| {
            self.server(&at(&format!("servers[{index}]")), server, protocol)
        });
        let servers: Vec<ServerConfig> = servers.collect();
        if let Some(secure) = servers.iter().find(|server| server.scheme.is_secure())
            && raw.tls.is_none()
        {
            let problem = format!("{secure} needs CAs: give tls = {{ trust_anchors = \"...\" }}");
            self.conflict(at("tls"), problem);
        }
        let is_h2c = |server: &&ServerConfig| server.scheme == Scheme::H2c;
        if let Some(h2c) = servers.iter().find(is_h2c).filter(|_| raw.http == UpstreamHttp::Http1) {
            let problem = format!("{h2c} speaks HTTP/2 only; remove http, or write http://");
            self.conflict(at("http"), problem);
        }
        UpstreamConfig {
            servers,
            balance: raw.balance,
            connect_timeout: raw.connect_timeout.0,
            response_timeout: raw.response_timeout.0,
            body_timeout: raw.body_timeout.0,
            idle_timeout: raw.idle_timeout.0,
            max_connection_age: (raw.max_connection_age).map(|age| age.0),
            http: raw.http,
            max_header_size: usize::try_from(raw.max_header_size.0).unwrap_or(usize::MAX),
            request_trailers: raw.request_trailers,
            reuse: raw.reuse,
            max_connections: raw.max_connections.0,
            max_failures: raw.max_failures.0,
            retry_after: raw.retry_after.0,
            health_check: raw.health_check.map(|check| HealthCheckConfig {
                path: check.path.map(|it| self.health_path(&at("health_check.path"), protocol, it)),
                interval: check.interval.0,
                timeout: check.timeout.0,
                healthy: check.healthy.0,
                unhealthy: check.unhealthy.0,
            }),
            tls: raw.tls.map(|tls| self.upstream_tls(&at("tls"), tls)),
        }
    }

    /// Checks a server. `None` if its URL is not valid.
    fn server(
        &self,
        path: &str,
        server: &raw::RawServer,
        protocol: Protocol,
    ) -> Option<ServerConfig> {
        let (url, weight) = server.url_and_weight();
        let parsed = self.server_address(path, url, protocol);
        if parsed.is_none() {
            let (forms, other) = match protocol {
                Protocol::Http => (
                    "\"http://HOST:PORT\", \"https://HOST:PORT\", \"h2c://HOST:PORT\" or \"unix:/PATH\"",
                    Protocol::Tcp,
                ),
                Protocol::Tcp => {
                    ("\"HOST:PORT\", \"tls://HOST:PORT\" or \"unix:/PATH\"", Protocol::Http)
                }
            };
            let shown = SourceUrl::without_credentials(url);
            let problem = match port_above_maximum(&shown) {
                Some(port) => format!("{}: {port} is not a port; give 1 to 65535", quoted(&shown)),
                None => format!("{} is not an upstream; write {forms}", quoted(&shown)),
            };
            match self.server_address(path, url, other) {
                Some(_) => self.conflict(path, problem),
                None => self.invalid(path, problem),
            }
        }
        parsed.map(|(scheme, address)| ServerConfig { scheme, address, weight })
    }

    fn server_address(
        &self,
        at: &str,
        url: &str,
        protocol: Protocol,
    ) -> Option<(Scheme, ServerAddress)> {
        let (scheme, rest) = match (url.split_once("://"), protocol) {
            (Some(("http", rest)), Protocol::Http) => (Scheme::Http, rest),
            (Some(("https", rest)), Protocol::Http) => (Scheme::Https, rest),
            (Some(("h2c", rest)), Protocol::Http) => (Scheme::H2c, rest),
            (Some(("tls", rest)), Protocol::Tcp) => (Scheme::Tls, rest),
            (None, Protocol::Http) => (Scheme::Http, url),
            (None, Protocol::Tcp) => (Scheme::Tcp, url),
            (Some(_), _) => return None,
        };
        if let Some(path) = url.strip_prefix("unix:") {
            return Some((scheme, ServerAddress::Unix(self.socket_path(at, Path::new(path)))));
        }
        // HTTP servers need a scheme.
        if protocol == Protocol::Http && !url.contains("://") {
            return None;
        }
        let uri: Uri = format!("http://{rest}").parse().ok()?;
        let (Some(authority), "/", None) = (uri.authority(), uri.path(), uri.query()) else {
            return None;
        };
        // A port above 65535 must not become the default.
        let has_port = authority.as_str().rsplit(']').next().is_some_and(|it| it.contains(':'));
        let port = match scheme {
            _ if has_port => authority.port_u16(),
            Scheme::Http | Scheme::H2c => Some(80),
            Scheme::Https => Some(443),
            Scheme::Tcp | Scheme::Tls => None,
        };
        let (Some(port), false) = (port, url.contains('@')) else { return None };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Some((scheme, ServerAddress::Tcp { host, port }))
    }

    /// The client certificate in the table `path`.
    pub(super) fn identity(
        &self,
        path: &str,
        certificate: Option<&Path>,
        private_key: Option<&Path>,
    ) -> Option<ClientCertificateFiles> {
        match (certificate, private_key) {
            (Some(certificate), Some(key)) => Some(ClientCertificateFiles {
                certificate: self.path(&format!("{path}.certificate"), certificate),
                private_key: self.path(&format!("{path}.private_key"), key),
            }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                let problem = "certificate and private_key belong together; give both or none";
                self.conflict(path, problem);
                None
            }
        }
    }

    fn upstream_tls(&self, path: &str, tls: raw::UpstreamTls) -> UpstreamTlsConfig {
        let identity = self.identity(path, tls.certificate.as_deref(), tls.private_key.as_deref());
        if let Some(name) = &tls.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            let problem = format!(
                "{} is neither a host name nor an address; write one that the certificates of the servers have",
                quoted(name)
            );
            self.invalid(format!("{path}.server_name"), problem);
        }
        UpstreamTlsConfig {
            trust_anchors: self.path(&format!("{path}.trust_anchors"), &tls.trust_anchors),
            identity,
            server_name: tls.server_name,
        }
    }

    fn health_path(&self, at: &str, protocol: Protocol, path: String) -> String {
        if protocol == Protocol::Tcp {
            self.conflict(at, "has no effect with protocol = \"tcp\"; remove it");
        }
        if !path.starts_with('/') || path.parse::<Uri>().is_err() {
            self.invalid(at, format!("{} is not a path, such as \"/healthz\"", quoted(&path)));
        }
        path
    }
}
