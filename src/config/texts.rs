//! Texts that keys take: paths, names, addresses, and the words of other formats.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hyper::Uri;
use hyper::header::HeaderName;
use ipnet::IpNet;
use keygate_core::guard::{WeakCheck, WeakChecks};
use keygate_core::spki::{KeyDigest, RsaExponents};
use rustls::pki_types::{DnsName, ServerName};
use toml::de::DeValue;

use super::form::Form;
use super::input::{Input, Taken};
use super::keys::{takes, texts};
use super::message::{brief, quoted};
use super::units;
use super::{LogLevel, LogLevelError};

/// Maximum length of the path of a Unix socket, in bytes: `sun_path` of Linux without its NUL
/// (unix(7)).
const MAX_SOCKET_PATH: usize = 107;
/// Maximum length of `service_name`, in bytes.
const MAX_SERVICE_NAME: usize = 255;

/// Header names that `policy.header` must not use: fields that frame a message or belong to one
/// connection, credentials of the client, and fields that keygate writes into requests or answers.
const RESERVED: [&str; 27] = [
    "authorization",
    "cache-control",
    "client-cert",
    "client-cert-chain",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

texts! {
    /// An address with a port.
    Address => SocketAddr = |text| address(text, "\"0.0.0.0:8443\" or \"[::]:8443\"");
    /// The header with a certificate or with the address of a client.
    CertificateHeader => HeaderName = |text| {
        let problem = "is not a header name; write one like \"X-SSL-Cert\"";
        text.parse().map_err(|_| format!("{} {problem}", quoted(text)))
    };
    /// The digest of a key.
    DigestText => KeyDigest = |text| {
        let problem = "is not the SHA-256 of a key, in hex or base64, nor rsa-modulus: or ec-x: and one; `keygate key --lists` prints it";
        KeyDigest::parse(text).ok_or_else(|| format!("{} {problem}", quoted(text)))
    };
    /// The target of a health check.
    HealthPath => String = |text| match text.parse::<Uri>() {
        Ok(_) if text.starts_with('/') => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err(format!("{} is not a path, such as \"/healthz\"", quoted(text))),
    };
    /// A name in certificates of servers.
    HostName => String = |text| {
        let problem = "is neither a host name nor an address; write one that the certificates of the servers have";
        let name = ServerName::try_from(text).map(|_| text.to_owned());
        name.map_err(|_| format!("{} {problem}", quoted(text)))
    };
    Level => LogLevel = |text| text.parse().map_err(|error: LogLevelError| error.to_string());
    /// Permission bits.
    Mode => u32 = |text| {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| format!("{} is not a file mode, such as \"0660\"", quoted(text)))
    };
    /// The name of a filter, list, service or authorizer. It needs no quoting in metrics, logs and
    /// headers.
    Name => String = |text| {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || ".-_".contains(it);
        let is_name = text.chars().all(is_plain) && (1..=64).contains(&text.len());
        let problem = "a name has 1 to 64 letters, digits, '.', '-' and '_'";
        is_name.then(|| text.to_owned()).ok_or_else(|| format!("{}: {problem}", quoted(text)))
    };
    /// A network; an address alone is a network of one address.
    Network => IpNet = |text| {
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        text.parse().or_else(|_| address()).map_err(|_| {
            format!("{} is not a network, such as \"10.0.0.0/8\" or \"::1\"", quoted(text))
        })
    };
    /// The reason for an exception.
    Reason => String = |text| match text.trim().is_empty() {
        true => Err("empty; give the reason for the exception".to_owned()),
        false => Ok(text.to_owned()),
    };
    /// The name of this process in traces.
    ResourceName => String = |text| {
        let is_short = !text.trim().is_empty() && text.len() <= MAX_SERVICE_NAME;
        if is_short && !text.chars().any(char::is_control) {
            return Ok(text.to_owned());
        }
        let remedy = format!("write 1 to {MAX_SERVICE_NAME} characters, such as \"keygate\"");
        Err(format!("{} is no name; {remedy}", quoted(text)))
    };
    /// A host of a service, in lower case and without the dot of a fully qualified name.
    ServerNameText => String = |text| {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        match is_host_name(name.strip_prefix("*.").unwrap_or(&name)) {
            true => Ok(name),
            false => {
                let remedy = "write \"www.example.com\", in ASCII (xn--...), or \"*.example.com\" for one label in front";
                Err(format!("{} is not a host name; {remedy}", quoted(text)))
            }
        }
    };
    /// The header with the verdict.
    StatusHeader => HeaderName = |text| match text.parse() {
        Ok(header) if is_reserved(&header) => {
            Err(format!("{} is reserved; give a name like \"X-Key\"", quoted(text)))
        }
        Ok(header) => Ok(header),
        Err(_) => Err(format!("{} is not a header name; write one like \"X-Key\"", quoted(text))),
    };
}

