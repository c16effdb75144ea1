//! Shared code of the benchmarks: their arguments, the cores of their processes, CPU time and
//! memory, the origin and an HTTP client.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly, and none uses everything"
)]

pub mod cores;
pub mod http_client;
pub mod origin;
pub mod usage;

use std::fs;
use std::path::Path;

use clap::Parser;
use keygate_core::pkbf::Header;

/// The arguments of a benchmark. `None` for `cargo test --benches`, which only checks that the
/// program starts.
pub fn arguments<A: Parser>() -> Option<A> {
    let given = || std::env::args_os();
    // `cargo bench` adds `--bench`.
    let is_check = given().any(|argument| argument == "--test");
    (!is_check).then(|| A::parse_from(given().filter(|argument| argument != "--bench")))
}

/// The arguments of a benchmark without options.
#[derive(Debug, Parser)]
pub struct NoArguments {}

/// The keygate to measure: `KEYGATE`, or else the binary of this build.
pub fn keygate() -> String {
    std::env::var("KEYGATE").unwrap_or_else(|_| env!("CARGO_BIN_EXE_keygate").to_owned())
}

/// The value below which this share of sorted values is, in thousandths.
pub fn quantile<T: Copy>(sorted: &[T], permille: usize) -> T {
    sorted[(sorted.len() - 1) * permille / 1000]
}

/// The median of figures, with the lowest and the highest.
pub fn spread(mut figures: Vec<f64>) -> String {
    figures.sort_unstable_by(f64::total_cmp);
    let [median, lowest, highest] = [500, 0, 1000].map(|permille| {
        let figure = quantile(&figures, permille);
        let decimals = if figure < 100.0 { 2 } else { 0 };
        format!("{figure:.decimals$}")
    });
    match figures.len() {
        1 => median,
        _ => format!("{median} ({lowest} to {highest})"),
    }
}

/// Writes a filter of 2^27 bits (16 MiB) that is half full, as a filter is that has its expected
/// number of entries. The bits are random: a key of a client is a hit with a probability of 2^-18.
pub fn write_half_full_filter(path: &Path, revision: u32) {
    const HASH_COUNT: u8 = 18;
    const BITS: u32 = 1 << 27;
    let header = Header {
        revision,
        updated_at: 1_700_000_000,
        entry_count: (f64::from(BITS) * 2_f64.ln() / f64::from(HASH_COUNT)) as u32,
        hash_count: HASH_COUNT,
        hash_length: 27,
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..BITS / 64).flat_map(|_| {
        random ^= random << 13; // Marsaglia, "Xorshift RNGs", 2003
        random ^= random >> 7;
        random ^= random << 17;
        random.to_be_bytes()
    });
    let file: Vec<u8> = header.to_bytes().into_iter().chain(words).collect();
    fs::write(path, file).unwrap();
}
