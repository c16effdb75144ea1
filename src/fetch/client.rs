//! Requests to one source: its CAs and credentials, redirects, and the deadlines of a request.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::{HeaderMap, Request, Response, StatusCode, header};
use keygate_core::regular_file;
use keygate_core::tls::{self, Credentials};
use rustls::ClientConfig;
use tokio::time::{sleep_until, timeout, timeout_at};
use zeroize::Zeroizing;

use super::error::{FetchError, SourceError, TransferError, shortened};
use super::record::SourceId;
use crate::config::{AlpnProtocol, FetchConfig, SYSTEM_TRUST_ANCHORS, SourceUrl};
use crate::http_client::{self, Connection, ExchangeError, MAX_HEADERS, parse_headers};
use crate::resolver::Resolver;
use crate::sources::read_private_key;

/// Maximum size of a file of CAs, 16 MiB.
const MAX_TRUST_ANCHORS: u64 = 16 << 20;
/// Maximum size of a private key file, in bytes.
const MAX_PRIVATE_KEY: u64 = 64 << 10;

/// Maximum number of redirects that are followed for one request.
const MAX_REDIRECTS: usize = 5;

/// Sends requests to the server of one source, and to the hosts of its redirects, which get none of
/// its credentials.
pub(super) struct FetchClient {
    config: FetchConfig,
    /// TLS with the server of the source. `None` for a source without TLS.
    tls: Option<Arc<ClientConfig>>,
    /// TLS with the hosts of redirects.
    foreign_tls: Option<Arc<ClientConfig>>,
    /// Fields for the server of the source.
    headers: HeaderMap,
    /// Fields for the proxy.
    proxy_headers: HeaderMap,
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
    /// Reads the files of the source: CAs, header fields, client certificate.
    pub(super) fn new(config: &FetchConfig, resolver: Resolver) -> Result<Self, FetchError> {
        let tls =
            config.url.is_secure.then(|| tls_config(config, config.identity())).transpose()?;
        let has_redirects = !config.redirect_hosts.is_empty();
        let foreign_tls = if has_redirects { Some(tls_config(config, None)?) } else { None };
        let mut headers = match &config.headers {
            Some(path) => parse_headers(&read_secret(path, MAX_HEADERS)?)
                .map_err(|line| FetchError::Headers { path: path.clone(), line })?,
            None => HeaderMap::new(),
        };
        let mut proxy_headers = HeaderMap::new();
        if let Some(credentials) = headers.remove(header::PROXY_AUTHORIZATION) {
            proxy_headers.insert(header::PROXY_AUTHORIZATION, credentials);
        }
        let config = config.clone();
        Ok(Self { config, tls, foreign_tls, headers, proxy_headers, resolver })
    }

    /// The identity of the file at `url`, which is on the server of the source.
    pub(super) fn source_id(&self, url: &SourceUrl) -> SourceId {
        SourceId::new(url, &self.config)
    }

    /// Requests `url` with the headers that `add` adds, and calls `read` with the response.
    pub(super) async fn get<T>(
        &self,
        url: &SourceUrl,
        add: impl Fn(Builder) -> Builder,
        read: impl AsyncFn(Response<Incoming>, &Progress) -> Result<T, TransferError>,
    ) -> Result<T, FetchError> {
        self.send(url, add, &Bytes::new(), read).await
    }

    /// Requests `url` as [`FetchClient::get`] does, with a body and the method that `add` sets.
    pub(super) async fn send<T>(
        &self,
        url: &SourceUrl,
        add: impl Fn(Builder) -> Builder,
        body: &Bytes,
        read: impl AsyncFn(Response<Incoming>, &Progress) -> Result<T, TransferError>,
    ) -> Result<T, FetchError> {
        let whole = self.config.timeout;
        let exchanges = async {
            let mut at = url.clone();
            for _ in 0..=MAX_REDIRECTS {
                match self.request(&at, &add, body, &read).await? {
                    Fetched::Complete(value) => return Ok(value),
                    Fetched::Moved(next) => at = next,
                }
            }
            Err(TransferError::Redirects(MAX_REDIRECTS))
        };
        let outcome = timeout_at((Instant::now() + whole).into(), exchanges).await;
        let outcome = outcome.unwrap_or(Err(TransferError::TimedOut(whole)));
        outcome.map_err(|source| SourceError::Transfer(source).at(url))
    }

    /// Requests `url`, and calls `read` with the response unless it is a redirect to follow.
    async fn request<T>(
        &self,
        url: &SourceUrl,
        add: impl Fn(Builder) -> Builder,
        body: &Bytes,
        read: impl AsyncFn(Response<Incoming>, &Progress) -> Result<T, TransferError>,
    ) -> Result<Fetched<T>, TransferError> {
        let FetchConfig { connect_timeout, stall_timeout, .. } = self.config;
        let connection = timeout(connect_timeout, self.connect(url)).await;
        let connection =
            connection.map_err(|_| TransferError::ConnectTimeout(connect_timeout))??;
        let request = self.message(url, add, body).map_err(http_client::unreachable)?;
        let progress = Progress(Cell::new(Instant::now()));
        let read = async |response| match self.redirect(url, &response) {
            Some(next) => Ok(Fetched::Moved(next)),
            None => read(response, &progress).await.map(Fetched::Complete),
        };
        tokio::select! {
            biased;
            outcome = http_client::exchange(connection, request, read) => outcome,
            () = stall(&progress, stall_timeout) => Err(TransferError::Stalled(stall_timeout)),
        }
    }

