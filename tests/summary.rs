//! Not a test: lists the tests that were skipped. Cargo runs the test binaries by name, this one
//! last.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

#[path = "support/skip.rs"]
mod skip;

fn main() {
    let records = std::fs::read_dir(skip::directory()).into_iter().flatten();
    let mut skipped: Vec<_> =
        records.map(|record| std::fs::read_to_string(record.unwrap().path()).unwrap()).collect();
    skipped.sort();
    println!("\n{} skipped tests or parts of tests", skipped.len());
    for reason in &skipped {
        print!("  {reason}");
    }
    println!();
    let _ = std::fs::remove_dir_all(skip::directory()); // the next run records its own
    assert!(skipped.is_empty() || std::env::var_os("CI").is_none(), "CI must skip nothing");
}
