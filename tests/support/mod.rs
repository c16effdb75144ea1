//! Shared code for tests of the running proxy: certificates made at run time, an origin that
//! records every request, and the real binary with its log as a stream of events.
//!
//! A wait is for an event (a log line, a request, the end of a process) or polls with a pause.
//! Every wait fails after [`TIMEOUT`].

#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a test fails where it stands, and no test uses everything"
)]

pub mod asker;
pub mod assertion;
pub mod attacked;
pub mod authorizer;
pub mod blocklist;
pub mod browser;
pub mod client;
pub mod collector;
pub mod envoy;
pub mod grpc;
pub mod haproxy;
pub mod http2;
pub mod http_host;
pub mod json;
pub mod keygate;
pub mod keys;
pub mod load;
pub mod minisign;
pub mod mirror;
pub mod origin;
pub mod pebble;
pub mod pki;
pub mod program;
pub mod promql;
pub mod proof_source;
pub mod proxy;
pub mod scene;
pub mod server;
pub mod skip;
pub mod spellings;
pub mod spop;
pub mod strace;
pub mod terminal;
pub mod threads;
pub mod wait;
pub mod weak_keys;
pub mod webhook;

use std::path::Path;
use std::process::{Command, Output};

use ::keygate_core::pkbf::{Filter, Overwrite, Parameters, create};

pub use wait::{TIMEOUT, before, read_alert, wait_for, wait_until};

/// The shortest configuration: the filter `lost` and the service `orders`. Unit tests have it too.
pub const MINIMAL: &str = include_str!("../vectors/minimal.toml");

/// Writes a filter that holds `keys` (SPKI, DER). Its size gives a false-positive rate of 10^-9.
pub fn write_filter(path: &Path, keys: &[&[u8]]) {
    write_revision(path, keys, 1);
}

/// Writes such a filter with this revision.
pub fn write_revision(path: &Path, keys: &[&[u8]], revision: u32) {
    let mut filter = Filter::new(Parameters::for_entries(1000, 1e-9).unwrap()).unwrap();
    for key in keys {
        filter.insert(key);
    }
    for _ in 0..revision {
        filter.stamp(1_700_000_000 + u64::from(revision));
    }
    create(&filter, path, Overwrite::Always).unwrap();
}

/// Runs a program of the system to its end.
pub fn system(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed by this test: {error}"))
}

/// Exit status and output of a process, for messages.
pub fn output_text(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The fenced blocks of a language in a page of the documentation.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let after = page.split(&fence).skip(1);
    after.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Runs commands of the documentation in a directory; each must succeed.
pub fn shell(directory: &Path, commands: &str) -> Output {
    let path = Path::new(keygate::BINARY).parent().unwrap().display();
    let script = format!("set -e; cd {}; PATH={path}:$PATH\n{commands}", directory.display());
    let output = system("sh", &["-c", &script]);
    assert!(output.status.success(), "{commands}: {}", output_text(&output));
    output
}
