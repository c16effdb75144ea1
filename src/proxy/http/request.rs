//! The head of a request: checked, and rewritten for the upstream.

use std::net::Ipv6Addr;
use std::rc::Rc;

use h2::ext::Protocol;
use hyper::body::Body;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Uri, Version, header};
use keygate_wire::fields;
use keygate_wire::incoming::Incoming;

use super::in_flight::HttpConnection;
use crate::proxy::message::headers::own_fields::OwnFields;
use crate::proxy::message::headers::{self, OwnNames};

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A request for a tunnel on its stream (extended CONNECT of HTTP/2, RFC 8441).
    Connect,
    /// A request for one response.
    Exchange,
    /// A request for another protocol on its HTTP/1.1 connection.
    Upgrade,
}

/// Checks the head of a request and rewrites it for the upstream. Returns the fields to add as
/// well.
///
/// # Errors
/// Returns the status of the response if the request must not reach the upstream.
pub(crate) fn prepare(
    http: &HttpConnection,
    parts: &mut Parts,
    body: &Incoming,
    request_id: Option<HeaderValue>,
) -> Result<(Purpose, OwnFields), StatusCode> {
    check(http, parts, body)?;
    let present = PresentFields::new(&parts.headers);
    if present.transfer_encoding {
        check_coding(&parts.headers)?;
    }
    // `Transfer-Encoding` overrides it (RFC 9112, section 6.3). It is forwarded in canonical form.
    let content_length = if present.content_length && !present.transfer_encoding {
        fields::content_length(&parts.headers).map_err(|_| StatusCode::BAD_REQUEST)?
    } else {
        None
    };
    // `Connection: host` removes the field.
    let keeps_host = present.host && !present.connection && parts.uri.authority().is_none();
    let host = http.host_of(parts, present)?;
    parts.uri = origin_form(std::mem::take(&mut parts.uri));
    check_target(parts)?;
    let names = http.open.own_names();
    let purpose = rewrite_headers(&names, parts, body, present, content_length);
    if !keeps_host {
        parts.headers.insert(header::HOST, host.clone());
    }
    parts.version = Version::HTTP_11;
    let own_fields = OwnFields {
        annotations: http.annotations(),
        host,
        names,
        status: http.open.key_status(),
        assertion: Rc::clone(&http.open) as _,
        request_id,
    };
    Ok((purpose, own_fields))
}

/// Whether a request has certain fields. All are found in one pass, because a look-up of each of
/// them would be 2 % of a request.
#[derive(Debug, Clone, Copy, Default)]
struct PresentFields {
    connection: bool,
    content_length: bool,
    cookie: bool,
    expect: bool,
    host: bool,
    te: bool,
    transfer_encoding: bool,
}

impl PresentFields {
    fn new(headers: &HeaderMap) -> Self {
        let mut present = Self::default();
        for name in headers.keys() {
            match name.as_str() {
                "connection" => present.connection = true,
                "content-length" => present.content_length = true,
                "cookie" => present.cookie = true,
                "expect" => present.expect = true,
                "host" => present.host = true,
                "te" => present.te = true,
                "transfer-encoding" => present.transfer_encoding = true,
                _ => {}
            }
        }
        present
    }
}

