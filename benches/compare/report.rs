//! The runs of a comparison, their medians as a table, and all of them as JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::load::{Idle, Scenario};
use super::peer::Peer;

/// One run of one row on one proxy.
pub struct Run {
    peer: Peer,
    row: Row,
    /// Microseconds of CPU time for each unit of work, or KiB for each connection.
    figure: f64,
    /// Latency that 99 % of the units do not exceed.
    p99: Option<Duration>,
    units_per_second: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Idle(Idle),
    Work(Scenario),
}

impl Run {
    /// A run whose units of work took `latencies` and `cpu` time of the proxy.
    pub fn of_work(
        peer: Peer,
        scenario: Scenario,
        cpu: Duration,
        elapsed: Duration,
        mut latencies: Vec<Duration>,
    ) -> Self {
        latencies.sort_unstable();
        let units = latencies.len() as f64;
        Self {
            peer,
            row: Row::Work(scenario),
            figure: cpu.as_secs_f64() * 1e6 / units,
            p99: latencies.get(latencies.len() * 99 / 100).copied(),
            units_per_second: Some(units / elapsed.as_secs_f64()),
        }
    }

    /// A run that held idle connections, each of which cost `bytes`.
    pub fn of_memory(peer: Peer, idle: Idle, bytes: f64) -> Self {
        let figure = bytes / 1024.0;
        Self { peer, row: Row::Idle(idle), figure, p99: None, units_per_second: None }
    }
}

impl Row {
    fn unit(self) -> &'static str {
        match self {
            Self::Idle(_) => "KiB",
            Self::Work(scenario) => scenario.unit(),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(idle) => idle.fmt(formatter),
            Self::Work(scenario) => scenario.fmt(formatter),
        }
    }
}

/// All runs.
pub struct Report {
    peers: Vec<Peer>,
    runs: Vec<Run>,
}

impl Report {
    pub fn new(peers: &[Peer]) -> Self {
        Self { peers: peers.to_vec(), runs: Vec::new() }
    }

    pub fn add(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// The rows, in the order of their first run.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for run in &self.runs {
            if !rows.contains(&run.row) {
                rows.push(run.row);
            }
        }
        rows
    }

    /// The median of `value` over the runs of a row on a proxy.
    fn median(&self, row: Row, peer: Peer, value: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let runs = self.runs.iter().filter(|run| run.row == row && run.peer == peer);
        let mut values: Vec<f64> = runs.filter_map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// The machine, the versions of the proxies, and every run.
    pub fn to_json(&self) -> String {
        let versions: serde_json::Map<_, _> =
            self.peers.iter().map(|peer| (peer.to_string(), peer.version().into())).collect();
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|run| {
                json!({
                    "peer": run.peer.to_string(),
                    "row": run.row.to_string(),
                    "unit": run.row.unit(),
                    "figure": run.figure,
                    "p99_ms": run.p99.map(milliseconds),
                    "units_per_second": run.units_per_second,
                })
            })
            .collect();
        let report = json!({ "cpu": cpu_model(), "versions": versions, "runs": runs });
        format!("{report:#}\n")
    }
}

/// The tables: the figure of each row, keygate's ratio to the best other proxy, and latencies.
impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers: String = self.peers.iter().map(|peer| format!(" {peer} |")).collect();
        let line = "---: | ".repeat(self.peers.len());
        writeln!(formatter, "| CPU time or memory |{peers} keygate / best other |")?;
        writeln!(formatter, "| --- | {line}---: |")?;
        for row in self.rows() {
            let figures =
                self.peers.iter().map(|peer| self.median(row, *peer, |run| Some(run.figure)));
            let cells: String = figures.map(|figure| format!(" {} |", cell(figure))).collect();
            let ratio = decimal(self.ratio(row));
            writeln!(formatter, "| {row}, {} |{cells} {ratio} |", row.unit())?;
        }
        writeln!(formatter, "\n| latency at 99 %, ms |{peers}\n| --- | {}", line.trim_end())?;
        for row in self.rows().into_iter().filter(|row| matches!(row, Row::Work(_))) {
            let latency = |run: &Run| run.p99.map(milliseconds);
            let latencies = self.peers.iter().map(|peer| self.median(row, *peer, latency));
            let cells: String =
                latencies.map(|latency| format!(" {} |", decimal(latency))).collect();
            writeln!(formatter, "| {row} |{cells}")?;
        }
        Ok(())
    }
}

impl Report {
    fn ratio(&self, row: Row) -> Option<f64> {
        let figure = |peer: &Peer| self.median(row, *peer, |run| Some(run.figure));
        let others = self.peers.iter().filter(|peer| **peer != Peer::Keygate).filter_map(figure);
        let best = others.min_by(f64::total_cmp)?;
        Some(figure(&Peer::Keygate)? / best)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn cell(figure: Option<f64>) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.1}"))
}

fn decimal(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

fn cpu_model() -> Option<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpus.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
