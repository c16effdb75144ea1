//! Standard output and standard error of the commands.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use keygate_core::regular_file::without_numbers;

use super::exit::CliError;

/// Writes a line to standard error, without numbers of errors of the operating system.
pub(super) fn print_error(error: &dyn std::fmt::Display) {
    let error = without_numbers(&error.to_string());
    let _ = writeln!(io::stderr(), "keygate: {error}"); // standard error may be closed
}

/// Writes a line to standard output.
pub(super) fn print(line: impl std::fmt::Display) -> Result<(), CliError> {
    writeln!(io::stdout(), "{line}").map_err(CliError::Output)
}

/// Buffered standard output, flushed after each line if it is a terminal.
pub(super) struct CliOutput {
    writer: BufWriter<StdoutLock<'static>>,
    is_terminal: bool,
}

impl CliOutput {
    pub(super) fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { writer: BufWriter::with_capacity(64 << 10, stdout.lock()), is_terminal }
    }

    pub(super) fn line(&mut self, line: impl std::fmt::Display) -> Result<(), CliError> {
        writeln!(self.writer, "{line}").map_err(CliError::Output)?;
        if self.is_terminal { self.flush() } else { Ok(()) }
    }

    pub(super) fn json(&mut self, value: &impl serde::Serialize) -> Result<(), CliError> {
        self.line(json(value)?)
    }

    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        self.writer.flush().map_err(CliError::Output)
    }
}

/// Writes a value as one line of JSON to standard output.
pub(super) fn print_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    print(json(value)?)
}

fn json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string(value).map_err(|error| CliError::Output(error.into()))
}
