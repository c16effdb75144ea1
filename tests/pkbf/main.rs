//! The filter format: the library alone, against vectors and the files of its inventor.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

mod interop;
mod vectors;
