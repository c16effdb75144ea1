//! Lingering close: reading what a peer still sends before its socket is closed.
//!
//! If a socket is closed with bytes unread, the kernel resets the connection, and the client loses
//! the alert or response that it was sent. nginx calls this `lingering_close`.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum time that a client is read after its response. The connection is closed then.
pub const LINGER_TIME: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are read and discarded. The connection is closed then.
pub const LINGER_BYTES: u64 = 64 << 20;

/// Shuts down the write side, discards what the client still sends, and closes the connection.
pub async fn close<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    let discarded = async {
        let _ = io.shutdown().await; // fails if the client has closed, which the next read detects
        tokio::io::copy(&mut (&mut io).take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    let _ = timeout(LINGER_TIME, discarded).await; // closed in either case
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn bytes_that_are_on_their_way_are_read_before_the_close() {
        let (server, mut client) = duplex(8);
        let closing = tokio::spawn(close(server));
        client.write_all(b"more than the buffer holds").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the server's end is closed");
        closing.await.unwrap();
    }
}
