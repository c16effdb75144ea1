//! The settings of the access log.

use std::path::PathBuf;

use super::keys::{table, words};

table! {
    /// The access log.
    #[derive(Clone, Default, PartialEq, Eq)]
    pub struct AccessLogConfig r#"A line for each request or each connection of `protocol = "tcp"` ([fields](proxying.md#access-log)), on standard output or in a file."#, check {
        pub requests: LoggedRequests = "off" => Restart
            "`errors`: status 400 or higher, and requests that were broken off.",
        pub format: AccessLogFormat = "json" => Restart
            "`json`: one JSON object a line. `common`: the Common Log Format, with the common name of the client's certificate as the user.",
        pub fields: Option<Vec<AccessLogField>> => Restart
            r#"The fields of a JSON line; without the key, all of them. Not with `format = "common"`."#,
        pub path: Option<PathBuf> => Restart
            "File that the lines are appended to, instead of standard output. It is created with mode 0640 if it is missing, and opened again on `SIGHUP` and `keygate reload`, so that logrotate can rename it.",
    }
}

words! {
    /// The requests in the access log.
    #[derive(Default)]
    pub enum LoggedRequests {
        /// All requests.
        All = "all",
        /// Requests with a status of 400 or higher, and incomplete requests.
        Errors = "errors",
        /// No requests.
        #[default]
        Off = "off",
    }
}

words! {
    /// The format of a line of the access log.
    #[derive(Default)]
    pub enum AccessLogFormat {
        /// The Common Log Format of the NCSA, which many programs read.
        Common = "common",
        /// One JSON object a line.
        #[default]
        Json = "json",
    }
}

/// Declares the fields of the access log with their names.
macro_rules! fields {
    ($($name:ident = $text:literal: $doc:literal,)+) => {
        /// A field of a JSON line of the access log, in the order of the line.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum AccessLogField {
            $(#[doc = $doc] $name,)+
        }

        impl AccessLogField {
            /// Every field, in the order of the line.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name in the configuration and in the line.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }

        words! { impl AccessLogField { $($name = $text,)+ } }
    };
}

fields! {
    Time = "time": "End of the request or connection.",
    Service = "service": "Name of the service.",
    Peer = "peer": "Address and port of the client.",
    Sni = "sni": "Server name of the TLS handshake.",
    TlsVersion = "tls_version": "Version of TLS.",
    Cipher = "cipher": "Cipher suite of TLS.",
    KeyExchange = "key_exchange": "Group of the key exchange of TLS.",
    Method = "method": "Method of the request.",
    Host = "host": "Host of the request.",
    Target = "target": "Target of the request.",
    Protocol = "protocol": "Version of HTTP, or `tcp`.",
    RequestId = "request_id": "Id of the request.",
    UserAgent = "user_agent": "`User-Agent` of the request.",
    Referer = "referer": "`Referer` of the request.",
    Status = "status": "Status of the response.",
    Complete = "complete": "Whether the response was sent to its end.",
    Error = "error": "Why keygate responded itself, or why the response of the upstream broke off.",
    RequestBytes = "request_bytes": "Bytes of the request body.",
    ResponseBytes = "response_bytes": "Bytes of the response body.",
    DurationSeconds = "duration_seconds": "Total time.",
    UpstreamSeconds = "upstream_seconds": "Time until the head of the response of the upstream.",
    Upstream = "upstream": "The upstream server.",
    Verdict = "verdict": "The verdict on the client key.",
    Fingerprint = "fingerprint": "Fingerprint of the client key.",
    KeyAlgorithm = "key_algorithm": "Algorithm of the client key.",
    Subject = "subject": "Subject of the client certificate.",
    Issuer = "issuer": "Issuer of the client certificate.",
    Serial = "serial": "Serial number of the client certificate.",
    DnsNames = "dns_names": "DNS names among the SANs of the client certificate.",
    Uris = "uris": "URIs among the SANs of the client certificate.",
    Emails = "emails": "Email addresses among the SANs of the client certificate.",
    IpAddresses = "ip_addresses": "IP addresses among the SANs of the client certificate.",
}
