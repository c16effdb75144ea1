use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use hyper::header::{HeaderName, HeaderValue};
use keygate_core::guard::{Decision, VerdictKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf, duplex};
use tokio::time::advance;

use super::*;
use crate::ask::check_another_key;
use crate::ask::question::Answer;

const LIMITS: AuthorizerLimits = AuthorizerLimits {
    max_connections: 1,
    max_streams: 1,
    max_question_size: 8 << 10,
    idle_timeout: Duration::from_secs(600),
};

fn admission() -> HttpAnswer {
    let answer = Answer {
        decision: Decision::Admit,
        verdict: VerdictKind::Clean,
        status: HeaderValue::from_static("clean"),
        reason: None,
        filter: None,
        assertion: None,
        is_temporary: false,
    };
    HttpAnswer::new(answer, &HeaderName::from_static("client-key-status"), None, Duration::ZERO)
}

/// The responses to `request`, which was read after the drain of its connection had begun.
async fn drained(request: &str) -> String {
    let (stream, mut peer) = duplex(64 << 10);
    let mut responses = String::new();
    let serving = serve(stream, request.into(), LIMITS, false, |_| admission(), ready(()));
    let reading = async {
        peer.read_to_string(&mut responses).await.unwrap();
        drop(peer);
    };
    tokio::join!(serving, reading);
    responses
}

#[tokio::test]
async fn the_response_of_a_draining_connection_to_its_last_request_closes_it() {
    const CLOSE: &str = "connection: close";
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
        "GET / HTTP/1.1\r\nContent-Length: 4\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbo",
    ] {
        let response = drained(request).await.to_ascii_lowercase();
        assert!(response.contains(CLOSE), "{request}: {response}");
    }
    let both = "GET / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\n\r\n";
    let responses = drained(both).await.to_ascii_lowercase();
    assert_eq!(responses.matches("http/1.1 200").count(), 2, "{responses}");
    assert_eq!(responses.matches(CLOSE).count(), 1, "{responses}");
    assert!(responses.rsplit("http/1.1 200").next().unwrap().contains(CLOSE), "{responses}");
}

