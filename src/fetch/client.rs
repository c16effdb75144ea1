//! Requests to one source: its CAs, and the deadlines of a request.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::{Response, StatusCode, header};
use rustls::ClientConfig;
use tokio::time::{sleep_until, timeout, timeout_at};

use super::error::{FetchError, TransferError, shortened};
use super::record::SourceId;
use crate::config::{AlpnProtocol, FetchConfig, SourceUrl};
use crate::http_client;
use crate::regular_file;
use crate::resolver::Resolver;
use crate::tls;

/// Files with the CAs of the system: Debian and Alpine, Fedora, openSUSE, others.
pub(super) const SYSTEM_TRUST_ANCHORS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Maximum size of a file of CAs, 16 MiB.
const MAX_TRUST_ANCHORS: u64 = 16 << 20;

/// Sends requests to the server of one source.
pub(super) struct FetchClient {
    config: FetchConfig,
    /// `None` for a source without TLS.
    tls: Option<Arc<ClientConfig>>,
    resolver: Resolver,
}

/// The time of the last byte of a response.
pub(super) struct Progress(Cell<Instant>);

impl Progress {
    /// Records that bytes have arrived.
    pub(super) fn advance(&self) {
        self.0.set(Instant::now());
    }
}

impl FetchClient {
    /// Reads the CAs of the source.
    pub(super) fn new(config: &FetchConfig, resolver: Resolver) -> Result<Self, FetchError> {
        let tls = if config.url.is_secure { Some(tls_config(config)?) } else { None };
        Ok(Self { config: config.clone(), tls, resolver })
    }

    /// The identity of the file at `url`, which is on the server of the source.
    pub(super) fn source_id(&self, url: &SourceUrl) -> SourceId {
        SourceId::new(url, &self.config)
    }

    /// Requests `url` with the headers that `add` adds, and calls `read` with the response.
    pub(super) async fn get<T>(
        &self,
        url: &SourceUrl,
        add: impl FnOnce(Builder) -> Builder,
        read: impl AsyncFnOnce(Response<Incoming>, &Progress) -> Result<T, TransferError>,
    ) -> Result<T, FetchError> {
        let FetchConfig { connect_timeout, stall_timeout, timeout: whole, .. } = self.config;
        let start = Instant::now();
        let exchange = async {
            let deadline = start + connect_timeout;
            let connect = http_client::connect(url, self.tls.as_ref(), &self.resolver, deadline);
            let connection = timeout(connect_timeout, connect).await;
            let connection =
                connection.map_err(|_| TransferError::ConnectTimeout(connect_timeout))??;
            let request = add(http_client::get(url, &url.path)).body(Empty::<Bytes>::new());
            let request = request.map_err(http_client::unreachable)?;
            let progress = Progress(Cell::new(Instant::now()));
            let read = async |response| read(response, &progress).await;
            tokio::select! {
                biased;
                outcome = http_client::exchange(connection, request, read) => outcome,
                () = stall(&progress, stall_timeout) => Err(TransferError::Stalled(stall_timeout)),
            }
        };
        let outcome = timeout_at((start + whole).into(), exchange).await;
        let outcome = outcome.unwrap_or(Err(TransferError::TimedOut(whole)));
        outcome.map_err(|source| FetchError::Transfer { url: url.to_string(), source })
    }
}

/// Returns when no byte has arrived for `limit`.
async fn stall(progress: &Progress, limit: std::time::Duration) {
    loop {
        let end = progress.0.get() + limit;
        if end <= Instant::now() {
            return;
        }
        sleep_until(end.into()).await;
    }
}

fn tls_config(config: &FetchConfig) -> Result<Arc<ClientConfig>, FetchError> {
    let is_present = |path: &&str| Path::new(path).exists();
    let path = match &config.trust_anchors {
        Some(path) => path.clone(),
        None => SYSTEM_TRUST_ANCHORS
            .into_iter()
            .find(is_present)
            .ok_or(FetchError::NoSystemTrustAnchors)?
            .into(),
    };
    let pem = regular_file::read(&path, MAX_TRUST_ANCHORS)
        .map_err(|source| FetchError::Io { path: path.clone(), source })?;
    let anchors =
        tls::trust_anchors(&pem).map_err(|source| FetchError::TrustAnchors { path, source })?;
    Ok(Arc::new(tls::client_config(&anchors, None, &[AlpnProtocol::Http11.as_bytes()])?))
}

/// Checks the head of a response that is not 304, 206 or 416.
pub(super) fn check_head(response: &Response<Incoming>) -> Result<(), TransferError> {
    let status = response.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        let location = header_text(response, &header::LOCATION);
        return Err(TransferError::Redirect { status, location });
    }
    if !matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Err(TransferError::Status { status });
    }
    if response.headers().contains_key(header::CONTENT_ENCODING) {
        return Err(TransferError::Encoded);
    }
    // Any other coding ends with the connection, so that a truncated body looks complete.
    let mut codings = response.headers().get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked =
        codings.next().is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
            && codings.next().is_none();
    if !is_chunked && hyper::body::Body::size_hint(response.body()).exact().is_none() {
        return Err(TransferError::NoLength);
    }
    Ok(())
}

/// The value of a header, shortened; empty without the header.
pub(super) fn header_text(response: &Response<Incoming>, name: &header::HeaderName) -> String {
    let value = response.headers().get(name).map(|value| value.as_bytes()).unwrap_or_default();
    shortened(&String::from_utf8_lossy(value))
}

/// Reads the body of a small file.
pub(super) async fn collect(
    response: Response<Incoming>,
    max: u64,
    progress: &Progress,
) -> Result<Vec<u8>, TransferError> {
    let mut body = response.into_body();
    let mut content = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| TransferError::Truncated {
            received: content.len() as u64,
            reason: http_client::with_causes(&error),
        })?;
        progress.advance();
        let Ok(data) = frame.into_data() else { continue };
        if (content.len() as u64).saturating_add(data.len() as u64) > max {
            return Err(TransferError::TooLarge { max, is_max_size: false });
        }
        content.extend_from_slice(&data);
    }
    Ok(content)
}
