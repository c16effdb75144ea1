//! The part of the state that a reload can change, as one immutable value that is swapped.
//!
//! The data path loads the [`Snapshot`] in use and never waits. A reload takes these steps:
//!
//! | step | where |
//! | --- | --- |
//! | A file event, the poll or a [`watch::Command`] starts a refresh. | [`watch`] |
//! | Changed files that have settled are read; each keeps its last good value. | `load/source/` |
//! | Filter updates are checked. | `load/check/` |
//! | A new configuration is staged and applied as a whole. | `load/source.rs` |
//! | The next snapshot is built if anything changed. | [`Loader`] |
//! | The snapshot is swapped in, and open connections are judged again. | [`watch::FileWatcher::run`] |
//!
//! Nothing here serves traffic.

mod credential_owner;
mod credential_unit;
mod crl_rejection_reason;
mod current;
mod expiry;
mod filter_rejection;
mod last_question;
mod list_rejection_reason;
mod load;
mod operator_decision;
mod rejection_reason;
mod report;
mod routes;
mod warning;
pub mod watch;

pub use credential_owner::CredentialOwner;
pub use credential_unit::{CredentialRejectionReason, CredentialUnit};
pub use crl_rejection_reason::CrlRejectionReason;
pub use current::{AskerTls, Authorizer, Current, Service, Snapshot};
pub use expiry::{Expiry, ExpiryState};
pub use filter_rejection::{CanaryError, CanaryFileError, FilterRejection};
pub use last_question::LastQuestion;
pub use list_rejection_reason::ListRejectionReason;
pub use load::candidate::{ShrunkFile, check_filter_candidate, check_list_candidate};
pub use load::error::{ListFileError, LoadError};
pub(crate) use load::file::{FileState, SETTLE, read_bounded};
pub use load::links::JudgementLinks;
pub use load::load_errors::LoadErrors;
pub use load::own_key::OwnKey;
pub use load::private_key::ExposedKeyFile;
pub(crate) use load::private_key::read as read_private_key;
pub use load::reconfigure_error::ReconfigureError;
pub use load::source::configuration::{Commit, Prepare, Trigger};
pub use load::source::gate::AcceptError;
pub use load::state_directory::StateDirectoryError;
pub use load::state_lock::StateLock;
pub use load::{Loader, RefreshedSnapshot};
pub use operator_decision::{GuardFile, NeedsOperator, WaitCause};
pub use rejection_reason::RejectionReason;
pub use report::{
    AffectedClient, AuthorizerReport, CrlReport, DryRunReport, ExceptionReport, FilterReport,
    ListReport, PolicyReport, Rejection, ReloadReport, Report, ServiceReport, SignatureReport,
    WaitingReport,
};
pub use routes::Routes;
pub use warning::{CertificateFile, PeriodProblem, Warning};
