use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{Request, header};
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, Join, duplex, join};
use tokio::task::{LocalSet, yield_now};

use super::*;
use crate::proxy::message::body::{BodyLimits, RequestBody, RequestUpload};
use crate::proxy::message::incoming::Incoming;
use crate::proxy::message::upload::tests::post;
use crate::proxy::upstream::dial::ConnectionLimit;

/// The write side of a connection that the server has reset.
#[derive(Debug)]
struct Reset;

impl AsyncWrite for Reset {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl<R, W> Io for Join<R, W>
where
    R: AsyncRead + std::fmt::Debug + Unpin,
    W: AsyncWrite + std::fmt::Debug + Unpin,
{
}

fn stream(io: impl Io + 'static) -> Http1Stream {
    let metric = IntGauge::new("name", "help").unwrap();
    Http1Stream::new(
        Box::new(io),
        ConnectionLimit::new(1).enter(&metric, &Arc::default(), None).unwrap(),
    )
}

/// A request with a body, and the client that sends the body.
async fn upload() -> (OutgoingRequest, DuplexStream) {
    let (incoming, client) = post("Content-Length: 5").await;
    let incoming = Incoming::Http1(incoming);
    let upload = RequestUpload::new(&incoming, Instant::now());
    let limits = BodyLimits { max_size: None, idle_timeout: Duration::from_secs(60) };
    let status_header = Rc::new(header::FORWARDED);
    let body = RequestBody::new(incoming, Some(upload), limits, status_header, None, false);
    (Box::new(Request::post("/").header(header::CONTENT_LENGTH, 5).body(body).unwrap()), client)
}

#[tokio::test]
async fn a_server_that_reads_no_more_of_an_upload_still_responds() {
    let local = LocalSet::new();
    local.run_until(reset_in_the_middle_of_a_response()).await;
}

async fn reset_in_the_middle_of_a_response() {
    let (request, mut client) = upload().await;
    let (io, mut server) = duplex(1 << 10);
    let stream = Rc::new(RefCell::new(stream(io)));
    assert!(stream.borrow_mut().begin(request).unwrap().is_none());
    server.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 6\r\n\r\n").await.unwrap();
    let response = poll_fn(|context| stream.borrow_mut().poll_response(context)).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let (reader, mut response) = duplex(1 << 10);
    stream.borrow_mut().io = Box::new(join(reader, Reset));
    Http1Stream::continue_sending(&stream);
    client.write_all(b"whole").await.unwrap();
    while stream.borrow().is_sending() {
        yield_now().await;
    }
    response.write_all(b"large\n").await.unwrap();
    let piece = poll_fn(|context| stream.borrow_mut().poll_frame(context)).await;
    assert_eq!(piece.unwrap().unwrap().into_data().unwrap(), "large\n");
    let stream = stream.borrow();
    assert!(stream.has_ended() && !stream.may_be_reused());
}

#[tokio::test]
async fn informational_responses_leave_time_for_timeouts() {
    let (mut server_bytes, heads) = (Vec::new(), 10_000);
    for _ in 0..heads {
        server_bytes.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\n\r\n");
    }
    server_bytes.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
    // A slice is always ready, as is a server that sends faster than keygate reads.
    let io = join(io::Cursor::new(server_bytes), tokio::io::sink());
    let mut stream = stream(io);
    stream.reading = Reading::Head;
    let mut polls = 0;
    let response = poll_fn(|context| {
        polls += 1;
        stream.poll_response(context)
    });
    assert_eq!(response.await.unwrap().status(), StatusCode::NO_CONTENT);
    assert!(polls > 3, "{polls}");
}
