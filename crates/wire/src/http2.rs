//! HTTP/2 on top of h2: streams that carry a body or bytes, the shares of a connection's window, the
//! frames that h2 reports nothing of, and the sizes of request heads.

pub mod client_frames;
pub mod duplex;
pub mod frames;
pub mod head_size;
pub mod receive;
pub mod send;
pub mod send_window;
pub mod server_frames;

/// Flow-control window of one stream, in bytes: what a server may send before the client reads.
pub const RESPONSE_WINDOW: u32 = 64 << 10;
