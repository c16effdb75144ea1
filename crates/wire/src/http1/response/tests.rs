use super::chunks::{MAX_EXTENSIONS, MAX_PADDING, MAX_TRAILER_FIELDS, MAX_TRAILERS};
use super::*;

fn decoder(mut head: Response<()>) -> Result<BodyDecoder, Http1Error> {
    BodyDecoder::new(&mut head, false)
}

fn chunked() -> BodyDecoder {
    BodyDecoder::Chunked(ChunkDecoder::default())
}

/// The data and the trailers of a body, and the bytes that follow it.
type DecodedBody = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

/// Decodes a body that comes in pieces of `size` bytes.
fn decoded(mut decoder: BodyDecoder, text: &[u8], size: usize) -> Result<DecodedBody, Http1Error> {
    let (mut data, mut buffer) = (Vec::new(), BytesMut::new());
    let mut pieces = text.chunks(size);
    loop {
        match decoder.decode(&mut buffer)? {
            BodyPiece::Data(bytes) => {
                assert!(!bytes.is_empty());
                data.extend(bytes);
            }
            BodyPiece::End => return Ok((data, None, buffer.to_vec())),
            BodyPiece::Trailers(fields) => {
                assert!(decoder.has_ended());
                return Ok((data, Some(fields), buffer.to_vec()));
            }
            BodyPiece::Incomplete => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => {
                    decoder.close()?;
                    assert!(decoder.has_ended());
                }
            },
        }
    }
}

