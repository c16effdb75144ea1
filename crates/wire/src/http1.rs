//! HTTP/1.1 with a server (RFC 9112): requests are written, and responses read, on one connection.

pub mod request;
pub mod response;
pub mod stream;

/// Maximum bytes that are read from a connection at once, and queued for it. A response whose head
/// is larger is a 502. Pieces of hyper's 400 KiB exceed the second-level cache: with them a
/// download over HTTP/2 took 650 µs of CPU for each MiB instead of 567.
pub const MAX_BUFFER: usize = 128 << 10;
