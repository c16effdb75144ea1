//! The service or authorizer that names a file with certificates or keys.

use std::fmt;

/// A service or an authorizer by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialOwner {
    /// An authorizer.
    Authorizer(String),
    /// A service.
    Service(String),
}

impl CredentialOwner {
    /// The array of tables in the configuration.
    #[must_use]
    pub fn table(&self) -> &'static str {
        match self {
            Self::Authorizer(_) => "authorizers",
            Self::Service(_) => "services",
        }
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Authorizer(name) | Self::Service(name) => name,
        }
    }
}

impl fmt::Display for CredentialOwner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorizer(name) => write!(formatter, "authorizer {name:?}"),
            Self::Service(name) => write!(formatter, "service {name:?}"),
        }
    }
}