    async fn connect(&self, url: &SourceUrl) -> Result<Connection, ExchangeError> {
        let deadline = Instant::now() + self.config.connect_timeout;
        let tls = if self.is_source(url) { &self.tls } else { &self.foreign_tls };
        let (tls, resolver) = (tls.as_ref(), &self.resolver);
        match &self.config.proxy {
            None => http_client::connect(url, tls, resolver, deadline).await,
            Some(proxy) => {
                let fields = &self.proxy_headers;
                http_client::connect_through(proxy, fields, url, tls, resolver, deadline).await
            }
        }
    }

    /// The request for `url`, with the credentials of its server alone.
    fn message(
        &self,
        url: &SourceUrl,
        add: impl Fn(Builder) -> Builder,
        body: &Bytes,
    ) -> hyper::http::Result<Request<Full<Bytes>>> {
        let mut target = format!("{}{}", url.path, url.query);
        if self.config.proxy.is_some() && !url.is_secure {
            target = format!("http://{}{target}", url.authority());
        }
        let mut request = add(http_client::get(url, &target)).body(Full::new(body.clone()))?;
        if self.is_source(url) {
            request.headers_mut().extend(self.headers.clone());
        }
        Ok(request)
    }

    /// Whether `url` is on the server of the source.
    fn is_source(&self, url: &SourceUrl) -> bool {
        url.has_same_origin(&self.config.url)
    }

    /// The URL to which the `response` of `from` redirects, if its host is one of
    /// `redirect_hosts`.
    fn redirect(&self, from: &SourceUrl, response: &Response<Incoming>) -> Option<SourceUrl> {
        if !response.status().is_redirection() {
            return None;
        }
        let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
        let to = if location.starts_with('/') && !location.starts_with("//") {
            let scheme = if from.is_secure { "https" } else { "http" };
            SourceUrl::parse_file(&format!("{scheme}://{}{location}", from.authority()))
        } else {
            SourceUrl::parse_file(location)
        };
        to.filter(|to| {
            to.is_secure
                && self.config.redirect_hosts.contains(&to.authority().to_ascii_lowercase())
        })
    }
}

/// The outcome of one request.
enum Fetched<T> {
    Complete(T),
    /// The file is at another URL.
    Moved(SourceUrl),
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

/// The TLS configuration with the CAs of the source, and with its client certificate in `files`.
fn tls_config(
    config: &FetchConfig,
    files: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, FetchError> {
    let is_present = |path: &&str| Path::new(path).exists();
    let path = match &config.trust_anchors {
        Some(path) => path.clone(),
        None => SYSTEM_TRUST_ANCHORS
            .into_iter()
            .find(is_present)
            .ok_or(FetchError::NoSystemTrustAnchors)?
            .into(),
    };
    let pem = regular_file::read(&path, MAX_TRUST_ANCHORS).map_err(FetchError::io(&path))?;
    let anchors =
        tls::trust_anchors(&pem).map_err(|source| FetchError::TrustAnchors { path, source })?;
    let identity = files.map(identity).transpose()?;
    let alpn = [AlpnProtocol::Http11.as_bytes()];
    Ok(Arc::new(tls::client_config(&anchors, identity.as_ref(), &alpn, &[])?))
}

fn identity((path, private_key): (&Path, &Path)) -> Result<Credentials, FetchError> {
    let chain = regular_file::read(path, MAX_TRUST_ANCHORS).map_err(FetchError::io(path))?;
    let key = read_secret(private_key, MAX_PRIVATE_KEY)?;
    tls::credentials(&chain, &key)
        .map_err(|source| FetchError::Identity { path: path.to_owned(), source })
}

/// Reads a file with credentials, which nobody else may read.
fn read_secret(path: &Path, max_size: u64) -> Result<Zeroizing<Vec<u8>>, FetchError> {
    let file = read_private_key(path, max_size).map_err(FetchError::io(path))?;
    match file.exposed {
        Some(exposed) => Err(FetchError::Exposed(exposed)),
        None => Ok(file.content),
    }
}

/// Checks the head of a response that is not 304, 206 or 416.
pub(super) fn check_head(response: &Response<Incoming>) -> Result<(), TransferError> {
    let status = response.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        let location = SourceUrl::without_credentials(&header_text(response, &header::LOCATION));
        return Err(TransferError::Redirect { status, location });
    }
    if !matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Err(TransferError::Status(status));
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
