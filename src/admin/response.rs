//! The responses of the admin server.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

/// Content-Security-Policy of every response: only files of this server, no inline script or style.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; \
    img-src data:; script-src 'self'; style-src 'self'";

/// A body of this type; 500 if it cannot be rendered.
pub(super) fn rendered(
    content_type: &'static str,
    body: Result<String, impl std::fmt::Display>,
) -> Response<Full<Bytes>> {
    match body {
        Ok(body) => typed(content_type, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// A response with one line of text.
pub(super) fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = typed("text/plain; charset=utf-8", format!("{text}\n"));
    *response.status_mut() = status;
    response
}

/// A body of this type.
pub(super) fn typed(content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Pages show names that issuers chose. The header is a second defence against script injection.
    headers
        .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
