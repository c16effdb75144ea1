//! Looks up the keys of certificates and key files in a filter.
//!
//! ```sh
//! cargo run -p keygate-core --example query_filter -- FILTER KEY_FILE...
//! ```
//!
//! A key file holds certificates, certificate requests, public or private keys in PEM, DER or
//! OpenSSH form. Each key gets one line: its file, line and fingerprint, and `probable` or `clean`.
//! All related encodings of a key are looked up, for example its compressed point.
//!
//! The exit status is 0 if all keys are clean, 1 if one is in the filter, and 2 after an error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use keygate_core::pkbf::{self, Filter};
use keygate_core::spki::{Fingerprint, InputError, keys_in, related};

/// Maximum size of a filter file, in bytes; a larger file is an error.
const MAX_FILTER_SIZE: u64 = 4 << 30;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let parts = arguments.split_first().filter(|(_, key_files)| !key_files.is_empty());
    let Some((filter, key_files)) = parts else {
        eprintln!("usage: query_filter FILTER KEY_FILE...");
        return ExitCode::from(2);
    };
    match query(filter, key_files) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("query_filter: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line for each key. Returns the number of keys that are in the filter.
fn query(filter: &Path, key_files: &[PathBuf]) -> Result<usize, Box<dyn Error>> {
    let file = pkbf::read(filter, MAX_FILTER_SIZE)
        .map_err(|error| format!("{}: {error}", filter.display()))?;
    let mut hits = 0;
    for path in key_files {
        hits += query_file(&file.filter, path)?;
    }
    Ok(hits)
}

fn query_file(filter: &Filter, path: &Path) -> Result<usize, Box<dyn Error>> {
    let name = path.display();
    let content = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    let mut hits = 0;
    for finding in keys_in(&content) {
        let line = finding.line.unwrap_or(1);
        let spki = finding.key.map_err(|error: InputError| format!("{name}:{line}: {error}"))?;
        let is_hit = related(&spki).iter().any(|(_, encoding)| filter.contains(encoding));
        let verdict = if is_hit { "probable" } else { "clean" };
        println!("{name}:{line}: {} {verdict}", Fingerprint::of(&spki));
        hits += usize::from(is_hit);
    }
    Ok(hits)
}
