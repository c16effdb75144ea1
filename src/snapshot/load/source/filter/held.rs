//! A rejected update that may be used later without a change of the file.

use std::time::SystemTime;

use data_encoding::HEXLOWER;

use crate::snapshot::report::WaitingReport;
use crate::unix_time;

/// A rejected update that may be used later without a change of the file.
#[derive(Debug, Clone)]
pub(super) enum HeldUpdate {
    /// The operator at `peer` has accepted the update.
    Accepted { report: WaitingReport, sha256: [u8; 32], peer: String },
    /// The update needs the operator, because it has too many new hits or too few entries.
    AwaitsOperator { report: WaitingReport, sha256: [u8; 32] },
    /// The update is dated in the future; it may be used from this time on, in seconds since the
    /// Unix epoch.
    Until(u64),
}

impl HeldUpdate {
    /// The update in `report`, which waits; `None` if its SHA-256 is not in hex.
    pub(super) fn awaits_operator(report: &WaitingReport) -> Option<Self> {
        let sha256 = HEXLOWER.decode(report.sha256.as_bytes()).ok()?.try_into().ok()?;
        Some(Self::AwaitsOperator { report: report.clone(), sha256 })
    }

    /// Whether the operator has accepted the update with this SHA-256.
    pub(super) fn has_accepted(&self, sha256: &[u8; 32]) -> bool {
        match self {
            Self::Accepted { sha256: accepted, .. } => accepted == sha256,
            Self::AwaitsOperator { .. } | Self::Until(_) => false,
        }
    }

    /// The waiting update.
    pub(super) fn waiting(&self) -> Option<&WaitingReport> {
        match self {
            Self::AwaitsOperator { report, .. } => Some(report),
            Self::Accepted { .. } | Self::Until(_) => None,
        }
    }

    /// The waiting update, if it has this SHA-256.
    pub(super) fn waiting_with(&self, sha256: &[u8; 32]) -> Option<&WaitingReport> {
        match self {
            Self::AwaitsOperator { report, sha256: waiting } => {
                (waiting == sha256).then_some(report)
            }
            Self::Accepted { .. } | Self::Until(_) => None,
        }
    }

    /// Whether the update may be used at `now`, although its file has not changed.
    pub(super) fn may_be_used(&self, now: SystemTime) -> bool {
        match self {
            Self::Accepted { .. } => true,
            Self::AwaitsOperator { .. } => false,
            Self::Until(time) => unix_time::seconds(now) >= *time,
        }
    }
}
