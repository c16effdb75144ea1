//! The cost of loading a filter and of a lookup, compared with lower bounds.
//!
//! `load` reads a filter of 2^33 bits (1 GiB, 298 million keys) from the page cache. It compares
//! [`keygate_core::pkbf::read`] with three other ways to read the bytes: `std::fs::read`, reading into
//! new huge pages without any check, and reading into memory that was used before. The last is a
//! lower bound that no program reaches when it starts.
//!
//! `look up` times single lookups in a filter that is half full, k = 20. `first clear bit` is the
//! lookup of the filter. `all bits` computes and reads all positions before it tests them, so that
//! cache misses overlap. `random access` is one access to a place that depends on the access
//! before. Each key is looked up once. In a filter larger than the caches it is therefore as cold
//! as the key of a new client.
//!
//! Needs 1 GiB of disk and 3 GiB of memory: `cargo bench --bench filter`.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use keygate_core::pkbf::{self, Filter, Header, Overwrite};
use memmap2::{Advice, MmapMut};
use xxhash_rust::xxh64::xxh64;

const HASH_COUNT: u8 = 20;
/// Filters that fit into the second-level cache, into the last-level cache, and into neither.
const HASH_LENGTHS: [u8; 5] = [20, 24, 27, 30, 33];
const LOADS: usize = 9;
const LOOKUPS: u64 = 200_000;
const BUFFER: usize = 256 << 10;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return; // `cargo test --benches` only checks that the program starts
    }
    load();
    for hash_length in HASH_LENGTHS {
        look_up(hash_length);
    }
}

fn load() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.pkbf");
    pkbf::create(&half_full(33), &path, Overwrite::Never).unwrap();
    let size = usize::try_from(std::fs::metadata(&path).unwrap().len()).unwrap();

    let ours = seconds(|| pkbf::read(&path, u64::MAX).unwrap());
    let whole = seconds(|| std::fs::read(&path).unwrap());
    let fresh = seconds(|| read_into(huge(size), &path));
    let mut used = huge(size);
    used.fill(1);
    let into_used = seconds(|| {
        let mut file = File::open(&path).unwrap();
        used.chunks_mut(BUFFER).for_each(|chunk| file.read_exact(chunk).unwrap());
    });
    let filter = pkbf::read(&path, u64::MAX).unwrap();
    let digest = seconds(|| filter.filter.sha256());
    println!("load 1 GiB, warm                      seconds  relative speed");
    println!("  keygate_core::pkbf::read                  {ours:.3}");
    for (name, time) in [
        ("std::fs::read", whole),
        ("read into fresh huge pages", fresh),
        ("read into memory used before", into_used),
    ] {
        println!("  {name:<36} {time:.3}    {:>4.0} %", 100.0 * time / ours);
    }
    println!("  SHA-256, in memory                   {digest:.3}");
}

fn look_up(hash_length: u8) {
    let mut filter = half_full(hash_length);
    let key = |number: u64| number.to_be_bytes();
    (0..LOOKUPS).for_each(|number| {
        filter.insert(&key(number));
    });
    let bits = filter.to_parts().1;
    let hits = 0..LOOKUPS;
    let misses = 1 << 40..(1 << 40) + LOOKUPS;
    let nothing = nanoseconds(hits.clone(), |number| number);
    let time = |numbers, look: &dyn Fn(u64) -> bool| nanoseconds(numbers, look) - nothing;
    let first_clear = |number: u64| filter.contains(&key(number));
    let all = |number: u64| all_bits(bits, hash_length, &key(number));
    let mut place = 1;
    let access = nanoseconds(0..LOOKUPS, |_| {
        place = next_place(place, bits);
        place
    }) - nothing;
    println!(
        "look up, 2^{hash_length} bits, ns: hit, first clear bit {:.0}, all bits {:.0}; miss, {:.0}, {:.0}; random access {access:.0}",
        time(hits.clone(), &first_clear),
        time(hits, &all),
        time(misses.clone(), &first_clear),
        time(misses, &all),
    );
}

/// Looks a key up by reading all its bits before it tests them.
fn all_bits(bits: &[u8], hash_length: u8, key: &[u8]) -> bool {
    let mask = (1 << hash_length) - 1;
    let mut position = xxh64(key, 0);
    let mut step = xxh64(key, 1) | 1;
    (1..=u64::from(HASH_COUNT)).fold(true, |set, next| {
        let at = position & mask;
        position = position.wrapping_add(step);
        step = step.wrapping_add(next);
        set & (bits[usize::try_from(at / 8).unwrap()] & (0x80 >> (at % 8)) != 0)
    })
}

/// A place that depends on the bits at `place`.
fn next_place(place: u64, bits: &[u8]) -> u64 {
    let size = bits.len() as u64;
    let found = bits[usize::try_from((place >> 20) % size).unwrap()];
    (place ^ u64::from(found)).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
}

/// A filter with random bits, half of them set.
fn half_full(hash_length: u8) -> Filter {
    let entries =
        (f64::exp2(hash_length.into()) * std::f64::consts::LN_2 / f64::from(HASH_COUNT)).round();
    let header = Header {
        revision: 1,
        updated_at: 1_700_000_000,
        entry_count: format!("{entries}").parse().unwrap(),
        hash_count: HASH_COUNT,
        hash_length,
    };
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    });
    let words = usize::try_from(header.data_size() / 8).unwrap();
    let mut file = header.to_bytes().to_vec();
    file.reserve_exact(words * 8);
    file.extend(noise.take(words).flatten());
    Filter::parse(&file).unwrap()
}

fn huge(size: usize) -> MmapMut {
    let memory = MmapMut::map_anon(size).unwrap();
    memory.advise(Advice::HugePage).unwrap();
    memory
}

fn read_into(mut memory: MmapMut, path: &Path) -> MmapMut {
    let mut file = File::open(path).unwrap();
    memory.chunks_mut(BUFFER).for_each(|chunk| file.read_exact(chunk).unwrap());
    memory
}

/// The median time of a run.
fn seconds<T>(mut run: impl FnMut() -> T) -> f64 {
    let times = (0..LOADS).map(|_| {
        let start = Instant::now();
        let result = run();
        let elapsed = start.elapsed().as_secs_f64();
        drop(result); // freeing the memory is not timed
        elapsed
    });
    median(times.collect())
}

/// The median time of one lookup, including the reading of the clock.
fn nanoseconds<T>(numbers: std::ops::Range<u64>, mut look: impl FnMut(u64) -> T) -> f64 {
    let times = numbers.map(|number| {
        let start = Instant::now();
        black_box(look(black_box(number)));
        start.elapsed().as_secs_f64() * 1e9
    });
    median(times.collect())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
