//! The head of a request over HTTP/1: its fields, and how its connection goes on.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};

/// Maximum number of fields.
pub(super) const MAX_FIELDS: usize = 256;

/// Room for the fields of a request.
pub(super) type FieldBuffer<'b> = [MaybeUninit<Header<'b>>; MAX_FIELDS];

/// A head that is whole.
pub(super) struct RequestHead<'h, 'b> {
    pub(super) fields: &'h [Header<'b>],
    /// Number of bytes, with the empty line.
    pub(super) length: usize,
    pub(super) method: RequestMethod,
    pub(super) body: BodyLength,
    /// Whether the peer may send another request.
    pub(super) is_persistent: bool,
    /// Whether the peer speaks HTTP/1.0.
    pub(super) is_http10: bool,
}

/// The methods whose response has another form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestMethod {
    /// A successful response has neither length nor content, and ends HTTP on the connection.
    Connect,
    /// The response has no content.
    Head,
    Other,
}

/// The body that follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// Its end is not known, or the peer waits for 100 (Continue) before it sends it.
    Open,
    /// Number of bytes; 0 without a body.
    Sized(u64),
}

/// Parses the head at the beginning of `input`; `None` if it is not whole.
///
/// # Errors
/// Returns the reason if there is no such head, or if the end of its body is ambiguous.
pub(super) fn parse<'h, 'b>(
    input: &'b [u8],
    fields: &'h mut FieldBuffer<'b>,
) -> Result<Option<RequestHead<'h, 'b>>, &'static str> {
    let mut request = Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(input, fields) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(Error::TooManyHeaders) => return Err("the question has more than 256 header fields"),
        Err(Error::HeaderName | Error::HeaderValue | Error::NewLine) => {
            return Err("the question has an invalid header field");
        }
        Err(Error::Status | Error::Token | Error::Version) => {
            return Err("the question is not a request of HTTP/1");
        }
    };
    let (is_http10, method) = (request.version == Some(0), method(request.method));
    let fields: &[Header<'b>] = request.headers;
    Ok(Some(RequestHead {
        body: body(fields)?,
        is_persistent: is_persistent(fields, is_http10),
        fields,
        length,
        method,
        is_http10,
    }))
}

/// The length of the head at the beginning of `input`, and the length of its body if it is known;
/// `None` if the head is not whole. For fuzzing.
///
/// # Errors
/// Returns the reason if there is no such head, or if the end of its body is ambiguous.
pub fn lengths(input: &[u8]) -> Result<Option<(usize, Option<u64>)>, &'static str> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let head = parse(input, &mut fields)?;
    Ok(head.map(|head| match head.body {
        BodyLength::Open => (head.length, None),
        BodyLength::Sized(size) => (head.length, Some(size)),
    }))
}

fn method(method: Option<&str>) -> RequestMethod {
    match method {
        Some("CONNECT") => RequestMethod::Connect,
        Some("HEAD") => RequestMethod::Head,
        Some(_) | None => RequestMethod::Other,
    }
}

fn values<'a>(fields: &'a [Header<'_>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    let named = fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

/// The body by RFC 9112, section 6.3. A peer and keygate that disagree about its end would disagree
/// about which answer is for which client.
fn body(fields: &[Header<'_>]) -> Result<BodyLength, &'static str> {
    const AMBIGUOUS: &str = "the end of the question's body is ambiguous";
    let mut length = None;
    for value in values(fields, "content-length") {
        let digits =
            str::from_utf8(value).ok().filter(|it| it.bytes().all(|it| it.is_ascii_digit()));
        let value: u64 = digits.and_then(|digits| digits.parse().ok()).ok_or(AMBIGUOUS)?;
        if length.replace(value).is_some_and(|earlier| earlier != value) {
            return Err(AMBIGUOUS);
        }
    }
    let is_encoded = values(fields, "transfer-encoding").next().is_some();
    let is_expecting = values(fields, "expect").next().is_some();
    match length {
        Some(_) if is_encoded => Err(AMBIGUOUS),
        None if is_encoded => Ok(BodyLength::Open),
        Some(1..) if is_expecting => Ok(BodyLength::Open),
        Some(_) | None => Ok(BodyLength::Sized(length.unwrap_or(0))),
    }
}

fn is_persistent(fields: &[Header<'_>], is_http10: bool) -> bool {
    let has = |token: &str| {
        let mut options =
            values(fields, "connection").flat_map(|it| it.split(|&byte| byte == b','));
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    };
    if is_http10 { has("keep-alive") && !has("close") } else { !has("close") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Body, persistence and length of a whole head.
    fn parsed(head: &str) -> Result<Option<(BodyLength, bool, usize)>, &'static str> {
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let head = parse(head.as_bytes(), &mut fields)?;
        Ok(head.map(|head| (head.body, head.is_persistent, head.length)))
    }

    fn with(fields: &str) -> Result<Option<(BodyLength, bool, usize)>, &'static str> {
        parsed(&format!("GET / HTTP/1.1\r\n{fields}\r\n"))
    }

    #[test]
    fn every_prefix_of_a_head_is_incomplete() {
        let head = "PUT /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(parsed(head.get(..end).unwrap()), Ok(None), "{end}");
        }
        let whole = Some((BodyLength::Sized(3), true, head.len()));
        assert_eq!(parsed(&format!("{head}abcGET")), Ok(whole));
    }

    #[test]
    fn a_body_with_an_ambiguous_end_is_an_error() {
        for fields in [
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert!(with(fields).is_err(), "{fields}");
        }
        let body = |fields| with(fields).unwrap().unwrap().0;
        assert_eq!(body("Content-Length: 7\r\nContent-Length: 7\r\n"), BodyLength::Sized(7));
        assert_eq!(body("Transfer-Encoding: chunked\r\n"), BodyLength::Open);
        assert_eq!(body("Content-Length: 7\r\nExpect: 100-continue\r\n"), BodyLength::Open);
        assert_eq!(body("Expect: 100-continue\r\n"), BodyLength::Sized(0));
    }

    #[test]
    fn a_connection_is_persistent_as_its_version_has_it() {
        for (head, expected) in [
            ("GET / HTTP/1.1\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nConnection: upgrade, close\r\n\r\n", false),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true),
        ] {
            assert_eq!(parsed(head).unwrap().unwrap().1, expected, "{head}");
        }
    }

    #[test]
    fn what_hosts_should_never_send_is_an_error() {
        for head in [
            "\u{16}\u{3}\u{1}",
            "GET / HTTP/2.0\r\n\r\n",
            "GET /\r\n\r\n",
            "GET /\u{0} HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n",
            "GET / HTTP/1.1\r\nA : b\r\n\r\n",
            "GET / HTTP/1.1\r\nA: \u{1}\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        ] {
            assert!(parsed(head).is_err(), "{head:?}");
        }
        let many = "a: b\r\n".repeat(MAX_FIELDS + 1);
        assert!(with(&many).is_err());
        assert!(with(many.strip_prefix("a: b\r\n").unwrap()).is_ok());
    }
}
