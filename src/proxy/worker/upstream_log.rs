//! Log lines about requests that got no response from their upstream, limited in rate for each
//! server and kind of failure.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::client_log::RepeatLimit;
use crate::config::ServiceConfig;
use crate::metrics::{Label, UpstreamFailure};
use crate::proxy::upstream::RequestFailure;
use crate::proxy::upstream::error::UpstreamError;

/// The log of one worker.
#[derive(Debug)]
pub(crate) struct UpstreamLog(RepeatLimit<LoggedUpstreamFailure>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedUpstreamFailure {
    service: String,
    server: Option<String>,
    kind: Option<&'static str>,
}

impl UpstreamLog {
    /// A log that repeats a line about one server after `interval` at the earliest.
    pub(crate) fn new(interval: Duration) -> Self {
        Self(RepeatLimit::new(interval))
    }

    /// Logs a request that failed.
    pub(crate) fn request_failed(&self, service: &ServiceConfig, failure: &RequestFailure) {
        let RequestFailure { server, error } = failure;
        if let UpstreamError::Client(_) = error {
            let server = server.as_ref().map(tracing::field::display);
            debug!(service = %service.name, server, %error, "request ended by its client");
        } else {
            self.failed(service, server.as_ref(), error.kind(), error);
        }
    }

    /// Logs a failure of `server`, or of the choice of a server.
    pub(crate) fn failed(
        &self,
        service: &ServiceConfig,
        server: Option<&impl Display>,
        kind: Option<UpstreamFailure>,
        error: &impl Display,
    ) {
        let server = server.map(ToString::to_string);
        let (service, kind) = (service.name.clone(), kind.map(Label::as_str));
        let now = Instant::now();
        let key = LoggedUpstreamFailure { service: service.clone(), server: server.clone(), kind };
        let permitted = self.0.permit(key, now);
        if let Some(left_out) = self.0.take_dropped(now) {
            warn!(
                left_out,
                "too many upstream servers for the log, the metrics count all failures"
            );
        }
        let Some(left_out) = permitted else { return };
        warn!(service, server, %error, left_out, "upstream failed");
    }
}
