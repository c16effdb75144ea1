//! Reports everything in use and the last reload of each file, for `/status` and the status page.
//!
//! Times are in seconds since the Unix epoch.

mod authorizer;
mod filter;
mod list;
mod policy;
mod rejections;
mod revocation;
mod service;

use keygate_core::guard::Exception;
use serde::Serialize;

pub use self::authorizer::AuthorizerReport;
pub(super) use self::filter::client_list;
pub use self::filter::{
    AffectedClient, DryRunReport, FilterReport, SignatureReport, WaitingReport,
};
pub use self::list::ListReport;
pub use self::policy::PolicyReport;
pub use self::rejections::Rejection;
pub use self::revocation::CrlReport;
pub use self::service::ServiceReport;
use super::expiry::Expiry;
use super::warning::Warning;
use crate::metrics::{Label, ReloadResult};

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
    /// The settings that differ from those of the start and take effect only after a restart.
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
    /// Objects that expire, earliest first.
    pub expiries: Vec<Expiry>,
    /// The conditions that an operator must mend although everything can be used.
    pub warnings: Vec<Warning>,
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

/// Result of an attempt to read a file.
#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    /// `loaded`, `unchanged` or `refused`.
    pub result: &'static str,
    /// Class of the rejection of a filter or of a CRL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why the file was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the attempt was made.
    pub at: u64,
    /// The files of the last update of a service, such as `a.crl (CN=CA, CRL number 7)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
}

impl ReloadReport {
    /// An attempt at the time `at` without an error.
    pub(super) fn done(result: ReloadResult, at: u64) -> Self {
        Self { result: result.as_str(), reason: None, error: None, at, files: None }
    }

    /// An attempt at the time `at` that ended with a rejection.
    pub(super) fn rejected(reason: Option<&'static str>, error: String, at: u64) -> Self {
        let result = ReloadResult::Rejected.as_str();
        Self { result, reason, error: Some(error), at, files: None }
    }

    /// Adds an attempt to read other files of the same service. A rejection counts more than a later
    /// success.
    pub(super) fn join(&mut self, other: Self) {
        match (&mut self.error, other.error.as_ref()) {
            (Some(error), Some(text)) => *error = [error.as_str(), text.as_str()].join("; "),
            (Some(_), None) => {}
            (None, Some(_)) => *self = other,
            (None, None) => self.at = self.at.max(other.at),
        }
    }
}

/// An exception, and whether it has expired.
#[derive(Debug, Clone, Serialize)]
pub struct ExceptionReport {
    /// Fingerprint of the key, or `rsa-modulus:` or `ec-x:` and a digest, in hex.
    pub fingerprint: String,
    /// When the exception expires.
    pub until: u64,
    /// Reason in the configuration.
    pub reason: String,
    /// Whether the exception has expired.
    pub expired: bool,
}

impl ExceptionReport {
    /// An exception that expires at `until`.
    pub(super) fn new(exception: &Exception, until: u64, expired: bool) -> Self {
        let (fingerprint, reason) = (exception.key.to_string(), exception.reason.clone());
        Self { fingerprint, until, reason, expired }
    }
}
