//! A badkeys blocklist of 4 million records, as large as the published one: reading it, and a
//! look-up.
//!
//! * `parse` checks the records and builds the index, at a start and at each update.
//! * `sha256` hashes the file, which an update does once.
//! * `find/warm` looks up the digest of one good key repeatedly. It is a lower bound.
//! * `find/random` looks up another key each time: a hit in one half of the cases. The list is
//!   larger than the second-level cache, so that most look-ups read memory.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail loudly, and criterion's macros write undocumented functions"
)]

use std::hint::black_box;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use keygate_core::badkeys::{Blocklist, RECORD_SIZE};

const RECORDS: u64 = 4_000_000;
/// Number of digests that `find/random` takes in turn.
const KEYS: u64 = 1 << 16;

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = blocklist
}
criterion_main!(benches);

fn sha256(key: u64) -> [u8; 32] {
    digest(&SHA256, &key.to_be_bytes()).as_ref().try_into().unwrap()
}

/// The records of the keys from 0 to [`RECORDS`].
fn content() -> Vec<u8> {
    let mut records: Vec<[u8; RECORD_SIZE]> =
        (0..RECORDS).map(|key| *sha256(key).first_chunk().unwrap()).collect();
    records.sort_unstable();
    records.into_flattened()
}

fn blocklist(criterion: &mut Criterion) {
    let content = content();
    let list = Blocklist::parse(content.clone()).unwrap();
    let mut group = criterion.benchmark_group("blocklist");
    group.throughput(Throughput::Bytes(content.len() as u64));
    group.bench_function("parse", |bencher| {
        let copy = || content.clone();
        bencher.iter_batched(copy, |it| Blocklist::parse(it).unwrap(), BatchSize::PerIteration);
    });
    group.bench_function("sha256", |bencher| bencher.iter(|| list.sha256()));
    group.throughput(Throughput::Elements(1));
    let good = sha256(RECORDS);
    assert_eq!(list.find(&good), None);
    group.bench_function("find/warm", |bencher| bencher.iter(|| list.find(black_box(&good))));
    let half = RECORDS - KEYS / 2;
    let keys: Vec<_> = (half..half + KEYS).map(sha256).collect();
    let hits = keys.iter().filter(|key| list.find(key).is_some()).count() as u64;
    assert_eq!(hits, KEYS / 2);
    // In an order that no prefetcher knows: by the middle of the digest.
    let mut keys = keys;
    keys.sort_unstable_by(|one, other| one.get(20..).cmp(&other.get(20..)));
    let mut turn = keys.iter().cycle();
    group.bench_function("find/random", |bencher| {
        bencher.iter(|| list.find(turn.next().unwrap()));
    });
    group.finish();
}
