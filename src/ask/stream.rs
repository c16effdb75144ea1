//! The stream of an asker: TCP with or without TLS, or a Unix socket.

use keygate_wire::forward_io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// The stream of an asker.
#[derive(Debug)]
pub(crate) enum AskStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl AsyncRead for AskStream {
    forward_io!([Self::Tcp, Self::Tls, Self::Unix] poll_read);
}

impl AsyncWrite for AskStream {
    forward_io!([Self::Tcp, Self::Tls, Self::Unix] poll_write, poll_write_vectored);
    forward_io!([Self::Tcp, Self::Tls, Self::Unix] is_write_vectored, poll_flush, poll_shutdown);
}
