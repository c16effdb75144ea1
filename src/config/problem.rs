//! Why a configuration cannot be used: each problem with its line, its key and a remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use keygate_core::regular_file::explain;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file has one or more problems, in the order of their lines.
    #[error("{}", self.lines().join("; "))]
    Invalid {
        /// The configuration file.
        file: PathBuf,
        /// At least one problem.
        problems: Vec<ConfigProblem>,
    },
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {}", file.display(), explain(source))]
    Read {
        /// The configuration file.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl ConfigError {
    /// The problems, one a line, each with the name of the file.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Invalid { file, problems } => {
                let file = file.display();
                problems.iter().map(|problem| format!("{file}:{problem}")).collect()
            }
            Self::Read { .. } => vec![self.to_string()],
        }
    }
}

/// A problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Number of the character in the line, counted from 1.
    pub column: usize,
    /// The key with the names of its tables, such as `services.orders.listen`; empty if the file is
    /// not TOML.
    pub field: String,
    /// The value found and the remedy.
    pub problem: String,
}

/// `LINE:COLUMN: FIELD: PROBLEM`.
impl fmt::Display for ConfigProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, field, problem } = self;
        write!(formatter, "{line}:{column}: ")?;
        if !field.is_empty() {
            write!(formatter, "{field}: ")?;
        }
        formatter.write_str(problem)
    }
}
