//! The attempts of one request: one server after another, until a part of it was sent.

use std::rc::Rc;

use keygate_wire::permit::ClientKey;
use smallvec::SmallVec;

use super::ejection::ServerFailure;
use super::error::{SendError, UpstreamError};
use super::server::UpstreamServer;
use super::{RequestFailure, Upstream};
use crate::proxy::message::body::{OutgoingRequest, RequestBody};

/// The attempts of one request: one server after another, until a part of the request was sent.
pub(super) struct Attempts<'a> {
    upstream: &'a Upstream,
    client: ClientKey,
    tried: Tried,
    server: Option<Rc<UpstreamServer>>,
    last_error: Option<UpstreamError>,
    /// A server that refuses an upgrade is not at fault.
    is_upgrade: bool,
}

/// The servers that a request has tried.
#[derive(Default)]
pub(super) struct Tried {
    pub(super) servers: SmallVec<[usize; 4]>,
    /// Whether one of them was ejected. A request tries no second one, because each may take
    /// `connect_timeout`.
    pub(super) has_ejected: bool,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(upstream: &'a Upstream, client: ClientKey) -> Self {
        let tried = Tried::default();
        Self { upstream, client, tried, server: None, last_error: None, is_upgrade: false }
    }

    /// Attempts of a request for an upgrade.
    pub(super) fn for_upgrade(self) -> Self {
        Self { is_upgrade: true, ..self }
    }

    /// Sends a request by `send` to one server after another.
    pub(super) async fn send<T>(
        &mut self,
        mut request: OutgoingRequest,
        send: impl AsyncFn(Rc<UpstreamServer>, OutgoingRequest) -> Result<T, SendError>,
    ) -> Result<T, RequestFailure> {
        loop {
            match send(self.next(Some(request.body()))?, request).await {
                Ok(response) => return Ok(response),
                Err(SendError::MaybeSent(error)) => return Err(self.give_up(error)),
                Err(SendError::NotSent(unsent, error)) => {
                    self.fail(error);
                    request = unsent;
                }
            }
        }
    }

    /// The next server, for a request with this body; if none is left, the failure of the request.
    pub(super) fn next(
        &mut self,
        body: Option<&RequestBody>,
    ) -> Result<Rc<UpstreamServer>, RequestFailure> {
        let Some((index, server)) = self.upstream.choose(&self.tried) else {
            let error = self.last_error.take().unwrap_or(UpstreamError::NO_HEALTHY_SERVER);
            return Err(self.failure(error));
        };
        self.tried.has_ejected |= server.is_ejected();
        self.tried.servers.push(index);
        let failed = self.server.replace(Rc::clone(&server));
        if let (Some(body), Some(failed), Some(error)) = (body, failed, &self.last_error) {
            body.record_resend(failed.config(), error.kind());
        }
        Ok(server)
    }

    /// Records an attempt of which nothing was sent: another server may be tried.
    pub(super) fn fail(&mut self, error: UpstreamError) {
        self.record_failure(&error);
        self.last_error = Some(error);
    }

    /// Ends the attempts after a part of the request was sent.
    pub(super) fn give_up(&self, error: UpstreamError) -> RequestFailure {
        self.record_failure(&error);
        self.failure(error)
    }

    fn record_failure(&self, error: &UpstreamError) {
        let failure = error
            .server_failure()
            .filter(|_| !self.upstream.isolation.contains(self.client))
            .filter(|failure| !self.is_upgrade || *failure == ServerFailure::Connect);
        if let (Some(server), Some(failure)) = (&self.server, failure) {
            server.record_failure(failure, error);
        }
    }

    /// Counts the failure of the request.
    fn failure(&self, error: UpstreamError) -> RequestFailure {
        if let Some(kind) = error.kind() {
            self.upstream.metrics.upstream_failures.of(kind).inc();
        }
        self.uncounted_failure(error)
    }

    pub(super) fn uncounted_failure(&self, error: UpstreamError) -> RequestFailure {
        let server = self.server.as_ref().map(|server| server.config().clone());
        RequestFailure { server, error }
    }
}
