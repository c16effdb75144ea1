//! CPU time and memory of mTLS reverse proxies under the same load.
//!
//! `cargo bench --bench compare` starts keygate, HAProxy, nginx and Envoy, as far as the machine
//! has them, each with one worker on the first core. The origin and the load generator use the
//! second core. Each round puts each scenario on each proxy in turn, so that a slow moment of the
//! machine affects all of them. The figure of a scenario is the CPU time of the proxy, system
//! calls included, for each handshake, request or MiB. The floor is the part of the cryptography.
//! Medians of the rounds and their spread, the largest figure minus the smallest relative to the
//! median, are printed as tables. `--json FILE` writes every single run.
//!
//! `--workers 2` gives each proxy two workers and pins nothing: the difference to one worker shows
//! what workers share.
//!
//! All proxies require and verify the client certificate, forward something of it, write no access
//! log, and keep their connections to the origin open. The client offers one cipher suite and one
//! key exchange, so that all proxies do the same cryptography. Connections of the scenarios without
//! handshakes are opened before the CPU time is read.

#![allow(
    unreachable_pub,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

mod bare;
mod floor;
#[path = "../harness/mod.rs"]
mod harness;
mod load;
mod peer;
mod report;
mod scenario;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use bare::Bare;
use harness::cores::Cores;
use harness::origin::{self, Origin};
use harness::usage::Usage;
use load::Clients;
use peer::{Peer, Running, Site};
use report::{Report, Run};
use scenario::{Idle, Scenario};
use support::pki::{Kind, Pki};

/// Time for a proxy to close connections before its CPU time is read.
const SETTLE: Duration = Duration::from_millis(100);

/// Compares mTLS reverse proxies by CPU time for each unit of work.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds; the table shows their medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Proxies, separated by commas; all that are installed by default. `bare` is no proxy, but a
    /// server of rustls and h2 that responds by itself.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Scenarios, separated by commas; all by default.
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    /// Leaves out all scenarios and the floor.
    #[arg(long, conflicts_with = "scenarios")]
    no_scenarios: bool,
    /// Idle connections for the memory of each connection; 0 leaves these rows out.
    #[arg(long, default_value_t = 2000)]
    idle: usize,
    /// Workers of each proxy. With more than one, no process is pinned to a core.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Multiplies the number of handshakes, requests and MiB.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Clients offer the key exchange X25519MLKEM768 only, which needs TLS 1.3. Without the floor.
    #[arg(long)]
    hybrid: bool,
    /// Clients and proxies have ML-DSA-65 keys, below a P-256 CA. Without the floor.
    #[arg(long)]
    ml_dsa: bool,
    /// Writes every run to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Starts the origin and nothing else.
    #[arg(long, hide = true)]
    origin: bool,
    /// Measures the floor and nothing else.
    #[arg(long, hide = true)]
    floor: bool,
    #[command(flatten)]
    bare: Bare,
}

fn main() {
    let Some(arguments) = harness::arguments::<Arguments>() else { return };
    if arguments.origin {
        return origin::serve();
    }
    if arguments.floor {
        return floor::print();
    }
    if arguments.bare.serve() {
        return;
    }
    let report = compare(&arguments);
    println!("{report}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, report.to_json()).unwrap();
    }
}

