//! Header fields: removes hop-by-hop fields, and every field that an upstream could mistake for the
//! client's identity, in every spelling. Then adds keygate's own fields ([`OwnFields`]).
//!
//! Sources: RFC 9110, section 7.6.1 (hop-by-hop), RFC 9440 (`Client-Cert`).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::BytesMut;
use data_encoding::HEXLOWER;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, header};
use keygate_core::guard::Verdict;
use keygate_core::tls::ClientIdentity;

use crate::config::{Forwarded, ServiceConfig};
use crate::dialect;

/// Fields that carry identity in the dialect of keygate or of another proxy.
const IDENTITY: [&str; 24] = [
    "cf-connecting-ip",
    "client-cert",
    "client-cert-chain",
    "client-ip",
    "client-key-status",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "l5d-client-id",
    "proxy",
    "proxy-client-ip",
    "remote-user",
    "true-client-ip",
    "x-arr-clientcert",
    "x-azure-clientip",
    "x-client-dn",
    "x-client-ip",
    "x-client-verify",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-original-forwarded-for",
    "x-real-ip",
    "x-request-id",
];
/// Prefixes of further fields that carry identity.
const IDENTITY_PREFIXES: [&str; 10] = [
    "$ws", // the plug-in of IBM WebSphere: `$WSCC` is the certificate, `$WSRU` the user
    "cf-client-cert",
    "ssl-client-",
    "wl-proxy-",
    "x-amzn-mtls-",
    "x-client-cert",
    "x-forwarded-",
    "x-remote-",
    "x-ssl-",
    "x-tls-client-",
];

/// Removes the hop-by-hop fields, and the fields that `Connection` names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // One pass over the names, because a look-up of each of them would be 4 % of a request.
    let found: Vec<HeaderName> =
        headers.keys().filter(|name| is_hop_by_hop(name.as_str())).cloned().collect();
    if found.contains(&header::CONNECTION) {
        for name in named_by_connection(headers) {
            headers.remove(name);
        }
    }
    for name in found {
        headers.remove(name);
    }
}

/// Removes the fields that no trailer may be: framing, routing, conditions, authentication, caching,
/// and the form of the content (RFC 9110, section 6.5.1). Removes padded values as well.
pub(crate) fn remove_forbidden_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    let is_forbidden =
        |name: &HeaderName, value| is_forbidden_trailer(name.as_str()) || is_padded(value);
    let forbidden: Vec<HeaderName> = trailers
        .iter()
        .filter(|(name, value)| is_forbidden(name, value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in forbidden {
        trailers.remove(name);
    }
}

/// Whether a value begins or ends with a space or a tab. HTTP/2 forbids it (RFC 9113, section
/// 8.2.1): hypercorn ends a connection that has one, which other clients share.
pub(crate) fn is_padded(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    [bytes.first(), bytes.last()].into_iter().flatten().any(|byte| matches!(byte, b' ' | b'\t'))
}

fn is_forbidden_trailer(name: &str) -> bool {
    matches!(
        name,
        "age"
            | "authorization"
            | "cache-control"
            | "content-encoding"
            | "content-length"
            | "content-range"
            | "content-type"
            | "cookie"
            | "date"
            | "expect"
            | "expires"
            | "host"
            | "location"
            | "max-forwards"
            | "pragma"
            | "range"
            | "retry-after"
            | "set-cookie"
            | "trailer"
            | "vary"
            | "www-authenticate"
    ) || name.starts_with("if-")
}

fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    // A byte outside of ASCII makes its own token invalid, and not the others of its field.
    let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok()).collect()
}

/// Removes every field that carries identity. Any byte that is no letter or digit counts as `-`,
/// because CGI turns all of them into `_`. hyper has made the names lower case.
pub(crate) fn remove_identity(headers: &mut HeaderMap, status_header: &HeaderName) {
    let forged: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_identity(name.as_str(), status_header.as_str()))
        .cloned()
        .collect(); // does not allocate if no field matches
    for name in forged {
        headers.remove(name);
    }
}

fn is_identity(name: &str, status_header: &str) -> bool {
    same(name, status_header)
        || (has_identity_initial(name)
            && (IDENTITY.iter().any(|identity| same(name, identity))
                || IDENTITY_PREFIXES.iter().any(|prefix| begins(name, prefix))))
}

/// The first bytes of all names in the tables, one bit for each ASCII character. Most fields begin
/// with another byte and need no comparison.
const IDENTITY_INITIALS: u128 = initials(&IDENTITY) | initials(&IDENTITY_PREFIXES);

