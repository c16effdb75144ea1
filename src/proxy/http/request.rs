//! The head of a request, made what the upstream gets.

use data_encoding::HEXLOWER;
use h2::ext::Protocol;
use hyper::body::Body;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Uri, Version, header};

use crate::proxy::http::in_flight::HttpConnection;
use crate::proxy::message::body::Incoming;
use crate::proxy::message::headers;

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is answered.
    Exchange,
    /// It asks for a stream of bytes (extended CONNECT of HTTP/2, RFC 8441).
    Connect,
    /// It asks to leave HTTP/1.1 for something else.
    Upgrade,
}

/// Makes the head of a request what the upstream gets, or says why it gets none.
pub(crate) fn prepare(
    http: &HttpConnection,
    parts: &mut Parts,
    body: &Incoming,
) -> Result<Purpose, StatusCode> {
    let limits = &http.service.config.limits;
    let is_connect = parts.method == Method::CONNECT;
    if is_connect {
        match parts.extensions.get::<Protocol>() {
            None => return Err(StatusCode::METHOD_NOT_ALLOWED),
            Some(protocol) if !is_other_protocol(protocol.as_str()) => {
                return Err(StatusCode::BAD_REQUEST);
            }
            Some(_) => {}
        }
        // It would be one of what comes after the answer: a server of HTTP/1.1 would wait for it.
        if parts.headers.contains_key(header::CONTENT_LENGTH) {
            return Err(StatusCode::BAD_REQUEST);
        }
    }
    // hyper counts them in HTTP/1.1, HTTP/2 counts bytes.
    if parts.headers.len() > limits.max_headers {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    if limits.max_body_size.is_some_and(|most| body.size_hint().lower() > most) {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let host = http.host_of(parts)?;
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        parts.headers.remove(header::CONTENT_LENGTH); // the length is what was read, not what was said
    }
    let upgrade = upgrade(parts).cloned();
    let wants_trailers = wants_trailers(&parts.headers);
    headers::remove_hop_by_hop(&mut parts.headers);
    let status_header = http.open.status_header();
    headers::remove_identity(&mut parts.headers, &status_header);
    parts.headers.remove(header::EXPECT); // it is answered as soon as the body is asked for
    headers::join_cookies(&mut parts.headers);
    http.annotations.set(&mut parts.headers, &host);
    if let Some(status) = http.open.key_status() {
        parts.headers.insert(&*status_header, status);
    }
    if wants_trailers {
        parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        // Said, and not left to hyper: it drops the body of a GET whose length it does not know.
        let chunked = HeaderValue::from_static("chunked");
        parts.headers.insert(header::TRANSFER_ENCODING, chunked);
    }
    let purpose = match upgrade {
        None if is_connect => {
            parts.headers.remove(header::SEC_WEBSOCKET_KEY); // it has a meaning in HTTP/1.1 only
            Purpose::Connect
        }
        None => Purpose::Exchange,
        Some(protocol) => {
            let upgrade = HeaderValue::from_static("upgrade");
            parts.headers.insert(header::CONNECTION, upgrade);
            parts.headers.insert(header::UPGRADE, protocol);
            Purpose::Upgrade
        }
    };
    parts.headers.insert(header::HOST, host);
    parts.uri = origin_form(std::mem::take(&mut parts.uri));
    parts.version = Version::HTTP_11;
    Ok(purpose)
}

/// The protocol that a request asks to leave HTTP/1.1 for (RFC 9110, section 7.8). HTTP/2 in the
/// clear is none that goes through a proxy.
fn upgrade(parts: &Parts) -> Option<&HeaderValue> {
    let is_asked = parts.version == Version::HTTP_11
        && has_token(&parts.headers, &header::CONNECTION, "upgrade");
    let protocol = parts.headers.get(header::UPGRADE).filter(|_| is_asked)?;
    (!has_token(&parts.headers, &header::UPGRADE, "h2c")).then_some(protocol)
}

/// Whether a stream of bytes may be asked for under this name: a token (RFC 9110, section 5.6.2) that
/// every server reads in one way, and not HTTP again, with headers that nobody has looked at.
fn is_other_protocol(name: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_http = name.eq_ignore_ascii_case("h2c")
        || name.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("http"));
    !is_http && (1..=64).contains(&name.len()) && name.bytes().all(is_of_token)
}

/// Whether the client takes trailers: the one thing in `TE` that a proxy may pass on.
fn wants_trailers(headers: &HeaderMap) -> bool {
    has_token(headers, &header::TE, "trailers")
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let mut tokens = values.flat_map(|value| value.split(','));
    tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
}

