use super::*;

#[test]
fn a_request_head_is_written_with_the_framing_of_its_body() {
    let request = || {
        let request = Request::post("/path?query").header("host", "a.example");
        request.header("content-length", "5").header("te", "trailers")
    };
    let head = |request: &Request<()>, framing: Option<UploadFraming>| {
        let mut head = Vec::new();
        encode(request, |_| {}, framing.as_ref(), &mut head);
        String::from_utf8(head).unwrap()
    };
    assert_eq!(
        head(&request().body(()).unwrap(), Some(UploadFraming::Bytes(5))),
        "POST /path?query HTTP/1.1\r\nhost: a.example\r\nte: trailers\r\nconnection: te\r\n\
         content-length: 5\r\n\r\n"
    );
    assert_eq!(
        head(&request().body(()).unwrap(), Some(UploadFraming::Chunks(Vec::new()))),
        "POST /path?query HTTP/1.1\r\nhost: a.example\r\nte: trailers\r\nconnection: te\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    let request = Request::options("*").header("transfer-encoding", "chunked").body(()).unwrap();
    assert_eq!(head(&request, None), "OPTIONS * HTTP/1.1\r\n\r\n");
    let request = Request::put("/").body(()).unwrap();
    assert_eq!(
        head(&request, Some(UploadFraming::Bytes(7))),
        "PUT / HTTP/1.1\r\ncontent-length: 7\r\n\r\n"
    );
}

#[test]
fn the_queue_is_full_by_its_bytes_or_by_its_pieces() {
    let mut queue = WriteQueue::default();
    queue.push(Bytes::from(vec![0; MAX_QUEUED - 1]));
    assert!(!queue.is_full());
    queue.push(Bytes::from_static(b"1"));
    assert!(queue.is_full());
    queue.advance(1);
    assert!(!queue.is_full());
    let mut queue = WriteQueue::default();
    for _ in 1..MAX_SLICES {
        queue.push(Bytes::from_static(b"1"));
        assert!(!queue.is_full());
    }
    queue.push(Bytes::from_static(b"1"));
    assert!(queue.is_full());
    queue.advance(2);
    assert!(!queue.is_full() && queue.queued == MAX_SLICES - 2);
}
