//! `POST /filters/NAME/accept`, `/lists/NAME/accept` and `/services/NAME/accept`: accept an update
//! that waits for the operator.
//!
//! The body names the update by its SHA-256, so that an operator accepts exactly the file that they
//! have checked.

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::AdminState;
use super::command::{self, BadCommand};
use super::response::text;
use crate::snapshot::watch::{AcceptUpdate, Command};
use crate::sources::{AcceptError, GuardFile};

/// The answer to a body that does not name an update.
const BAD_BODY: &str = "the body must be {\"sha256\": the SHA-256 of the update, in hex}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptBody {
    sha256: String,
}

#[derive(Serialize)]
struct AcceptedBody<'a> {
    /// The name, under the kind of the file.
    #[serde(flatten)]
    file: BTreeMap<&'static str, &'a str>,
    sha256: &'a str,
    generation: u64,
}

pub(super) async fn respond(
    state: &AdminState,
    file: GuardFile,
    name: String,
    peer: String,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, BadCommand> {
    let body: AcceptBody = command::body(request, BAD_BODY).await?;
    let sha256 = data_encoding::HEXLOWER_PERMISSIVE.decode(body.sha256.as_bytes());
    let sha256 = sha256.ok().and_then(|it| it.try_into().ok()).ok_or(BadCommand::Body(BAD_BODY))?;
    let (response, outcome) = oneshot::channel();
    let update = AcceptUpdate { file, name: name.clone(), sha256, peer, response };
    let sent = state.sources.commands.send(Command::Accept(update)).await;
    sent.map_err(|_| BadCommand::Stopping)?;
    Ok(match outcome.await.map_err(|_| BadCommand::Stopping)? {
        Ok(generation) => {
            let file = BTreeMap::from([(file.as_str(), name.as_str())]);
            command::done(&AcceptedBody { file, sha256: &body.sha256, generation })
        }
        Err(error) => text(status_of(&error), &error.to_string()),
    })
}

fn status_of(error: &AcceptError) -> StatusCode {
    match error {
        AcceptError::Another(..)
        | AcceptError::BeingWritten(_)
        | AcceptError::Nothing(_)
        | AcceptError::Rejected(..) => StatusCode::CONFLICT,
        AcceptError::Unknown(_) => StatusCode::NOT_FOUND,
    }
}