#[tokio::test]
async fn a_connection_that_begins_with_http2_is_returned_with_its_bytes() {
    let (stream, mut peer) = duplex(64);
    let answer = |_: Result<HttpRequest<'_>, Unusable>| -> HttpAnswer { unreachable!() };
    let serving = serve(stream, BytesMut::new(), LIMITS, false, answer, pending());
    let writing = async {
        for byte in PREFACE {
            peer.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let (returned, ()) = tokio::join!(serving, writing);
    assert_eq!(returned.unwrap().1, PREFACE);
}

/// A peer that has always sent more, whole requests and the beginning of another.
struct Flood {
    sent: usize,
    end: usize,
}

/// One request. A read has fewer than are answered before a yield.
const FLOODED: &[u8] = b"GET / HTTP/1.1\r\nHost: keygate\r\nX-Padding: \
    ........................................................................................\
    ........................................................................................\
    \r\n\r\n";

impl Flood {
    fn of(requests: usize) -> Self {
        Self { sent: 0, end: requests * FLOODED.len() }
    }
}

impl AsyncRead for Flood {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = buffer.remaining().min(self.end - self.sent);
        let bytes: Vec<u8> =
            FLOODED.iter().copied().cycle().skip(self.sent % FLOODED.len()).take(count).collect();
        buffer.put_slice(&bytes);
        self.sent += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The maximum number of `count` requests that are answered without yielding.
async fn answered_at_once(count: usize, check: impl Fn()) -> usize {
    let answered = Cell::new(0);
    let answer = |_: Result<HttpRequest<'_>, Unusable>| {
        check();
        answered.set(answered.get() + 1);
        admission()
    };
    let serving = serve(Flood::of(count), BytesMut::new(), LIMITS, false, answer, pending());
    let mut serving = pin!(serving);
    let mut most = 0;
    loop {
        let before = answered.get();
        let polled = poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await;
        most = most.max(answered.get() - before);
        if polled.is_ready() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(answered.get(), count);
    most
}

#[tokio::test]
async fn a_busy_connection_yields_to_others() {
    let most = answered_at_once(10_000, || ()).await;
    assert!(most < 512, "{most}");
}

#[tokio::test]
async fn a_busy_connection_yields_after_the_check_of_a_new_key() {
    assert_eq!(answered_at_once(100, check_another_key).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_a_connection_on_which_there_is_always_something_to_read() {
    let answered = Cell::new(0);
    let answer = |_: Result<HttpRequest<'_>, Unusable>| {
        answered.set(answered.get() + 1);
        admission()
    };
    let serving = serve(Flood::of(100_000), BytesMut::new(), LIMITS, false, answer, ready(()));
    let clock = async {
        loop {
            advance(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        _ = serving => {}
        () = clock => {}
    }
    assert!((1..50_000).contains(&answered.get()), "{}", answered.get());
}

/// A question of a CA: its head, and its body.
const QUESTION: (&str, &str) = ("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n", "0123456789");

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_is_never_answered() {
    for sent in ["POST / HTTP/1.1\r\nCont", QUESTION.0, &[QUESTION.0, "01234"].concat()] {
        let (stream, mut peer) = duplex(64 << 10);
        let answer = |_: Result<HttpRequest<'_>, Unusable>| -> HttpAnswer { unreachable!() };
        let serving = serve(stream, BytesMut::new(), LIMITS, true, answer, pending());
        let began = tokio::time::Instant::now();
        let asking = async {
            peer.write_all(sent.as_bytes()).await.unwrap();
            let mut response = Vec::new();
            peer.read_to_end(&mut response).await.unwrap();
            assert_eq!(response, b"", "{sent}");
            assert_eq!(began.elapsed(), Duration::from_secs(10), "{sent}");
            drop(peer);
        };
        tokio::join!(serving, asking);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_arrives_byte_by_byte_is_one_question() {
    let (stream, mut peer) = duplex(64 << 10);
    let bodies = std::cell::RefCell::new(Vec::new());
    let answer = |request: Result<HttpRequest<'_>, Unusable>| {
        bodies.borrow_mut().push(request.unwrap().body.to_vec());
        admission()
    };
    let serving = serve(stream, BytesMut::new(), LIMITS, true, answer, pending());
    let asking = async {
        let question = [QUESTION.0, QUESTION.1].concat();
        for byte in question.repeat(2).bytes() {
            peer.write_all(&[byte]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut responses = vec![0; 4096];
        let length = peer.read(&mut responses).await.unwrap();
        let responses = String::from_utf8_lossy(&responses[..length]).into_owned();
        assert_eq!(responses.matches("HTTP/1.1 200").count(), 2, "{responses}");
        drop(peer);
    };
    tokio::join!(serving, asking);
    assert_eq!(*bodies.borrow(), [b"0123456789", b"0123456789"]);
}

#[tokio::test]
async fn a_body_whose_length_is_not_usable_is_a_denied_question() {
    for (fields, reason) in [
        ("Transfer-Encoding: chunked", OPEN_BODY),
        ("Content-Length: 4\r\nExpect: 100-continue", OPEN_BODY),
        ("Content-Length: 8193", Unusable::Oversize),
        ("Content-Length: 18446744073709551615", Unusable::Oversize),
    ] {
        let (stream, mut peer) = duplex(64 << 10);
        let found = Cell::new(None);
        let answer = |request: Result<HttpRequest<'_>, Unusable>| {
            found.set(request.err());
            admission()
        };
        let input = format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n");
        let serving = serve(stream, (&*input).into(), LIMITS, true, answer, pending());
        let reading = async {
            let mut response = String::new();
            peer.read_to_string(&mut response).await.unwrap();
            drop(peer);
            assert!(response.contains("connection: close"), "{response}");
        };
        tokio::join!(serving, reading);
        assert_eq!(found.get(), Some(reason), "{fields}");
    }
}
