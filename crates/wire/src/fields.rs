//! Header fields of any message: hop-by-hop fields, trailers, `Content-Length`, cookies.
//!
//! Sources: RFC 9110, sections 6.5.1 (trailers), 7.6.1 (hop-by-hop) and 8.6 (`Content-Length`).

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, header};

/// Removes the hop-by-hop fields, and the fields that `Connection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
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
pub fn remove_forbidden_trailers(trailers: &mut HeaderMap) {
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
pub fn is_padded(value: &HeaderValue) -> bool {
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

/// The `Content-Length` fields of a message are no number, or differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Content-Length is invalid")]
pub struct InvalidContentLength;

/// The `Content-Length` of a message; `None` if it has none. Equal ones, in one field or in
/// several, count as one (RFC 9110, section 8.6).
///
/// # Errors
/// Returns an error if it is not a number, above [`i64::MAX`], or if several differ.
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, InvalidContentLength> {
    Ok(declared_length(headers)?.map(|(length, _)| length))
}

/// Makes the `Content-Length` of a message one field in canonical form: a recipient may take the
/// first of several, or all of them as invalid. Returns the length.
///
/// # Errors
/// See [`content_length`].
pub fn normalize_content_length(
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
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let all = [first, second].into_iter().chain(cookies).map(AsRef::as_ref);
    let all: Vec<&[u8]> = all.filter(|cookie: &&[u8]| !cookie.is_empty()).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Whether a list field of a message has `token` (RFC 9110, section 5.6.1).
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let mut tokens = values.flat_map(|value| value.split(','));
    tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
}

thread_local! {
    /// A second since the Unix epoch, and its `Date`.
    static DATE: RefCell<(u64, Option<HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// The current time as a `Date` field (RFC 9110, section 6.6.1), formatted once a second.
pub fn date_now() -> Option<HeaderValue> {
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    DATE.with_borrow_mut(|(of, date)| {
        if *of != second || date.is_none() {
            (*of, *date) = (second, HeaderValue::from_str(&httpdate::fmt_http_date(now)).ok());
        }
        date.clone()
    })
}

/// Writes one field line.
pub fn push_line(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    lines.extend_from_slice(name.as_str().as_bytes());
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value.as_bytes());
    lines.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
