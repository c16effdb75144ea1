//! Streams around another stream, whose reads and writes they pass on.

/// Implements methods of `AsyncRead` and `AsyncWrite` by the same methods of another stream: of a
/// field, `forward_io!((io) poll_read)`, or of the variant that an enum is,
/// `forward_io!([Self::Tcp, Self::Unix] poll_write, poll_flush)`.
#[macro_export]
macro_rules! forward_io {
    ($to:tt $($method:ident),+) => { $($crate::forward_io!(@$method $to);)+ };
    (@poll_read $to:tt) => {
        fn poll_read(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
            buffer: &mut ::tokio::io::ReadBuf<'_>,
        ) -> ::std::task::Poll<::std::io::Result<()>> {
            $crate::forward_io!(@poll self $to, poll_read(context, buffer))
        }
    };
    (@poll_write $to:tt) => {
        fn poll_write(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
            bytes: &[u8],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            $crate::forward_io!(@poll self $to, poll_write(context, bytes))
        }
    };
    (@poll_write_vectored $to:tt) => {
        fn poll_write_vectored(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
            slices: &[::std::io::IoSlice<'_>],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            $crate::forward_io!(@poll self $to, poll_write_vectored(context, slices))
        }
    };
    (@poll_flush $to:tt) => {
        fn poll_flush(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<::std::io::Result<()>> {
            $crate::forward_io!(@poll self $to, poll_flush(context))
        }
    };
    (@poll_shutdown $to:tt) => {
        fn poll_shutdown(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<::std::io::Result<()>> {
            $crate::forward_io!(@poll self $to, poll_shutdown(context))
        }
    };
    (@is_write_vectored ($field:ident)) => {
        fn is_write_vectored(&self) -> bool {
            self.$field.is_write_vectored()
        }
    };
    (@is_write_vectored [$($variant:path),+]) => {
        fn is_write_vectored(&self) -> bool {
            match self {
                $($variant(stream) => stream.is_write_vectored(),)+
            }
        }
    };
    (@poll $self:ident ($field:ident), $method:ident $arguments:tt) => {
        ::std::pin::Pin::new(&mut $self.get_mut().$field).$method $arguments
    };
    (@poll $self:ident [$($variant:path),+], $method:ident $arguments:tt) => {
        match $self.get_mut() {
            $($variant(stream) => ::std::pin::Pin::new(stream).$method $arguments,)+
        }
    };
}
