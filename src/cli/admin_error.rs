//! Errors of requests to the admin address.

use std::time::Duration;

use hyper::StatusCode;
use keygate_core::json::JsonError;
use keygate_core::printable::printable;

use crate::config::ListenAddress;

/// Maximum characters of an error response that are printed.
const MAX_SHOWN: usize = 4096;

/// Error of a request to the admin address.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error("the admin address {address}: {source}; start keygate, or correct admin.listen")]
    Exchange { address: ListenAddress, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the responses of all instances are too large; ask fewer of them at once")]
    Full,
    #[error("{host}: {problem}; correct the name, or give an address")]
    Host { host: String, problem: String },
    #[error(
        "the admin address {address}: unexpected response: {source}; is another program or version of keygate there?"
    )]
    Json { address: ListenAddress, source: JsonError },
    #[error("the admin address {address}: no response within {timeout:?}")]
    Timeout { address: ListenAddress, timeout: Duration },
    /// A response other than 200; the body gives the reason.
    #[error("{}", shown(body))]
    Status { address: ListenAddress, status: StatusCode, body: String },
}

/// The text of a response, which another program may have sent.
fn shown(body: &str) -> String {
    printable(body.trim()).chars().take(MAX_SHOWN).collect()
}
