//! The cost of a handshake with a revocation list of 0, 10,000 or 1,000,000 entries, and of loading
//! the list.
//!
//! The list has the size of a company's, of a large company's, and of a public CA's. Client and
//! server run in this thread, without sockets and the noise of a network:
//! TLS 1.3, P-256, one certificate. `nothing` is a service without revocation lists. The lists are
//! searched for a serial number that is not on them, which takes longest. The cases alternate,
//! because the machine may get slower or faster while the bench runs: the figure is the median
//! ratio to `nothing`.
//!
//! `load` is the whole check of a list in DER: signature, fields, and the sorted set. It happens in
//! the control thread, once for each new list.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark may fail loudly, and criterion's macros write undocumented functions"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use keygate::config::{ExpiredCrl, RevocationDepth};
use keygate_core::tls::{ClientVerifier, CrlIssuers, CrlLoader, CrlMarks, Crls, TrustAnchors};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use support::client::config;
use support::pki::{Kind, Party, Pki, RevocationList};

/// Handshakes of each case, and those before them that are not counted.
const ROUNDS: usize = 5_000;
const WARM_UP: usize = 100;
const ENTRIES: [u64; 3] = [0, 10_000, 1_000_000];

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(100)
        .nresamples(10_000)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(4));
    targets = revocation
}
criterion_main!(benches);

fn revocation(criterion: &mut Criterion) {
    let pki = Pki::new();
    let (server, client) = (pki.server("localhost"), pki.client("client", Kind::P256));
    let anchors = Arc::new(TrustAnchors::new(vec![pki.ca().clone()]).unwrap());
    let client = Arc::new(config(&pki, &client));
    let lists = ENTRIES.map(|entries| {
        let list = RevocationList::new(1, &[]);
        let der = match entries {
            0 => pki.signed_crl(&list).der().to_vec(),
            entries => pki.large_crl(&list, entries),
        };
        (entries, der)
    });
    let mut cases = vec![("nothing".to_owned(), Crls::default())];
    cases.extend(lists.iter().map(|(entries, der)| (entries.to_string(), load(&anchors, der))));
    let servers =
        cases.into_iter().map(|(name, crls)| (name, server_config(&server, &anchors, crls)));
    handshakes(&client, &servers.collect::<Vec<_>>());
    let mut group = criterion.benchmark_group("revocation");
    group.sampling_mode(SamplingMode::Flat);
    group.sample_size(10);
    for (entries, der) in &lists {
        group.bench_function(format!("load/{entries}"), |bencher| {
            bencher.iter(|| load(&anchors, der));
        });
    }
    group.finish();
}

/// Prints the median time of a handshake of each case, and its median ratio to the first case of
/// the same round. A round has one handshake of each case, in an order that rotates, so that a
/// drift of the machine affects all cases.
fn handshakes(client: &Arc<ClientConfig>, servers: &[(String, Arc<ServerConfig>)]) {
    // `cargo test --benches` only checks that everything runs once.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let rounds = if is_test { 1 } else { ROUNDS };
    let mut times = vec![Vec::with_capacity(rounds); servers.len()];
    for round in 0..rounds + WARM_UP {
        for place in 0..servers.len() {
            let case = (round + place) % servers.len();
            let start = Instant::now();
            handshake(client, &servers[case].1);
            if round >= WARM_UP {
                times[case].push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    for ((name, _), of_case) in servers.iter().zip(&times) {
        let ratios = of_case.iter().zip(&times[0]).map(|(time, first)| time / first);
        let [time, ratio] = [median(of_case.clone()), median(ratios.collect())];
        println!("revocation/handshake/{name}: {time:.1} µs, {ratio:.3} of the time without lists");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn load(anchors: &TrustAnchors, der: &[u8]) -> Crls {
    let issuers = CrlIssuers::new(anchors);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let marks = CrlMarks::new();
    let mut loader = CrlLoader::new(&issuers, ExpiredCrl::Reject, &marks, now);
    loader.add(Path::new("clients.crl"), der);
    loader.finish().crls
}

fn server_config(server: &Party, anchors: &Arc<TrustAnchors>, crls: Crls) -> Arc<ServerConfig> {
    let verifier = ClientVerifier::new(Arc::clone(anchors));
    let verifier = verifier.with_crls(Arc::new(crls), ExpiredCrl::Reject, RevocationDepth::Path);
    let (chain, key) = server.credentials();
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)
        .unwrap();
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// A full handshake. Panics if it fails.
fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) {
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let mut bytes = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets().unwrap();
    }
}
