//! Standard output and standard error of the commands.

use std::fs::Permissions;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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

/// Writes a file for all users, as the umask has it. A reader finds the old file or the whole new
/// one.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), CliError> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let written = tempfile::Builder::new()
        .prefix(".keygate-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .and_then(|mut file| {
            file.write_all(content)?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)
        });
    written.map(|_| ()).map_err(|error| CliError::io(path, &error))
}