const fn initials(names: &[&str]) -> u128 {
    let mut set = 0;
    let mut rest = names;
    while let [name, others @ ..] = rest {
        if let [first, ..] = name.as_bytes() {
            set |= 1 << *first;
        }
        rest = others;
    }
    set
}

fn has_identity_initial(name: &str) -> bool {
    let first = name.bytes().next().filter(u8::is_ascii);
    first.is_some_and(|first| IDENTITY_INITIALS & (1 << first) != 0)
}

fn same(name: &str, other: &str) -> bool {
    name.len() == other.len() && begins(name, other)
}

fn begins(name: &str, prefix: &str) -> bool {
    let dash = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(|(a, b)| dash(a) == dash(b))
}

/// The value of the status header for a verdict; `None` if the policy sets no header.
pub(crate) fn key_status(service: &ServiceConfig, verdict: &Verdict) -> Option<HeaderValue> {
    service.policy.annotates().then(|| header_value(&verdict.to_string())).flatten()
}

/// A header value; `None` if `text` has control characters.
pub(crate) fn header_value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok()
}

/// The `Content-Length` fields of a message are no number, or differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Content-Length is invalid")]
pub(crate) struct InvalidContentLength;

/// The `Content-Length` of a message; `None` if it has none. Equal ones, in one field or in
/// several, count as one (RFC 9110, section 8.6).
///
/// # Errors
/// Returns an error if it is not a number, above [`i64::MAX`], or if several differ.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, InvalidContentLength> {
    Ok(declared_length(headers)?.map(|(length, _)| length))
}

/// Makes the `Content-Length` of a message one field in canonical form: a recipient may take the
/// first of several, or all of them as invalid. Returns the length.
///
/// # Errors
/// See [`content_length`].
pub(crate) fn normalize_content_length(
    headers: &mut HeaderMap,
) -> Result<Option<u64>, InvalidContentLength> {
    let Some((length, is_canonical)) = declared_length(headers)? else { return Ok(None) };
    if !is_canonical {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    Ok(Some(length))
}

/// The `Content-Length`, and whether it is one field in canonical form.
fn declared_length(headers: &HeaderMap) -> Result<Option<(u64, bool)>, InvalidContentLength> {
    let mut declared = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for digits in value.as_bytes().split(|byte| *byte == b',') {
            let number = number_of(digits.trim_ascii()).ok_or(InvalidContentLength)?;
            let is_whole =
                digits == value.as_bytes() && (digits == b"0" || !digits.starts_with(b"0"));
            let is_canonical = match declared {
                None => is_whole,
                Some((length, _)) if length == number => false,
                Some(_) => return Err(InvalidContentLength),
            };
            declared = Some((number, is_canonical));
        }
    }
    Ok(declared)
}

/// A number in decimal digits; `None` for any other text, and above [`i64::MAX`].
fn number_of(digits: &[u8]) -> Option<u64> {
    let mut number = (!digits.is_empty()).then_some(0_i64)?;
    for digit in digits {
        let digit = char::from(*digit).to_digit(10)?;
        number = number.checked_mul(10)?.checked_add(i64::from(digit))?;
    }
    u64::try_from(number).ok()
}

/// HTTP/2 may split cookies into several fields; HTTP/1.1 has one (RFC 9113, section 8.2.3). Empty
/// cookies are left out: they would leave a space at the end.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let all = [first, second].into_iter().chain(cookies).map(AsRef::as_ref);
    let all: Vec<&[u8]> = all.filter(|cookie: &&[u8]| !cookie.is_empty()).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of an `X-Request-Id`, in bytes; a longer one is replaced.
const MAX_REQUEST_ID_LENGTH: usize = 128;

thread_local! {
    /// The rest of the buffer that request ids are cut from.
    static REQUEST_IDS: RefCell<BytesMut> = RefCell::default();
}
/// Length of an `X-Request-Id` of keygate, in bytes.
const REQUEST_ID_LENGTH: usize = 32;
/// Number of ids that share one allocation.
const REQUEST_IDS_AT_ONCE: usize = 32;

/// The `X-Request-Id` of a request: the client's own if it is trusted and well-formed, or a new
/// one.
pub(crate) fn request_id(headers: &HeaderMap, is_trusted: bool) -> Option<HeaderValue> {
    if is_trusted {
        let mut given = headers.get_all(X_REQUEST_ID).iter();
        if let (Some(id), None) = (given.next(), given.next())
            && is_plain(id)
        {
            return Some(id.clone());
        }
    }
    REQUEST_IDS.with_borrow_mut(|buffer| {
        if buffer.capacity() < REQUEST_ID_LENGTH {
            buffer.reserve(REQUEST_ID_LENGTH * REQUEST_IDS_AT_ONCE);
        }
        // Unique, but not secret.
        let mut id = [0; REQUEST_ID_LENGTH];
        HEXLOWER.encode_mut(&fastrand::u128(..).to_be_bytes(), &mut id);
        buffer.extend_from_slice(&id);
        HeaderValue::from_maybe_shared(buffer.split().freeze()).ok()
    })
}

