//! Reports everything in use, for `/status` and the status page.
//!
//! Times are in seconds since the Unix epoch.

mod rejections;

use serde::Serialize;

pub use self::rejections::Rejection;
use crate::sources::{
    AuthorizerReport, ExceptionReport, Expiry, FilterReport, ListReport, ReloadReport,
    ServiceReport, Warning,
};

/// Everything that a reload can change.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Number of the snapshot in use.
    pub generation: u64,
    /// Path of the configuration; `None` if it has no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration_path: Option<String>,
    /// The last attempt to read the configuration again; `None` before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ReloadReport>,
    /// The settings that differ from the start's and take effect only after a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restart_needed: Vec<&'static str>,
    /// The filters, in the order of the configuration.
    pub filters: Vec<FilterReport>,
    /// The lists, in the order of the configuration.
    pub lists: Vec<ListReport>,
    /// The checks of weak keys that are made; none if they are off.
    pub weak_keys: Vec<&'static str>,
    /// The exceptions, in the order of the configuration.
    pub exceptions: Vec<ExceptionReport>,
    /// The services, in the order of the configuration.
    pub services: Vec<ServiceReport>,
    /// The authorizers, in the order of the configuration.
    pub authorizers: Vec<AuthorizerReport>,
    /// The last attempt to read the files of the address for readers, if it has TLS.
    #[serde(skip)]
    pub readers: Option<ReloadReport>,
    /// Objects that expire, earliest first.
    pub expiries: Vec<Expiry>,
    /// The conditions that an operator must mend although everything can be used.
    pub warnings: Vec<Warning>,
    /// The public keys of assertions, as a JSON Web Key Set.
    #[serde(skip)]
    pub key_set: String,
    /// Why the state of filters, lists and CRLs could not be saved the last time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<String>,
}

impl Report {
    /// The checks of weak keys in one line.
    #[must_use]
    pub fn weak_keys_text(&self) -> String {
        if self.weak_keys.is_empty() { "not checked".to_owned() } else { self.weak_keys.join(", ") }
    }
}
