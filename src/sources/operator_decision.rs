//! Why an update of a file waits for the decision of an operator.

pub use crate::saved_state::GuardFile;

/// An update that needs the decision of an operator.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}: {}", self.remedy())]
pub struct NeedsOperator {
    file: GuardFile,
    cause: WaitCause,
    /// Whether a former version is in use, so that the update can be accepted.
    can_accept: bool,
}

/// The reason for which an update waits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitCause {
    /// A list lacks most of the entries in use.
    #[error("it lacks {lost} of the entries in use ({in_use}), more than half")]
    Lost {
        /// Number of entries in use that the update lacks.
        lost: u64,
        /// Number of entries in use.
        in_use: u64,
    },
    /// More recent clients would be rejected than `max_new_hits` allows.
    #[error(
        "would reject {new_hits} of the clients admitted recently, max_new_hits allows {allowed}{}",
        since(*before)
    )]
    NewHits {
        /// Number of distinct keys that the update would reject.
        new_hits: usize,
        /// New hits of earlier updates of the last seven days.
        before: usize,
        /// Limit in the configuration.
        allowed: usize,
    },
    /// The update has half of the entries or fewer.
    #[error("the number of entries falls from {before} to {entries}")]
    Shrunk {
        /// Number of entries of the update.
        entries: u64,
        /// The largest number of entries in use of the last seven days.
        before: u64,
    },
    /// Another update waited when the process ended, and this one cannot be tried.
    #[error(
        "the update with the SHA-256 {waiting} waited before the restart, and there are no recent clients to try this one on"
    )]
    Untried {
        /// SHA-256 of the update that waited, in hex.
        waiting: String,
    },
}

fn since(hits_before: usize) -> String {
    match hits_before {
        0 => String::new(),
        before => format!(" in seven days, and earlier updates had {before}"),
    }
}

impl NeedsOperator {
    /// An update of a `file` that is in use.
    #[must_use]
    pub fn new(file: GuardFile, cause: WaitCause) -> Self {
        Self { file, cause, can_accept: true }
    }

    /// The update of a file of which no former version can be used until an operator accepts it.
    pub(super) fn without_file_in_use(self) -> Self {
        Self { can_accept: false, ..self }
    }

    /// Whether `keygate filter accept` or another such command lets the update through.
    pub(super) fn can_be_accepted(&self) -> bool {
        self.can_accept
    }

    /// Whether entries are missing, so that a limit of new hits does not matter.
    #[must_use]
    pub fn is_shrunk(&self) -> bool {
        match self.cause {
            WaitCause::Lost { .. } | WaitCause::Shrunk { .. } => true,
            WaitCause::NewHits { .. } | WaitCause::Untried { .. } => false,
        }
    }

    fn remedy(&self) -> String {
        let file = self.file.as_str();
        if self.can_accept {
            return format!("inspect the update, then accept it with `keygate {file} accept`");
        }
        match self.cause {
            WaitCause::NewHits { .. } | WaitCause::Untried { .. }
                if self.file == GuardFile::Service =>
            {
                "restore the files that were in use, or remove max_new_hits".to_owned()
            }
            WaitCause::NewHits { .. } => {
                format!("raise or remove max_new_hits to add the {file}")
            }
            WaitCause::Lost { .. } | WaitCause::Shrunk { .. } if self.file == GuardFile::List => {
                "restore the file that was in use, or set shrink = \"allow\"".to_owned()
            }
            WaitCause::Lost { .. } | WaitCause::Shrunk { .. } | WaitCause::Untried { .. } => {
                "restore the file that was in use, or remove filters.json from state.dir before a start".to_owned()
            }
        }
    }
}
