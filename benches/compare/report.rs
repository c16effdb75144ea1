//! The runs of a comparison, their medians and their spread as tables, and all of them as JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::peer::Peer;
use super::scenario::{Idle, Scenario};

/// One run of one row.
pub struct Run {
    column: Column,
    row: Row,
    /// Microseconds of CPU time for each unit of work, or KiB for each connection.
    figure: f64,
    /// Latency that 99 % of the units do not exceed.
    p99: Option<Duration>,
    units_per_second: Option<f64>,
}

/// A proxy, the bare server, or the cryptography alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Floor,
    Proxy(Peer),
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
            column: Column::Proxy(peer),
            row: Row::Work(scenario),
            figure: cpu.as_secs_f64() * 1e6 / units,
            p99: latencies.get(latencies.len() * 99 / 100).copied(),
            units_per_second: Some(units / elapsed.as_secs_f64()),
        }
    }

    /// A run that held idle connections, each of which cost `bytes`.
    pub fn of_memory(peer: Peer, idle: Idle, bytes: f64) -> Self {
        Self::without_load(Column::Proxy(peer), Row::Idle(idle), bytes / 1024.0)
    }

    /// A measurement of the floor.
    pub fn of_floor(scenario: Scenario, figure: f64) -> Self {
        Self::without_load(Column::Floor, Row::Work(scenario), figure)
    }

    fn without_load(column: Column, row: Row, figure: f64) -> Self {
        Self { column, row, figure, p99: None, units_per_second: None }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floor => formatter.pad("floor"),
            Self::Proxy(peer) => peer.fmt(formatter),
        }
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
    workers: usize,
    runs: Vec<Run>,
}

impl Report {
    pub fn new(peers: &[Peer], workers: usize) -> Self {
        Self { peers: peers.to_vec(), workers, runs: Vec::new() }
    }

    pub fn add(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// The rows of the scenarios and then the rows of the connections, in the order of their first
    /// run on a proxy.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for run in &self.runs {
            if run.column != Column::Floor && !rows.contains(&run.row) {
                rows.push(run.row);
            }
        }
        rows.sort_by_key(|row| matches!(row, Row::Idle(_)));
        rows
    }

    fn columns(&self) -> Vec<Column> {
        self.peers.iter().map(|peer| Column::Proxy(*peer)).collect()
    }

    /// The values of a cell in ascending order.
    fn values(&self, row: Row, column: Column, value: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
        let runs = self.runs.iter().filter(|run| run.row == row && run.column == column);
        let mut values: Vec<f64> = runs.filter_map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    }

    /// The median of the figures of a cell.
    fn figure(&self, row: Row, column: Column) -> Option<f64> {
        median(&self.values(row, column, |run| Some(run.figure)))
    }

    /// The difference of the largest and the smallest figure of a cell, in percent of the median.
    fn spread(&self, row: Row, column: Column) -> Option<f64> {
        let figures = self.values(row, column, |run| Some(run.figure));
        let (first, last) = (figures.first()?, figures.last()?);
        (figures.len() > 1).then_some(100.0 * (last - first) / median(&figures)?)
    }

    /// keygate's figure relative to the figure of the best other proxy. The bare server is none.
    fn ratio_to_best(&self, row: Row) -> Option<f64> {
        let others = self.columns().into_iter().filter(|column| ![KEYGATE, BARE].contains(column));
        let best = others.filter_map(|column| self.figure(row, column)).min_by(f64::total_cmp)?;
        Some(self.figure(row, KEYGATE)? / best)
    }

    fn ratio_to_floor(&self, row: Row) -> Option<f64> {
        Some(self.figure(row, KEYGATE)? / self.figure(row, Column::Floor)?)
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
                    "peer": run.column.to_string(),
                    "row": run.row.to_string(),
                    "unit": run.row.unit(),
                    "figure": run.figure,
                    "p99_ms": run.p99.map(milliseconds),
                    "units_per_second": run.units_per_second,
                })
            })
            .collect();
        let report = json!({
            "cpu": cpu_model(), "workers": self.workers, "versions": versions, "runs": runs,
        });
        format!("{report:#}\n")
    }

    /// Writes a table with a line for each row that has a value, and a column for each proxy before
    /// the `extra` ones. A line begins with `label`.
    fn write_table(
        &self,
        formatter: &mut fmt::Formatter<'_>,
        title: &str,
        extra: &[&str],
        label: impl Fn(Row) -> String,
        cells: impl Fn(Row) -> Vec<Option<String>>,
    ) -> fmt::Result {
        let peers = self.peers.iter().map(ToString::to_string);
        let heads: Vec<_> = peers.chain(extra.iter().map(|&head| head.to_owned())).collect();
        writeln!(formatter, "| {title} | {} |", heads.join(" | "))?;
        writeln!(formatter, "| --- |{}", " ---: |".repeat(heads.len()))?;
        for row in self.rows() {
            let cells = cells(row);
            if cells.iter().any(Option::is_some) {
                let cells: Vec<_> =
                    cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned())).collect();
                writeln!(formatter, "| {} | {} |", label(row), cells.join(" | "))?;
            }
        }
        Ok(())
    }
}

/// The tables: figures with keygate's ratios, their spread, latencies, throughput.
impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        let medians = |row, value: fn(&Run) -> Option<f64>, decimals: usize| {
            let cell = |column: &Column| median(&self.values(row, *column, value));
            columns.iter().map(cell).map(|value| rounded(value, decimals)).collect()
        };
        let name = |row: Row| row.to_string();
        let with_unit = |row: Row| format!("{row}, {}", row.unit());
        let ratios = ["floor", "keygate / best other", "keygate / floor"];
        self.write_table(formatter, "CPU time or memory", &ratios, with_unit, |row| {
            let floor = rounded(self.figure(row, Column::Floor), 1);
            let ratios = [self.ratio_to_best(row), self.ratio_to_floor(row)];
            let mut cells: Vec<_> = medians(row, |run| Some(run.figure), 1);
            cells.push(floor);
            cells.extend(ratios.map(|ratio| rounded(ratio, 2)));
            cells
        })?;
        writeln!(formatter)?;
        self.write_table(formatter, "spread, %", &["floor"], name, |row| {
            let columns = columns.iter().copied().chain([Column::Floor]);
            columns.map(|column| rounded(self.spread(row, column), 0)).collect()
        })?;
        writeln!(formatter)?;
        self.write_table(formatter, "latency at 99 %, ms", &[], name, |row| {
            medians(row, |run| run.p99.map(milliseconds), 2)
        })?;
        writeln!(formatter)?;
        self.write_table(formatter, "units a second", &[], name, |row| {
            medians(row, |run| run.units_per_second, 0)
        })
    }
}

const BARE: Column = Column::Proxy(Peer::Bare);
const KEYGATE: Column = Column::Proxy(Peer::Keygate);

/// The median of values in ascending order.
fn median(values: &[f64]) -> Option<f64> {
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().checked_sub(1)? / 2)?;
    Some(f64::midpoint(lower, upper))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rounded(value: Option<f64>, decimals: usize) -> Option<String> {
    value.map(|value| format!("{value:.decimals$}"))
}

fn cpu_model() -> Option<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpus.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
