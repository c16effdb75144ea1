//! Bytes in both directions: a TCP service, or a connection that has upgraded from HTTP. Each
//! direction closes independently (half-close).

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};

use super::open_connection::state::{Close, ConnectionState};

/// Size of the buffer of one direction, in bytes.
pub(crate) const BUFFER: usize = 16 << 10;

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    /// By an error, a timeout or an eviction.
    Aborted,
    /// Both sides closed it.
    Complete,
}

/// Carries bytes until both sides have closed, or the connection is aborted.
pub(crate) async fn carry<C, U>(
    client: &mut C,
    upstream: &mut U,
    state: &ConnectionState,
) -> TunnelEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut carried = pin!(copy_bidirectional_with_sizes(client, upstream, BUFFER, BUFFER));
    poll_fn(|context| {
        if let Some(Close::Abort) = state.take_close(context) {
            return Poll::Ready(TunnelEnd::Aborted);
        }
        carried.as_mut().poll(context).map(|outcome| match outcome {
            Ok(_) => TunnelEnd::Complete,
            Err(error) => {
                tracing::debug!(%error, "tunnel ended");
                TunnelEnd::Aborted
            }
        })
    })
    .await
}
