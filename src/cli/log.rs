//! The log on standard error.
//!
//! A separate thread writes it, so that a stalled reader never blocks a worker. Lines are dropped
//! while the buffer is full.

use std::io;

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::SubscriberBuilder;

use super::{BoxedError, CliError};
use crate::config::{LogConfig, LogFormat};

/// Starts the log. Dropping the guard writes the buffered lines and stops the log.
pub(super) fn start(config: &LogConfig) -> Result<WorkerGuard, CliError> {
    let failed = |source: BoxedError| CliError::system("cannot start the log", source);
    let filter: EnvFilter =
        config.level.directives().parse().map_err(|error: ParseError| failed(error.into()))?;
    let (writer, guard) = NonBlocking::new(io::stderr());
    let builder = SubscriberBuilder::default().with_writer(writer).with_env_filter(filter);
    let started = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Text => builder.with_ansi(false).try_init(),
    };
    started.map_err(failed)?;
    Ok(guard)
}
