//! Outcomes and errors of commands, with their exit codes.
//!
//! | code | outcome |
//! | --- | --- |
//! | 0 | The command is done. A query found no key; `proof verify` found a proof. |
//! | 1 | A key was found, files differ, an update waits or was rejected, the proxy is not ready, or `proof verify` found no proof. |
//! | 2 | Wrong usage or configuration; `validate --strict`: a warning. |
//! | 3 | A file, input or response cannot be used. |
//! | 4 | An error of the operating system: an address in use, no permission, no thread. |
//! | 5 | A query found no key, and could not check one. `probe` found nothing, and could not prove all. |
//! | 6 | A new file would reject more of the given keys than `--max-new-hits` allows. |
//!
//! The manual page of each command in `docs/man` has the exact conditions, which `--help` prints.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::regular_file::explain;

use super::admin_error::AdminError;
use crate::config::{ConfigError, KeyLines, LocatedProblem};
use crate::confirm::ConfirmError;
use crate::process::sandbox::SandboxError;
use crate::server::ServerError;
use crate::sources::LoadError;

/// Outcome of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Done,
    /// An error with this exit code, which the result on standard output describes.
    Failed(u8),
    Found,
    /// Some inputs were unusable; each one was reported on standard error.
    Incomplete,
    /// No given key is proved compromised.
    NotProved,
    /// The proxy is not ready or does not respond; the reason was reported on standard error.
    NotReady,
    /// More keys than the limit have a hit in the new file alone.
    OverLimit,
    /// The running proxy rejected a file.
    Rejected,
    /// No response of a probe shows what becomes of the status header.
    Unproved,
    /// A key is in an encoding that no list can hold, and no key was found.
    Unchecked,
    /// There are warnings, and `--strict` was given.
    Warned,
}

impl Exit {
    /// The exit code.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Found | Self::NotProved | Self::NotReady | Self::Rejected => 1,
            Self::Warned => 2,
            Self::Incomplete => 3,
            Self::Unchecked | Self::Unproved => 5,
            Self::OverLimit => 6,
            Self::Failed(code) => code,
        }
    }
}

/// Error that ends a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Confirm(#[from] ConfirmError),
    /// A file that cannot be used.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: BoxedError },
    #[error("{0}")]
    Operation(String),
    #[error("cannot write the result: {0}")]
    Output(#[source] io::Error),
    #[error("{source}")]
    Sandbox { configuration: PathBuf, source: SandboxError },
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A file, address or setting in `configuration` cannot be used.
    #[error("{source}")]
    Start { configuration: PathBuf, source: ServerError },
    #[error("{operation}: {source}")]
    System { operation: &'static str, source: BoxedError },
    #[error("{0}")]
    Usage(String),
}

pub(super) type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl CliError {
    pub(super) fn system(operation: &'static str, source: impl Into<BoxedError>) -> Self {
        Self::System { operation, source: source.into() }
    }

    /// The file at `path` cannot be used.
    pub(super) fn file(path: &Path, source: impl Into<BoxedError>) -> Self {
        Self::File { path: path.to_owned(), source: source.into() }
    }

    /// The file at `path` cannot be opened, read or written.
    pub(super) fn io(path: &Path, source: &io::Error) -> Self {
        Self::file(path, explain(source))
    }

    /// A file, address or setting in `configuration` cannot be used.
    pub(super) fn start(configuration: &Path, source: impl Into<ServerError>) -> Self {
        Self::Start { configuration: configuration.to_owned(), source: source.into() }
    }

    /// The error, with one line for each problem of the configuration and each unusable file.
    pub(super) fn lines(&self) -> Vec<String> {
        if let Self::Config(error) = self {
            return error.lines();
        }
        if let Self::Server(ServerError::Load(errors)) = self {
            return errors.lines();
        }
        match self.located() {
            located if located.is_empty() => vec![self.to_string()],
            located => located.iter().map(ToString::to_string).collect(),
        }
    }

    /// The errors of what the configuration names, with file and line; none for other errors.
    pub(super) fn located(&self) -> Vec<LocatedProblem> {
        if let Self::Sandbox { configuration, source } = self {
            return KeyLines::read(configuration).locate(vec![source.placed()]);
        }
        if let Self::Start { configuration, source } = self {
            return KeyLines::read(configuration).locate(source.problems());
        }
        Vec::new()
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) => 2,
            Self::Admin(_) | Self::Confirm(_) | Self::File { .. } | Self::Operation(_) => 3,
            Self::Output(_) | Self::Sandbox { .. } | Self::System { .. } => 4,
            Self::Server(source) | Self::Start { source, .. } => exit_code_of(source),
        }
    }
}

fn exit_code_of(error: &ServerError) -> u8 {
    match error {
        ServerError::InheritedSockets(_) | ServerError::Metrics(_) => 2,
        ServerError::Load(errors) if errors.iter().any(|it| matches!(it, LoadError::Thread(_))) => {
            4
        }
        ServerError::Confirm(_) | ServerError::Load(_) | ServerError::Traces(_) => 3,
        ServerError::AccessLog(_)
        | ServerError::AccessLogFile { .. }
        | ServerError::Bind(_)
        | ServerError::Control(_)
        | ServerError::Loader(_)
        | ServerError::Thread(_)
        | ServerError::Resolver(_)
        | ServerError::Worker(_) => 4,
    }
}
