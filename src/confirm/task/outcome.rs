//! The consequence of a look-up for its query.
//!
//! | look-up | query | counted as | in the status | next attempt |
//! | --- | --- | --- | --- | --- |
//! | a proof | is confirmed | `confirmed` | answer | none |
//! | in the directory: no file | goes on to the URL | | | at once |
//! | in the directory: no readable proof | goes on to the URL | | | at once; a 404 clears nothing |
//! | 404, or no file; the source clears keys | is cleared if the source knows its canary | `cleared` | answer | `cleared_ttl` |
//! | the same; the canary is unknown | has no answer | `untrusted` | | back-off |
//! | the same; a file may be the proof | has no answer | `untrusted` | | back-off |
//! | the same; the source never clears a key | has no answer, logged with INFO | `untrusted` | | `cleared_ttl` |
//! | a body that proves nothing | has no answer | `bad_proof` | last error | 1 h |
//! | the directory cannot be read | has no answer | `unreachable` | last error | back-off |
//! | 429 | has no answer | `rate_limited` | last error, end of the pause | end of the pause, for all keys |
//! | too large | has no answer | `too_large` | last error | back-off |
//! | the source failed | has no answer | the failure | last error, failure | back-off, also of the source |
//!
//! A query without an answer is logged with WARN, unless the table has another level. A proof
//! without room among the answers confirms nothing; its query is repeated after 1 h.

use std::time::Duration;

use tracing::Level;

use super::super::client::QueryError;
use super::super::lookup::{FoundProof, LookUpOutcome};
use super::super::schedule::{Job, JobEnd, Stage};
use super::super::source::Source;
use crate::metrics::ConfirmationResult;

/// Time after a body that proves nothing until the key is queried again, 1 h.
const BAD_PROOF_PAUSE: Duration = Duration::from_secs(60 * 60);

/// The consequence of a look-up for its query.
#[derive(Debug)]
pub(super) enum Conclusion {
    Confirmed(FoundProof),
    /// The directories have no answer. The URL is next.
    ToUrl(JobEnd),
    Unanswered(Unanswered),
    /// The source does not know the key. It is cleared if the source knows its canary.
    Unknown,
}

/// Why a query has no answer, and when the next attempt follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) result: ConfirmationResult,
    pub(super) error: String,
    pub(super) level: Level,
    pub(super) end: JobEnd,
}

impl Conclusion {
    pub(super) fn new(job: &Job, outcome: LookUpOutcome, source: &Source) -> Self {
        let is_url_next = job.stage == Stage::Directory && source.client.is_some();
        let unanswered = match outcome {
            LookUpOutcome::Confirmed(found) => return Self::Confirmed(found),
            LookUpOutcome::Unknown if is_url_next => return Self::ToUrl(JobEnd::NotInDirectory),
            LookUpOutcome::DirectoryFailed(_) | LookUpOutcome::Unusable(_) if is_url_next => {
                return Self::ToUrl(JobEnd::DirectoryFailed);
            }
            LookUpOutcome::DirectoryFailed(error) => {
                let result = ConfirmationResult::Unreachable;
                Unanswered::new(result, error.to_string(), JobEnd::Unanswered(None))
            }
            LookUpOutcome::Failed(error) => Unanswered::by_failure(&error),
            LookUpOutcome::Unknown if job.directory_failed => {
                Unanswered::untrusted("the directory of proofs may have an unreadable proof")
            }
            LookUpOutcome::Unknown if source.clears() => return Self::Unknown,
            LookUpOutcome::Unknown => Unanswered {
                level: Level::INFO, // the normal case of such a source
                end: JobEnd::Unanswered(Some(source.config.cleared_ttl)),
                ..Unanswered::untrusted("a key that it does not know is not cleared")
            },
            LookUpOutcome::Unusable(_) => Unanswered::new(
                ConfirmationResult::BadProof,
                "the proof does not verify",
                JobEnd::Unanswered(Some(BAD_PROOF_PAUSE)),
            ),
        };
        Self::Unanswered(unanswered)
    }
}

impl Unanswered {
    fn new(result: ConfirmationResult, error: impl Into<String>, end: JobEnd) -> Self {
        Self { result, error: error.into(), level: Level::WARN, end }
    }

    /// The source does not know the key, and is not trusted with that.
    pub(super) fn untrusted(error: impl Into<String>) -> Self {
        Self::new(ConfirmationResult::Untrusted, error, JobEnd::Unanswered(None))
    }

    fn by_failure(error: &QueryError) -> Self {
        let end = match error {
            QueryError::RateLimited(pause) => JobEnd::Blocked(*pause),
            QueryError::Encoded | QueryError::TooLarge => JobEnd::Unanswered(None),
            QueryError::Refused(_)
            | QueryError::Server(_)
            | QueryError::Timeout(_)
            | QueryError::Tls(_)
            | QueryError::Unreachable(_)
            | QueryError::Unresolved(_) => JobEnd::Failed,
        };
        Self::new(error.result(), error.to_string(), end)
    }
}

#[cfg(test)]
mod tests;
