//! The data path: from an accepted connection to the upstream and back.
//!
//! Workers share nothing hot. Each is an OS thread with a current-thread runtime, its own
//! `SO_REUSEPORT` listeners, its own upstream connections and its own counters. Nothing here
//! decides about keys: that is [`crate::guard`].

mod access_log;
mod activity;
mod connection;
mod dial;
mod drain;
mod headers;
mod health;
mod http;
mod incoming;
mod interim;
mod life;
mod listener;
mod log_limit;
mod observed;
mod peers;
mod proxy_protocol;
mod report;
mod request_id;
mod stall;
mod standing;
mod stream;
mod tcp;
mod threads;
mod tunnel;
mod upstream;
mod worker;

pub use drain::Stage;
pub use health::{HealthBoard, supervise as supervise_health};
pub use listener::{Addresses, BindError, Listener, bind};
pub use threads::{Shared, StartError, Workers, start};
