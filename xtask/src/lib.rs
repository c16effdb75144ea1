//! What `cargo run --package xtask` makes, for the tests of keygate.

pub mod man;