fn is_plain(id: &HeaderValue) -> bool {
    let id = id.as_bytes();
    (1..=MAX_REQUEST_ID_LENGTH).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
const XFCC: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The fields that keygate sets on every request of a connection. Most are the same for all
/// requests and are computed once.
#[derive(Debug)]
pub(crate) struct Annotations {
    fixed: Vec<(HeaderName, HeaderValue)>,
    /// The field lines of `fixed`.
    lines: Vec<u8>,
    forwarded: Forwarded,
    peer: IpAddr,
}

impl Annotations {
    pub(crate) fn new(service: &ServiceConfig, identity: &ClientIdentity) -> Self {
        let forward = &service.forward;
        let leaf = identity.leaf();
        // An IPv6 socket reports IPv4 clients as IPv4-mapped addresses.
        let peer = identity.peer().ip().to_canonical();
        let x_forwarded = matches!(forward.forwarded, Forwarded::Both | Forwarded::XForwarded);
        // The trust anchor is left out (RFC 9440, section 2.3).
        let chain = forward
            .client_cert_chain
            .then(|| identity.with_intermediates(dialect::client_cert::write_chain));
        let fixed = [
            (CLIENT_CERT, leaf.filter(|_| forward.client_cert).map(dialect::client_cert::write)),
            (CLIENT_CERT_CHAIN, chain.flatten()),
            (XFCC, leaf.filter(|_| forward.xfcc).map(dialect::xfcc::write)),
            (X_FORWARDED_FOR, x_forwarded.then(|| peer.to_string())),
            (X_FORWARDED_PROTO, x_forwarded.then(|| "https".to_owned())),
        ];
        let fixed =
            fixed.into_iter().filter_map(|(name, text)| Some((name, header_value(&text?)?)));
        let fixed: Vec<_> = fixed.collect();
        let mut lines = Vec::new();
        fixed.iter().for_each(|(name, value)| push_line(&mut lines, name, value));
        Self { fixed, lines, forwarded: forward.forwarded, peer }
    }

    /// The fields that depend on the host of a request.
    fn of_host(&self, host: &HeaderValue) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let has_x_forwarded = matches!(self.forwarded, Forwarded::Both | Forwarded::XForwarded);
        let has_forwarded = matches!(self.forwarded, Forwarded::Both | Forwarded::Rfc7239);
        let x_forwarded = has_x_forwarded.then(|| (X_FORWARDED_HOST, host.clone()));
        let forwarded =
            has_forwarded.then(|| header_value(&dialect::forwarded(self.peer, host))).flatten();
        x_forwarded.into_iter().chain(forwarded.map(|value| (header::FORWARDED, value)))
    }
}

/// The fields that keygate adds to one request. The client's fields of these names were removed by
/// [`remove_identity`]. They are kept apart, because most of them are the same bytes for each
/// request of a connection: in the table of fields they took 4,000 of 48,000 instructions.
#[derive(Debug, Clone)]
pub(crate) struct OwnFields {
    pub(crate) annotations: Rc<Annotations>,
    pub(crate) host: HeaderValue,
    /// The status header.
    pub(crate) status: Option<(Rc<HeaderName>, HeaderValue)>,
    pub(crate) request_id: Option<HeaderValue>,
}

impl OwnFields {
    /// Writes the field lines.
    pub(crate) fn write(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(&self.annotations.lines);
        for (name, value) in self.annotations.of_host(&self.host) {
            push_line(lines, &name, &value);
        }
        if let Some((name, value)) = &self.status {
            push_line(lines, name, value);
        }
        if let Some(id) = &self.request_id {
            push_line(lines, &X_REQUEST_ID, id);
        }
    }

    /// Sets the fields in a table.
    pub(crate) fn set(self, headers: &mut HeaderMap) {
        for (name, value) in &self.annotations.fixed {
            headers.insert(name, value.clone());
        }
        for (name, value) in self.annotations.of_host(&self.host) {
            headers.insert(name, value);
        }
        if let Some((name, value)) = self.status {
            headers.insert(&*name, value);
        }
        if let Some(id) = self.request_id {
            headers.insert(X_REQUEST_ID, id);
        }
    }
}

/// Writes one field line.
pub(crate) fn push_line(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    lines.extend_from_slice(name.as_str().as_bytes());
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value.as_bytes());
    lines.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
