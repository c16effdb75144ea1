//! A connection of HAProxy over a stream in memory. The clock is paused: a sleep moves it at once,
//! so that time limits are tested without waiting.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex, join};
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
        assertion: None,
        is_temporary: false,
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
    for length in [0, 20] {
        let (mut peer, serving) = connection(1 << 16);
        peer.write_all(&HELLO[..length]).await.unwrap();
        let end = timed_out(serving, PROGRESS_TIMEOUT).await;
        assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::TIMEOUT)), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_has_a_time_limit_however_slowly_its_bytes_arrive() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    let sending = async {
        for byte in NOTIFY {
            let _ = peer.write_all(&[*byte]).await; // keygate may have closed
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let since = Instant::now();
    let (_, end) = tokio::join!(sending, serving);
    let end = end.unwrap();
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::TIMEOUT)), "{end:?}");
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
async fn the_time_limit_of_a_frame_begins_with_its_first_byte() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (first, second) = NOTIFY.split_at(5);
    peer.write_all(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    peer.write_all(second).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!serving.is_finished());
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_the_idle_timeout() {
    let (mut peer, serving) = connection(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    let end = timed_out(serving, Duration::from_secs(60)).await;
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::NORMAL)), "{end:?}");
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
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::NORMAL)), "{end:?}");
    assert!(stream.reader().0 < 10, "{} questions", stream.reader().0);
}

#[tokio::test(start_paused = true)]
async fn a_draining_connection_without_a_question_is_closed_after_the_grace() {
    let (mut stream, mut peer) = duplex(1 << 16);
    peer.write_all(HELLO).await.unwrap();
    let drain = tokio::time::sleep(Duration::from_secs(30));
    let since = Instant::now();
    let Err(end) = admitting().serve(&mut stream, drain).await;
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::NORMAL)), "{end:?}");
    let expected = Duration::from_secs(30) + Frames::<Admitting>::DRAIN_GRACE;
    let late = since.elapsed().saturating_sub(expected);
    assert!(since.elapsed() >= expected && late < Duration::from_secs(1), "{late:?}");
}

/// A question that has begun is answered, although its rest comes after the grace.
#[tokio::test(start_paused = true)]
async fn a_draining_connection_answers_the_question_that_has_begun() {
    let (mut stream, mut peer) = duplex(1 << 16);
    let (first, second) = NOTIFY.split_at(5);
    let sending = async {
        peer.write_all(&[HELLO, NOTIFY, first].concat()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        peer.write_all(second).await.unwrap();
    };
    let mut connection = admitting();
    let drain = std::future::ready(());
    let (Err(end), ()) = tokio::join!(connection.serve(&mut stream, drain), sending);
    assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::NORMAL)), "{end:?}");
    assert_eq!(kinds(&connection.bytes.output), [kind::ACK], "beside DISCONNECT");
    drop(stream);
    let mut written = Vec::new();
    peer.read_to_end(&mut written).await.unwrap();
    assert_eq!(kinds(&written), [kind::AGENT_HELLO, kind::ACK]);
}

/// The types of the frames in `output`.
fn kinds(mut output: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let Some((length, rest)) = output.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
        kinds.push(rest[0]);
        output = &rest[length..];
    }
    kinds
}

/// The output after these bytes, and the end of the connection.
fn taken(
    mut connection: ByteConnection<Frames<Admitting>>,
    input: &[u8],
) -> (Vec<u8>, Result<ExchangeNeed, FramesEnd>) {
    connection.bytes.input.extend_from_slice(input);
    let need = connection.take();
    (connection.bytes.output, need)
}

#[test]
fn questions_wait_while_128_answers_or_32_kib_are_not_written() {
    fn long_status(question: &ClientQuestion<'_>) -> Answer {
        Answer { status: HeaderValue::from_str(&"s".repeat(1000)).unwrap(), ..admit(question) }
    }
    let input = [HELLO, &NOTIFY.repeat(1000)].concat();
    let (output, need) = taken(admitting(), &input);
    assert_eq!((kinds(&output).len(), need.unwrap()), (128, ExchangeNeed::Output));
    let frames = Frames::new(64 << 10, long_status as Admitting);
    let connection = ByteConnection::new(frames, BytesMut::new(), PROGRESS_TIMEOUT);
    let (output, need) = taken(connection, &input);
    assert_eq!(need.unwrap(), ExchangeNeed::Output);
    assert!((32 << 10..36 << 10).contains(&output.len()), "{}", output.len());
}