impl HttpConnection {
    /// The host that a request is for. It must belong to the service whose policy admitted the
    /// client: otherwise a client could be judged by one service and served by another.
    fn host_of(&self, parts: &Parts) -> Result<HeaderValue, StatusCode> {
        let host = match (parts.uri.authority(), only_host(parts)?) {
            // Of an absolute target, Host is ignored (RFC 9112, section 3.2.2). HTTP/2 may carry
            // both, and they must agree (RFC 9113, section 8.3.1).
            (Some(authority), Some(host))
                if parts.version == Version::HTTP_2 && host != authority.as_str() =>
            {
                return Err(StatusCode::BAD_REQUEST);
            }
            (Some(authority), _) => {
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

/// The `Host` field; that there is more than one is an error.
fn only_host(parts: &Parts) -> Result<Option<&HeaderValue>, StatusCode> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() { Err(StatusCode::BAD_REQUEST) } else { Ok(host) }
}

/// The name in `name`, `name:port` or `[address]:port`; `None` if it is none of them.
fn name_of(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    let port_is_number = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    (!name.is_empty() && name.bytes().all(plain) && port_is_number).then_some(name)
}

/// The target as an origin server expects it: path and query, or `*`.
fn origin_form(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    uri.into_parts().path_and_query.map(Uri::from).unwrap_or_default()
}

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of an `X-Request-Id`, in bytes; a longer one is replaced.
const MAX_REQUEST_ID_LENGTH: usize = 128;

/// Sets the `X-Request-Id`: the client's own if it is trusted and well-formed, or a new one.
pub(crate) fn set_request_id(headers: &mut HeaderMap, is_trusted: bool) {
    let mut given = headers.get_all(X_REQUEST_ID).iter();
    let is_usable = match (given.next(), given.next()) {
        (Some(id), None) => is_trusted && is_plain(id),
        (Some(_) | None, _) => false,
    };
    if is_usable {
        return;
    }
    // Unique, but not secret.
    let mut id = [0; 32];
    HEXLOWER.encode_mut(&fastrand::u128(..).to_be_bytes(), &mut id);
    if let Ok(id) = HeaderValue::from_bytes(&id) {
        headers.insert(X_REQUEST_ID, id);
    }
}

/// The `X-Request-Id` that was set.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(X_REQUEST_ID)?.to_str().ok()
}

fn is_plain(id: &HeaderValue) -> bool {
    let id = id.as_bytes();
    (1..=MAX_REQUEST_ID_LENGTH).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_an_authority_is_found_or_refused() {
        for (authority, name) in [
            ("a.example", Some("a.example")),
            ("a.example:8443", Some("a.example")),
            ("[::1]:8443", Some("::1")),
            ("127.0.0.1", Some("127.0.0.1")),
            ("a.example:", Some("a.example")),
            ("", None),
            (":8443", None),
            ("user@a.example", None),
            ("a.example:https", None),
            ("a.example/..", None),
            ("[::1", None),
            ("a b", None),
        ] {
            assert_eq!(name_of(authority), name, "{authority:?}");
        }
    }

    #[test]
    fn a_stream_of_bytes_is_never_http_again() {
        for (name, may) in [
            ("websocket", true),
            ("connect-udp", true),
            ("h2c", false),
            ("H2C", false),
            ("HTTP/2.0", false),
            ("http", false),
            ("web socket", false),
            ("websocket\n", false),
            ("websocket, h2c", false),
            ("é", false),
            ("", false),
        ] {
            assert_eq!(is_other_protocol(name), may, "{name:?}");
        }
    }

    #[test]
    fn an_absolute_target_becomes_its_path() {
        for (target, origin) in [
            ("https://a.example/path?query", "/path?query"),
            ("https://a.example", "/"),
            ("/path", "/path"),
            ("*", "*"),
        ] {
            assert_eq!(origin_form(target.parse().unwrap()), origin, "{target}");
        }
    }

    fn named(ids: &[&str], is_trusted: bool) -> String {
        let mut headers = HeaderMap::new();
        for id in ids {
            headers.append(X_REQUEST_ID, HeaderValue::from_str(id).unwrap());
        }
        set_request_id(&mut headers, is_trusted);
        assert_eq!(headers.get_all(X_REQUEST_ID).iter().count(), 1);
        request_id(&headers).unwrap().to_owned()
    }

    #[test]
    fn a_request_id_is_kept_from_trusted_peers_and_generated_for_others() {
        assert_eq!(named(&["abc-1"], true), "abc-1");
        let long = "x".repeat(MAX_REQUEST_ID_LENGTH + 1);
        for (ids, is_trusted) in [
            (&["abc-1"][..], false),
            (&[], true),
            (&["a b"], true),
            (&[&long], true),
            (&["a", "b"], true),
        ] {
            let made = named(ids, is_trusted);
            assert!(
                made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{made}"
            );
        }
    }
}
