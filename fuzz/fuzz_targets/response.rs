//! Any bytes as an HTTP/1.1 response of an upstream, in pieces of any size: an error, or a response
//! that does not depend on the pieces. Bytes that follow belong to the next response.

#![no_main]

use bytes::BytesMut;
use hyper::Response;
use keygate_wire::http1::response::{BodyDecoder, BodyPiece, parse};
use keygate_wire::incoming::Http1Error;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [size, is_head, bytes @ ..] = input else { return };
    let parsed = |bytes: &[u8], size| {
        let whole = response(bytes, size, is_head & 1 == 1).ok().flatten();
        whole.map(|(response, used)| {
            let (head, body) = response.into_parts();
            (head.status, head.headers, body, used)
        })
    };
    let at_once = parsed(bytes, usize::MAX);
    assert_eq!(parsed(bytes, usize::from(*size)), at_once);
    if let Some((_, _, _, used)) = &at_once {
        assert!(*used <= bytes.len());
        assert_eq!(parsed(&bytes[..*used], 1), at_once, "it ends where it says");
    }
});

/// Status, fields and body of the response in `bytes`, which arrive in pieces of `size` bytes, and
/// the number of bytes that were used; `None` if the response is not whole.
fn response(
    bytes: &[u8],
    size: usize,
    is_head: bool,
) -> Result<Option<(Response<Vec<u8>>, usize)>, Http1Error> {
    let (mut buffer, mut unread) = (BytesMut::new(), bytes.len());
    let (mut response, mut decoder) = (None, None);
    for piece in bytes.chunks(size.max(1)) {
        buffer.extend_from_slice(piece);
        unread -= piece.len();
        if response.is_none()
            && let Some(mut head) = parse(&mut buffer)?
        {
            decoder = Some(BodyDecoder::new(&mut head, is_head)?);
            response = Some(head.map(|()| Vec::new()));
        }
        let (Some(response), Some(decoder)) = (&mut response, &mut decoder) else { continue };
        loop {
            match decoder.decode(&mut buffer)? {
                BodyPiece::Data(data) => response.body_mut().extend_from_slice(&data),
                BodyPiece::End => {
                    let used = bytes.len() - unread - buffer.len();
                    return Ok(Some((std::mem::take(response), used)));
                }
                BodyPiece::Incomplete => break,
                BodyPiece::Trailers(trailers) => response.headers_mut().extend(trailers),
            }
        }
    }
    Ok(None)
}
