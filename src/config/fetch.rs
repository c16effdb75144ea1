//! The model of the source of a file: where `keygate fetch` downloads a filter, a list or CRLs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SourceUrl;
use super::keys::table;
use super::units::Positive;
use super::urls::{FileUrl, ProxyUrl, RedirectHost};

/// Files with the CAs of the system: Debian and Alpine, Fedora, openSUSE, others.
pub(crate) const SYSTEM_TRUST_ANCHORS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

table! {
    /// The source of a filter, a list or CRLs.
    #[derive(Clone, PartialEq, Eq)]
    pub struct FetchConfig "Optional: where [`keygate fetch`](fetch.md) downloads the file. The proxy itself downloads nothing and does not read this table.", check {
        pub url: SourceUrl as FileUrl => AtOnce
            r#"URL of the file; for a list with `format = "badkeys"` the URL of `badkeysdata.json`, for example `https://update.badkeys.info/v0/badkeysdata.json`. `https://`, or `http://` to loopback; to another machine `http://` needs `minisign_key`. It may have a query, which no message shows."#,
        pub trust_anchors: Option<PathBuf> => AtOnce
            "PEM file of the CAs that may issue the certificate of the source. Without it: the CAs of the system.",
        pub headers: Option<PathBuf> => AtOnce
            "File with header fields for the server of `url`, such as `Authorization: Bearer KEY`, one a line. `Proxy-Authorization` is for `proxy`. A file that others can read is rejected. Needs `https://`, or `http://` to this machine.",
        pub certificate: Option<PathBuf> => AtOnce
            "PEM: client certificate for the server of `url`, with `private_key`. Only with `https://`.",
        pub private_key: Option<PathBuf> => AtOnce
            "PEM; with `certificate`. A file that others can read is rejected.",
        pub proxy: Option<SourceUrl> as Option<ProxyUrl> => AtOnce
            "HTTP proxy, `http://HOST:PORT`. CONNECT for `https://`, the absolute URL for `http://`. Variables such as `https_proxy` are not read.",
        pub redirect_hosts: Vec<String> as Vec<RedirectHost> = [] => AtOnce
            "Hosts to which redirects are followed, over `https://`, five at most; `HOST:PORT` if the port is not 443. Only the server of `url` gets the credentials. Other redirects are errors.",
        pub checksum: bool = false => AtOnce
            "`true`: the source has a checksum file, the URL of the file and `.sha256`, which is downloaded too. A checksum file that exists beside `path` is downloaded in any case.",
        pub connect_timeout: Duration as Positive = "10s" => AtOnce
            "Maximum time for name look-up, TCP connection and TLS handshake.",
        pub stall_timeout: Duration as Positive = "30s" => AtOnce
            "Maximum time without a byte.",
        pub timeout: Duration as Positive = "1h" => AtOnce
            "Maximum time for one download. The next run continues a download that was cut short.",
    }
}

/// A source of CRLs: a URL, or a table.
#[derive(Debug)]
pub(super) struct CrlSource;

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

impl FetchConfig {
    /// The files with the client certificate and its private key, for the server of `url` only.
    #[must_use]
    pub fn identity(&self) -> Option<(&Path, &Path)> {
        self.certificate.as_deref().zip(self.private_key.as_deref())
    }

    /// The source at `url`, with default settings.
    #[must_use]
    pub fn at(url: SourceUrl) -> Self {
        Self {
            url,
            trust_anchors: None,
            headers: None,
            certificate: None,
            private_key: None,
            proxy: None,
            redirect_hosts: Vec::new(),
            checksum: false,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(60 * 60),
        }
    }
}
