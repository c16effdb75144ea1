//! Why the proxy cannot start.

use std::io;
use std::path::PathBuf;

use keygate_core::regular_file::cause;

use crate::config::{KeyPlace, PlacedProblem};
use crate::confirm::ConfirmError;
use crate::process::inherited_sockets::InheritedSocketsError;
use crate::sources::LoadErrors;
use crate::traces::TracesError;
use crate::{listen, workers};

/// Why the proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] listen::BindError),
    /// The access log cannot be started.
    #[error("cannot start the access log: {0}")]
    AccessLog(#[source] io::Error),
    /// The file of the access log cannot be opened.
    #[error(
        "access_log.path {}: {}; give a file that the user that runs keygate may write, in a directory that exists",
        path.display(),
        cause(source)
    )]
    AccessLogFile {
        /// Path of the file.
        path: PathBuf,
        /// Why it cannot be opened.
        source: io::Error,
    },
    /// A file of the source of proofs cannot be used.
    #[error(transparent)]
    Confirm(#[from] ConfirmError),
    /// The control thread cannot be started.
    #[error("cannot start the control thread: {0}")]
    Control(#[source] io::Error),
    /// The sockets from the service manager cannot be used.
    #[error(transparent)]
    InheritedSockets(#[from] InheritedSocketsError),
    /// Files that the configuration names cannot be used.
    #[error(transparent)]
    Load(#[from] LoadErrors),
    /// The thread that reads files cannot be started.
    #[error("cannot start the thread that reads files: {0}")]
    Loader(#[source] io::Error),
    /// A metric cannot be registered.
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The threads that look up names cannot be started.
    #[error("cannot start the threads that look up names: {0}")]
    Resolver(#[source] io::Error),
    /// A thread that the process needs has panicked or ended.
    #[error("the thread {0} failed; the lines above have the reason, please report it")]
    Thread(String),
    /// A file of the collector of traces cannot be used.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// A worker thread cannot be started.
    #[error(transparent)]
    Worker(#[from] workers::StartError),
}

impl ServerError {
    /// The errors, each with the key of the configuration that causes it.
    #[must_use]
    pub fn problems(&self) -> Vec<PlacedProblem> {
        let place = match self {
            Self::Bind(error) => return vec![error.placed()],
            Self::Confirm(error) => return vec![error.placed()],
            Self::Load(errors) => return errors.problems(),
            Self::Traces(error) => return vec![error.placed()],
            Self::AccessLogFile { .. } => Some(KeyPlace::new("access_log.path")),
            Self::AccessLog(_)
            | Self::Control(_)
            | Self::InheritedSockets(_)
            | Self::Loader(_)
            | Self::Metrics(_)
            | Self::Resolver(_)
            | Self::Thread(_)
            | Self::Worker(_) => None,
        };
        vec![PlacedProblem { place, problem: self.to_string() }]
    }
}
