//! The log on standard error. A thread of its own writes it: a worker never waits for whoever reads
//! it, and what a stalled reader does not take is dropped.

use std::io;

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

use super::CliError;
use crate::config::{LogConfig, LogFormat};

/// Starts the log. It ends, with everything written, when the guard is dropped.
pub(super) fn start(config: &LogConfig) -> Result<WorkerGuard, CliError> {
    let refused = |error: &dyn std::fmt::Display| CliError::system("the log", error);
    let filter: EnvFilter = config.level.parse().map_err(|error| refused(&error))?;
    let (writer, guard) = NonBlocking::new(io::stderr());
    let builder = SubscriberBuilder::default().with_writer(writer).with_env_filter(filter);
    let started = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Text => builder.with_ansi(false).try_init(),
    };
    started.map_err(|error| refused(&error))?;
    Ok(guard)
}
