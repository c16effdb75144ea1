//! One export: a request with a batch of spans, and the response of the collector.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use tokio::time::{timeout, timeout_at};

use super::export_files::ExportFiles;
use super::otlp;
use crate::config::TracesConfig;
use crate::http_client::{self, ExchangeError};
use crate::resolver::Resolver;

/// Maximum size of a response, 64 KiB.
const MAX_RESPONSE: usize = 64 << 10;
/// Maximum time from the head of a response to the end of its body, 1 s.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends batches to the collector, each over a connection of its own.
#[derive(Debug)]
pub(super) struct Exporter {
    config: TracesConfig,
    files: ExportFiles,
    resolver: Resolver,
}

/// Why a batch has not arrived.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("the collector responds with {0}")]
    Status(StatusCode),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl ExportError {
    /// Whether the same batch may succeed later (OTLP, "Retryable Response Codes").
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Exchange(_) | Self::Timeout(_) => true,
            Self::Status(status) => [
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::BAD_GATEWAY,
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::GATEWAY_TIMEOUT,
            ]
            .contains(status),
        }
    }
}

impl Exporter {
    pub(super) fn new(config: TracesConfig, files: ExportFiles, resolver: Resolver) -> Self {
        Self { config, files, resolver }
    }

    /// Sends an encoded batch. Returns the number of spans that the collector has rejected.
    pub(super) async fn send(&self, batch: Bytes) -> Result<u64, ExportError> {
        let limit = self.config.timeout;
        let deadline = Instant::now() + limit;
        let sent = timeout_at(deadline.into(), self.exchange(batch, deadline)).await;
        sent.unwrap_or(Err(ExportError::Timeout(limit)))
    }

    async fn exchange(&self, batch: Bytes, deadline: Instant) -> Result<u64, ExportError> {
        let endpoint = &self.config.endpoint;
        let request = self.request(batch).map_err(http_client::unreachable)?;
        let tls = self.files.tls.as_ref();
        let connection = http_client::connect(endpoint, tls, &self.resolver, deadline).await?;
        http_client::exchange(connection, request, read).await
    }

    fn request(&self, batch: Bytes) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let endpoint = &self.config.endpoint;
        let mut request = http_client::post(endpoint, &endpoint.path)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(batch))?;
        request.headers_mut().extend(self.files.headers.clone());
        Ok(request)
    }
}

async fn read(response: Response<Incoming>) -> Result<u64, ExportError> {
    let status = response.status();
    if !status.is_success() {
        return Err(ExportError::Status(status));
    }
    // The batch has arrived, whatever the body is.
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect();
    match timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(otlp::rejected_spans(body.to_bytes())),
        Ok(Err(_)) | Err(_) => Ok(0),
    }
}
