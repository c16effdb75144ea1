//! A connection of HAProxy over a stream in memory, with the clock paused.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncWriteExt, DuplexStream, ReadBuf, duplex, join};
use tokio::time::Instant;

use super::*;

type Admitting = fn(&ClientQuestion<'_>) -> Answer;

/// HELLO of HAProxy, and a NOTIFY with one message that is not known.
const HELLO: &[u8] = b"\0\0\0\x41\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\
    \x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x00";
const NOTIFY: &[u8] = b"\0\0\0\x0a\x03\0\0\0\x01\x05\x01\x01m\0";

fn admit(_: &ClientQuestion<'_>) -> Answer {
    Answer {
        decision: Decision::Admit,
        verdict: VerdictKind::Clean,
        status: HeaderValue::from_static("clean"),
        reason: None,
        filter: None,
    }
}

/// A connection that admits every client.
fn admitting() -> ByteConnection<Frames<Admitting>> {
    let frames = Frames::new(64 << 10, admit as Admitting);
    ByteConnection::new(frames, BytesMut::new(), Duration::from_secs(60))
}

/// A connection over a stream that holds `size` bytes in each direction.
fn connection(size: usize) -> (DuplexStream, tokio::task::JoinHandle<FramesEnd>) {
    let (mut stream, peer) = duplex(size);
    let serving = tokio::spawn(async move {
        let Err(end) = admitting().serve(&mut stream, std::future::pending()).await;
        end
    });
    (peer, serving)
}

async fn timed_out(serving: tokio::task::JoinHandle<FramesEnd>, expected: Duration) -> FramesEnd {
    let since = Instant::now();
    let end = serving.await.unwrap();
    assert_eq!(since.elapsed().as_secs(), expected.as_secs());
    end
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_hello_gets_a_disconnect() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(&HELLO[..20]).await.unwrap();
    let end = timed_out(serving, PROGRESS_TIMEOUT).await;
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Timeout)), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_frame_has_a_time_limit_however_slowly_its_bytes_arrive() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    let sending = async {
        for byte in NOTIFY {
            let _ = peer.write_all(&[*byte]).await; // the door may have closed
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let since = Instant::now();
    let (_, end) = tokio::join!(sending, serving);
    let end = end.unwrap();
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Timeout)), "{end:?}");
    assert!(since.elapsed() < Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn frames_that_follow_each_other_have_no_common_time_limit() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    // Each write ends within a frame.
    let (first, second) = NOTIFY.split_at(5);
    peer.write_all(first).await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(4)).await;
        peer.write_all(&[second, first].concat()).await.unwrap();
    }
    assert!(!serving.is_finished());
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_the_idle_timeout() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    let end = timed_out(serving, Duration::from_secs(60)).await;
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Normal)), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_closed() {
    let (mut peer, serving) = connection(256);
    peer.write_all(HELLO).await.unwrap();
    let flood = async { while peer.write_all(NOTIFY).await.is_ok() {} };
    let (_, end) = tokio::join!(flood, timed_out(serving, PROGRESS_TIMEOUT));
    assert!(matches!(end, FramesEnd::Gone), "{end:?}");
}

#[tokio::test]
async fn the_buffer_of_a_long_frame_is_freed_after_it() {
    let (mut stream, mut peer) = duplex(1 << 16);
    let mut connection = admitting();
    connection.bytes.input.reserve(60 << 10);
    peer.write_all(HELLO).await.unwrap();
    connection.read(&mut stream).await.unwrap();
    let input = &connection.bytes.input;
    assert!(input.capacity() <= Frames::<Admitting>::KEPT_SIZE, "{}", input.capacity());
    assert_eq!(input, HELLO);
}

/// The answers to the frames of one read leave in one write.
#[tokio::test]
async fn answers_that_are_ready_together_are_written_together() {
    /// Counts the writes.
    #[derive(Default)]
    struct Counter(usize);

    impl AsyncWrite for Counter {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0 += 1;
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    let input = [HELLO, &NOTIFY.repeat(100)].concat();
    let mut stream = join(input.as_slice(), Counter::default());
    let Err(end) = admitting().serve(&mut stream, std::future::pending()).await;
    assert!(matches!(end, FramesEnd::Gone), "{end:?}");
    assert_eq!(stream.writer().0, 1);
}

/// A connection that always has a question to read.
#[tokio::test]
async fn a_busy_connection_is_drained() {
    /// HELLO, then a question for each read.
    struct Questions(usize);

    impl AsyncRead for Questions {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0 {
                0 => buffer.put_slice(HELLO),
                1..1000 => buffer.put_slice(NOTIFY),
                _ => {}
            }
            self.0 += 1;
            Poll::Ready(Ok(()))
        }
    }

    let mut stream = join(Questions(0), tokio::io::sink());
    let Err(end) = admitting().serve(&mut stream, std::future::ready(())).await;
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Normal)), "{end:?}");
    assert!(stream.reader().0 < 10, "{} questions", stream.reader().0);
}
