//! A line of the access log: a JSON object, or the Common Log Format.

use std::fmt::Write as _;
use std::time::SystemTime;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::config::AccessLogField;
use crate::proxy::worker::request_values::RequestValues;

/// The values of a request at its end.
pub(super) struct Line<'a> {
    pub(super) values: &'a RequestValues,
    pub(super) fields: &'a [AccessLogField],
    pub(super) now: SystemTime,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for field in self.fields {
            self.entry(*field, &mut map)?;
        }
        map.end()
    }
}

impl Line<'_> {
    /// Adds a field that has a value.
    fn entry<M: SerializeMap>(&self, field: AccessLogField, map: &mut M) -> Result<(), M::Error> {
        let (values, name) = (self.values, field.as_str());
        let (connection, request) = (&values.connection, &values.line);
        let text = |map: &mut M, text: Option<&str>| match text {
            Some(text) => map.serialize_entry(name, text),
            None => Ok(()),
        };
        let names = |map: &mut M, names: Option<&Vec<String>>| match names {
            Some(names) if !names.is_empty() => map.serialize_entry(name, names),
            Some(_) | None => Ok(()),
        };
        let client = || connection.client_summary();
        let tls = || connection.tls_facts.as_ref();
        match field {
            AccessLogField::Cipher => text(map, tls().map(|tls| tls.cipher.as_str())),
            AccessLogField::Complete => map.serialize_entry(name, &values.is_complete.get()),
            AccessLogField::DnsNames => names(map, client().map(|it| &it.dns_names)),
            AccessLogField::DurationSeconds => {
                map.serialize_entry(name, &values.began.elapsed().as_secs_f64())
            }
            AccessLogField::Emails => names(map, client().map(|it| &it.emails)),
            AccessLogField::Error => text(map, values.error.get().map(String::as_str)),
            AccessLogField::Fingerprint => text(map, connection.fingerprint()),
            AccessLogField::Host => text(map, request.host.as_deref()),
            AccessLogField::IpAddresses => names(map, client().map(|it| &it.ip_addresses)),
            AccessLogField::Issuer => text(map, client().map(|it| it.issuer.as_str())),
            AccessLogField::KeyAlgorithm => text(map, tls().and_then(|tls| tls.key_use[1])),
            AccessLogField::KeyExchange => text(map, tls().and_then(|tls| tls.key_use[0])),
            AccessLogField::Method => text(map, request.method.as_deref()),
            AccessLogField::Peer => {
                map.serialize_entry(name, &connection.identity.peer().to_string())
            }
            AccessLogField::Protocol => map.serialize_entry(name, request.protocol),
            AccessLogField::Referer => text(map, request.referer.as_deref()),
            AccessLogField::RequestBytes => map.serialize_entry(name, &values.request_bytes()),
            AccessLogField::RequestId => text(map, request.request_id.as_deref()),
            AccessLogField::ResponseBytes => {
                map.serialize_entry(name, &values.response_bytes.get())
            }
            AccessLogField::Serial => text(map, client().map(|it| it.serial.as_str())),
            AccessLogField::Service => map.serialize_entry(name, &connection.service().config.name),
            AccessLogField::Sni => text(map, tls().and_then(|tls| tls.sni.as_deref())),
            AccessLogField::Status => match values.status.get() {
                Some(status) => map.serialize_entry(name, &status),
                None => Ok(()),
            },
            AccessLogField::Subject => text(map, client().map(|it| it.subject.as_str())),
            AccessLogField::Target => text(map, request.target.as_deref()),
            AccessLogField::Time => {
                let now = humantime::format_rfc3339_micros(self.now);
                map.serialize_entry(name, &now.to_string())
            }
            AccessLogField::TlsVersion => text(map, tls().map(|tls| tls.version)),
            AccessLogField::Upstream => text(map, values.upstream.get().map(String::as_str)),
            AccessLogField::UpstreamSeconds => match values.upstream_time.get() {
                Some(time) => map.serialize_entry(name, &time.as_secs_f64()),
                None => Ok(()),
            },
            AccessLogField::Uris => names(map, client().map(|it| &it.uris)),
            AccessLogField::UserAgent => text(map, request.user_agent.as_deref()),
            AccessLogField::Verdict => map.serialize_entry(name, connection.verdict_word()),
        }
    }

    /// The line in the Common Log Format: client, `-`, common name of its certificate, time,
    /// request, status and bytes of the response. A connection of `protocol = "tcp"` has no
    /// request.
    pub(super) fn common(&self) -> String {
        let (values, request) = (self.values, &self.values.line);
        let connection = &values.connection;
        let name = connection.client_summary().and_then(|client| client.common_name.as_deref());
        let user = name.map(|name| escaped(name).replace(' ', "\\x20"));
        let user = user.filter(|user| !user.is_empty()).unwrap_or_else(|| "-".to_owned());
        let request = match (&request.method, &request.target) {
            (Some(method), Some(target)) => {
                format!("{} {} {}", escaped(method), escaped(target), request.protocol)
            }
            (None, _) | (_, None) => "-".to_owned(),
        };
        let status = values.status.get().map_or_else(|| "-".to_owned(), |it| it.to_string());
        format!(
            "{} - {user} [{}] \"{request}\" {status} {}",
            connection.identity.peer().ip(),
            date(self.now),
            values.response_bytes.get()
        )
    }
}

/// A time as `22/Nov/2026:14:05:01 +0000`.
fn date(time: SystemTime) -> String {
    // `Sun, 22 Nov 2026 14:05:01 GMT` (RFC 9110, section 5.6.7).
    let http = httpdate::fmt_http_date(time);
    let parts: Vec<&str> = http.split(' ').collect();
    let [_, day, month, year, time, _] = parts[..] else { return http };
    format!("{day}/{month}/{year}:{time} +0000")
}

/// Text without quotes, backslashes, control characters and characters outside of ASCII, which are
/// written as Apache does.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' => escaped.push_str("\\\""),
            b'\\' => escaped.push_str("\\\\"),
            b' '..=b'~' => escaped.push(char::from(byte)),
            byte => {
                let _ = write!(escaped, "\\x{byte:02x}"); // a String takes every write
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_and_text_have_the_form_of_the_common_log() {
        let time = UNIX_EPOCH + Duration::from_secs(971_211_336);
        assert_eq!(date(time), "10/Oct/2000:20:55:36 +0000");
        assert_eq!(escaped("a \"b\"\\\n\u{1b}é"), "a \\\"b\\\"\\\\\\x0a\\x1b\\xc3\\xa9");
    }
}
