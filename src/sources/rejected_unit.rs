//! A unit of files of a service whose last check rejected it.

use tracing::warn;

use super::service_credentials::CRLS;
use crate::metrics::{ControlMetrics, Label};
use crate::sources::credential_unit::{CredentialRejectionReason, CredentialUnit};
use crate::sources::crl_rejection_reason::CrlRejectionReason;
use crate::sources::error::LoadError;
use crate::sources::load_errors::LoadErrors;
use crate::sources::report::WaitingReport;

/// A unit of files that was rejected at its last check.
#[derive(Debug)]
pub(super) struct RejectedUnit {
    pub(super) unit: CredentialUnit,
    class: Class,
    /// The errors of all files of the unit.
    pub(super) error: String,
}

/// The class of the first error.
#[derive(Debug, Clone, Copy)]
enum Class {
    Credential(CredentialRejectionReason),
    Crl(CrlRejectionReason),
}

impl RejectedUnit {
    /// The units that `errors` are about. A unit of which a part waits and another part is rejected for
    /// good has the class of the latter.
    pub(super) fn all(errors: &LoadErrors) -> Vec<Self> {
        let mut units: Vec<Self> = Vec::new();
        let (waiting, others): (Vec<_>, Vec<_>) =
            errors.iter().partition(|error| matches!(error, LoadError::Waits { .. }));
        for error in others.into_iter().chain(waiting) {
            let (unit, text) = (unit_of(error), error.to_string());
            if let Some(known) = units.iter_mut().find(|known| known.unit == unit) {
                known.error = [known.error.as_str(), &text].join("; ");
                continue;
            }
            let class = match unit {
                CredentialUnit::Crls => Class::Crl(CrlRejectionReason::of_file(error)),
                CredentialUnit::AskerCa
                | CredentialUnit::ClientCa
                | CredentialUnit::Server
                | CredentialUnit::Upstream => {
                    Class::Credential(CredentialRejectionReason::of(error))
                }
            };
            units.push(Self { unit, class, error: text });
        }
        units
    }

    /// Whether the update waits for the operator as a whole.
    pub(super) fn waits(&self) -> bool {
        match self.class {
            Class::Credential(reason) => reason == CredentialRejectionReason::NewHits,
            Class::Crl(reason) => reason == CrlRejectionReason::NewHits,
        }
    }

    /// The class as text.
    pub(super) fn reason(&self) -> &'static str {
        match self.class {
            Class::Credential(reason) => reason.as_str(),
            Class::Crl(reason) => reason.as_str(),
        }
    }

    /// Logs and counts the rejection. `waiting` is the update of the service that waits.
    pub(super) fn record(
        &self,
        service: &str,
        metrics: &ControlMetrics,
        waiting: Option<&WaitingReport>,
    ) {
        let (files, reason, error) = (self.unit.as_str(), self.reason(), &self.error);
        let waiting = waiting.filter(|_| self.waits());
        let sha256 = waiting.map(|waiting| waiting.sha256.as_str());
        let clients = waiting.map(WaitingReport::client_list);
        warn!(
            service,
            files,
            reason,
            error,
            sha256,
            clients,
            "certificate update rejected, keeping those in use"
        );
        match self.class {
            Class::Credential(reason) => {
                metrics.record_credential_rejected(service, self.unit, reason);
            }
            Class::Crl(reason) => metrics.record_crl_rejected(service, reason),
        }
    }
}

fn unit_of(error: &LoadError) -> CredentialUnit {
    let (LoadError::Credentials { key, .. }
    | LoadError::Read { key, .. }
    | LoadError::Waits { key, .. }) = error
    else {
        return CredentialUnit::Upstream; // the last step of reading its files may fail
    };
    match *key {
        CRLS => CredentialUnit::Crls,
        "tls.client_ca" => CredentialUnit::AskerCa,
        key if key.starts_with("client_auth.") => CredentialUnit::ClientCa,
        key if key.starts_with("upstream.") => CredentialUnit::Upstream,
        _ => CredentialUnit::Server,
    }
}
