//! keygate-wire: the bytes of the reverse proxy keygate.
//!
//! Protocols as they are on a connection: TLS records, messages of HTTP/1.1 and HTTP/2, PROXY headers,
//! frames of SPOP and gRPC; and what clients may hold of connections and memory. Nothing here knows a
//! key, a configuration, a metric or a policy. Each module uses only modules above it in this table.
//! The last column names the fuzz targets of the parsers, in `fuzz/fuzz_targets`.
//!
//! | module | contents | fuzz target |
//! | --- | --- | --- |
//! | [`forward_io`] | `AsyncRead` and `AsyncWrite` of a stream around another one | |
//! | [`keep_alive`] | detection of TCP peers that have vanished | |
//! | [`lingering_close`] | closing a connection without a reset | |
//! | [`idle_timeout`] | the timeout of a body whose peer sends or takes nothing | |
//! | [`prefixed`] | a stream that begins with bytes that were read before | |
//! | [`io_events`] | a stream that reports its reads and writes | |
//! | [`permit`] | counts of what is open, limits that may change, and the bytes that clients hold | |
//! | [`tls_stream`] | TLS on the connection of a client, without buffers while it is idle | `tls_records` |
//! | [`client_io`] | the socket below the connection of a client | |
//! | [`gathered_io`] | the connection below h2, which gathers what h2 writes | |
//! | [`proxy_header`] | PROXY headers: reading and writing | `proxy_header` |
//! | [`spop`] | frames of SPOP, HAProxy's protocol | `spop_frames` |
//! | [`grpc`] | messages of gRPC | `check_request` |
//! | [`fields`] | header fields of any message | `response` |
//! | [`informational`] | informational responses to clients | |
//! | [`upload`] | the upload of a request, and the rest of it that no server reads | |
//! | [`http2`] | streams of h2 that carry bodies or bytes, and frames that h2 does not report | |
//! | [`kept_body`] | the body of a request that may be sent again | |
//! | [`incoming`] | bodies that are received, over either version of HTTP | |
//! | [`http1`] | HTTP/1.1 with a server: writing requests, reading responses | `response` |

pub mod client_io;
pub mod fields;
mod forward;
pub mod gathered_io;
pub mod grpc;
pub mod http1;
pub mod http2;
pub mod idle_timeout;
pub mod incoming;
pub mod informational;
pub mod io_events;
pub mod joined_pieces;
pub mod keep_alive;
pub mod kept_body;
pub mod lingering_close;
pub mod permit;
pub mod prefixed;
pub mod proxy_header;
pub mod spop;
pub mod tls_stream;
pub mod upload;
