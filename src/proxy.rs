//! The data path: from an accepted connection to the upstream and back.
//!
//! Workers share nothing hot. Each is an OS thread with a current-thread runtime, its own
//! `SO_REUSEPORT` listeners, its own upstream connections and its own counters. Nothing here
//! decides about keys: that is [`crate::guard`].

mod activity;
mod connection;
mod drain;
mod headers;
mod http;
mod listener;
mod report;
mod standing;
mod threads;
mod upstream;
mod worker;

pub use drain::Stage;
pub use listener::{BindError, Listener, bind};
pub use threads::{StartError, Workers, start};
