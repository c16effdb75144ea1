//! The settings of the access log.

use std::path::PathBuf;

/// The access log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The requests that have a line. Default: none.
    pub requests: LoggedRequests,
    /// Format of a line. Default: JSON.
    pub format: AccessLogFormat,
    /// The fields of a JSON line; `None` for all.
    pub fields: Option<Vec<AccessLogField>>,
    /// File that the lines are appended to; `None` for standard output.
    pub path: Option<PathBuf>,
}

/// The requests in the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoggedRequests {
    /// All requests.
    All,
    /// Requests with a status of 400 or higher, and incomplete requests.
    Errors,
    /// No requests.
    #[default]
    Off,
}

/// The format of a line of the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogFormat {
    /// The Common Log Format of the NCSA, which many programs read.
    Common,
    /// One JSON object a line.
    #[default]
    Json,
}

/// Declares the fields of the access log with their names.
macro_rules! fields {
    ($($name:ident = $text:literal: $doc:literal,)+) => {
        /// A field of a JSON line of the access log, in the order of the line.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
        pub enum AccessLogField {
            $(#[doc = $doc] #[serde(rename = $text)] $name,)+
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
    };
}

fields! {
    Time = "time": "End of the request or connection.",
    Service = "service": "Name of the service.",
    Peer = "peer": "Address and port of the client.",
    Sni = "sni": "Server name of the TLS handshake.",
    TlsVersion = "tls_version": "Version of TLS.",
    Cipher = "cipher": "Cipher suite of TLS.",
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
    Subject = "subject": "Subject of the client certificate.",
    Issuer = "issuer": "Issuer of the client certificate.",
    Serial = "serial": "Serial number of the client certificate.",
    DnsNames = "dns_names": "DNS names among the SANs of the client certificate.",
    Uris = "uris": "URIs among the SANs of the client certificate.",
    Emails = "emails": "Email addresses among the SANs of the client certificate.",
    IpAddresses = "ip_addresses": "IP addresses among the SANs of the client certificate.",
}
