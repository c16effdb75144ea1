//! The table of the source of a file as it is written.

use std::path::PathBuf;

use super::super::keys::table;
use super::super::units::Positive;

table! {
    pub(in crate::config) struct RawFetch "Optional: where [`keygate fetch`](fetch.md) downloads the file. The proxy itself downloads nothing and does not read this table." {
        pub(in crate::config) url: String => AtOnce
            r#"URL of the file; for a list with `format = "badkeys"` that of `badkeysdata.json`, for example `https://update.badkeys.info/v0/badkeysdata.json`. `https://`, or `http://` to loopback; to another machine `http://` needs `minisign_key`. It may have a query, which no message shows."#,
        pub(in crate::config) trust_anchors: Option<PathBuf> => AtOnce
            "PEM file of the CAs that may issue the certificate of the source. Without it: the CAs of the system.",
        pub(in crate::config) headers: Option<PathBuf> => AtOnce
            "File with header fields for the server of `url`, such as `Authorization: Bearer KEY`, one a line. `Proxy-Authorization` is for `proxy`. A file that others can read is rejected. Needs `https://`, or `http://` to this machine.",
        pub(in crate::config) certificate: Option<PathBuf> => AtOnce
            "PEM: client certificate for the server of `url`, with `private_key`. Only with `https://`.",
        pub(in crate::config) private_key: Option<PathBuf> => AtOnce
            "PEM; with `certificate`. A file that others can read is rejected.",
        pub(in crate::config) proxy: Option<String> => AtOnce
            "HTTP proxy, `http://HOST:PORT`. CONNECT for `https://`, the absolute URL for `http://`. Variables such as `https_proxy` are not read.",
        pub(in crate::config) redirect_hosts: Vec<String> = [] => AtOnce
            "Hosts to which redirects are followed, over `https://`, five at most; `HOST:PORT` if the port is not 443. Only the server of `url` gets the credentials. Other redirects are errors.",
        pub(in crate::config) checksum: bool = false => AtOnce
            "`true`: the source has a checksum file, the URL of the file and `.sha256`, which is downloaded too. A checksum file that exists beside `path` is downloaded in any case.",
        pub(in crate::config) connect_timeout: Positive = "10s" => AtOnce
            "Maximum time for name look-up, TCP connection and TLS handshake.",
        pub(in crate::config) stall_timeout: Positive = "30s" => AtOnce
            "Maximum time without a byte.",
        pub(in crate::config) timeout: Positive = "1h" => AtOnce
            "Maximum time for one download. The next run continues a download that was cut short.",
    }
}
