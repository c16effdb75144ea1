//! The data path: from an accepted connection to the upstream and back.
//!
//! The life of a connection, and the module of each step:
//!
//! | step | module | hands on |
//! | --- | --- | --- |
//! | A connection is accepted. A trusted proxy's header names the client. | `connection`, [`keygate_wire::proxy_header`] | the TCP stream and the client's address |
//! | Plain HTTP gets a 400. | `client_hello` | |
//! | The ClientHello chooses the service. The handshake judges the client's key. | `connection` | the TLS stream, or a counted and logged failure |
//! | The client is judged by the current snapshot, so that resumed sessions are covered. | `connection`, `open_connection` | an `open_connection::OpenConnection` with verdict and decision |
//! | HTTP: each request is checked, sanitised and annotated. | `http` | an outgoing request (`message`) |
//! | A server is chosen, and gets the request on a pooled or new connection. | `upstream` | a response and the lease of its connection |
//! | The response body goes to the client as fast as the client reads. The upload may not have ended yet. | `http`, [`keygate_wire::upload`] | the lease, when the body has ended |
//! | TCP, or an upgrade: bytes go both ways. | `tcp`, `tunnel` | the number of bytes and how the tunnel ended |
//! | An idle HTTP/1.1 connection gives its HTTP state back until the next byte arrives. | `http`, `worker` | |
//! | Timeouts, eviction and shutdown close the connection. | `open_connection`, `worker` | |
//! | A client that is still sending is read for a moment, or it would lose the response. | [`keygate_wire::lingering_close`] | |
//!
//! The floors, from the top: `connection`; `http` and `tcp`; `worker`; `tunnel`;
//! `open_connection`; `upstream`; `message`; `client_hello`.
//! A module imports only modules on the floors below its own.
//!
//! Workers share nothing hot. Each is an OS thread with a current-thread runtime, its own
//! `SO_REUSEPORT` sockets ([`crate::listen`]), its own upstream connections and its own counters.
//! Nothing here decides about keys: [`keygate_core::guard`] does.

mod client_hello;
mod connection;
mod http;
mod message;
mod open_connection;
mod tcp;
mod tunnel;
mod upstream;
mod worker;

pub(crate) use self::connection::serve_accepted;
pub(crate) use self::open_connection::{NewJudgement, OpenConnection};
pub use self::upstream::health::supervise as supervise_health;
pub(crate) use self::upstream::server_state::Failing;
pub use self::upstream::server_state::ServerStates;
pub(crate) use self::worker::Worker;
pub use self::worker::WorkerContext;
