//! The cost of `Keygate-Assertion` for a request on an open connection.
//!
//! One worker serves GETs of one client on one connection, without data of the client in headers,
//! with `Client-Cert`, with an assertion, and with both. The assertion is signed once, before the
//! requests that count. Two figures are printed for each:
//!
//! * the CPU time of the proxy, system calls included, as the median of rounds in turn,
//! * its instructions under callgrind, which differ by less than 0.1 % from run to run.
//!
//! `cargo bench --bench assertion`; `--no-callgrind` leaves out the second one.

#![allow(
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

#[path = "harness/mod.rs"]
mod harness;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clap::Parser;
use rustls::ClientConfig;

use harness::usage::cpu;
use support::assertion::signing_key;
use support::keygate::Keygate;
use support::load::{connect, send_get};
use support::origin::Origin;
use support::pki::{Kind, Pki};
use support::proxy::{Configuration, Configure};
use support::{client, write_filter};

/// The settings of the service.
const CASES: [(&str, bool, bool); 4] = [
    ("no header", false, false),
    ("Client-Cert", true, false),
    ("assertion", false, true),
    ("both", true, true),
];
/// Requests that count, in a round and under callgrind.
const REQUESTS: u32 = 20_000;
const REQUESTS_UNDER_CALLGRIND: u32 = 2_000;
/// Requests before, for buffers and the signature.
const FIRST: u32 = 500;

/// The cost of an assertion for a request on an open connection.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds for the CPU time.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Leaves out the instructions.
    #[arg(long)]
    no_callgrind: bool,
}

/// The files of all settings.
struct Site {
    pki: Pki,
    origin: Origin,
    client: Arc<ClientConfig>,
}

fn main() {
    let Some(arguments) = harness::arguments::<Arguments>() else { return };
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = Arc::new(client::config(&pki, &pki.client("good", Kind::P256)));
    write_filter(&pki.path("lost.pkbf"), &[]);
    signing_key(&pki, "now.pem", "EC");
    let site = Site { pki, origin, client };
    let mut times = CASES.map(|_| Vec::new());
    for _ in 0..arguments.rounds {
        for (case, times) in CASES.iter().zip(&mut times) {
            times.push(site.time(*case));
        }
    }
    println!("CPU time for each request in µs, and relative to Client-Cert:");
    let medians = times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        harness::quantile(&times, 500)
    });
    print(medians);
    if !arguments.no_callgrind {
        println!("Instructions for each request, and relative to Client-Cert:");
        print(CASES.map(|case| site.instructions(case)));
    }
}

fn print(figures: [f64; 4]) {
    for ((name, ..), figure) in CASES.iter().zip(figures) {
        let percent = (figure / figures[1] - 1.0) * 100.0;
        println!("  {name:12} {figure:10.2} {percent:+7.2} %");
    }
}

impl Site {
    fn start(&self, (_, client_cert, assertion): (&str, bool, bool), command: Command) -> Keygate {
        let forward = format!("forward = {{ client_cert = {client_cert} }}");
        let text = Configuration::new(self.origin.address()).service(&forward).workers(1);
        // callgrind writes its file at the end.
        let text = text.global("sandbox = { mode = \"off\" }");
        let assertions = "assertion = { issuer = \"https://keygate.example.com\", \
                          life = \"5m\", signing_keys = [{ file = \"now.pem\" }] }";
        let text = if assertion { text.policy(assertions) } else { text };
        Keygate::run_by(command, &self.pki, &text.text())
    }

    /// Sends the first requests, and then `count`. Returns what `measure` returns before them.
    fn request<T>(&self, keygate: &Keygate, count: u32, measure: impl FnOnce() -> T) -> T {
        let address = keygate.address();
        let mut connection = connect(address, &self.client).unwrap();
        let mut request = || assert!(send_get(&mut connection, address, false).unwrap());
        (0..FIRST).for_each(|_| request());
        let measured = measure();
        (0..count).for_each(|_| request());
        assert!(self.origin.untaken() >= count as usize);
        measured
    }

    /// The CPU time of a request, in µs.
    fn time(&self, case: (&str, bool, bool)) -> f64 {
        let keygate = self.start(case, Command::new(harness::keygate()));
        let before = self.request(&keygate, REQUESTS, || cpu(keygate.pid()));
        (cpu(keygate.pid()) - before).as_secs_f64() * 1e6 / f64::from(REQUESTS)
    }

    /// The instructions of a request. Two runs differ by the requests that count.
    fn instructions(&self, case: (&str, bool, bool)) -> f64 {
        let file = self.pki.path("callgrind.out");
        let total = |count| {
            let mut command = Command::new("valgrind");
            command.args(["--tool=callgrind", "--log-file=/dev/null"]);
            command.arg(format!("--callgrind-out-file={}", file.display()));
            command.arg(harness::keygate());
            let mut keygate = self.start(case, command);
            self.request(&keygate, count, || ());
            keygate.signal("TERM");
            assert!(keygate.ended().success());
            instructions_in(&file)
        };
        let (none, all) = (total(0), total(REQUESTS_UNDER_CALLGRIND));
        (all - none) / f64::from(REQUESTS_UNDER_CALLGRIND)
    }
}

/// The sum in a file of callgrind.
fn instructions_in(file: &Path) -> f64 {
    let text = std::fs::read_to_string(file).unwrap();
    let mut totals = text.lines().filter_map(|line| line.strip_prefix("totals: "));
    totals.next().unwrap().trim().parse().unwrap()
}
