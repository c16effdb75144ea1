//! The model of the source of a file: where `keygate fetch` downloads a filter, a list or CRLs.

use std::path::PathBuf;
use std::time::Duration;

use super::check::{CrlSource, FileUrl, ProxyUrl, RedirectHost};
use super::keys::table;
use super::units::Positive;
use super::{ClientCertificateFiles, SourceUrl};

/// Files with the CAs of the system: Debian and Alpine, Fedora, openSUSE, others.
pub(crate) const SYSTEM_TRUST_ANCHORS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The source of a filter, a list or CRLs. Only `keygate fetch` uses it; the proxy never downloads a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchConfig {
    /// URL of the file; of `badkeysdata.json` for a blocklist.
    pub url: SourceUrl,
    /// PEM file of the CAs that may issue the certificate of the source. Default: the CAs of the
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

table! {
    /// The source as it is written.
    pub(super) struct RawFetch "Optional: where [`keygate fetch`](fetch.md) downloads the file. The proxy itself downloads nothing and does not read this table." {
        pub(super) url: SourceUrl as FileUrl => AtOnce
            r#"URL of the file; for a list with `format = "badkeys"` the URL of `badkeysdata.json`, for example `https://update.badkeys.info/v0/badkeysdata.json`. `https://`, or `http://` to loopback; to another machine `http://` needs `minisign_key`. It may have a query, which no message shows."#,
        pub(super) trust_anchors: Option<PathBuf> => AtOnce
            "PEM file of the CAs that may issue the certificate of the source. Without it: the CAs of the system.",
        pub(super) headers: Option<PathBuf> => AtOnce
            "File with header fields for the server of `url`, such as `Authorization: Bearer KEY`, one a line. `Proxy-Authorization` is for `proxy`. A file that others can read is rejected. Needs `https://`, or `http://` to this machine.",
        pub(super) certificate: Option<PathBuf> => AtOnce
            "PEM: client certificate for the server of `url`, with `private_key`. Only with `https://`.",
        pub(super) private_key: Option<PathBuf> => AtOnce
            "PEM; with `certificate`. A file that others can read is rejected.",
        pub(super) proxy: Option<SourceUrl> as Option<ProxyUrl> => AtOnce
            "HTTP proxy, `http://HOST:PORT`. CONNECT for `https://`, the absolute URL for `http://`. Variables such as `https_proxy` are not read.",
        pub(super) redirect_hosts: Vec<String> as Vec<RedirectHost> = [] => AtOnce
            "Hosts to which redirects are followed, over `https://`, five at most; `HOST:PORT` if the port is not 443. Only the server of `url` gets the credentials. Other redirects are errors.",
        pub(super) checksum: bool = false => AtOnce
            "`true`: the source has a checksum file, the URL of the file and `.sha256`, which is downloaded too. A checksum file that exists beside `path` is downloaded in any case.",
        pub(super) connect_timeout: Duration as Positive = "10s" => AtOnce
            "Maximum time for name look-up, TCP connection and TLS handshake.",
        pub(super) stall_timeout: Duration as Positive = "30s" => AtOnce
            "Maximum time without a byte.",
        pub(super) timeout: Duration as Positive = "1h" => AtOnce
            "Maximum time for one download. The next run continues a download that was cut short.",
    }
}

/// A file with CRLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrlConfig {
    /// Path of the file.
    pub path: PathBuf,
    /// Where `keygate fetch` downloads the file: the first source that has a usable list.
    pub sources: Vec<FetchConfig>,
}

table! {
    /// A file with CRLs that has sources, as it is written.
    pub(super) struct RawCrl "" {
        pub(super) path: PathBuf,
        pub(super) source: Vec<FetchConfig> as Vec<CrlSource>,
    }
}

impl SourceUrl {
    /// Whether the URL names a `blocklist.dat`, packed or not, and not its metadata.
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
