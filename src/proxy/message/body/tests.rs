use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use hyper::header;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;

const LIMITS: BodyLimits =
    BodyLimits { max_size: Some(10), idle_timeout: Duration::from_millis(20) };

/// Sends the head of a POST to hyper. Returns the request's body, and the client that sends it.
async fn post(field: &str) -> (hyper::body::Incoming, DuplexStream) {
    let (server, mut client) = duplex(64 << 10);
    let (sender, mut bodies) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        sender.send(request.into_body()).unwrap();
        pending::<Result<hyper::Response<String>, Infallible>>()
    });
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    let head = format!("POST / HTTP/1.1\r\nHost: a.example\r\n{field}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    (bodies.recv().await.unwrap(), client)
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Woken {
    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn body(field: &str) -> (RequestBody, RequestUpload, DuplexStream) {
    let (incoming, client) = post(field).await;
    let incoming = Incoming::Http1(incoming);
    let upload = RequestUpload::new(&incoming, Instant::now());
    let own = Rc::new(OwnNames { status: header::FORWARDED, assertion: None });
    let body = RequestBody::new(incoming, Some(upload.clone()), LIMITS, own, None, false);
    (body, upload, client)
}

async fn next(body: &mut RequestBody) -> Option<Result<Bytes, ClientFault>> {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
    frame.map(|frame| frame.map(|frame| frame.into_data().unwrap()))
}

#[tokio::test]
async fn a_body_that_is_read_to_its_end_ends_its_upload() {
    let (mut body, upload, mut client) = body("Content-Length: 5").await;
    client.write_all(b"whole").await.unwrap();
    assert_eq!(next(&mut body).await, Some(Ok(Bytes::from("whole"))));
    assert!(!upload.is_unfinished(), "hyper does not read the end of a body of known length");
    assert_eq!(upload.bytes(), 5);
    drop(body);
    assert!(!upload.has_unread_of_known_length());
}

#[tokio::test]
async fn a_body_above_the_maximum_size_leaves_its_rest_to_be_discarded() {
    let (mut body, upload, mut client) = body("Content-Length: 20").await;
    client.write_all(b"a dozen bytes").await.unwrap();
    assert_eq!(next(&mut body).await, Some(Err(ClientFault::TooLarge)));
    assert_eq!(upload.fault(), Some(ClientFault::TooLarge));
    assert_eq!(upload.bytes(), 0);
    drop(body);
    assert!(upload.has_unread_of_known_length() && upload.is_awaited());
}

#[tokio::test]
async fn a_body_is_kept_until_its_second_request_is_dropped() {
    for is_dropped in [false, true] {
        let (mut body, _upload, mut client) = body("Content-Length: 10").await;
        let (_, mut kept) = body.second();
        client.write_all(b"first").await.unwrap();
        let piece = next(&mut body).await.unwrap().unwrap();
        assert_eq!(piece, "first");
        if is_dropped {
            kept = None;
        }
        let Some(Incoming::Kept(incoming)) = &body.incoming else { panic!("{body:?}") };
        assert_eq!(incoming.rewind(), !is_dropped);
        if kept.is_some() {
            // A copy holds no buffer that the piece was read into.
            let again = next(&mut body).await.unwrap().unwrap();
            assert_eq!(again, piece);
            assert_ne!(again.as_ptr(), piece.as_ptr());
        }
    }
}

#[tokio::test]
async fn a_client_that_sends_nothing_has_stalled() {
    let (mut body, upload, _client) = body("Content-Length: 5").await;
    assert_eq!(next(&mut body).await, Some(Err(ClientFault::Stalled)));
    assert_eq!(upload.fault(), Some(ClientFault::Stalled));
    assert!(!upload.is_unfinished());
}

#[tokio::test]
async fn a_client_that_goes_away_breaks_its_body() {
    let (mut body, upload, mut client) = body("Content-Length: 5").await;
    client.write_all(b"half").await.unwrap();
    drop(client);
    assert_eq!(next(&mut body).await, Some(Ok(Bytes::from("half"))));
    assert_eq!(next(&mut body).await, Some(Err(ClientFault::Broken)));
    assert_eq!(upload.fault(), Some(ClientFault::Broken));
}

#[tokio::test]
async fn an_abandoned_body_wakes_its_reader_and_breaks_off() {
    let (mut body, upload, _client) = body("Content-Length: 5").await;
    let woken: Arc<Woken> = Arc::default();
    let waker = Waker::from(Arc::clone(&woken));
    let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker));
    assert!(polled.is_pending() && upload.waits_for_client());
    upload.abandon();
    assert!(woken.get());
    assert_eq!(next(&mut body).await, Some(Err(ClientFault::Broken)));
    assert_eq!(upload.fault(), None, "the response is out, so the client is not at fault");
}