#[tokio::test]
async fn a_connection_with_many_questions_yields_to_others() {
    let input = [HELLO, &NOTIFY.repeat(1000)].concat();
    let mut stream = join(input.as_slice(), tokio::io::sink());
    let mut connection = admitting();
    let serving = std::pin::pin!(connection.serve(&mut stream, std::future::pending()));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(serving.poll(&mut context).is_pending(), "all questions in one poll");
}

#[test]
fn a_connection_begins_with_a_frame_of_type_hello() {
    for kind in [0, kind::NOTIFY, kind::AGENT_HELLO, kind::ACK, 77] {
        let mut hello = HELLO.to_vec();
        hello[LENGTH_FIELD] = kind;
        let (output, end) = taken(admitting(), &hello);
        let end = end.unwrap_err();
        assert!(
            matches!(end, FramesEnd::Disconnect(DisconnectReason::INVALID_FRAME)),
            "{kind}: {end:?}"
        );
        assert!(output.is_empty());
    }
}

/// A frame above the largest question is not read. Its header is.
#[test]
fn a_long_frame_that_no_client_can_provoke_ends_the_connection() {
    for (kind, flags, expected) in [
        (kind::NOTIFY, 1, None),
        (kind::NOTIFY, 0, Some(DisconnectReason::FRAGMENTED)),
        (kind::NOTIFY, 3, Some(DisconnectReason::FRAGMENTED)),
        (77, 1, Some(DisconnectReason::INVALID_FRAME)),
        (kind::HAPROXY_HELLO, 1, Some(DisconnectReason::INVALID_FRAME)),
    ] {
        let frames = Frames::new(1 << 10, admit as Admitting);
        let connection = ByteConnection::new(frames, BytesMut::new(), PROGRESS_TIMEOUT);
        let start = [&[0, 0, 0x30, 0, kind, 0, 0, 0, flags, 5, 1][..], &[0; 30]].concat();
        let (output, end) = taken(connection, &[HELLO, &start].concat());
        match (end, expected) {
            (Ok(need), None) => {
                assert_eq!(need, ExchangeNeed::Input);
                assert_eq!(kinds(&output), [kind::AGENT_HELLO, kind::ACK]);
            }
            (Err(FramesEnd::Disconnect(reason)), Some(expected)) => assert_eq!(reason, expected),
            (end, expected) => panic!("{end:?} instead of {expected:?}"),
        }
    }
}

/// HAProxy ends a connection with a frame above its own size, and all of its questions.
#[test]
fn an_answer_above_the_frame_size_of_haproxy_is_a_denial() {
    fn long_status(question: &ClientQuestion<'_>) -> Answer {
        Answer { status: HeaderValue::from_str(&"s".repeat(200)).unwrap(), ..admit(question) }
    }
    let request = b"\0\0\0\x18\x03\0\0\0\x01\x05\x01\x0fkeygate-request\0";
    let small = b"\0\0\0\x40\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\
        \x0emax-frame-size\x03\xf0\x01\x0ccapabilities\x08\x00";
    for (hello, is_admitted) in [(HELLO, true), (small.as_slice(), false)] {
        let frames = Frames::new(64 << 10, long_status as Admitting);
        let connection = ByteConnection::new(frames, BytesMut::new(), PROGRESS_TIMEOUT);
        let (output, need) = taken(connection, &[hello, request].concat());
        assert_eq!(need.unwrap(), ExchangeNeed::Input);
        assert_eq!(kinds(&output), [kind::AGENT_HELLO, kind::ACK]);
        let sets = |text: &[u8]| output.windows(text.len()).filter(|it| *it == text).count();
        assert_eq!(sets(b"\x06action\x08\x05admit"), usize::from(is_admitted));
        assert_eq!(sets(b"\x06action\x08\x06reject"), if is_admitted { 0 } else { 2 });
    }
}
