//! The parts of an HTTP message, shared by both sides of the proxy.
//!
//! Bodies that are received ([`incoming`]), requests on the way to a server ([`body`]), which may be
//! sent again ([`kept_body`]), the state of an unfinished upload ([`upload`]), header fields ([`headers`]), frames of HTTP/2
//! ([`frames`]), the shares of a connection's window ([`send_window`]), informational responses
//! ([`informational`]), and one stream of HTTP/2 as a body received, a body sent, or bytes both
//! ways. Nothing here has a connection of its own.

pub(crate) mod body;
pub(crate) mod frames;
pub(crate) mod h2_duplex;
pub(crate) mod h2_receive;
pub(crate) mod h2_send;
pub(crate) mod h2_trailers;
pub(crate) mod headers;
pub(crate) mod idle_timeout;
pub(crate) mod incoming;
pub(crate) mod informational;
mod kept_body;
pub(crate) mod send_window;
pub(crate) mod upload;
