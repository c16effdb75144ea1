//! Memory and CPU time of one worker that holds 1,000, 10,000 or 50,000 idle connections.
//!
//! Each connection is a client with a certificate that sent one request, as a service mesh or a
//! fleet of devices keeps it. `cargo bench --bench scale` prints for each number of connections:
//!
//! * the memory of each connection that has given its buffers back;
//! * the CPU time and the latency of a request on 32 other connections that are busy;
//! * the CPU time and the latency of the first request on 500 connections that were idle;
//! * the CPU time and the latency of a scrape of `/metrics`;
//! * the CPU time of a filter swap, in which every connection is judged again, and the longest
//!   latency of a request on the busy connections in the second of another swap.
//!
//! Then it prints full handshakes a second of one worker on one core and of two workers on two. The
//! server has an RSA key of 4096 bits, so that a handshake costs the proxy ten times as much as the
//! client: the load then leaves nearly all of the second core to the second worker.
//!
//! A cost that grows with the number of connections shows as a row that is not flat. The proxy runs
//! on the first core and everything else on the second.
//!
//! 50,000 connections need a limit of 51,000 descriptors (`ulimit -n`). With a lower limit, the
//! number of connections is as large as the limit allows. The sockets of the clients are in
//! processes of their own, without their TLS state, each with a source address of its own.
//! `-- --connections 500` takes seconds.
//!
//! `-- --attacked --connections 10000` measures instead what one client and one stranger cost the
//! others in 512 MiB: a client whose downloads and uploads stall, and unfinished ClientHellos. Beside
//! it are the figures without them, and those beside as many honest connections a second.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

mod attacked;
mod client;
#[path = "../harness/mod.rs"]
mod harness;
mod holder;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use attacked::print_attacked;
use client::{client_config, connect_all, open, send};
use harness::cores::{LOAD_CORE, PROXY_CORE, pin_this_process_to};
use holder::{Holder, hold, shares};
use support::keygate::{BINARY, Keygate};
use support::origin::Origin;
use support::pki::{Kind, Pki};
use support::proxy::{Configuration, Configure};
use support::{write_filter, write_revision};

const BUSY: usize = 32;
const WOKEN: usize = 500;
const REQUESTS: usize = 20_000;
const SCRAPES: usize = 20;
/// Time for the judgements of a filter swap. Scrapes that wait for their end would count as its
/// cost.
const SWAP: Duration = Duration::from_secs(3);
const ACTIVE: &str = "keygate_connections_active{service=\"test\"}";
const HIBERNATING: &str = "keygate_connections_hibernating{service=\"test\"}";
/// Descriptors that do not belong to idle connections.
const OTHER_DESCRIPTORS: usize = BUSY + WOKEN + 200;
/// Handshakes for the comparison of workers.
const HANDSHAKES: usize = 1_500;

/// Measures how memory and CPU time grow with idle connections.
#[derive(Debug, Parser)]
struct Arguments {
    /// Numbers of idle connections, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 50_000])]
    connections: Vec<usize>,
    /// Measures honest clients while one client and one stranger take as much memory as they can.
    #[arg(long)]
    attacked: bool,
    /// The directory of a memory cgroup for the proxy; without it `max_buffered` is 256 MiB.
    #[arg(long, requires = "attacked")]
    cgroup: Option<PathBuf>,
    /// Writes the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Holds this many connections and does nothing else.
    #[arg(long, hide = true, requires_all = ["address", "source", "pki"])]
    hold: Option<usize>,
    #[arg(long, hide = true)]
    address: Option<SocketAddr>,
    #[arg(long, hide = true)]
    source: Option<Ipv4Addr>,
    #[arg(long, hide = true)]
    pki: Option<PathBuf>,
}

