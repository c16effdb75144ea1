//! Streams around another stream, whose reads and writes they pass on.

/// Implements methods of `AsyncRead` and `AsyncWrite` by the same methods of another stream: of a
/// field, `forward_io!((io) poll_read)`, or of the variant that an enum is,
/// `forward_io!([Self::Tcp, Self::Unix] poll_write, poll_flush)`. A stream that implements
/// `poll_write_vectored` has `forward_io!(vectored poll_write)`.
#[macro_export]
macro_rules! forward_io {
    ($to:tt $($method:ident),+) => { $($crate::forward_io!(@$method $to);)+ };
    (@poll_write vectored) => {
        fn poll_write(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
            bytes: &[u8],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            self.poll_write_vectored(context, &[::std::io::IoSlice::new(bytes)])
        }
    };
    (@poll_read $to:tt) => {
        $crate::forward_io!(@method $to, poll_read(buffer: &mut ::tokio::io::ReadBuf<'_>) -> ());
    };
    (@poll_write $to:tt) => {
        $crate::forward_io!(@method $to, poll_write(bytes: &[u8]) -> usize);
    };
    (@poll_write_vectored $to:tt) => {
        $crate::forward_io!(
            @method $to,
            poll_write_vectored(slices: &[::std::io::IoSlice<'_>]) -> usize
        );
    };
    (@poll_flush $to:tt) => { $crate::forward_io!(@method $to, poll_flush() -> ()); };
    (@poll_shutdown $to:tt) => { $crate::forward_io!(@method $to, poll_shutdown() -> ()); };
    (@method $to:tt, $method:ident($($argument:ident: $type:ty)?) -> $result:ty) => {
        fn $method(
            self: ::std::pin::Pin<&mut Self>,
            context: &mut ::std::task::Context<'_>,
            $($argument: $type)?
        ) -> ::std::task::Poll<::std::io::Result<$result>> {
            $crate::forward_io!(@poll self $to, $method(context $(, $argument)?))
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
