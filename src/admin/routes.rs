//! The paths of the admin server.

use std::net::IpAddr;
use std::str::FromStr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};

use super::command::BadCommand;
use super::response::{rendered, text, typed};
use super::view::View;
use super::{AdminState, accept, drain, page, recent_hits, reload, status};
use crate::sources::GuardFile;

/// Responds to a request of `peer`.
pub(super) async fn respond(
    state: &AdminState,
    peer: String,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    if state.is_loopback && !is_for_loopback(request.headers()) {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "the Host header must be an IP address or localhost",
        );
    }
    if let Some(command) = AdminCommand::at(request.uri().path()) {
        return command.respond(state, peer, request).await;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let view = || {
        let view = View::new(state);
        match page::search::parameter(request.uri().query(), "service").as_str() {
            "" => Ok(view),
            name => view.only(name).ok_or_else(|| {
                text(StatusCode::NOT_FOUND, &format!("no service or authorizer is {name:?}"))
            }),
        }
    };
    let shown = |content_type, body: &dyn Fn(&View) -> Result<String, String>| match view() {
        Ok(view) => rendered(content_type, body(&view)),
        Err(response) => response,
    };
    match request.uri().path() {
        "/livez" => match state.hang() {
            None => text(StatusCode::OK, "alive"),
            Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason),
        },
        "/metrics" => {
            rendered("text/plain; version=0.0.4; charset=utf-8", state.sources.exposition.render())
        }
        "/readyz" => match state.not_ready() {
            None => text(StatusCode::OK, "ready"),
            Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason),
        },
        "/" => shown("text/html; charset=utf-8", &|view| {
            page::render(state, view, request.uri().query()).map_err(|it| it.to_string())
        }),
        "/page.css" => typed("text/css; charset=utf-8", include_str!("page.css").to_owned()),
        "/page.js" => typed("text/javascript; charset=utf-8", include_str!("page.js").to_owned()),
        "/.well-known/jwks.json" => {
            typed("application/jwk-set+json", state.sources.report.load().key_set.clone())
        }
        "/key-uses" => {
            let worker = page::search::parameter(request.uri().query(), "worker").parse();
            let Ok(worker) = worker else {
                let remedy = "the number of a worker is missing; ask for /key-uses?worker=0";
                return text(StatusCode::BAD_REQUEST, remedy);
            };
            let clients = state.sources.key_uses.json(worker);
            rendered("application/json", clients.map(|json| json + "\n"))
        }
        "/report" => rendered("application/json", recent_hits::json(state)),
        "/report.txt" => {
            let since = page::search::parameter(request.uri().query(), "since").parse();
            let text = recent_hits::text(state, since.unwrap_or_default());
            rendered("text/plain; charset=utf-8", text)
        }
        "/status" => shown("application/json", &|view| {
            status::json(state, view).map_err(|it| it.to_string())
        }),
        "/status.txt" => shown("text/plain; charset=utf-8", &|view| {
            page::text::render(state, view).map_err(|it| it.to_string())
        }),
        _ => {
            let paths = "not found; the paths are /, /.well-known/jwks.json, /key-uses, /livez, /metrics, /readyz, /report, /report.txt, /status and /status.txt";
            text(StatusCode::NOT_FOUND, paths)
        }
    }
}

/// A command to the running proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AdminCommand {
    /// Accepts the waiting update of the filter, list or service with this name.
    Accept(GuardFile, String),
    /// Fails readiness, or undoes it.
    Drain,
    /// Reads changed files again.
    Reload,
}

impl AdminCommand {
    /// The command at `path`.
    pub(super) fn at(path: &str) -> Option<Self> {
        match path {
            "/drain" => Some(Self::Drain),
            "/reload" => Some(Self::Reload),
            _ => {
                let path = path.strip_suffix("/accept")?;
                let (files, name) = path.strip_prefix('/')?.split_once('/')?;
                let kinds = [GuardFile::Filter, GuardFile::List, GuardFile::Service];
                let kind =
                    kinds.into_iter().find(|it| files.strip_suffix('s') == Some(it.as_str()));
                Some(Self::Accept(kind?, name.to_owned()))
            }
        }
    }

    /// Runs the command for `peer`.
    pub(super) async fn respond(
        self,
        state: &AdminState,
        peer: String,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        let response = match self {
            _ if state.is_for_readers => Err(BadCommand::Readers),
            _ if !state.takes_commands => Err(BadCommand::Remote),
            Self::Accept(file, name) => accept::respond(state, file, name, peer, request).await,
            Self::Drain => drain::respond(state, &peer, request).await,
            Self::Reload => reload::respond(state, &peer, request).await,
        };
        response.unwrap_or_else(BadCommand::response)
    }
}

/// Whether the `Host` of a request is an IP address or `localhost`.
///
/// Prevents DNS rebinding, in which the name of another site resolves to this address. Requests
/// from pages of that site have its name in `Host`.
fn is_for_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Some(host) = host.to_str().ok().and_then(|host| Authority::from_str(host).ok()) else {
        return false;
    };
    let name = host.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}