fn main() {
    let Some(arguments) = harness::arguments::<Arguments>() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(count) = arguments.hold {
        let (address, pki) = (arguments.address.unwrap(), arguments.pki.unwrap());
        return runtime.block_on(hold(address, arguments.source, &pki, count));
    }
    pin_this_process_to(LOAD_CORE);
    if arguments.attacked {
        let counts = arguments.connections.into_iter();
        return counts.for_each(|it| print_attacked(it, arguments.cgroup.as_deref()));
    }
    let mut columns: Vec<Figures> = Vec::new();
    for wanted in arguments.connections {
        let count = wanted.min(descriptor_limit() - OTHER_DESCRIPTORS);
        if count < wanted {
            eprintln!("{count} connections in place of {wanted}: raise the limit of descriptors");
        }
        columns.push(measure(&runtime, count));
    }
    print(&columns);
    let workers = [1, 2].map(|workers| handshakes_per_second(&runtime, workers));
    for (figures, workers) in workers.iter().zip(1..) {
        let [rate, cpu] = figures;
        println!(
            "{workers} workers: {rate:.0} full handshakes a second, {cpu:.0} µs of CPU time each"
        );
    }
    if let Some(path) = arguments.json {
        let columns = columns.into_iter().map(|figures| {
            let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), json!(value)));
            Value::from(figures.collect::<Map<_, _>>())
        });
        let report = json!({
            "columns": columns.collect::<Vec<_>>(),
            "handshakes_per_second": workers.map(|[rate, _]| rate),
        });
        std::fs::write(path, format!("{report:#}\n")).unwrap();
    }
}

/// The rows of a number of connections.
type Figures = Vec<(&'static str, f64)>;

fn print(columns: &[Figures]) {
    for row in 0..columns[0].len() {
        let cells: Vec<_> =
            columns.iter().map(|figures| format!("{:.2}", figures[row].1)).collect();
        println!("| {} | {} |", columns[0][row].0, cells.join(" | "));
        if row == 0 {
            println!("| --- |{}", " ---: |".repeat(columns.len()));
        }
    }
}

fn measure(runtime: &Runtime, count: usize) -> Figures {
    let (pki, origin) = (Pki::new(), Origin::start());
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let keygate = start(&pki, &configuration(&origin, count), 1);
    let config = client_config(&pki.path("ca.pem"), &good.certificate, &good.private_key);
    let mut busy = runtime.block_on(open(keygate.address(), None, &config, BUSY));
    runtime.block_on(send(&mut busy, REQUESTS / 4));

    let before = keygate.memory("VmRSS");
    let holders: Vec<_> = shares(count)
        .map(|(source, share)| Holder::start(&keygate, &pki, &good, source, share))
        .collect::<Vec<_>>()
        .into_iter()
        .map(Holder::ready)
        .collect();
    wait_for_idle(&keygate, count + BUSY);
    let held = keygate.memory("VmRSS");
    let mut figures = vec![
        ("idle connections", count as f64),
        ("memory of each, KiB", (held - before) as f64 / count as f64),
        ("memory of the process, MiB", held as f64 / 1024.0),
    ];

    let cpu = Cpu::of(&keygate);
    let latencies = runtime.block_on(send(&mut busy, REQUESTS));
    figures.push(("request, CPU time, µs", cpu.since(&keygate) / REQUESTS as f64));
    figures.push(("request, median latency, µs", at(&latencies, 0.5)));

    let mut woken = runtime.block_on(open(keygate.address(), None, &config, WOKEN));
    wait_for_idle(&keygate, count + BUSY + WOKEN);
    let cpu = Cpu::of(&keygate);
    let latencies = runtime.block_on(send(&mut woken, WOKEN));
    figures.push(("request after idle time, CPU time, µs", cpu.since(&keygate) / WOKEN as f64));
    figures.push(("request after idle time, median latency, µs", at(&latencies, 0.5)));

    let cpu = Cpu::of(&keygate);
    let mut scrapes: Vec<_> = (0..SCRAPES)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(keygate.admin("/metrics").0, 200);
            start.elapsed()
        })
        .collect();
    scrapes.sort_unstable();
    figures.push(("scrape, CPU time, µs", cpu.since(&keygate) / SCRAPES as f64));
    figures.push(("scrape, median latency, µs", at(&scrapes, 0.5)));

    wait_for_idle(&keygate, count + BUSY + WOKEN);
    let cpu = Cpu::of(&keygate);
    swap(&keygate, &pki, 2);
    std::thread::sleep(SWAP);
    figures.push(("filter swap, CPU time, ms", cpu.since(&keygate) / 1e3));
    let latencies = std::thread::scope(|scope| {
        let swapped = scope.spawn(|| swap(&keygate, &pki, 3));
        let mut latencies = Vec::new();
        let mut left = 2;
        while left > 0 {
            latencies.extend(runtime.block_on(send(&mut busy, REQUESTS / 4)));
            left -= usize::from(swapped.is_finished()); // the judgements may follow the log line
        }
        latencies.sort_unstable();
        latencies
    });
    figures.push(("request during a swap, 99.9 % latency, ms", at(&latencies, 0.999) / 1e3));
    figures.push(("request during a swap, longest latency, ms", at(&latencies, 1.0) / 1e3));
    drop(holders);
    keygate.wait_for_metric(ACTIVE, (BUSY + WOKEN) as f64);
    figures.push(("memory after they closed, MiB", keygate.memory("VmRSS") as f64 / 1024.0));
    figures
}

