use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;

const KNOWN_LENGTH: &str = "Content-Length: 10";
const CHUNKED: &str = "Transfer-Encoding: chunked";

/// Sends the head of a POST to hyper. Returns the request's body, and the client that sends it.
async fn post(field: &str) -> (Incoming, DuplexStream) {
    let (server, mut client) = duplex(64 << 10);
    let (sender, mut bodies) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<Incoming>| {
        sender.send(request.into_body()).unwrap();
        pending::<Result<Response<String>, Infallible>>()
    });
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    let head = format!("POST / HTTP/1.1\r\nHost: a.example\r\n{field}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    (bodies.recv().await.unwrap(), client)
}

async fn upload(field: &str) -> (Upload<Incoming>, Incoming, DuplexStream) {
    let (body, client) = post(field).await;
    (Upload::new(&body, Instant::now()), body, client)
}

/// Waits for the end of the upload; `false` after a second.
async fn ends(upload: &Upload<Incoming>) -> bool {
    let end = poll_fn(|context| upload.poll_end(context));
    timeout(Duration::from_secs(1), end).await.is_ok()
}

/// Whether [`Upload::poll_end`] is pending; `woken` is set when the upload has ended.
fn is_pending(upload: &Upload<Incoming>, woken: &Arc<Woken>) -> bool {
    let waker = Waker::from(Arc::clone(woken));
    upload.poll_end(&mut Context::from_waker(&waker)).is_pending()
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

#[tokio::test]
async fn a_response_waits_for_an_upload_of_known_length_until_it_ends() {
    let (upload, _body, _client) = upload(KNOWN_LENGTH).await;
    let woken = Arc::default();
    assert!(upload.is_unfinished() && upload.is_awaited() && is_pending(&upload, &woken));
    upload.end();
    assert!(woken.get());
    assert!(!upload.is_unfinished() && !upload.is_awaited() && ends(&upload).await);
}

#[tokio::test]
async fn no_response_waits_for_a_chunked_upload_unless_it_is_discarded() {
    let (streamed, _body, _client) = upload(CHUNKED).await;
    assert!(streamed.is_unfinished() && !streamed.is_awaited());
    streamed.fail(ClientFault::TooLarge);
    assert!(streamed.is_unfinished() && streamed.is_awaited());

    let (rejected, body, _client) = upload(CHUNKED).await;
    rejected.reject(body);
    assert!(rejected.is_awaited() && !rejected.has_unread_of_known_length());
}

#[tokio::test]
async fn the_rest_that_the_server_leaves_is_read_to_its_end() {
    let (upload, body, mut client) = upload(KNOWN_LENGTH).await;
    let woken = Arc::default();
    client.write_all(b"first").await.unwrap();
    assert!(is_pending(&upload, &woken) && !upload.has_unread_of_known_length());
    upload.stop(body);
    assert!(woken.get(), "the response can begin to discard the rest");
    assert!(upload.has_unread_of_known_length() && upload.is_awaited());
    assert!(is_pending(&upload, &woken));
    client.write_all(b" last").await.unwrap();
    assert!(ends(&upload).await);
    assert!(!upload.is_unfinished());
    assert_eq!(upload.bytes(), 0, "nothing went to the server");
}

#[tokio::test]
async fn a_broken_or_stalled_body_ends_its_upload() {
    for fault in [ClientFault::Broken, ClientFault::Stalled] {
        let (upload, body, _client) = upload(KNOWN_LENGTH).await;
        let woken = Arc::default();
        assert!(is_pending(&upload, &woken));
        upload.fail(fault);
        assert!(woken.get());
        upload.stop(body);
        assert_eq!(upload.fault(), Some(fault));
        assert!(!upload.is_unfinished() && !upload.is_awaited() && ends(&upload).await);
    }
}

#[tokio::test]
async fn at_most_the_linger_bytes_are_discarded() {
    let (upload, body, mut client) = upload("Content-Length: 1000000000").await;
    let sending = tokio::spawn(async move {
        let piece = vec![0; 64 << 10];
        let mut count = 0;
        while timeout(Duration::from_secs(1), client.write_all(&piece)).await.is_ok() {
            count += piece.len() as u64;
        }
        count
    });
    upload.stop(body);
    poll_fn(|context| upload.poll_end(context)).await;
    assert!(!upload.is_awaited(), "enough was discarded");
    assert!(upload.is_unfinished(), "the connection needs a lingering close");
    let sent = sending.await.unwrap();
    assert!((LINGER_BYTES..LINGER_BYTES + (1 << 20)).contains(&sent), "{sent} bytes");
}

#[tokio::test]
async fn a_malformed_rest_is_not_awaited_and_leaves_the_upload_unfinished() {
    let (upload, body, mut client) = upload(CHUNKED).await;
    upload.reject(body);
    client.write_all(b"no chunk\r\n").await.unwrap();
    assert!(ends(&upload).await);
    assert!(!upload.is_awaited() && upload.is_unfinished());
}

#[tokio::test]
async fn an_abandoned_upload_wakes_its_reader_and_keeps_no_rest() {
    let (upload, body, _client) = upload(KNOWN_LENGTH).await;
    let woken: Arc<Woken> = Arc::default();
    let waker = Waker::from(Arc::clone(&woken));
    upload.wait_for_client(&Context::from_waker(&waker));
    upload.abandon();
    assert!(woken.get() && upload.is_abandoned());
    upload.stop(body);
    upload.end();
    assert!(upload.is_abandoned() && !upload.has_unread_of_known_length());
    assert!(!upload.is_unfinished() && !upload.is_awaited() && ends(&upload).await);
}

#[tokio::test]
async fn an_upload_waits_for_its_client_until_a_piece_arrives_or_the_server_stops() {
    let (upload, body, _client) = upload(KNOWN_LENGTH).await;
    let began = upload.last_progress();
    assert!(!upload.waits_for_client());
    upload.wait_for_client(&Context::from_waker(Waker::noop()));
    assert!(upload.waits_for_client());
    upload.record_progress();
    assert!(!upload.waits_for_client() && upload.last_progress() > began);
    upload.wait_for_client(&Context::from_waker(Waker::noop()));
    upload.stop(body);
    assert!(!upload.waits_for_client(), "the server reads no more");
}
