//! A stream that begins with bytes that were read before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward_io;

/// A stream whose first bytes have been read.
#[derive(Debug)]
pub struct Prefixed<IO> {
    prefix: Bytes,
    io: IO,
}

impl<IO> Prefixed<IO> {
    /// The stream that has `prefix`, and then the bytes of `io`.
    pub fn new(prefix: Bytes, io: IO) -> Self {
        Self { prefix, io }
    }

    /// The bytes of the prefix that no reader has taken, and the stream behind them.
    pub fn into_parts(self) -> (Bytes, IO) {
        (self.prefix, self.io)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Prefixed<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let count = self.prefix.len().min(buffer.remaining());
        buffer.put_slice(&self.prefix.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Prefixed<IO> {
    forward_io!((io) poll_write, poll_write_vectored, is_write_vectored, poll_flush, poll_shutdown);
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn the_prefix_comes_first_and_its_rest_can_be_taken() {
        let mut stream = Prefixed::new(Bytes::from_static(b"prefix"), &b" and more"[..]);
        let mut read = [0; 3];
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"pre");
        let (rest, io) = stream.into_parts();
        assert_eq!(rest, "fix");
        let mut all = String::new();
        Prefixed::new(rest, io).read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "fix and more");
    }
}
