//! Filters and revocation lists that change under full load. On their own, because they take all
//! cores.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod assertions;
mod authorizers;
mod blocklists;
mod drained_instances;
mod revocation;
mod swap;
mod watcher;
mod webhooks;