fn compare(arguments: &Arguments) -> Report {
    let cores = Cores { workers: arguments.workers };
    cores.pin_this_process();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let peers: Vec<Peer> = match &arguments.peers[..] {
        [] => Peer::ALL.into_iter().filter(Peer::is_installed).collect(),
        chosen => chosen.to_vec(),
    };
    let scenarios = match &arguments.scenarios[..] {
        _ if arguments.no_scenarios => Vec::new(),
        [] => Scenario::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    let mut report = Report::new(&peers, arguments.workers);
    let bench = Bench::new(&runtime, cores, &scenarios, arguments);
    let running: Vec<_> = match scenarios[..] {
        [] => Vec::new(),
        _ => peers.iter().map(|peer| bench.start(*peer)).collect(),
    };
    for round in (0..arguments.rounds).filter(|_| !running.is_empty()) {
        if !arguments.hybrid && !arguments.ml_dsa {
            let floors = floor::measure().into_iter();
            floors.for_each(|(scenario, figure)| report.add(Run::of_floor(scenario, figure)));
        }
        for scenario in &scenarios {
            for position in 0..running.len() {
                let proxy = &running[(round + position) % running.len()];
                report.add(bench.run(proxy, *scenario, arguments.scale));
            }
        }
        eprintln!("round {} of {}", round + 1, arguments.rounds);
    }
    drop(running);
    for round in (0..arguments.rounds).filter(|_| arguments.idle > 0) {
        for idle in Idle::ALL {
            for peer in &peers {
                report.add(bench.idle(*peer, idle, arguments.idle));
            }
        }
        eprintln!("round {} of {} of idle connections", round + 1, arguments.rounds);
    }
    report
}

/// Units of work in one run.
fn count(scenario: Scenario, scale: f64) -> usize {
    (scenario.count() as f64 * scale).max(1.0) as usize
}

/// The parties of a comparison, besides the proxies.
struct Bench<'a> {
    runtime: &'a Runtime,
    cores: Cores,
    pki: Pki,
    clients: Clients,
    origin: Origin,
}

impl<'a> Bench<'a> {
    fn new(
        runtime: &'a Runtime,
        cores: Cores,
        scenarios: &[Scenario],
        arguments: &Arguments,
    ) -> Self {
        let pki = Pki::new();
        let kind = if arguments.ml_dsa { Kind::MlDsa65 } else { Kind::P256 };
        pki.server_of_kind("server", kind);
        let mut clients = Clients::new(&pki, pki.client("client", kind));
        if arguments.hybrid {
            clients = clients.hybrid();
        }
        if scenarios.contains(&Scenario::NewClientTls13) {
            let count = count(Scenario::NewClientTls13, arguments.scale);
            clients = clients.with_others(&pki, kind, count);
        }
        Self { runtime, cores, origin: Origin::start(cores), pki, clients }
    }

    /// Starts a proxy, and checks that it admits a client with a certificate and no other.
    fn start(&self, peer: Peer) -> Running {
        let site = Site::new(&self.pki, self.origin.address());
        let running = peer.start(site, self.cores);
        let checked = self.clients.check(running.address());
        if let Err(error) = self.runtime.block_on(checked) {
            panic!("{peer} is not usable: {error}");
        }
        running
    }

    /// One run of a scenario.
    fn run(&self, proxy: &Running, scenario: Scenario, scale: f64) -> Run {
        let count = count(scenario, scale);
        let address = proxy.address();
        self.runtime.block_on(async {
            let prepared = self.clients.prepare(address, scenario).await;
            tokio::time::sleep(SETTLE).await;
            let before = Usage::of(proxy.id());
            let start = Instant::now();
            let latencies = prepared.run(count).await;
            let elapsed = start.elapsed();
            tokio::time::sleep(SETTLE).await;
            let cpu = Usage::of(proxy.id()).cpu - before.cpu;
            Run::of_work(proxy.peer(), scenario, cpu, elapsed, latencies)
        })
    }

    /// The memory of a new proxy for each of `count` idle connections.
    fn idle(&self, peer: Peer, idle: Idle, count: usize) -> Run {
        let proxy = self.start(peer);
        let bytes = self.runtime.block_on(async {
            drop(self.clients.open(proxy.address(), idle, 16).await); // the first ones cost more
            tokio::time::sleep(SETTLE).await;
            let before = Usage::of(proxy.id()).resident;
            let open = self.clients.open(proxy.address(), idle, count).await;
            tokio::time::sleep(Duration::from_secs(2)).await; // proxies free buffers after a while
            let after = Usage::of(proxy.id()).resident;
            drop(open);
            after.saturating_sub(before)
        });
        Run::of_memory(peer, idle, bytes as f64 / count as f64)
    }
}

/// An address on loopback for a proxy.
fn address() -> SocketAddr {
    support::program::reserved_address()
}
