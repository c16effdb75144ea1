//! The units of files of a service, and those that the last check rejected.

use std::time::SystemTime;

use tracing::warn;

use super::credential_files::CRLS;
use super::failure::ReadError;
use super::last_good::LastGood;
use super::load_error::LoadError;
use super::load_errors::LoadErrors;
use super::rejection_reason::RejectionReason;
use super::report::WaitingReport;
use crate::metrics::{ControlMetrics, Label, labels};

labels! {
    /// The files of a service or authorizer that are replaced together, whatever its other files
    /// are.
    CredentialUnit {
        /// The alternative certificate and its private key.
        AlternativeServer = "alternative_server",
        /// The CAs of the peers that ask an authorizer.
        AskerCa = "asker_ca",
        /// The CAs of clients: trust anchors and intermediates.
        ClientCa = "client_ca",
        /// The revocation lists. The lists of each CA are replaced by themselves.
        Crls = "crls",
        /// The own certificate and its private key.
        Server = "server",
        /// The keys that sign assertions.
        SigningKeys = "signing_keys",
        /// The secrets of shared session tickets.
        TicketSecret = "ticket_secret",
        /// The CAs of the upstream, the client certificate for it and its private key.
        Upstream = "upstream",
        /// The secrets of the webhooks that ask an authorizer.
        Webhooks = "webhooks",
    }
}

impl CredentialUnit {
    /// The units that are read together.
    pub(super) const OF_CLIENTS: [Self; 2] = [Self::ClientCa, Self::Crls];
}

/// A unit of files that was rejected at its last check.
#[derive(Debug)]
pub(super) struct RejectedUnit {
    pub(super) unit: CredentialUnit,
    /// The class of the first error.
    pub(super) reason: RejectionReason,
    /// The errors of all files of the unit.
    pub(super) error: String,
}

/// The result of a check that rejected files.
#[derive(Debug)]
pub(super) struct UnitRejection {
    pub(super) units: Vec<RejectedUnit>,
    /// Whether the files were not rejected before with the same errors.
    pub(super) is_new: bool,
}

impl UnitRejection {
    /// Records that `files` cannot be used because of `errors`. Errors of CRLs are of their own
    /// unit, all others of `unit`. A unit of which a part waits and another part is rejected for
    /// good has the class of the latter.
    pub(super) fn record<T>(
        files: &mut LastGood<T>,
        unit: CredentialUnit,
        errors: &LoadErrors,
        now: SystemTime,
    ) -> Self {
        let mut units: Vec<RejectedUnit> = Vec::new();
        let (waiting, others): (Vec<_>, Vec<_>) = errors.iter().partition(|error| error.waits());
        for error in others.into_iter().chain(waiting) {
            let text = error.to_string();
            let (unit, reason) = if let LoadError::Credentials { key, source, .. } = error {
                let unit = if *key == CRLS { CredentialUnit::Crls } else { unit };
                (unit, source.reason(key))
            } else {
                // The files of a unit may be usable one by one, and not together.
                (unit, RejectionReason::Content)
            };
            match units.iter_mut().find(|known| known.unit == unit) {
                Some(known) => known.error = [known.error.as_str(), &text].join("; "),
                None => units.push(RejectedUnit { unit, reason, error: text }),
            }
        }
        let reason = units.first().map(|unit| unit.reason);
        let is_new = files.record_rejection(reason, errors.failure(), &errors.to_string(), now);
        Self { units, is_new }
    }
}

impl RejectedUnit {
    /// Whether the update waits for the operator as a whole.
    pub(super) fn waits(&self) -> bool {
        self.reason == RejectionReason::NewHits
    }

    /// Logs and counts the rejection. `waiting` is the update of the service that waits.
    pub(super) fn record(
        &self,
        service: &str,
        metrics: &ControlMetrics,
        waiting: Option<&WaitingReport>,
    ) {
        let waiting = waiting.filter(|_| self.waits());
        warn!(
            service,
            files = self.unit.as_str(),
            reason = self.reason.as_str(),
            error = self.error,
            sha256 = waiting.map(|waiting| waiting.sha256.as_str()),
            clients = waiting.map(WaitingReport::client_list),
            "certificate update rejected, keeping those in use"
        );
        if self.unit == CredentialUnit::Crls {
            metrics.record_crl_rejected(service, self.reason);
        } else {
            metrics.record_credential_rejected(service, self.unit, self.reason);
        }
    }
}