fn check(http: &HttpConnection, parts: &Parts, body: &Incoming) -> Result<(), StatusCode> {
    let limits = &http.service.config.limits;
    if parts.method == Method::CONNECT {
        check_connect(parts)?;
    }
    // hyper limits the number of fields in HTTP/1.1; HTTP/2 limits only their size.
    let max_size = usize::try_from(limits.max_header_size).unwrap_or(usize::MAX);
    let is_too_large = parts.version == Version::HTTP_2 && list_size(parts) > max_size;
    if parts.headers.len() > limits.max_headers || is_too_large {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    if parts.version == Version::HTTP_2 && parts.headers.values().any(fields::is_padded) {
        return Err(StatusCode::BAD_REQUEST);
    }
    if limits.max_body_size.is_some_and(|max_size| body.size_hint().lower() > max_size) {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    Ok(())
}

/// The size of a header list (RFC 9113, section 6.5.2), with the four fields of the request line.
fn list_size(parts: &Parts) -> usize {
    let size = |name: usize, value: usize| name + value + 32;
    let fields = parts.headers.iter();
    let fields: usize =
        fields.map(|(name, value)| size(name.as_str().len(), value.as_bytes().len())).sum();
    let path = parts.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = parts.uri.authority().map_or(0, |authority| authority.as_str().len());
    fields + size(":authority:path:scheme:method".len(), path + authority) + 3 * 32
}

/// Checks that `chunked` is the only coding of the body. Another one would be lost, because each hop
/// has codings of its own (RFC 9112, section 6.1).
fn check_coding(headers: &HeaderMap) -> Result<(), StatusCode> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let coding = codings.next().filter(|_| codings.next().is_none());
    let is_chunked = coding.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if is_chunked { Ok(()) } else { Err(StatusCode::NOT_IMPLEMENTED) }
}

fn check_connect(parts: &Parts) -> Result<(), StatusCode> {
    let protocol = parts.extensions.get::<Protocol>().ok_or(StatusCode::METHOD_NOT_ALLOWED)?;
    // An HTTP/1.1 server would wait for a body of this length inside the tunnel.
    let has_length = parts.headers.contains_key(header::CONTENT_LENGTH);
    let has_version = protocol.as_str().contains('/'); // not in a `:protocol` (RFC 8441, section 4)
    if has_length || has_version || !is_other_protocol(protocol.as_str()) {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(())
}

/// Removes the fields that must not reach the upstream, and sets those that a proxy must set.
fn rewrite_headers(
    names: &OwnNames,
    parts: &mut Parts,
    body: &Incoming,
    present: PresentFields,
    content_length: Option<u64>,
) -> Purpose {
    let upgrade = if present.connection { upgrade(parts).cloned() } else { None };
    let headers = &mut parts.headers;
    // The only member of `TE` that a proxy may forward.
    let accepts_trailers = present.te && fields::has_token(headers, &header::TE, "trailers");
    fields::remove_hop_by_hop(headers);
    headers::remove_identity(headers, names);
    if present.content_length {
        headers.remove(header::CONTENT_LENGTH);
    }
    if let Some(length) = content_length {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    if present.expect {
        headers.remove(header::EXPECT); // `100 Continue` is sent when the body is read
    }
    if present.cookie {
        fields::join_cookies(headers);
    }
    if accepts_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        // Without this field hyper drops the body of a GET that has no length.
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    match upgrade {
        None if parts.method == Method::CONNECT => {
            headers.remove(header::SEC_WEBSOCKET_KEY); // defined for HTTP/1.1 only
            Purpose::Connect
        }
        None => Purpose::Exchange,
        Some(protocol) => {
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, protocol);
            Purpose::Upgrade
        }
    }
}

/// The protocols of an `Upgrade` (RFC 9110, section 7.8). Any other form than one field of ASCII
/// tokens is ignored: hypercorn reads the field as Latin-1 and strips it, so that `h2c` followed by
/// a no-break space is `h2c` there.
fn upgrade(parts: &Parts) -> Option<&HeaderValue> {
    let is_upgrade = parts.version == Version::HTTP_11
        && fields::has_token(&parts.headers, &header::CONNECTION, "upgrade");
    let mut fields = parts.headers.get_all(header::UPGRADE).iter().filter(|_| is_upgrade);
    let field = fields.next()?;
    let mut protocols = field.to_str().ok()?.split(',');
    let is_valid = fields.next().is_none()
        && protocols.all(|protocol| is_other_protocol(protocol.trim_matches([' ', '\t'])));
    is_valid.then_some(field)
}

/// Whether a tunnel may carry this protocol: a token (RFC 9110, section 5.6.2), with a version or
/// without, other than HTTP or TLS. Requests inside those would reach the upstream unchecked. The
/// names of the drafts of HTTP/2, such as `h2c-14`, count: Jetty, Undertow and mod_h2 accept them.
fn is_other_protocol(protocol: &str) -> bool {
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_token = |text: &str| (1..=64).contains(&text.len()) && text.bytes().all(is_token_byte);
    let (name, version) = protocol.split_once('/').unwrap_or((protocol, "1"));
    let begins_with = |prefix: &str| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    let carries_requests = ["h2", "h3", "http", "spdy", "tls"].into_iter().any(begins_with);
    !carries_requests && is_token(name) && is_token(version)
}

impl HttpConnection {
    /// The host of a request. It must belong to the service whose policy admitted the client.
    /// Otherwise one service would judge a client and another would serve it.
    fn host_of(&self, parts: &Parts, present: PresentFields) -> Result<HeaderValue, StatusCode> {
        let field = if present.host { single_host(parts)? } else { None };
        let host = match (parts.uri.authority(), field) {
            // An absolute target overrides Host (RFC 9112, section 3.2.2). HTTP/2 may carry both,
            // and they must agree (RFC 9113, section 8.3.1).
            (Some(authority), Some(host))
                if parts.version == Version::HTTP_2 && host != authority.as_str() =>
            {
                return Err(StatusCode::BAD_REQUEST);
            }
            (Some(authority), _) => {
                if let Some(host) = self.open.known_host(authority.as_str()) {
                    return Ok(host);
                }
                HeaderValue::from_str(authority.as_str()).map_err(|_| StatusCode::BAD_REQUEST)?
            }
            (None, Some(host)) => host.clone(),
            (None, None) if parts.version == Version::HTTP_10 => {
                return self.upstream().default_host().ok_or(StatusCode::BAD_REQUEST);
            }
            (None, None) => return Err(StatusCode::BAD_REQUEST),
        };
        if !self.open.is_same_host(&host) {
            let name = host.to_str().ok().and_then(name_of).ok_or(StatusCode::BAD_REQUEST)?;
            if !self.open.serves_host(&host, name) {
                return Err(StatusCode::MISDIRECTED_REQUEST);
            }
        }
        Ok(host)
    }
}

/// The `Host` field, if there is one.
///
/// # Errors
/// Returns 400 if there are several.
fn single_host(parts: &Parts) -> Result<Option<&HeaderValue>, StatusCode> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() { Err(StatusCode::BAD_REQUEST) } else { Ok(host) }
}

/// The name in `name`, `name:port` or `[address]:port`; `None` for any other form.
fn name_of(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, port)
        }
        None => {
            let colon = authority.find(':').unwrap_or(authority.len());
            let (name, port) = authority.split_at(colon);
            is_host_name(name).then_some((name, port))?
        }
    };
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let has_valid_port = matches!(port, "" | ":") || port.strip_prefix(':').is_some_and(is_port);
    has_valid_port.then_some(name)
}

/// Whether `name` consists of labels, with or without the dot of a fully qualified name. An empty
/// label would make the name match no service, so that the default of the address would serve it.
fn is_host_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let name = name.strip_suffix('.').unwrap_or(name);
    name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_plain))
}

/// Checks a target in origin form. Without a path (`:path: #x` or `?x` in HTTP/2) the request line
/// would be malformed; `*` is for OPTIONS only (RFC 9112, section 3.2.4). Bytes outside of ASCII are
/// not part of a URI (RFC 3986, section 2): hypercorn ends an HTTP/2 connection that has them.
fn check_target(parts: &Parts) -> Result<(), StatusCode> {
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let is_asterisk = target == "*" && parts.method == Method::OPTIONS;
    // `path()` of "?x" is "/", and `as_str()` of a target without a path is "/".
    let has_path = target.starts_with('/') && parts.uri.path().starts_with('/');
    if (has_path || is_asterisk) && target.is_ascii() {
        Ok(())
    } else {
        Err(StatusCode::BAD_REQUEST)
    }
}

/// The target in origin form: path and query, or `*`.
fn origin_form(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    uri.into_parts().path_and_query.map(Uri::from).unwrap_or_default()
}

#[cfg(test)]
mod tests;
