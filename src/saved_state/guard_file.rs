//! The kind of a file by which clients are admitted or rejected.

/// The kind of a file by which clients are admitted or rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardFile {
    /// A filter.
    Filter,
    /// An exact list.
    List,
    /// The CAs or CRLs of a service or an authorizer.
    Service,
}

impl GuardFile {
    /// The name in logs, commands and paths.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::List => "list",
            Self::Service => "service",
        }
    }

    /// The array of tables in the configuration.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::Filter => "filters",
            Self::List => "lists",
            Self::Service => "services",
        }
    }

    /// `name` as the fields `filter` and `list` of a log line.
    pub(crate) fn names(self, name: &str) -> [Option<&str>; 2] {
        [Self::Filter, Self::List].map(|kind| Some(name).filter(|_| kind == self))
    }

    /// The filter, list or service with this name, as errors show it.
    pub(crate) fn subject(self, name: &str) -> String {
        format!("{} {name:?}", self.as_str())
    }
}
