use std::io;

use hyper::body::Body;
use hyper::header;
use tokio::io::{AsyncWriteExt, duplex, join};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{LocalSet, yield_now};

use super::*;
use crate::upload::ClientFault;

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

trait TestIo: AsyncRead + AsyncWrite + Debug + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Debug + Unpin> TestIo for IO {}

/// A request body whose pieces come from a channel.
#[derive(Debug)]
struct TestBody {
    pieces: UnboundedReceiver<Bytes>,
    left: usize,
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = ClientFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientFault>>> {
        let piece = ready!(self.pieces.poll_recv(context));
        self.left -= piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(piece.map(Frame::data).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }
}

impl OutgoingBody for TestBody {
    fn write_fields(&self, _: &mut Vec<u8>) {}

    fn informational(&self) -> Option<InformationalSender> {
        None
    }
}

fn stream(io: impl TestIo + 'static) -> Http1Stream<Box<dyn TestIo>, (), TestBody> {
    Http1Stream::new(Box::new(io), ())
}

#[tokio::test]
async fn a_server_that_reads_no_more_of_an_upload_still_responds() {
    let local = LocalSet::new();
    local.run_until(reset_in_the_middle_of_a_response()).await;
}

async fn reset_in_the_middle_of_a_response() {
    let (client, pieces) = unbounded_channel();
    let request = Request::post("/").header(header::CONTENT_LENGTH, 5);
    let request = Box::new(request.body(TestBody { pieces, left: 5 }).unwrap());
    let (io, mut server) = duplex(1 << 10);
    let stream = Rc::new(RefCell::new(stream(io)));
    assert!(stream.borrow_mut().begin(request).unwrap().is_none());
    server.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 6\r\n\r\n").await.unwrap();
    let response = poll_fn(|context| stream.borrow_mut().poll_response(context)).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let (reader, mut response) = duplex(1 << 10);
    stream.borrow_mut().io = Box::new(join(reader, Reset));
    Http1Stream::continue_sending(&stream);
    client.send(Bytes::from_static(b"whole")).unwrap();
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
