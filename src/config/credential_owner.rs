//! The table that names a file with certificates or keys.

use std::fmt;

use super::ReadersTls;

/// A service or an authorizer by its name, or the address for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialOwner {
    /// An authorizer.
    Authorizer(String),
    /// The address for readers.
    Readers,
    /// A service.
    Service(String),
}

impl CredentialOwner {
    /// The table, or the array of tables, in the configuration.
    #[must_use]
    pub fn table(&self) -> &'static str {
        match self {
            Self::Authorizer(_) => "authorizers",
            Self::Readers => "admin.readers",
            Self::Service(_) => "services",
        }
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Authorizer(name) | Self::Service(name) => name,
            Self::Readers => ReadersTls::NAME,
        }
    }
}

impl fmt::Display for CredentialOwner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorizer(name) => write!(formatter, "authorizer {name:?}"),
            Self::Readers => formatter.write_str("admin.readers"),
            Self::Service(name) => write!(formatter, "service {name:?}"),
        }
    }
}