#[test]
fn the_framing_of_a_response_is_that_of_its_head() {
    let head = |fields: &[(&'static str, &str)]| {
        let response = Response::builder();
        fields.iter().fold(response, |response, field| response.header(field.0, field.1))
    };
    let framing = |fields: &[(&'static str, &str)]| {
        decoder(head(fields).body(()).unwrap()).map(|decoder| match decoder {
            BodyDecoder::Chunked(_) => "chunked".to_owned(),
            BodyDecoder::Length(length) => length.to_string(),
            BodyDecoder::UntilClose { .. } => "close".to_owned(),
        })
    };
    let (length, coding) = ("content-length", "transfer-encoding");
    for (fields, expected) in [
        (&[][..], "close"),
        (&[(length, "5")], "5"),
        (&[(length, "5"), (length, "5, 5")], "5"),
        (&[(coding, "chunked"), (length, "5")], "chunked"),
        (&[(coding, "Chunked")], "chunked"),
    ] {
        assert_eq!(framing(fields).unwrap(), expected, "{fields:?}");
    }
    for value in ["gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "chunked,", ""] {
        assert!(framing(&[(coding, value)]).is_err(), "{value:?}");
    }
    for first in ["gzip", "chunked"] {
        assert!(framing(&[(coding, first), (coding, "chunked")]).is_err(), "{first}");
    }
    for value in ["", "+5", "-5", "5 5", "0x5", "5, 6", "5,", "9223372036854775808"] {
        assert!(framing(&[(length, value)]).is_err(), "{value:?}");
    }
    assert!(framing(&[(length, "5"), (length, "6")]).is_err());
    let old = head(&[(coding, "chunked")]).version(Version::HTTP_10).body(()).unwrap();
    assert!(decoder(old).is_err());
    for status in [204, 304] {
        let bodiless = head(&[(length, "5")]).status(status).body(()).unwrap();
        assert!(decoder(bodiless).unwrap().has_ended(), "{status}");
    }
    let mut response = head(&[(coding, "chunked")]).body(()).unwrap();
    assert!(BodyDecoder::new(&mut response, true).unwrap().has_ended(), "HEAD");
}

#[test]
fn chunks_are_decoded_in_pieces_of_any_size() {
    let text = b"4\r\nfour\r\nA ;extension=\"x\"\r\n0123456789\r\n00\r\nA: 1\r\nb:2\r\n\r\nnext";
    for size in 1..=text.len() {
        let (data, trailers, _) = decoded(chunked(), text, size).unwrap();
        assert_eq!(data, b"four0123456789");
        let trailers = trailers.unwrap();
        assert_eq!(
            (&trailers["a"], &trailers["b"]),
            (&"1".parse().unwrap(), &"2".parse().unwrap())
        );
    }
    for size in 1..=20 {
        let (data, trailers, rest) = decoded(chunked(), b"4\r\nfour\r\n0\r\n\r\n", size).unwrap();
        assert_eq!((data, trailers, rest), (b"four".to_vec(), None, Vec::new()), "{size}");
    }
}

#[test]
fn the_end_of_a_chunked_body_is_known_with_its_last_data() {
    let mut decoder = chunked();
    let mut buffer = BytesMut::from("4\r\nfour\r\n0\r\n\r\nnext");
    assert_eq!(decoder.decode(&mut buffer).unwrap(), BodyPiece::Data("four".into()));
    assert!(decoder.has_ended());
    assert_eq!(buffer, "next");
}

#[test]
fn malformed_chunks_are_an_error() {
    for text in [
        &b"\r\n"[..],
        b"x\r\n",
        b" 4\r\nfour\r\n",
        b"4\nfour\r\n0\r\n\r\n",
        b"4\r\rfour\r\n0\r\n\r\n",
        b"4 4\r\nfour\r\n",
        b"-4\r\nfour\r\n",
        b"0x4\r\nfour\r\n",
        b"4\r\nfour0\r\n\r\n",
        b"4\r\nfours\r\n0\r\n\r\n",
        b"4\r\nfour\n0\r\n\r\n",
        b"4;a\nb\r\nfour\r\n",
        b"10000000000000000\r\n",
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\na: 1\n\nb: 2\r\n\r\n",
        b"0\r\na: 1\n\r\n\r\n",
    ] {
        for size in [1, text.len()] {
            let outcome = decoded(chunked(), text, size);
            let shown = String::from_utf8_lossy(text);
            assert!(matches!(outcome, Err(Http1Error::Chunk(_))), "{shown:?}: {outcome:?}");
        }
    }
    let extensions = [&b"4;"[..], &[b'x'; MAX_EXTENSIONS + 1]].concat();
    assert!(matches!(decoded(chunked(), &extensions, 999), Err(Http1Error::Chunk(_))));
    let spaces = |count| [&b"4"[..], &vec![b' '; count], b"\r\nfour\r\n0\r\n\r\n"].concat();
    let zeros = |count| [&vec![b'0'; count], &b"4\r\nfour\r\n0\r\n\r\n"[..]].concat();
    for padded in [&spaces as &dyn Fn(usize) -> Vec<u8>, &zeros] {
        assert_eq!(decoded(chunked(), &padded(MAX_PADDING), 7).unwrap().0, b"four");
        let outcome = decoded(chunked(), &padded(MAX_PADDING + 1), 7);
        assert!(matches!(outcome, Err(Http1Error::Chunk(_))), "{outcome:?}");
    }
    let trailers = [&b"0\r\na: "[..], &[b'x'; MAX_TRAILERS]].concat();
    assert!(matches!(decoded(chunked(), &trailers, 999), Err(Http1Error::Chunk(_))));
    let many = ["0\r\n", &"a:b\r\n".repeat(MAX_TRAILER_FIELDS + 1), "\r\n"].concat();
    assert!(matches!(decoded(chunked(), many.as_bytes(), 999), Err(Http1Error::Chunk(_))));
}

#[test]
fn a_body_that_is_cut_short_is_an_error_unless_the_close_is_its_end() {
    let text = b"4\r\nfour\r\n0\r\n\r\n";
    for end in 0..text.len() {
        let outcome = decoded(chunked(), &text[..end], 3);
        assert!(matches!(outcome, Err(Http1Error::Closed)), "{end}: {outcome:?}");
    }
    assert!(matches!(decoded(BodyDecoder::Length(5), b"four", 3), Err(Http1Error::Closed)));
    let (data, _, rest) = decoded(BodyDecoder::Length(4), b"fours", 5).unwrap();
    assert_eq!((data, rest), (b"four".to_vec(), b"s".to_vec()));
    let until_close = BodyDecoder::UntilClose { has_closed: false };
    assert_eq!(decoded(until_close, b"four", 3).unwrap().0, b"four");
}

fn parsed(text: &str) -> Result<Option<Response<()>>, Http1Error> {
    parse(&mut BytesMut::from(text))
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
