//! `POST /reload`: reads changed files again, and responds when every usable file is in use.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tracing::info;

use super::AdminState;
use super::command::{self, BadCommand};
use crate::snapshot::Rejection;
use crate::snapshot::watch::{Command, ReloadOutcome};
use crate::sources::Warning;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadBody {}

#[derive(Serialize)]
struct ReloadedBody<'a> {
    /// Number of the snapshot in use.
    generation: u64,
    /// Whether a file is still being written; it is read when its writer is done.
    pending: bool,
    /// The files that are not in use, each with the reason.
    rejected: Vec<Rejection<'a>>,
    /// The settings that were changed since the start and need a restart.
    restart_needed: &'a [&'static str],
    /// The warnings about what is in use, as `keygate validate` prints them.
    warnings: &'a [Warning],
}

pub(super) async fn respond(
    state: &AdminState,
    peer: &str,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, BadCommand> {
    let ReloadBody {} = command::body(request, "the body must be {}").await?;
    info!(peer, "reload requested by an operator");
    let (response, outcome) = oneshot::channel();
    let sent = state.sources.commands.send(Command::Reload(response)).await;
    sent.map_err(|_| BadCommand::Stopping)?;
    let ReloadOutcome { pending } = outcome.await.map_err(|_| BadCommand::Stopping)?;
    let report = state.sources.report.load();
    Ok(command::done(&ReloadedBody {
        generation: report.generation,
        pending,
        rejected: report.rejections(),
        restart_needed: &report.restart_needed,
        warnings: &report.warnings,
    }))
}
