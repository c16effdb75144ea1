//! The log on standard error.
//!
//! A separate thread writes it, so that a stalled reader never blocks a worker. Lines are dropped
//! and counted while the buffer is full.

use std::io::{self, IsTerminal, Write};

use tracing::{Metadata, error};
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, registry, reload};

use super::{BoxedError, CliError};
use crate::config::{LogConfig, LogFormat, LogLevel};
use crate::log_writer::{LineClass, LogWriter, LogWriterGuard};
use crate::metrics::LogMetrics;
use crate::server::SetLogLevel;

/// Starts the log. Dropping the guard writes the buffered lines and stops the log. The function
/// sets the level after a reload.
pub(super) fn start(
    config: &LogConfig,
    metrics: &LogMetrics,
) -> Result<(LogWriterGuard, SetLogLevel), CliError> {
    let failed = |source: BoxedError| CliError::system("cannot start the log", source);
    let filter: EnvFilter =
        config.level.directives().parse().map_err(|error: ParseError| failed(error.into()))?;
    let started = LogWriter::start("main", io::stderr(), metrics.main_log());
    let (log, guard) = started.map_err(|error| failed(error.into()))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(MainLog(log));
    let lines = match config.format {
        LogFormat::Auto if io::stderr().is_terminal() => lines.with_ansi(has_colour()).boxed(),
        LogFormat::Text => lines.with_ansi(has_colour()).boxed(),
        LogFormat::Auto | LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).boxed()
        }
    };
    registry().with(filter).with(lines).try_init().map_err(|error| failed(error.into()))?;
    let set_level = move |level: &LogLevel| {
        let filter = level.directives().parse::<EnvFilter>(); // a checked level always has one
        if !filter.is_ok_and(|filter| handle.reload(filter).is_ok()) {
            error!(level = level.directives(), "the level of the log cannot be changed");
        }
    };
    Ok((guard, Box::new(set_level)))
}

/// Whether text has colours: on a terminal, unless `NO_COLOR` is set (no-color.org).
fn has_colour() -> bool {
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !is_unwanted
}

/// The modules whose lines are about security: rejected and flagged clients, updates of filters and
/// lists, answers about keys, dropped lines. No client can cause them without a limit.
const SECURITY_TARGETS: [&str; 5] = [
    "keygate::admin",
    "keygate::client_key",
    "keygate::confirm",
    "keygate::log",
    "keygate::snapshot",
];

struct MainLog(LogWriter);

/// The log as the writer of one line.
struct LineWriter<'a> {
    log: &'a LogWriter,
    class: LineClass,
}

impl<'a> MakeWriter<'a> for MainLog {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { log: &self.0, class: LineClass::Ordinary }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter<'a> {
        let is_security =
            SECURITY_TARGETS.iter().any(|target| metadata.target().starts_with(target));
        let class = if is_security { LineClass::Security } else { LineClass::Ordinary };
        LineWriter { log: &self.0, class }
    }
}

impl Write for LineWriter<'_> {
    /// Takes a whole line, as the subscriber writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.log.write_line(self.class, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