/// The end of an exception.
#[derive(Debug)]
pub(super) struct Until;

/// Checks of RSA keys.
#[derive(Debug)]
pub(super) struct Checks;

/// Public exponents of RSA keys.
#[derive(Debug)]
pub(super) struct Exponents;

takes! {
    bool => Self, Form::Boolean, |input| input.matching::<Self, _>(DeValue::as_bool);
    String => Self, Form::Text, |input| input.text::<Self>().map(str::to_owned);
    PathBuf => Self, Form::Text, |input| path(input, input.text::<Self>()?);
    Checks => WeakChecks, Vec::<WeakCheck>::form(), |input| {
        Vec::<WeakCheck>::take(input).map(|checks| checks.into_iter().collect())
    };
    Exponents => RsaExponents, Vec::<u32>::form(), |input| {
        RsaExponents::from_numbers(&Vec::<u32>::take(input)?).map_err(|unknown| {
            input.report(format!("{unknown} is none of 3, 5, 17, 35, 37, 257 and 65537"))
        })
    };
    Until => SystemTime, Form::Date, |input| {
        let found = *input.matching::<Self, _>(DeValue::as_datetime)?;
        units::moment(found).ok_or_else(|| {
            let remedy = "write a date, such as 2026-12-31, or a time with an offset, such as 2026-12-31T12:00:00Z";
            input.report(format!("{found}: {remedy}"))
        })
    };
}

/// The file or directory that `text` names. A relative path starts at the directory of the
/// configuration.
pub(super) fn path(input: &Input<'_>, text: &str) -> Taken<PathBuf> {
    Err(if text.is_empty() {
        input.report("empty; give a path")
    } else if text.contains("-----BEGIN ") {
        // The text may be a private key.
        input.report("PEM, and not a path; write the text into a file, and give its path")
    } else if text.contains('\0') {
        input.report(format!("{} has a NUL character; give a path without it", quoted(text)))
    } else {
        let path = Path::new(text);
        return Ok(input.directory().map_or_else(|| path.to_owned(), |base| base.join(path)));
    })
}

/// The path of a Unix socket.
pub(super) fn socket_path(input: &Input<'_>, text: &str) -> Taken<PathBuf> {
    let path = path(input, text)?;
    let length = path.as_os_str().len();
    if length <= MAX_SOCKET_PATH {
        return Ok(path);
    }
    let shown = brief(&path.to_string_lossy());
    Err(input.report(format!(
        "{shown} has {length} bytes; give a path for the socket with at most {MAX_SOCKET_PATH}"
    )))
}

pub(super) fn address(text: &str, example: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{} is not an address and a port, such as {example}", quoted(text)))
}

/// Whether `policy.header` must not use this name in any spelling. Servers that turn names into
/// variables, such as CGI's, take `x_request_id` for `X-Request-Id`.
fn is_reserved(header: &HeaderName) -> bool {
    let dashed = header.as_str().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    RESERVED.contains(&dashed.as_str())
}

/// Whether a client can send `host`, in lower case, as SNI (RFC 6066, section 3).
fn is_host_name(host: &str) -> bool {
    !host.ends_with('.') && host.parse::<IpAddr>().is_err() && DnsName::try_from(host).is_ok()
}
