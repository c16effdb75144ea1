//! Requests to the URL of a source: one connection a request, all of it within one deadline.
//!
//! Redirects are not followed, and no proxy variables are read: the URL is the operator's, and the
//! rest of the path is a fingerprint.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Response, StatusCode, header};
use keygate_core::proof::MAX_BODY;
use keygate_core::regular_file::FileSize;
use keygate_core::spki::Fingerprint;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

use super::schedule::MAX_UNDER_WAY;
use super::source_files::SourceFiles;
use crate::config::SourceUrl;
use crate::http_client::{self, ExchangeError};
use crate::metrics::ConfirmationResult;
use crate::resolver::Resolver;

/// Pause after a 429 without `Retry-After`, 60 s.
const DEFAULT_PAUSE: Duration = Duration::from_secs(60);
/// Maximum pause after a 429, 1 h.
const MAX_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Sends requests to the URL of a source.
#[derive(Debug)]
pub(super) struct SourceClient {
    url: SourceUrl,
    timeout: Duration,
    resolver: Resolver,
    /// One permit for each request under way.
    slots: Semaphore,
    /// The end of the longest pause that a 429 has requested.
    paused_until: Mutex<Option<Instant>>,
}

/// The requests of one query, with one deadline.
#[derive(Debug)]
pub(super) struct SourceQuery<'a> {
    client: &'a SourceClient,
    _slot: Option<SemaphorePermit<'a>>,
    deadline: Instant,
}

/// Why a source has not responded to the request for one fingerprint.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    /// The body of a 200 has a `Content-Encoding`, which no request accepts.
    #[error("the body has a Content-Encoding")]
    Encoded,
    /// 429, with the time for which the source rejects requests.
    #[error("429 Too Many Requests")]
    RateLimited(Duration),
    #[error("{0}")]
    Refused(StatusCode),
    #[error("{0}")]
    Server(StatusCode),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("TLS handshake failed: {0}")]
    Tls(String),
    #[error("the response is larger than {}", FileSize(MAX_BODY as u64))]
    TooLarge,
    #[error("{0}")]
    Unreachable(String),
    #[error("the name has no address: {0}")]
    Unresolved(String),
}

impl QueryError {
    /// The result in metrics and logs.
    pub(super) fn result(&self) -> ConfirmationResult {
        match self {
            Self::Encoded => ConfirmationResult::BadProof,
            Self::RateLimited(_) => ConfirmationResult::RateLimited,
            Self::Refused(_) => ConfirmationResult::Refused,
            Self::Server(_) => ConfirmationResult::ServerError,
            Self::Timeout(_) => ConfirmationResult::Timeout,
            Self::TooLarge => ConfirmationResult::TooLarge,
            Self::Tls(_) | Self::Unreachable(_) | Self::Unresolved(_) => {
                ConfirmationResult::Unreachable
            }
        }
    }

    /// The remedy for the operator.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Encoded => "let the source send proofs as they are, without compression",
            Self::RateLimited(_) => "try again later, or set confirm.api_key",
            Self::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                "check confirm.api_key"
            }
            Self::Refused(_) => "correct confirm.url",
            Self::Server(_) => "try again later: the source itself has failed",
            Self::Timeout(_) => "check the network to the source, or raise confirm.timeout",
            Self::Tls(_) => {
                "give the CAs of the source in confirm.trust_anchors, or correct the name in confirm.url"
            }
            Self::TooLarge => "correct confirm.url: a proof is smaller",
            Self::Unreachable(_) => "start the source, or correct confirm.url",
            Self::Unresolved(_) => "correct the name in confirm.url, or check the DNS",
        }
    }
}

impl SourceClient {
    pub(super) fn new(url: SourceUrl, timeout: Duration, resolver: Resolver) -> Self {
        let slots = Semaphore::new(MAX_UNDER_WAY);
        Self { url, timeout, resolver, slots, paused_until: Mutex::default() }
    }

