//! Checks an upstream: servers, timeouts, health checks and TLS.

use std::path::Path;

use hyper::Uri;
use rustls::pki_types::ServerName;

use super::super::{
    ClientCertificateFiles, ConfigError, HealthCheckConfig, Protocol, Scheme, ServerAddress,
    ServerConfig, UpstreamConfig, UpstreamTlsConfig, raw,
};
use super::Checker;

/// Maximum number of servers; a larger number is a typing error.
const MAX_SERVERS: usize = 1000;
/// Maximum weight of a server; a larger number is a typing error.
const MAX_WEIGHT: u32 = 1000;
/// Maximum of `max_connections`; a larger number is a typing error.
const MAX_CONNECTIONS: usize = 1 << 24;

impl Checker<'_> {
    pub(super) fn upstream(
        self,
        field: &str,
        raw: raw::RawUpstream,
        protocol: Protocol,
    ) -> Result<UpstreamConfig, ConfigError> {
        let servers = format!("{field}.servers");
        if !(1..=MAX_SERVERS).contains(&raw.servers.len()) {
            let problem = format!("{} servers; give 1 to {MAX_SERVERS}", raw.servers.len());
            return Err(self.invalid(servers, problem));
        }
        let parsed = raw.servers.iter().map(|server| self.server(&servers, server, protocol));
        let parsed: Vec<ServerConfig> = parsed.collect::<Result<_, _>>()?;
        let positive = |key: &str, duration| self.positive(&format!("{field}.{key}"), duration);
        let one_or_more = |key: &str, count: u32| match count {
            0 => Err(self.invalid(format!("{field}.{key}"), "0; give 1 or more")),
            count => Ok(count),
        };
        let tls = match raw.tls {
            Some(tls) => Some(self.upstream_tls(&format!("{field}.tls"), tls)?),
            None => None,
        };
        if let Some(secure) = parsed.iter().find(|server| server.scheme.is_secure())
            && tls.is_none()
        {
            let problem = format!("{secure} needs CAs: give tls = {{ trust_anchors = \"...\" }}");
            return Err(self.invalid(format!("{field}.tls"), problem));
        }
        let health_check = match raw.health_check {
            None => None,
            Some(check) => Some(HealthCheckConfig {
                path: check.path.map(|path| self.health_path(field, protocol, path)).transpose()?,
                interval: positive("health_check.interval", check.interval)?,
                timeout: positive("health_check.timeout", check.timeout)?,
                healthy: one_or_more("health_check.healthy", check.healthy)?,
                unhealthy: one_or_more("health_check.unhealthy", check.unhealthy)?,
            }),
        };
        if !(1..=MAX_CONNECTIONS).contains(&raw.max_connections) {
            let problem = format!("{} is not between 1 and {MAX_CONNECTIONS}", raw.max_connections);
            return Err(self.invalid(format!("{field}.max_connections"), problem));
        }
        let age = raw.max_connection_age;
        Ok(UpstreamConfig {
            servers: parsed,
            balance: raw.balance,
            connect_timeout: positive("connect_timeout", raw.connect_timeout)?,
            response_timeout: positive("response_timeout", raw.response_timeout)?,
            body_timeout: positive("body_timeout", raw.body_timeout)?,
            idle_timeout: positive("idle_timeout", raw.idle_timeout)?,
            max_connection_age: age.map(|age| positive("max_connection_age", age)).transpose()?,
            max_connections: raw.max_connections,
            max_failures: one_or_more("max_failures", raw.max_failures)?,
            retry_after: positive("retry_after", raw.retry_after)?,
            health_check,
            tls,
        })
    }

    fn server(
        self,
        field: &str,
        server: &raw::RawServer,
        protocol: Protocol,
    ) -> Result<ServerConfig, ConfigError> {
        let (text, weight) = match server {
            raw::RawServer::Plain(url) => (url, 1),
            raw::RawServer::Weighted { url, weight } => (url, *weight),
        };
        if !(1..=MAX_WEIGHT).contains(&weight) {
            let problem =
                format!("the weight {weight} of {text:?} is not between 1 and {MAX_WEIGHT}");
            return Err(self.invalid(field, problem));
        }
        let problem = || {
            let forms = match protocol {
                Protocol::Http => {
                    "\"http://HOST:PORT\", \"https://HOST:PORT\", \"h2c://HOST:PORT\" or \"unix:/PATH\""
                }
                Protocol::Tcp => "\"HOST:PORT\", \"tls://HOST:PORT\" or \"unix:/PATH\"",
            };
            self.invalid(field, format!("{text:?} is not an upstream; write {forms}"))
        };
        let (scheme, rest) = match (text.split_once("://"), protocol) {
            (Some(("http", rest)), Protocol::Http) => (Scheme::Http, rest),
            (Some(("https", rest)), Protocol::Http) => (Scheme::Https, rest),
            (Some(("h2c", rest)), Protocol::Http) => (Scheme::H2c, rest),
            (Some(("tls", rest)), Protocol::Tcp) => (Scheme::Tls, rest),
            (None, Protocol::Http) => (Scheme::Http, text.as_str()),
            (None, Protocol::Tcp) => (Scheme::Tcp, text.as_str()),
            (Some(_), _) => return Err(problem()),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let address = ServerAddress::Unix(self.path(Path::new(path)));
            return Ok(ServerConfig { scheme, address, weight });
        }
        // HTTP servers need a scheme.
        if protocol == Protocol::Http && !text.contains("://") {
            return Err(problem());
        }
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| problem())?;
        let (Some(authority), "/", None) = (uri.authority(), uri.path(), uri.query()) else {
            return Err(problem());
        };
        let port = authority.port_u16().or(match scheme {
            Scheme::Http | Scheme::H2c => Some(80),
            Scheme::Https => Some(443),
            Scheme::Tcp | Scheme::Tls => None,
        });
        let (Some(port), false) = (port, text.contains('@')) else { return Err(problem()) };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(ServerConfig { scheme, address: ServerAddress::Tcp { host, port }, weight })
    }

    fn upstream_tls(
        self,
        field: &str,
        tls: raw::UpstreamTls,
    ) -> Result<UpstreamTlsConfig, ConfigError> {
        let identity = match (&tls.certificate, &tls.private_key) {
            (Some(certificate), Some(key)) => Some(ClientCertificateFiles {
                certificate: self.path(certificate),
                private_key: self.path(key),
            }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                let problem = "certificate and private_key belong together; give both or none";
                return Err(self.invalid(field, problem));
            }
        };
        if let Some(name) = &tls.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            let problem = format!("{name:?} is neither a host name nor an address");
            return Err(self.invalid(format!("{field}.server_name"), problem));
        }
        Ok(UpstreamTlsConfig {
            trust_anchors: self.path(&tls.trust_anchors),
            identity,
            server_name: tls.server_name,
        })
    }

    fn health_path(
        self,
        field: &str,
        protocol: Protocol,
        path: String,
    ) -> Result<String, ConfigError> {
        let field = format!("{field}.health_check.path");
        if protocol == Protocol::Tcp {
            return Err(self.invalid(field, "has no effect with protocol = \"tcp\"; remove it"));
        }
        if !path.starts_with('/') || path.parse::<Uri>().is_err() {
            return Err(
                self.invalid(field, format!("{path:?} is not a path, such as \"/healthz\""))
            );
        }
        Ok(path)
    }
}
