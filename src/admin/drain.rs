//! `POST /drain`: readiness fails while serving goes on, so that a load balancer sends no further
//! clients to this instance.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use keygate_core::unix_time::now;
use prometheus::IntGauge;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use super::AdminState;
use super::command::{self, BadCommand};
use crate::process::lifecycle::Lifecycle;

/// Drains this instance, and ends that.
#[derive(Debug, Clone)]
pub struct Drain {
    lifecycle: watch::Sender<Lifecycle>,
    record: Arc<Mutex<Option<DrainReport>>>,
    /// 1 while the instance is drained.
    drained: IntGauge,
}

/// When an operator drained this instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DrainReport {
    /// In seconds since the Unix epoch.
    since: u64,
    /// The peer that sent the command.
    peer: String,
}

impl Drain {
    /// The instance is not drained.
    #[must_use]
    pub fn new(lifecycle: watch::Sender<Lifecycle>, drained: IntGauge) -> Self {
        Self { lifecycle, record: Arc::default(), drained }
    }

    /// The stage of the process.
    pub(super) fn stage(&self) -> Lifecycle {
        *self.lifecycle.borrow()
    }

    /// `None` if the instance is not drained.
    pub(super) fn report(&self) -> Option<DrainReport> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drains the instance for `peer`, or ends that. Returns whether it was not so already.
    fn set(&self, is_drained: bool, peer: &str) -> Result<bool, BadCommand> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = if is_drained {
            (Lifecycle::Serving, Lifecycle::DrainedByOperator)
        } else {
            (Lifecycle::DrainedByOperator, Lifecycle::Serving)
        };
        let mut found = from;
        // A shutdown that has begun is never undone.
        let is_changed = self.lifecycle.send_if_modified(|stage| {
            found = *stage;
            let is_changed = found == from;
            if is_changed {
                *stage = to;
            }
            is_changed
        });
        if !is_changed && found != to {
            return Err(BadCommand::Stopping);
        }
        if is_changed {
            self.drained.set(is_drained.into());
            *record = is_drained.then(|| DrainReport { since: now(), peer: peer.to_owned() });
            if is_drained {
                warn!(peer, "drained by an operator, readiness fails");
            } else {
                info!(peer, "drain undone by an operator");
            }
        }
        Ok(is_changed)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    drained: bool,
}

/// The response to the command.
#[derive(Serialize, Deserialize)]
pub(crate) struct DrainedBody {
    pub(crate) drained: bool,
    /// Whether the command has changed that.
    pub(crate) changed: bool,
}

pub(super) async fn respond(
    state: &AdminState,
    peer: &str,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, BadCommand> {
    let DrainBody { drained } =
        command::body(request, "the body must be {\"drained\": true or false}").await?;
    let changed = state.sources.drain.set(drained, peer)?;
    Ok(command::done(&DrainedBody { drained, changed }))
}
