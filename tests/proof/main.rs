//! Proofs of compromise: the library alone, against wrong proofs, changed proofs, published keys
//! and another implementation of JOSE.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

#[path = "../support/interop.rs"]
mod published;
#[path = "../support/skip.rs"]
mod skip;

mod draft;
mod interop;
mod mutations;
mod wrong;
