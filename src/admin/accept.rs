//! `POST /filters/NAME/accept`: accepts a filter update that waits for the operator.
//!
//! The body names the update by its SHA-256, so that an operator accepts exactly the file that they
//! have checked. The content type must be `application/json`. A page of another site cannot send
//! that type without a CORS preflight (Fetch standard), which this server never allows.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{AdminState, text, typed};
use crate::snapshot::AcceptError;
use crate::snapshot::watch::{AcceptUpdate, Command};

/// Maximum size of the request body, in bytes; a larger one gets 400.
const MAX_BODY: usize = 4096;
/// Maximum time to receive the request body; a slower one gets 400.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptBody {
    sha256: String,
}

#[derive(Serialize)]
struct AcceptedBody<'a> {
    filter: &'a str,
    sha256: &'a str,
    generation: u64,
}

/// Returns the filter name in the path `/filters/NAME/accept`.
pub(super) fn filter_name(path: &str) -> Option<&str> {
    path.strip_prefix("/filters/")?.strip_suffix("/accept")
}

pub(super) async fn respond(
    state: &AdminState,
    filter: String,
    peer: String,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only POST is allowed");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    // Browsers send these headers. The check also stops pages whose host name was rebound to this
    // address.
    let browser_headers = [header::ORIGIN, HeaderName::from_static("sec-fetch-site")];
    if browser_headers.iter().any(|name| request.headers().contains_key(name)) {
        return text(StatusCode::FORBIDDEN, "requests from browsers are not allowed");
    }
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value != "application/json") {
        let problem = "the content type must be application/json";
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, problem);
    }
    let Some((body, sha256)) = read_body(request).await else {
        let problem = "the body must be {\"sha256\": the SHA-256 of the update, in hex}";
        return text(StatusCode::BAD_REQUEST, problem);
    };
    match accept(state, filter.clone(), sha256, peer).await {
        Some(Ok(generation)) => {
            let accepted = AcceptedBody { filter: &filter, sha256: &body.sha256, generation };
            match serde_json::to_string(&accepted) {
                Ok(json) => typed("application/json", format!("{json}\n")),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        Some(Err(error)) => text(status_of(&error), &error.to_string()),
        None => text(StatusCode::SERVICE_UNAVAILABLE, "the proxy is shutting down"),
    }
}

async fn read_body(request: Request<Incoming>) -> Option<(AcceptBody, [u8; 32])> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let bytes = timeout(BODY_TIMEOUT, body).await.ok()?.ok()?.to_bytes();
    let body: AcceptBody = serde_json::from_slice(&bytes).ok()?;
    let sha256 = data_encoding::HEXLOWER_PERMISSIVE.decode(body.sha256.as_bytes()).ok()?;
    Some((body, sha256.try_into().ok()?))
}

/// Returns the new generation, or `None` if the task that watches files has stopped.
async fn accept(
    state: &AdminState,
    filter: String,
    sha256: [u8; 32],
    peer: String,
) -> Option<Result<u64, AcceptError>> {
    let (response, outcome) = oneshot::channel();
    let update = AcceptUpdate { filter, sha256, peer, response };
    state.commands.send(Command::Accept(update)).await.ok()?;
    outcome.await.ok()
}

fn status_of(error: &AcceptError) -> StatusCode {
    match error {
        AcceptError::Another { .. }
        | AcceptError::BeingWritten { .. }
        | AcceptError::Nothing { .. }
        | AcceptError::Rejected { .. } => StatusCode::CONFLICT,
        AcceptError::Unknown { .. } => StatusCode::NOT_FOUND,
    }
}