    /// The end of the pause that a 429 has requested; `None` if requests may be sent.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.pause_end().filter(|until| *until > now)
    }

    fn pause_end(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot. The requests of the query then have `timeout` in all.
    pub(super) async fn query(&self) -> SourceQuery<'_> {
        let slot = self.slots.acquire().await.ok(); // fails only if the semaphore is closed
        SourceQuery { client: self, _slot: slot, deadline: Instant::now() + self.timeout }
    }

    async fn exchange(
        &self,
        files: &SourceFiles,
        fingerprint: &Fingerprint,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, QueryError> {
        let path = format!("{}/{fingerprint}", self.url.path);
        let mut request =
            http_client::get(&self.url, &path).header(header::ACCEPT, "application/json");
        if let Some(authorization) = &files.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(http_client::unreachable)?;
        let tls = files.tls.as_ref();
        let connection = http_client::connect(&self.url, tls, &self.resolver, deadline).await?;
        http_client::exchange(connection, request, read).await
    }
}

impl SourceQuery<'_> {
    /// Requests the proof for `fingerprint`; `None` is a 404. Sends nothing during a pause of the
    /// source.
    pub(super) async fn get(
        &self,
        files: &SourceFiles,
        fingerprint: &Fingerprint,
    ) -> Result<Option<Vec<u8>>, QueryError> {
        let (client, now) = (self.client, Instant::now());
        if let Some(until) = client.paused_until(now) {
            return Err(QueryError::RateLimited(until - now));
        }
        let exchange = client.exchange(files, fingerprint, self.deadline);
        let exchange = timeout_at(self.deadline.into(), exchange).await;
        let response = exchange.unwrap_or(Err(QueryError::Timeout(client.timeout)));
        if let Err(QueryError::RateLimited(pause)) = response {
            let mut end = client.pause_end();
            *end = (*end).max(Some(Instant::now() + pause));
        }
        response
    }
}

/// The body of a 200; `None` for a 404.
async fn read(response: Response<Incoming>) -> Result<Option<Vec<u8>>, QueryError> {
    let status = response.status();
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(None),
        StatusCode::TOO_MANY_REQUESTS => {
            let value = response.headers().get(header::RETRY_AFTER);
            let value = value.and_then(|value| value.to_str().ok());
            return Err(QueryError::RateLimited(pause(value, SystemTime::now())));
        }
        _ if status.is_server_error() => return Err(QueryError::Server(status)),
        _ => return Err(QueryError::Refused(status)),
    }
    if response.headers().contains_key(header::CONTENT_ENCODING) {
        return Err(QueryError::Encoded);
    }
    match Limited::new(response.into_body(), MAX_BODY).collect().await {
        Ok(body) => Ok(Some(body.to_bytes().into())),
        Err(error) if error.is::<LengthLimitError>() => Err(QueryError::TooLarge),
        Err(error) => Err(QueryError::Unreachable(format!("the response broke off: {error}"))),
    }
}

impl From<ExchangeError> for QueryError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::HeadTooLarge => Self::TooLarge,
            ExchangeError::Tls(reason) => Self::Tls(reason),
            ExchangeError::Unreachable(reason) => Self::Unreachable(reason),
            ExchangeError::Unresolved(reason) => Self::Unresolved(reason),
        }
    }
}

/// The pause that a `Retry-After` requests: seconds or a date (RFC 9110, section 10.2.3).
fn pause(retry_after: Option<&str>, now: SystemTime) -> Duration {
    let Some(text) = retry_after.map(str::trim) else { return DEFAULT_PAUSE };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let pause = if is_number {
        // More digits than a u64 has are more than the maximum.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        match httpdate::parse_http_date(text) {
            Ok(date) => date.duration_since(now).unwrap_or_default(),
            Err(_) => DEFAULT_PAUSE,
        }
    };
    pause.clamp(Duration::from_secs(1), MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_bounded_whatever_the_source_asks_for() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let date = |after: u64| httpdate::fmt_http_date(now + Duration::from_secs(after));
        for (text, seconds) in [
            (None, 60),
            (Some("7".to_owned()), 7),
            (Some(" 7 ".to_owned()), 7),
            (Some("0".to_owned()), 1),
            (Some("3601".to_owned()), 3600),
            (Some("99999999999999999999999".to_owned()), 3600),
            (Some("-1".to_owned()), 60),
            (Some("soon".to_owned()), 60),
            (Some(String::new()), 60),
            (Some(date(90)), 90),
            (Some(date(100_000)), 3600),
            (Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()), 1),
        ] {
            assert_eq!(pause(text.as_deref(), now).as_secs(), seconds, "{text:?}");
        }
    }
}
