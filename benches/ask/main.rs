//! Questions of other proxies: CPU time of one question, questions a second of one worker, and
//! latency at 20,000 questions a second.
//!
//! A host with thousands of requests a second is the real case: a few connections of HAProxy or
//! Envoy with many questions under way, or many of nginx with one. `cargo bench --bench ask` prints
//! for each protocol, with and without `client_auth`:
//!
//! * questions a second and CPU time of keygate for each, while each connection has as many
//!   questions under way as the host would send;
//! * CPU time for each, and the latency at 50 %, 99 % and 99.9 %, of questions at a fixed rate.
//!
//! A question that is not answered with "allowed" ends the benchmark. `-- --seconds 30 --swaps 3`
//! replaces the filter three times in the measurement at the fixed rate.
//!
//! `-- --with-hosts` prints requests a second of nginx, Envoy, HAProxy, Traefik and Caddy instead,
//! as far as the machine has them, with and without keygate as their authorizer.
//!
//! keygate has one worker, on the first core, and a filter of 2^27 bits that is half full. The
//! questions come from the second core, about a clean client with a P-256 key. Each figure is the
//! median of the rounds, with the lowest and the highest.

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

mod grpc;
#[path = "../harness/mod.rs"]
mod harness;
mod hosts;
mod http;
mod listener;
mod load;
mod peer;
mod spop;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use clap::Parser;

use harness::cores::{LOAD_CORE, pin_this_process_to};
use hosts::Host;
use listener::{AskListener, Protocol};
use load::Run;

/// Measures the questions of other proxies.
#[derive(Debug, Parser)]
struct Arguments {
    /// Protocols, separated by commas; all by default.
    #[arg(long, value_delimiter = ',', default_values_t = Protocol::ALL)]
    protocols: Vec<Protocol>,
    /// Rounds; the table shows their medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Questions a second in the measurement of the latency.
    #[arg(long, default_value_t = 20_000)]
    rate: u32,
    /// Filter swaps during each measurement of the latency, in equal intervals. Leaves out the
    /// other measurement, and `client_auth`.
    #[arg(long, default_value_t = 0)]
    swaps: u32,
    /// Measures requests to real hosts, with and without keygate.
    #[arg(long)]
    with_hosts: bool,
    /// Hosts, separated by commas; all that are installed by default.
    #[arg(long, value_delimiter = ',', default_values_t = Host::ALL, requires = "with_hosts")]
    hosts: Vec<Host>,
    /// Starts the origin and nothing else.
    #[arg(long, hide = true)]
    origin: bool,
}

fn main() {
    let Some(arguments) = harness::arguments::<Arguments>() else { return };
    if arguments.origin {
        return harness::origin::serve();
    }
    let time = Duration::from_secs(arguments.seconds);
    if arguments.with_hosts {
        return hosts::measure(&arguments.hosts, arguments.rounds, time);
    }
    pin_this_process_to(LOAD_CORE);
    let is_whole = arguments.swaps == 0;
    let variants: &[bool] = if is_whole { &[false, true] } else { &[false] };
    let listeners = arguments.protocols.iter().flat_map(|protocol| {
        let variants = variants.iter().filter(|verifies| !**verifies || protocol.verifies());
        variants.map(|verifies| AskListener::open(*protocol, *verifies))
    });
    let column = |listener| Column { listener, saturated: Vec::new(), paced: Vec::new() };
    let mut columns: Vec<_> = listeners.map(column).collect();
    for round in 1..=arguments.rounds {
        for column in &mut columns {
            if is_whole {
                column.saturated.push(load::saturate(&column.listener, time));
            }
            let revisions = column.listener.revisions(arguments.swaps);
            column.paced.push(load::pace(&column.listener, time, arguments.rate, &revisions));
            column.listener.wait_for_revision();
        }
        eprintln!("round {round} of {}", arguments.rounds);
    }
    let names: Vec<_> = columns.iter().map(|column| column.listener.to_string()).collect();
    println!("| | {} |", names.join(" | "));
    println!("| --- |{}", " ---: |".repeat(columns.len()));
    let row = |label: &str, cell: &dyn Fn(&Column) -> String| {
        println!("| {label} | {} |", columns.iter().map(cell).collect::<Vec<_>>().join(" | "));
    };
    if is_whole {
        row("questions a second", &|column| spread(&column.saturated, Run::rate));
        row("CPU of each, µs", &|column| spread(&column.saturated, Run::cpu));
    }
    let rate = arguments.rate;
    row(&format!("CPU of each at {rate} a second, µs"), &|column| spread(&column.paced, Run::cpu));
    for (share, permille) in [("50 %", 500), ("99 %", 990), ("99.9 %", 999)] {
        row(&format!("latency at {rate} a second, {share}, µs"), &|column| {
            spread(&column.paced, |run| run.latency(permille))
        });
    }
    row("peak memory, MiB", &|column| {
        harness::spread(vec![column.listener.keygate.memory("VmHWM") as f64 / 1024.0])
    });
}

/// The runs of a listener.
struct Column {
    listener: AskListener,
    saturated: Vec<Run>,
    paced: Vec<Run>,
}

/// The median of a figure, with the lowest and the highest.
fn spread(runs: &[Run], figure: impl Fn(&Run) -> f64) -> String {
    harness::spread(runs.iter().map(figure).collect())
}
