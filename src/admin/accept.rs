//! `POST /filters/NAME/accept`: lets an update through that waits for the operator.
//!
//! The body names the update by its SHA-256, so that nobody lets through what they have not looked
//! at. It must be JSON, by its content type too: a page in a browser cannot send that to another
//! host without asking first, and nobody here says yes.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{State, text, typed};
use crate::snapshot::AcceptError;
use crate::snapshot::watch::{AcceptUpdate, Command};

/// Room for the body, in bytes.
const MAX_BODY: usize = 4096;
/// A body this small is there at once.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    sha256: String,
}

#[derive(Serialize)]
struct Accepted<'a> {
    filter: &'a str,
    sha256: &'a str,
    generation: u64,
}

/// The filter that a path asks to accept an update of.
pub(super) fn filter_of(path: &str) -> Option<&str> {
    path.strip_prefix("/filters/")?.strip_suffix("/accept")
}

pub(super) async fn answer(
    state: &State,
    filter: String,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return answer;
    }
    // Nor can one that was made to look like this host: a browser says that it is one.
    let is_browser = [header::ORIGIN, HeaderName::from_static("sec-fetch-site")];
    if is_browser.iter().any(|name| request.headers().contains_key(name)) {
        return text(StatusCode::FORBIDDEN, "not from a page");
    }
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value != "application/json") {
        let problem = "the content type must be application/json";
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, problem);
    }
    let Some((body, sha256)) = read(request).await else {
        let problem = "the body must be {\"sha256\": the SHA-256 of the update, in hex}";
        return text(StatusCode::BAD_REQUEST, problem);
    };
    match accept(state, filter.clone(), sha256).await {
        Some(Ok(generation)) => {
            let accepted = Accepted { filter: &filter, sha256: &body.sha256, generation };
            match serde_json::to_string(&accepted) {
                Ok(json) => typed("application/json", format!("{json}\n")),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        Some(Err(error)) => text(status_of(&error), &error.to_string()),
        None => text(StatusCode::SERVICE_UNAVAILABLE, "files are not watched any more"),
    }
}

async fn read(request: Request<Incoming>) -> Option<(Body, [u8; 32])> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let bytes = timeout(BODY_TIMEOUT, body).await.ok()?.ok()?.to_bytes();
    let body: Body = serde_json::from_slice(&bytes).ok()?;
    let sha256 = data_encoding::HEXLOWER_PERMISSIVE.decode(body.sha256.as_bytes()).ok()?;
    Some((body, sha256.try_into().ok()?))
}

/// `None`: nobody is there to answer.
async fn accept(
    state: &State,
    filter: String,
    sha256: [u8; 32],
) -> Option<Result<u64, AcceptError>> {
    let (answer, outcome) = oneshot::channel();
    let acceptance = AcceptUpdate { filter, sha256, answer };
    state.commands.send(Command::Accept(acceptance)).await.ok()?;
    outcome.await.ok()
}

fn status_of(error: &AcceptError) -> StatusCode {
    match error {
        AcceptError::Another { .. } | AcceptError::Nothing { .. } | AcceptError::Refused { .. } => {
            StatusCode::CONFLICT
        }
        AcceptError::Unknown { .. } => StatusCode::NOT_FOUND,
    }
}
