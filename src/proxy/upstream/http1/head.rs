//! The heads of HTTP/1.1 messages (RFC 9112): writes that of a request, reads that of a response.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode, Version};
use smallvec::SmallVec;

use super::MAX_BUFFER;
use super::request_body::UploadFraming;
use crate::proxy::message::h1_receive::Http1Error;
use crate::proxy::message::headers::{OwnFields, push_line};

/// Maximum number of fields in a response head. More are a 502.
const MAX_FIELDS: usize = 100;
/// Capacity that is reserved for a request head, in bytes.
const TYPICAL_HEAD: usize = 1024;

/// Writes the head of a request. The fields that frame its body are those of `framing`.
pub(super) fn encode<B>(
    request: &Request<B>,
    own_fields: Option<&OwnFields>,
    framing: UploadFraming,
    head: &mut Vec<u8>,
) {
    head.reserve(TYPICAL_HEAD);
    let uri = request.uri();
    let line = [request.method().as_str().as_bytes(), b" ", uri.path().as_bytes()];
    line.into_iter().for_each(|part| head.extend_from_slice(part));
    if let Some(query) = uri.query() {
        head.push(b'?');
        head.extend_from_slice(query.as_bytes());
    }
    head.extend_from_slice(b" HTTP/1.1\r\n");
    let (mut has_connection, mut has_host, mut has_te) = (false, false, false);
    for (name, value) in request.headers() {
        match name.as_str() {
            "connection" => has_connection = true,
            "host" => has_host = true,
            "te" => has_te = true,
            "content-length" if framing.replaces_length() => continue,
            "transfer-encoding" => continue,
            _ => {}
        }
        push_line(head, name, value);
    }
    if let Some(fields) = own_fields {
        fields.write(head);
    }
    // A request that was prepared for HTTP/2 has its host in the target.
    if let Some(authority) = uri.authority().filter(|_| !has_host) {
        let parts = [b"host: ", authority.as_str().as_bytes(), b"\r\n"];
        parts.into_iter().for_each(|part| head.extend_from_slice(part));
    }
    // `TE` is a hop-by-hop field, so `Connection` must name it (RFC 9110, section 10.1.4).
    if has_te && !has_connection {
        head.extend_from_slice(b"connection: te\r\n");
    }
    match framing {
        UploadFraming::Chunked => head.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        UploadFraming::Known(length) => push_line(head, &header::CONTENT_LENGTH, &length.into()),
        UploadFraming::Declared(_) | UploadFraming::Empty => {}
    }
    head.extend_from_slice(b"\r\n");
}

/// Takes the head of a response from the beginning of `buffer`; `None` if it is not complete.
///
/// # Errors
/// Returns an error if the head is malformed, larger than [`MAX_BUFFER`], or has more than
/// [`MAX_FIELDS`] fields.
pub(super) fn parse(buffer: &mut BytesMut) -> Result<Option<Response<()>>, Http1Error> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    let length =
        match config.parse_response_with_uninit_headers(&mut parsed, buffer, &mut fields)? {
            Status::Complete(length) if length > MAX_BUFFER => {
                return Err(Http1Error::HeadTooLarge);
            }
            Status::Complete(length) => length,
            Status::Partial => return Ok(None),
        };
    let code = parsed.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).map_err(|_| httparse::Error::Status)?;
    let reason = parsed.reason.filter(|reason| Some(*reason) != status.canonical_reason());
    let reason = reason.map(|reason| ReasonPhrase::try_from(reason.as_bytes()));
    let reason = reason.transpose().map_err(|_| httparse::Error::Status)?;
    let version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let begin = buffer.as_ptr().addr();
    let mut lines = SmallVec::<[_; 16]>::new();
    for field in parsed.headers.iter() {
        let (name, value) = (field.name.as_bytes(), field.value);
        let [name_start, value_start] =
            [name, value].map(|part| part.as_ptr().addr().saturating_sub(begin));
        lines.push((name_start..name_start + name.len(), value_start..value_start + value.len()));
    }
    let text = buffer.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(lines.len());
    for (name, value) in &lines {
        let name = HeaderName::from_bytes(text.get(name.clone()).unwrap_or_default());
        // An empty value may have any address.
        let value = if value.is_empty() { Bytes::new() } else { text.slice(value.clone()) };
        let value = HeaderValue::from_maybe_shared(value);
        let name = name.map_err(|_| httparse::Error::HeaderName)?;
        headers.append(name, value.map_err(|_| httparse::Error::HeaderValue)?);
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    if let Some(reason) = reason {
        response.extensions_mut().insert(reason);
    }
    Ok(Some(response))
}

