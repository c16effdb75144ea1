//! The units of files of a service, and those that the last check rejected.

use tracing::warn;

use super::client_keys::CRLS;
use super::credential_files::{SIGNING_KEYS, WEBHOOKS};
use super::load_error::LoadError;
use super::load_errors::LoadErrors;
use super::rejection_reason::RejectionReason;
use super::report::WaitingReport;
use super::ticket_secret::TICKET_SECRET;
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

    /// The unit of the file that `key` of the configuration names.
    fn from_key(key: &str) -> Self {
        match key {
            CRLS => Self::Crls,
            SIGNING_KEYS => Self::SigningKeys,
            WEBHOOKS => Self::Webhooks,
            "tls.client_ca" => Self::AskerCa,
            TICKET_SECRET => Self::TicketSecret,
            key if key.starts_with("tls.alternative.") => Self::AlternativeServer,
            key if key.starts_with("client_auth.") => Self::ClientCa,
            key if key.starts_with("upstream.") => Self::Upstream,
            _ => Self::Server,
        }
    }
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

impl RejectedUnit {
    /// The units that `errors` are about. A unit of which a part waits and another part is rejected for
    /// good has the class of the latter.
    pub(super) fn all(errors: &LoadErrors) -> Vec<Self> {
        let mut units: Vec<Self> = Vec::new();
        let (waiting, others): (Vec<_>, Vec<_>) = errors.iter().partition(|error| error.waits());
        for error in others.into_iter().chain(waiting) {
            let text = error.to_string();
            let (unit, reason) = if let LoadError::Credentials { key, source, .. } = error {
                (CredentialUnit::from_key(key), source.reason(key))
            } else {
                // The last step of reading the files of an upstream may fail.
                (CredentialUnit::Upstream, RejectionReason::Content)
            };
            match units.iter_mut().find(|known| known.unit == unit) {
                Some(known) => known.error = [known.error.as_str(), &text].join("; "),
                None => units.push(Self { unit, reason, error: text }),
            }
        }
        units
    }

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
        match self.unit {
            CredentialUnit::Crls => metrics.record_crl_rejected(service, self.reason),
            CredentialUnit::AlternativeServer
            | CredentialUnit::AskerCa
            | CredentialUnit::ClientCa
            | CredentialUnit::Server
            | CredentialUnit::SigningKeys
            | CredentialUnit::TicketSecret
            | CredentialUnit::Upstream
            | CredentialUnit::Webhooks => {
                metrics.record_credential_rejected(service, self.unit, self.reason);
            }
        }
    }
}
