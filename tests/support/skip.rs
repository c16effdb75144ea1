//! Tests that need a program, a file or a kernel feature that this machine lacks.
//!
//! Under `CI` such a test fails. Elsewhere it is skipped: the reason is kept in a file of
//! `target/tmp/skipped`, and `tests/summary.rs`, the last binary of `cargo test`, prints all of
//! them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns true if `program` is not installed. The test must return, or leave out that part.
///
/// # Panics
/// Panics under `CI`, where every program must be installed.
pub fn without(program: &str) -> bool {
    let found = Command::new("which").arg(program).stdout(Stdio::null()).status();
    unless(found.is_ok_and(|status| status.success()), &format!("{program} is not installed"))
}

/// Returns true and records `reason` if the condition for a test is not met.
///
/// # Panics
/// Panics under `CI`.
pub fn unless(is_met: bool, reason: &str) -> bool {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let file: String = format!("{test}, {reason}").replace('/', "_");
    let record = directory().join(file);
    if is_met {
        let _ = fs::remove_file(record); // an earlier run may have skipped the test
        return false;
    }
    assert!(std::env::var_os("CI").is_none(), "{reason}; CONTRIBUTING.md lists what tests need");
    fs::create_dir_all(directory()).unwrap();
    fs::write(record, format!("{test}: {reason}\n")).unwrap();
    true
}

/// Where the records of skipped tests are, one file each.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("skipped")
}
