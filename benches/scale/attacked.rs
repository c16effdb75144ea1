//! Latencies of honest clients beside idle ones, without and with the worst client and stranger, in
//! 512 MiB.

use std::path::Path;
use std::process::Command;

use super::harness::cores::PROXY_CORE;
use super::support::attacked::{Beside, Figures, Scale, idle, measure, origin};
use super::support::keygate::{BINARY, Keygate};
use super::support::load::send_get;
use super::support::pki::Pki;
use super::support::proxy::{Configuration, Configure};
use super::support::write_filter;
use super::{ACTIVE, at};

/// Half of 512 MiB, as without the key `max_buffered` in a cgroup of this size.
const BUDGET: &str = "256MiB";

/// Prints a table of figures for `count` idle connections, of a proxy in the cgroup of this
/// directory, or with the buffers that it would have in one.
pub(crate) fn print_attacked(count: usize, cgroup: Option<&Path>) {
    let scale = Scale { idle: count, connections: 120, hellos: 3_800, requests: 20_000 };
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let keygate = start(&pki, cgroup);
    let (_idle, mut kept) = idle(&keygate, &pki, scale.idle, 100);
    let columns = [Beside::Nothing, Beside::Honest, Beside::Attack].map(|beside| {
        keygate.forget_peak();
        let figures = measure(&keygate, &pki, scale, beside);
        (figures, keygate.memory("VmHWM"))
    });
    kept.iter_mut().for_each(|idle| _ = send_get(idle, "localhost", false).unwrap());
    assert!(keygate.metric(ACTIVE) >= count as f64, "an idle client was disconnected");
    println!("| beside {count} idle clients | nothing else | honest clients | the attack |");
    println!("| --- | ---: | ---: | ---: |");
    let row = |name: &str, value: &dyn Fn(&(Figures, u64)) -> String| {
        println!("| {name} | {} |", columns.each_ref().map(value).join(" | "));
    };
    for (name, share) in [("median", 0.5), ("p99", 0.99)] {
        row(&format!("request, {name}, µs"), &|it| format!("{:.0}", at(&it.0.requests, share)));
        row(&format!("upload, {name}, µs"), &|it| format!("{:.0}", at(&it.0.uploads, share)));
        row(&format!("request over a new connection, {name}, µs"), &|it| {
            format!("{:.0}", at(&it.0.new_connections, share))
        });
    }
    row("failed requests", &|it| format!("{} of {}", it.0.failures.len(), scale.requests));
    row("maximum memory, MiB", &|it| format!("{:.0}", it.1 as f64 / 1024.0));
    columns.iter().flat_map(|it| it.0.failures.first()).for_each(|it| eprintln!("{it}"));
}

fn start(pki: &Pki, cgroup: Option<&Path>) -> Keygate {
    let limits = "max_connections = 30000, max_connections_per_ip = 30000, idle_timeout = \"1h\"";
    let configuration = Configuration::new(origin()).workers(1).limits(limits);
    let configuration = configuration.upstream("max_connections = 3000");
    let program = std::env::var("KEYGATE").unwrap_or_else(|_| BINARY.to_owned());
    let pinned = ["taskset", "--cpu-list", PROXY_CORE, &program];
    let Some(cgroup) = cgroup else {
        let mut command = Command::new(pinned[0]);
        command.args(&pinned[1..]);
        return Keygate::run_by(command, pki, &configuration.set("max_buffered", BUDGET).text());
    };
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(cgroup).args(pinned);
    Keygate::run_by(command, pki, &configuration.text())
}
