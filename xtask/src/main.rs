//! Tasks of the repository, which no user of keygate needs.
//!
//! `cargo run --package xtask -- man DIR` writes the manual pages into a directory, for packages.

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["man", directory] => xtask::man::write(Path::new(directory)),
        _ => Err(io::Error::other("usage: cargo run --package xtask -- man DIR")),
    }
}
