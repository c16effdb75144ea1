//! Requests that change something: `POST` with a JSON object.
//!
//! The content type must be `application/json`. A page of another site cannot send that type
//! without a CORS preflight (Fetch standard), which this server never allows.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::response::{rendered, text};

/// Maximum size of the request body, in bytes; a larger one gets 400.
const MAX_BODY: usize = 4096;
/// Maximum time to receive the request body; a slower one gets 400.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a command is not run.
#[derive(Debug)]
pub(super) enum BadCommand {
    /// The body is not what the text says.
    Body(&'static str),
    /// The request comes from a page in a browser.
    Browser,
    /// The content type is not JSON.
    ContentType,
    /// The method is not POST.
    Method,
    /// The address is for readers.
    Readers,
    /// The peer is on another machine.
    Remote,
    /// The process does not run commands any more.
    Stopping,
}

impl BadCommand {
    pub(super) fn response(self) -> Response<Full<Bytes>> {
        match self {
            Self::Body(problem) => text(StatusCode::BAD_REQUEST, problem),
            Self::Browser => text(StatusCode::FORBIDDEN, "requests from browsers are not allowed"),
            Self::ContentType => text(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the content type must be application/json",
            ),
            Self::Method => {
                let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only POST is allowed");
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
                response
            }
            Self::Readers => {
                text(StatusCode::FORBIDDEN, "no commands here: use the address in admin.listen")
            }
            Self::Remote => text(
                StatusCode::FORBIDDEN,
                "commands are taken on loopback and Unix sockets only: run the command on the \
                 machine of the process, or set admin.commands = \"anywhere\" and restart it",
            ),
            Self::Stopping => text(StatusCode::SERVICE_UNAVAILABLE, "the proxy is shutting down"),
        }
    }
}

/// Returns the JSON object in the body of a command. `problem` describes a body that is not one.
pub(super) async fn body<T: DeserializeOwned>(
    request: Request<Incoming>,
    problem: &'static str,
) -> Result<T, BadCommand> {
    if request.method() != Method::POST {
        return Err(BadCommand::Method);
    }
    // Browsers send these headers. The check also stops pages whose host name was rebound to this
    // address.
    let browser_headers = [header::ORIGIN, HeaderName::from_static("sec-fetch-site")];
    if browser_headers.iter().any(|name| request.headers().contains_key(name)) {
        return Err(BadCommand::Browser);
    }
    let content_type = request.headers().get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value != "application/json") {
        return Err(BadCommand::ContentType);
    }
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let body = tokio::time::timeout(BODY_TIMEOUT, body).await.ok().and_then(Result::ok);
    body.and_then(|body| serde_json::from_slice(&body.to_bytes()).ok())
        .ok_or(BadCommand::Body(problem))
}

/// A response with the result of a command.
pub(super) fn done(result: &impl Serialize) -> Response<Full<Bytes>> {
    rendered("application/json", serde_json::to_string(result).map(|json| json + "\n"))
}