/// Waits until `count` connections have given their buffers back.
fn wait_for_idle(keygate: &Keygate, count: usize) {
    keygate.wait_for_metric(HIBERNATING, count as f64);
}

/// A service that permits `count` idle connections.
fn configuration(origin: &Origin, count: usize) -> Configuration {
    let connections = count + OTHER_DESCRIPTORS;
    let limits = format!(
        "max_connections = {connections}, max_connections_per_ip = {connections}, idle_timeout = \"1h\""
    );
    Configuration::new(origin.address()).limits(&limits)
}

/// Starts the proxy. One worker is on its core, two are on both cores.
fn start(pki: &Pki, configuration: &Configuration, workers: u8) -> Keygate {
    let program = std::env::var("KEYGATE").unwrap_or_else(|_| BINARY.to_owned());
    let cores =
        if workers == 1 { PROXY_CORE.to_owned() } else { format!("{PROXY_CORE},{LOAD_CORE}") };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cores, &program]);
    Keygate::run_by(command, pki, &configuration.clone().workers(workers.into()).text())
}

/// Full handshakes a second, and microseconds of CPU time for each.
fn handshakes_per_second(runtime: &Runtime, workers: u8) -> [f64; 2] {
    let (pki, origin) = (Pki::new(), Origin::start());
    let good = pki.client("good", Kind::P256);
    pki.server_of_kind("server", Kind::Rsa4096);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let keygate = start(&pki, &configuration(&origin, 0), workers);
    let config = client_config(&pki.path("ca.pem"), &good.certificate, &good.private_key);
    let (cpu, start) = (Cpu::of(&keygate), Instant::now());
    let sockets =
        runtime.block_on(connect_all(keygate.address(), None, &config, HANDSHAKES, false));
    let rate = HANDSHAKES as f64 / start.elapsed().as_secs_f64();
    assert!(sockets.is_empty());
    [rate, cpu.since(&keygate) / HANDSHAKES as f64]
}

/// Replaces the filter by another one that has no client, and waits until it is in use.
fn swap(keygate: &Keygate, pki: &Pki, generation: u32) {
    write_revision(&pki.path("lost.pkbf"), &[b"no client has this key"], generation);
    keygate.wait_for_generation(generation.into());
}

/// The soft limit of descriptors, which child processes inherit.
fn descriptor_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX)
}

/// CPU time of the threads of a process, in nanoseconds (`/proc/PID/task/TID/schedstat`).
struct Cpu(u64);

impl Cpu {
    fn of(keygate: &Keygate) -> Self {
        let threads = std::fs::read_dir(format!("/proc/{}/task", keygate.pid())).unwrap();
        let time = |thread: PathBuf| -> Option<u64> {
            let text = std::fs::read_to_string(thread.join("schedstat")).ok()?; // it may end
            text.split_whitespace().next()?.parse().ok()
        };
        Self(threads.filter_map(|thread| time(thread.unwrap().path())).sum())
    }

    /// Microseconds since this measurement.
    fn since(&self, keygate: &Keygate) -> f64 {
        (Self::of(keygate).0 - self.0) as f64 / 1e3
    }
}

/// Microseconds that this share of `sorted` does not exceed.
fn at(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() - 1) as f64 * share).round();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let index = index as usize;
    sorted[index].as_secs_f64() * 1e6
}
