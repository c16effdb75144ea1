//! Reports on the files in use and the last reload of each, for `/status` and the status page.
//!
//! Times are in seconds since the Unix epoch.

mod authorizer;
mod filter;
mod list;
mod policy;
mod revocation;
mod service;

use keygate_core::guard::Exception;
use serde::Serialize;

pub use self::authorizer::AuthorizerReport;
pub(crate) use self::filter::client_list;
pub use self::filter::{DryRunReport, FilterReport, SignatureReport};
pub use self::list::ListReport;
pub use self::policy::PolicyReport;
pub use self::revocation::CrlReport;
pub use self::service::ServiceReport;
use crate::metrics::{Label, ReloadResult};
pub use crate::saved_state::{AffectedClient, WaitingReport};

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
