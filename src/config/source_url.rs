//! URLs of sources: a scheme, a host, a port and a path.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;
use rustls::pki_types::ServerName;

/// The base URL of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceUrl {
    /// Whether the source speaks TLS.
    pub is_secure: bool,
    /// Host name or IP address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path before the fingerprint, without a slash at the end; may be empty.
    pub path: String,
    /// Query of the URL of a file, with its `?`; empty without one. It may be a credential, and is
    /// not displayed.
    pub query: String,
}

impl SourceUrl {
    /// Parses `http://` or `https://` with a host, and with a port and a path if needed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::with_query(text).filter(|url| url.query.is_empty())
    }

    /// Parses the URL of a file, which has a path and may have a query.
    #[must_use]
    pub fn parse_file(text: &str) -> Option<Self> {
        Self::with_query(text).filter(|url| !url.path.is_empty())
    }

    fn with_query(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let (is_secure, default) = match uri.scheme_str()? {
            "https" => (true, 443),
            "http" => (false, 80),
            _ => return None,
        };
        let authority = uri.authority()?;
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        // A query may have an `@`.
        let before_query = text.split('?').next().unwrap_or_default();
        if before_query.contains('@') || text.contains('#') {
            return None;
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        ServerName::try_from(host.as_str()).ok()?;
        let port =
            match authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, it)| it) {
                rest if rest.contains(':') => authority.port_u16().filter(|port| *port != 0)?,
                _ => default,
            };
        let path = uri.path().trim_end_matches('/').to_owned();
        Some(Self { is_secure, host, port, path, query })
    }

    /// A URL, valid or not, without what may be a credential: user information, query, fragment.
    #[must_use]
    pub fn without_credentials(text: &str) -> String {
        let is_scheme = |it: &str| it.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let parts = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme));
        let (scheme, rest) =
            parts.map_or((String::new(), text), |(scheme, rest)| (format!("{scheme}://"), rest));
        let shown = match rest.rsplit_once('@') {
            // The `@` belongs to the query, or the user information has a `?`.
            Some((before, _)) if before.contains(['?', '#']) => "...",
            Some((_, host)) => host,
            None => rest,
        };
        scheme + shown.split(['?', '#']).next().unwrap_or_default()
    }

    /// Whether nobody on the way can forge an answer: TLS, or a connection within the machine.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        let is_loopback = match self.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        };
        self.is_secure || is_loopback
    }

    /// Whether the host is a name, which must be looked up.
    #[must_use]
    pub fn has_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// Whether `other` has the same scheme, host and port (RFC 6454, section 4).
    #[must_use]
    pub fn has_same_origin(&self, other: &Self) -> bool {
        let origin = |url: &Self| (url.is_secure, url.host.to_ascii_lowercase(), url.port);
        origin(self) == origin(other)
    }

    /// The host and the port.
    #[must_use]
    pub fn authority_with_port(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The `Host` of a request (RFC 9110, section 7.2).
    #[must_use]
    pub fn authority(&self) -> String {
        let default = if self.is_secure { ":443" } else { ":80" };
        let authority = self.authority_with_port();
        authority.strip_suffix(default).map_or(authority.clone(), str::to_owned)
    }

    /// Whether the URL names a `blocklist.dat`, packed or not, and not its metadata.
    #[must_use]
    pub fn is_blocklist(&self) -> bool {
        [".dat", ".xz"].iter().any(|end| self.path.ends_with(end))
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(formatter, "{scheme}://{}{}", self.authority(), self.path)
    }
}
