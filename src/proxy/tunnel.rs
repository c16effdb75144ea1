//! Bytes in both directions, as they come: what a TCP service does, and a connection that has left
//! HTTP. Each direction ends on its own (half-close).

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncWrite};

use super::activity::{Activity, Order};

/// Bytes that are on their way in one direction.
pub(super) const BUFFER: usize = 16 << 10;

/// Carries bytes until both sides have ended, or the connection is told to stop. Returns whether it
/// came to its end.
pub(super) async fn carry<C, U>(client: &mut C, upstream: &mut U, activity: &Activity) -> bool
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let carried = tokio::io::copy_bidirectional_with_sizes(client, upstream, BUFFER, BUFFER);
    let mut carried = pin!(carried);
    poll_fn(|context| {
        if let Some(Order::Cut) = activity.take_order(context) {
            return Poll::Ready(false);
        }
        carried.as_mut().poll(context).map(|outcome| {
            outcome.inspect_err(|error| tracing::debug!(%error, "tunnel ended")).is_ok()
        })
    })
    .await
}
