//! The response to a question.

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use keygate_wire::fields::{date_now, push_line};
use serde_json::Value;

use super::head::RequestMethod;
use crate::ask::denial::DenialBody;
use crate::ask::question::Answer;

/// A response, before it is written in the form of a protocol.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    /// The status header, and the assertion.
    fields: [Option<(HeaderName, HeaderValue)>; 2],
    /// Time for which the host may use the answer for further questions; zero: not at all.
    cache_for: Duration,
    /// Whether the response has status 403.
    is_denial: bool,
    body: Option<DenialBody>,
    /// Whether a connection over HTTP/1 is closed after the response.
    pub(super) closes: bool,
}

/// How a connection over HTTP/1 goes on after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// The connection is closed.
    Close,
    /// The peer may send another request, as its version of HTTP has it.
    Default,
    /// The peer may send another request over HTTP/1.0.
    KeepAlive,
}

impl HttpAnswer {
    /// The response with this answer. A denial is never cached.
    pub(super) fn new(
        answer: Answer,
        status_header: &HeaderName,
        accept: Option<&[u8]>,
        cache_for: Duration,
    ) -> Self {
        let (cache_for, body) = if answer.is_allowed() {
            (cache_for, None)
        } else {
            (
                Duration::ZERO,
                Some(DenialBody::new(answer.reason.as_deref().unwrap_or_default(), accept)),
            )
        };
        Self {
            fields: [Some((status_header.clone(), answer.status)), answer.assertion],
            cache_for,
            is_denial: body.is_some(),
            body,
            closes: false,
        }
    }

    /// A response with status 200, whose body in JSON says whether the answer is "allowed".
    pub(super) fn in_body(answer: &Answer, status_header: &HeaderName, body: &Value) -> Self {
        Self {
            fields: [Some((status_header.clone(), answer.status.clone())), None],
            cache_for: Duration::ZERO,
            is_denial: false,
            body: Some(DenialBody::json(body.to_string())),
            closes: false,
        }
    }

    /// Adds the response to `output`.
    pub(super) fn write(&self, method: RequestMethod, next: NextRequest, output: &mut Vec<u8>) {
        let line = if self.is_denial { "HTTP/1.1 403 Forbidden" } else { "HTTP/1.1 200 OK" };
        output.extend_from_slice(line.as_bytes());
        output.extend_from_slice(b"\r\n");
        for (name, value) in self.fields.iter().flatten() {
            push_line(output, name, value);
        }
        output.extend_from_slice(b"date: ");
        let date = date_now();
        output.extend_from_slice(date.as_ref().map_or(b"", |date| date.as_bytes()));
        match self.cache_for.as_secs() {
            0 => output.extend_from_slice(b"\r\ncache-control: no-store"),
            seconds => {
                let _ = write!(output, "\r\ncache-control: max-age={seconds}"); // a Vec never fails
            }
        }
        output.extend_from_slice(match next {
            NextRequest::Close => b"\r\nconnection: close",
            NextRequest::Default => b"",
            NextRequest::KeepAlive => b"\r\nconnection: keep-alive",
        });
        match &self.body {
            None if method == RequestMethod::Connect => {} // RFC 9110, section 8.6
            None => output.extend_from_slice(b"\r\ncontent-length: 0"),
            Some(DenialBody { content_type, text }) => {
                let length = text.len();
                let _ =
                    write!(output, "\r\ncontent-type: {content_type}\r\ncontent-length: {length}");
            }
        }
        output.extend_from_slice(b"\r\n\r\n");
        if let (Some(body), RequestMethod::Connect | RequestMethod::Other) = (&self.body, method) {
            output.extend_from_slice(body.text.as_bytes());
        }
    }

    /// Sends the response over HTTP/2. An error means that the stream was reset.
    pub(super) fn send(
        self,
        is_head: bool,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let mut response = Response::new(());
        let fields = response.headers_mut();
        let cache_control = match self.cache_for.as_secs() {
            0 => Ok(HeaderValue::from_static("no-store")),
            seconds => HeaderValue::from_str(&format!("max-age={seconds}")),
        };
        let cache_control = cache_control.unwrap_or(HeaderValue::from_static("no-store"));
        fields.insert(header::CACHE_CONTROL, cache_control);
        if let Some(date) = date_now() {
            fields.insert(header::DATE, date);
        }
        let body = self.body.map(|DenialBody { content_type, text }| {
            fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            fields.insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
            Bytes::from(text)
        });
        fields.extend(self.fields.into_iter().flatten());
        if self.is_denial {
            *response.status_mut() = StatusCode::FORBIDDEN;
        }
        match body {
            Some(body) if !is_head => respond.send_response(response, false)?.send_data(body, true),
            Some(_) | None => respond.send_response(response, true).map(drop),
        }
    }
}
