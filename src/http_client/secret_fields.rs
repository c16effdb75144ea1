//! Header fields out of a file, which may be credentials: their values are zeroized on drop.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use zeroize::Zeroizing;

/// Maximum size of the file, in bytes.
pub(crate) const MAX_HEADERS: u64 = 8192;
/// Fields that keygate itself sets, or that would change the meaning of its requests.
const OWN_FIELDS: [HeaderName; 15] = [
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::EXPECT,
    header::HOST,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::RANGE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The fields in `text`, one a line. Empty lines and lines that begin with `#` are left out.
///
/// # Errors
/// Returns the number of the first line that is no field.
pub(crate) fn parse_headers(text: &[u8]) -> Result<HeaderMap, usize> {
    let mut headers = HeaderMap::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, value) = field(line).ok_or(index + 1)?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = line.split_at_checked(colon)?;
    let name = HeaderName::from_bytes(name).ok().filter(|name| !OWN_FIELDS.contains(name))?;
    let value = value.strip_prefix(b":")?.trim_ascii();
    let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if value.is_empty() || !value.iter().all(is_printable) {
        return None;
    }
    Some((name, secret_value(Zeroizing::new(value.to_vec()))?))
}

/// The value of a header field, which is not shown and zeroized on drop; `None` if it is invalid.
pub(crate) fn secret_value(value: Zeroizing<Vec<u8>>) -> Option<HeaderValue> {
    let value = Bytes::from_owner(ZeroizingBytes(value));
    let mut value = HeaderValue::from_maybe_shared(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Zeroizes the bytes when the last clone of the header value is dropped.
struct ZeroizingBytes(Zeroizing<Vec<u8>>);

impl AsRef<[u8]> for ZeroizingBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_header_fields_has_one_a_line_and_none_of_keygates_own() {
        let text =
            b"# for the collector\r\n\r\nAuthorization: Bearer abc==\r\nx-team:a b\nX-Team: c";
        let headers = parse_headers(text).unwrap();
        assert_eq!(headers["authorization"], "Bearer abc==");
        assert_eq!(headers.get_all("x-team").iter().collect::<Vec<_>>(), ["a b", "c"]);
        assert!(!format!("{headers:?}").contains("abc"), "values are secret");
        for wrong in [
            "Authorization",
            "Authorization:",
            ": value",
            "a b: c",
            "a: b\u{e9}",
            "a: b\u{7}",
            "Content-Length: 1",
            "transfer-encoding: chunked",
            "HOST: other",
        ] {
            assert_eq!(parse_headers(format!("a: b\n{wrong}\n").as_bytes()), Err(2), "{wrong:?}");
        }
    }
}
