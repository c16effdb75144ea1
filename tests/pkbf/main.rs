//! The filter format: the library alone, against vectors and the files of its inventor.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

#[path = "../support/interop.rs"]
mod published;
#[path = "../support/skip.rs"]
mod skip;

mod interop;
mod vectors;
