//! The cost of the command line for many keys, each command on one core.
//!
//! A million lines of SPKI are added to a filter and looked up in it. A directory of a hundred
//! thousand certificates is looked up as well. The time covers the whole command: reading the files
//! from the page cache and writing the result. Run `cargo bench --bench toolbox`.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may fail loudly"
)]

#[path = "harness/mod.rs"]
mod harness;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use data_encoding::BASE64;
use keygate_core::spki;

use harness::NoArguments;

const LINES: u64 = 1_000_000;
const CERTIFICATES: u64 = 100_000;
const RUNS: usize = 5;

fn main() {
    if harness::arguments::<NoArguments>().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (list, certificates, filter) = (at("keys.txt"), at("certificates"), at("lost.pkbf"));
    make_inputs(&list, &certificates);

    let create =
        ["filter", "create", &filter, "--force", "--entries", "2000000", "--fp-rate", "1e-6"];
    let added = (0..RUNS).map(|_| {
        run(&create);
        run(&["filter", "add", &filter, &list])
    });
    report("filter add, lines of base64", LINES, added.collect());
    for (what, keys, input) in [
        ("filter query, lines of base64", LINES, &list),
        ("filter query, certificates in a directory", CERTIFICATES, &certificates),
    ] {
        let times = (0..RUNS).map(|_| run(&["filter", "query", &filter, input]));
        report(what, keys, times.collect());
    }
    let times =
        (0..RUNS).map(|_| run(&["filter", "query", &filter, &format!("{certificates}/7.pem")]));
    report("filter query, one certificate", 1, times.collect());
}

/// Writes P-256 keys that differ in eight bytes. The signatures of the certificates are not valid,
/// which the commands do not check.
fn make_inputs(list: &str, certificates: &str) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let mut der = certificate.der().to_vec();
    let mut spki = spki::of_certificate(&der).unwrap().to_vec();
    let place = der.windows(spki.len()).position(|window| window == spki).unwrap() + 40;
    let mut lines = BufWriter::new(File::create(list).unwrap());
    for number in 0..LINES {
        spki[40..48].copy_from_slice(&number.to_be_bytes());
        writeln!(lines, "{}", BASE64.encode(&spki)).unwrap();
    }
    std::fs::create_dir(certificates).unwrap();
    for number in 0..CERTIFICATES {
        der[place..place + 8].copy_from_slice(&number.to_be_bytes());
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            BASE64.encode(&der)
        );
        std::fs::write(Path::new(certificates).join(format!("{number}.pem")), pem).unwrap();
    }
}

/// Runs a command on one core and returns its time in seconds.
fn run(arguments: &[&str]) -> f64 {
    let start = Instant::now();
    let status = Command::new("taskset")
        .args(["-c", "0", env!("CARGO_BIN_EXE_keygate")])
        .args(arguments)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(matches!(status.code(), Some(0 | 1)), "{arguments:?}: {status}");
    start.elapsed().as_secs_f64()
}

fn report(what: &str, keys: u64, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!("{what}: {keys} keys in {median:.3} s, {:.0} keys/s", keys as f64 / median);
}
