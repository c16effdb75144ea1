//! The upstream of one service, with this worker's connections to it.
//!
//! Connections are reused last in, first out, so that those which load no longer needs grow old and
//! are closed.

mod request_body;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use self::request_body::Progress;
pub(super) use self::request_body::RequestBody;
use crate::config::UpstreamConfig;
use crate::metrics::{ServiceMetrics, UpstreamFailure};

/// A connection that a request can be sent on.
pub(super) type Sender = SendRequest<RequestBody>;

/// The server behind a service, as one worker knows it.
#[derive(Debug)]
pub(super) struct Upstream {
    config: UpstreamConfig,
    metrics: ServiceMetrics,
    authority: String,
    idle: RefCell<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    sender: Sender,
    since: Instant,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("the connection could not be used: {0}")]
    Protocol(#[source] hyper::Error),
    #[error("no response within {0:?}")]
    ResponseTimeout(Duration),
}

impl UpstreamError {
    fn kind(&self) -> UpstreamFailure {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => UpstreamFailure::Connect,
            Self::Protocol(_) => UpstreamFailure::Response,
            Self::ResponseTimeout(_) => UpstreamFailure::Timeout,
        }
    }
}

impl Upstream {
    pub(super) fn new(config: &UpstreamConfig, metrics: ServiceMetrics) -> Self {
        let host = &config.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        Self {
            authority: format!("{host}:{}", config.port),
            config: config.clone(),
            metrics,
            idle: RefCell::default(),
        }
    }

    /// The `Host` for a request that has none of its own (HTTP/1.0).
    pub(super) fn host(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.authority).ok()
    }

    /// Sends a request and waits for the response head. The sender comes with it: give it back
    /// with [`Upstream::keep`] once the response body has ended.
    pub(super) async fn send(
        &self,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Sender), UpstreamError> {
        let result = self.try_send(request).await;
        if let Err(error) = &result {
            self.metrics.upstream_failures.of(error.kind()).inc();
        }
        result
    }

    async fn try_send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Sender), UpstreamError> {
        // A connection of the pool can be closed by the upstream at any moment. A request that was
        // not written to it goes to the next: there are only so many, then a fresh one is made.
        while let Some(mut sender) = self.take_idle() {
            match self.exchange(&mut sender, request).await {
                Ok(response) => return Ok((response, sender)),
                Err(Failed::Unsent(unsent)) => request = *unsent,
                Err(Failed::Sent(error)) => return Err(error),
            }
        }
        let mut sender = self.connect().await?;
        match self.exchange(&mut sender, request).await {
            Ok(response) => Ok((response, sender)),
            Err(Failed::Sent(error)) => Err(error),
            Err(Failed::Unsent(_)) => {
                Err(UpstreamError::Connect(io::ErrorKind::ConnectionReset.into()))
            }
        }
    }

    /// Keeps a connection whose response has ended for the next request.
    pub(super) fn keep(&self, sender: Sender) {
        if !sender.is_closed() {
            self.idle.borrow_mut().push(Idle { sender, since: Instant::now() });
        }
    }

    /// Closes connections that nobody has needed for `idle_timeout`, and forgets the closed.
    pub(super) fn drop_stale(&self) {
        let now = Instant::now();
        self.idle.borrow_mut().retain(|idle| {
            !idle.sender.is_closed()
                && now.saturating_duration_since(idle.since) < self.config.idle_timeout
        });
    }

    /// The connection used last that is ready. One that is not ready yet is still busy with the
    /// rest of a request whose response came early.
    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.borrow_mut();
        while let Some(position) =
            idle.iter().rposition(|idle| idle.sender.is_ready() || idle.sender.is_closed())
        {
            let sender = idle.remove(position).sender;
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<Sender, UpstreamError> {
        let limit = self.config.connect_timeout;
        let connecting = TcpStream::connect((self.config.host.as_str(), self.config.port));
        let tcp = timeout(limit, connecting)
            .await
            .map_err(|_| UpstreamError::ConnectTimeout(limit))?
            .map_err(UpstreamError::Connect)?;
        tcp.set_nodelay(true).map_err(UpstreamError::Connect)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(tcp)).await.map_err(UpstreamError::Protocol)?;
        self.metrics.upstream_connections.inc();
        let open = self.metrics.upstream_connections_active.clone();
        open.inc();
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "upstream connection ended");
            }
            open.dec();
        });
        Ok(sender)
    }

    async fn exchange(
        &self,
        sender: &mut Sender,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failed> {
        let progress = request.body().progress();
        let mut response = pin!(sender.try_send_request(request));
        let mut deadline = pin!(sleep_until(self.deadline(&progress)));
        poll_fn(|context| {
            if let Poll::Ready(outcome) = response.as_mut().poll(context) {
                return Poll::Ready(outcome.map_err(|mut error| match error.take_message() {
                    Some(unsent) => Failed::Unsent(Box::new(unsent)),
                    None => Failed::Sent(UpstreamError::Protocol(error.into_error())),
                }));
            }
            // The time runs from the last piece of the request body that the upstream took.
            while Pin::as_mut(&mut deadline).poll(context).is_ready() {
                let later = self.deadline(&progress);
                if later <= deadline.deadline() {
                    let limit = self.config.response_timeout;
                    return Poll::Ready(Err(Failed::Sent(UpstreamError::ResponseTimeout(limit))));
                }
                deadline.as_mut().reset(later);
            }
            Poll::Pending
        })
        .await
    }

    fn deadline(&self, progress: &Progress) -> tokio::time::Instant {
        (progress.last() + self.config.response_timeout).into()
    }
}

enum Failed {
    Sent(UpstreamError),
    /// Nothing of the request was written: it can be sent again.
    Unsent(Box<Request<RequestBody>>),
}