/// Whether the server keeps the connection open after this response (RFC 9112, section 9.3).
pub(super) fn keeps_alive<B>(response: &Response<B>) -> bool {
    let has = |option: &str| {
        let values = response.headers().get_all(header::CONNECTION).iter();
        let mut options =
            values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        options.any(|found| found.trim().eq_ignore_ascii_case(option))
    };
    if response.version() == Version::HTTP_11 {
        !has("close")
    } else {
        !has("close") && has("keep-alive")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Response<()>>, Http1Error> {
        parse(&mut BytesMut::from(text))
    }

    #[test]
    fn a_request_head_is_written_with_the_framing_of_its_body() {
        let request = || {
            let request = Request::post("/path?query").header("host", "a.example");
            request.header("content-length", "5").header("te", "trailers")
        };
        let head = |request: &Request<()>, framing| {
            let mut head = Vec::new();
            encode(request, None, framing, &mut head);
            String::from_utf8(head).unwrap()
        };
        assert_eq!(
            head(&request().body(()).unwrap(), UploadFraming::Declared(5)),
            "POST /path?query HTTP/1.1\r\nhost: a.example\r\ncontent-length: 5\r\nte: trailers\r\n\
             connection: te\r\n\r\n"
        );
        assert_eq!(
            head(&request().body(()).unwrap(), UploadFraming::Chunked),
            "POST /path?query HTTP/1.1\r\nhost: a.example\r\nte: trailers\r\nconnection: te\r\n\
             transfer-encoding: chunked\r\n\r\n"
        );
        let request =
            Request::options("*").header("transfer-encoding", "chunked").body(()).unwrap();
        assert_eq!(head(&request, UploadFraming::Empty), "OPTIONS * HTTP/1.1\r\n\r\n");
        let request = Request::put("/").body(()).unwrap();
        assert_eq!(
            head(&request, UploadFraming::Known(7)),
            "PUT / HTTP/1.1\r\ncontent-length: 7\r\n\r\n"
        );
    }

    #[test]
    fn a_response_head_is_taken_from_the_buffer_when_it_is_complete() {
        let text = "HTTP/1.1 200 Fine\r\nA: 1\r\nempty:\r\na: 2 \r\n\r\nrest";
        let head = text.len() - "rest".len();
        for end in 0..head {
            assert!(parsed(text.get(..end).unwrap()).unwrap().is_none(), "{end}");
        }
        let mut buffer = BytesMut::from(text);
        let response = parse(&mut buffer).unwrap().unwrap();
        assert_eq!(buffer, "rest");
        let values = response.headers().get_all("a").iter().collect::<Vec<_>>();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(values, ["1", "2"]);
        assert_eq!(response.headers()["empty"], "");
        assert_eq!(response.extensions().get::<ReasonPhrase>().unwrap().as_bytes(), b"Fine");
        assert_eq!(parsed("HTTP/1.1 200 OK\r\n\r\n").unwrap().unwrap().extensions().len(), 0);
    }

    #[test]
    fn a_malformed_response_head_is_an_error() {
        for text in [
            "HTTP/2 200 OK\r\n\r\n",
            "+OK redis\r\n",
            "HTTP/1.1 99 Low\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname : value\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname: a\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nname: \0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: value\r\n\r\n",
        ] {
            assert!(parsed(text).is_err(), "{text:?}");
        }
        let head = |padding| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "a".repeat(padding));
        let padding = MAX_BUFFER - head(0).len();
        assert!(parsed(&head(padding)).unwrap().is_some());
        assert!(matches!(parsed(&head(padding + 1)), Err(Http1Error::HeadTooLarge)));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        assert!(matches!(parsed(&many), Err(Http1Error::HeadTooLarge)));
        let most = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS));
        assert_eq!(parsed(&most).unwrap().unwrap().headers().len(), MAX_FIELDS);
    }

    #[test]
    fn a_connection_is_kept_as_version_and_connection_options_say() {
        for (text, keeps) in [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nConnection: x, close\r\nConnection: keep-alive\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", true),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive, close\r\n\r\n", false),
        ] {
            assert_eq!(keeps_alive(&parsed(text).unwrap().unwrap()), keeps, "{text:?}");
        }
    }
}
