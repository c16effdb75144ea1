//! An update that waits, accepted by the operator.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use tracing::warn;

use super::FilterSource;
use super::held::HeldUpdate;
use crate::snapshot::filter_rejection::FilterRejection;

/// Why an update cannot be accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The waiting update is not the one that was inspected.
    #[error(
        "filter {filter:?}: the waiting update has the SHA-256 {waiting}: inspect it with `keygate filter diff`, then accept it"
    )]
    Another {
        /// Name of the filter.
        filter: String,
        /// SHA-256 of the update that waits, in hex.
        waiting: String,
    },
    /// The accepted update cannot be read, because it is being written.
    #[error(
        "filter {filter:?}: the update is not used, because the file is being written; accept it again when the writer is done"
    )]
    BeingWritten {
        /// Name of the filter.
        filter: String,
    },
    /// No update waits.
    #[error(
        "filter {filter:?}: no update waits to be accepted; `keygate status` has the state of each filter"
    )]
    Nothing {
        /// Name of the filter.
        filter: String,
    },
    /// The accepted update fails another check.
    #[error("filter {filter:?}: the update is still rejected: {source}")]
    Rejected {
        /// Name of the filter.
        filter: String,
        /// The check that it fails.
        source: Arc<FilterRejection>,
    },
    /// No filter has this name.
    #[error("there is no filter {filter:?}; `keygate status` has the names")]
    Unknown {
        /// The name that was given.
        filter: String,
    },
}

impl FilterSource {
    /// Accepts the waiting update with this SHA-256 on behalf of `peer`. The next refresh uses the
    /// update, regardless of new hits and entries.
    ///
    /// # Errors
    /// Returns an error if no update waits, or if the waiting update has another SHA-256.
    pub(crate) fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        let filter = || self.config.name.clone();
        let Some(report) = self.acceptable().cloned() else {
            return Err(AcceptError::Nothing { filter: filter() });
        };
        if report.sha256 != HEXLOWER.encode(sha256) {
            return Err(AcceptError::Another { filter: filter(), waiting: report.sha256 });
        }
        self.held = Some(HeldUpdate::Accepted { report, sha256: *sha256, peer: peer.to_owned() });
        Ok(())
    }

    /// Logs and counts that the update with this SHA-256 is used because an operator has accepted
    /// it. The file may have changed after the command, so that the command alone counts for
    /// nothing.
    pub(super) fn record_acceptance(&self, sha256: &[u8; 32]) {
        let Some(HeldUpdate::Accepted { report, sha256: accepted, peer }) = &self.held else {
            return;
        };
        if accepted != sha256 {
            return;
        }
        warn!(
            target: "keygate::client_key",
            filter = %self.config.name,
            peer,
            sha256 = report.sha256,
            revision = report.revision,
            entries = report.entries,
            new_hits = report.new_hits,
            clients = report.client_list(),
            "filter update accepted by an operator"
        );
        self.metrics.accepted.inc();
    }

    /// Checks that the accepted update with this SHA-256 is in use.
    ///
    /// # Errors
    /// Returns an error if the update was rejected for another reason, or if its file is being
    /// written.
    pub(crate) fn ensure_in_use(&self, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        if self.filter().sha256 == *sha256 {
            return Ok(());
        }
        let filter = self.config.name.clone();
        Err(match &self.rejection {
            Some(source) => AcceptError::Rejected { filter, source: Arc::clone(source) },
            None => AcceptError::BeingWritten { filter },
        })
    }
}
