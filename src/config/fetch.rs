//! The model of the source of a file: where `keygate fetch` downloads a filter or list.

use std::path::PathBuf;
use std::time::Duration;

use super::{ClientCertificateFiles, SourceUrl};

/// Files with the CAs of the system: Debian and Alpine, Fedora, openSUSE, others.
pub(crate) const SYSTEM_TRUST_ANCHORS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The source of a filter or list. Only `keygate fetch` uses it; the proxy never downloads a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchConfig {
    /// URL of the file; of `badkeysdata.json` for a blocklist.
    pub url: SourceUrl,
    /// PEM file of the CAs that may issue the certificate of the source. Default: those of the
    /// system.
    pub trust_anchors: Option<PathBuf>,
    /// File of header fields for the server of `url`, and of `Proxy-Authorization` for the proxy.
    pub headers: Option<PathBuf>,
    /// The client certificate, for the server of `url` only.
    pub identity: Option<ClientCertificateFiles>,
    /// The HTTP proxy. Default: direct connections.
    pub proxy: Option<SourceUrl>,
    /// Hosts to which a redirect is followed, with the port unless it is 443. Default: none.
    pub redirect_hosts: Vec<String>,
    /// Whether the source has a checksum file that is downloaded with the file. Default: false.
    pub checksum: bool,
    /// Maximum time for name look-up, TCP connection and TLS handshake. Default: 10 s.
    pub connect_timeout: Duration,
    /// Maximum time without a byte. Default: 30 s.
    pub stall_timeout: Duration,
    /// Maximum time for one download. Default: 1 h.
    pub timeout: Duration,
}

impl SourceUrl {
    /// Whether the URL is that of a `blocklist.dat`, packed or not, and not of its metadata.
    #[must_use]
    pub fn is_blocklist(&self) -> bool {
        [".dat", ".xz"].iter().any(|end| self.path.ends_with(end))
    }
}

impl FetchConfig {
    /// The source at `url`, with default settings.
    #[must_use]
    pub fn at(url: SourceUrl) -> Self {
        Self {
            url,
            trust_anchors: None,
            headers: None,
            identity: None,
            proxy: None,
            redirect_hosts: Vec::new(),
            checksum: false,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(60 * 60),
        }
    }
}
