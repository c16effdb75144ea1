use std::convert::Infallible;
use std::future::poll_fn;
use std::iter::repeat_n;

use hyper::HeaderMap;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{LocalSet, spawn_local, unconstrained};

use super::*;

/// The chunks of a client, which another task passes on.
struct Chunks(Receiver<Frame<Bytes>>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

/// A body, and its chunks on the way. The channel has room for `ready` of them.
fn body(ready: usize) -> (Sender<Frame<Bytes>>, Chunks) {
    let (chunk, received) = channel(ready);
    (chunk, Chunks(received))
}

fn data(length: usize) -> Frame<Bytes> {
    Frame::data(vec![b'x'; length].into())
}

async fn next(pieces: &mut JoinedPieces<Infallible>, body: &mut Chunks) -> Option<Frame<Bytes>> {
    // Channels of tokio are otherwise pending after 128 messages.
    let frame = unconstrained(poll_fn(|context| pieces.poll_frame(body, context))).await;
    frame.map(|frame| frame.unwrap())
}

/// The lengths of the pieces of a body. Trailers are a piece without a length.
async fn lengths(mut body: Chunks) -> Vec<Option<usize>> {
    let (mut pieces, mut lengths) = (JoinedPieces::default(), Vec::new());
    while let Some(frame) = next(&mut pieces, &mut body).await {
        lengths.push(frame.data_ref().map(Bytes::len));
    }
    lengths
}

#[tokio::test]
async fn short_pieces_that_have_arrived_are_joined_up_to_a_maximum() {
    let (chunks, body) = body(10_000);
    let long = LONG - 1;
    let sent = repeat_n(1, 8000).chain([long, LONG, 3, 4, 0, long]).chain([long; 7]);
    for length in sent {
        chunks.try_send(data(length)).unwrap();
    }
    chunks.try_send(Frame::trailers(HeaderMap::new())).unwrap();
    drop(chunks);
    let full = MAX_JOINED - LONG + 1;
    let rest = 8000 - full + long;
    let last = 7 + 8 * long;
    let joined = [full, rest, LONG, last].map(Some);
    assert_eq!(lengths(body).await, [&joined[..], &[None]].concat());
    assert!([full, rest, last].iter().all(|length| *length <= MAX_JOINED));
}

#[tokio::test]
async fn chunks_that_another_task_passes_on_one_by_one_are_joined() {
    let (chunks, body) = body(1);
    let chunks = async move {
        for _ in 0..10_000 {
            chunks.send(data(1)).await.unwrap();
        }
    };
    let local = LocalSet::new();
    let pieces = local.run_until(async {
        spawn_local(chunks);
        lengths(body).await
    });
    let pieces = pieces.await;
    let count: usize = pieces.iter().copied().flatten().sum();
    assert_eq!(count, 10_000);
    assert!(pieces.len() <= usize::from(FREE_PIECES) + 3, "{pieces:?}");
}

#[tokio::test]
async fn a_piece_does_not_wait_for_more_data_and_is_no_copy() {
    let (chunks, mut body) = body(1);
    let mut pieces = JoinedPieces::default();
    // More than pass without a turn of other tasks.
    for length in repeat_n(1, usize::from(FREE_PIECES) * 3).chain([LONG, 2 * MAX_JOINED]) {
        let sent = vec![b'x'; length];
        let place = sent.as_ptr();
        chunks.try_send(Frame::data(sent.into())).unwrap();
        let piece = next(&mut pieces, &mut body).await.unwrap().into_data().unwrap();
        assert_eq!((piece.len(), piece.as_ptr()), (length, place));
        assert!(!pieces.is_end_stream(&body));
    }
    drop(chunks);
    assert!(next(&mut pieces, &mut body).await.is_none());
}

#[tokio::test]
async fn the_end_of_a_body_is_known_with_its_last_piece() {
    let (chunks, mut body) = body(3);
    let mut pieces = JoinedPieces::default();
    for length in [1, 2] {
        chunks.try_send(data(length)).unwrap();
    }
    drop(chunks);
    let piece = next(&mut pieces, &mut body).await.unwrap().into_data().unwrap();
    assert_eq!(piece.len(), 3);
    assert!(pieces.is_end_stream(&body));
}
