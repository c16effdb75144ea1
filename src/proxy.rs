//! The data path: from an accepted connection to the upstream and back.
//!
//! Workers share nothing hot. Each is an OS thread with a current-thread runtime, its own
//! `SO_REUSEPORT` listeners, its own upstream connections and its own counters. Nothing here
//! decides about keys: that is [`crate::guard`].

mod connection;
mod http;
mod io_events;
mod lingering_close;
mod message;
mod open_connection;
mod proxy_protocol;
mod tcp;
mod threads;
mod tunnel;
mod upstream;
mod worker;

pub use self::threads::{Sockets, StartError, Workers, start};
pub use self::upstream::health::{HealthRegistry, supervise as supervise_health};
pub use self::worker::{Lifecycle, WorkerContext};
