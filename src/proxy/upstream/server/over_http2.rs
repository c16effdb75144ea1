//! Requests to a server over HTTP/2, on the connections that they share.

use std::io;
use std::pin::pin;
use std::rc::Rc;

use keygate_wire::incoming::HttpError;
use keygate_wire::permit::ClientKey;
use tokio::time::timeout;

use super::{CarriedResponse, Carrier, ServerFailure, UpstreamServer, exchange};
use crate::proxy::message::body::{OutgoingRequest, SecondRequest};
use crate::proxy::upstream::dial::{ConnectionGuard, DialError, HttpVersion, Io, Offer};
use crate::proxy::upstream::error::{SendError, UpstreamError};
use crate::proxy::upstream::http2::{self, Http2Connection};
use crate::proxy::upstream::http2_pool::{Http2Pool, PoolPurpose, StreamSlot};

impl UpstreamServer {
    /// Sends a request on a shared connection and waits for the head of the response. A request that
    /// the server has not processed is sent again, and also a safe one whose connection has failed:
    /// on a connection of its client alone if that is suspected.
    pub(super) async fn send_http2(
        self: &Rc<Self>,
        client: ClientKey,
        mut request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let second = SecondRequest::from_first(&mut request);
        match self.try_http2(client, request).await {
            Err(SendError::MaybeSent(error)) if error.permits_retry(second.is_safe()) => {
                let request = second.into_request().ok_or(SendError::MaybeSent(error.clone()))?;
                request.body().record_resend(self.config(), error.kind());
                Box::pin(self.try_http2(client, request)).await
            }
            outcome => outcome,
        }
    }

    async fn try_http2(
        self: &Rc<Self>,
        client: ClientKey,
        mut request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let (pool, upload) = (self.request_pool(client), request.body().upload.clone());
        let slot = pool.acquire(client, upload.is_some(), || self.open_http2(&pool));
        let slot = match timeout(self.upstream().response_timeout, slot).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(error)) => return Err(SendError::NotSent(request, error)),
            Err(_) => return Err(SendError::NotSent(request, UpstreamError::CONNECTION_LIMIT)),
        };
        self.prepare_http2(&mut request, &slot).map_err(SendError::MaybeSent)?;
        let http2 = slot.http2.id();
        let response = pin!(Http2Connection::send((client, request), slot, self.upstream()));
        match exchange(response, upload.as_ref(), self.upstream().response_timeout).await {
            Ok((response, slot)) => {
                Ok(CarriedResponse { response, carrier: Carrier::Http2 { slot } })
            }
            Err(SendError::MaybeSent(UpstreamError::Protocol(error)))
                if error.is_of_connection() =>
            {
                pool.remove_failed(http2);
                let error = UpstreamError::SharedConnection(error);
                // The failure of an isolated client says nothing about the server.
                if pool.has_failure.take() && pool.owner.is_none() {
                    self.record_failure(ServerFailure::Response, &error);
                }
                Err(SendError::MaybeSent(error))
            }
            Err(error) => {
                if let SendError::MaybeSent(UpstreamError::ResponseTimeout(_)) = &error {
                    pool.remove(http2); // a server that has crashed closes no connection
                }
                Err(error)
            }
        }
    }

    /// The pool for the requests of a client: the shared one, or its own if it is isolated.
    fn request_pool(&self, client: ClientKey) -> Rc<Http2Pool> {
        if !self.shared.isolation.contains(client) {
            return Rc::clone(&self.http2);
        }
        self.drop_isolated();
        let mut isolated = self.isolated.borrow_mut();
        let own = isolated.iter().find(|pool| pool.owner == Some(client)).map(Rc::clone);
        own.unwrap_or_else(|| {
            let pool = Http2Pool::new(PoolPurpose::Requests, Some(client), &self.shared.isolation);
            isolated.push(Rc::clone(&pool));
            pool
        })
    }

    /// Drops the pools of clients that are no longer isolated, which close with their last request.
    pub(super) fn drop_isolated(&self) {
        let is_isolated = |client| self.shared.isolation.contains(client);
        self.isolated.borrow_mut().retain(|pool| pool.owner.is_some_and(is_isolated));
    }

    /// Converts a request to HTTP/2, within the limits of keygate and of the server.
    pub(in crate::proxy::upstream) fn prepare_http2(
        &self,
        request: &mut OutgoingRequest,
        slot: &StreamSlot,
    ) -> Result<(), UpstreamError> {
        let max_size = self.upstream().max_header_size.min(slot.http2.max_header_list());
        http2::prepare(request, &self.uri_scheme(), max_size)
    }

    /// A stream slot for a tunnel. A tunnel waits for a connection at most, and not for the end of
    /// another tunnel. Each tunnel of an isolated client has a connection of its own.
    pub(in crate::proxy::upstream) async fn tunnel_slot(
        self: &Rc<Self>,
        client: ClientKey,
    ) -> Result<StreamSlot, UpstreamError> {
        let pool = if self.shared.isolation.contains(client) {
            Http2Pool::new(PoolPurpose::Tunnels, Some(client), &self.shared.isolation)
        } else {
            Rc::clone(&self.http2_tunnels)
        };
        pool.acquire(client, false, || self.open_http2(&pool)).await
    }

    /// Opens a connection for a pool, on a task of its own, because all callers wait for it.
    fn open_http2(self: &Rc<Self>, pool: &Rc<Http2Pool>) {
        let (server, pool) = (Rc::clone(self), Rc::clone(pool));
        tokio::task::spawn_local(async move {
            let opened = server.connect_http2(&pool).await;
            pool.end_opening(opened);
        });
    }

    async fn connect_http2(&self, pool: &Rc<Http2Pool>) -> Result<Http2Connection, UpstreamError> {
        let share = pool.owner.map(|client| self.client_share(client)).transpose()?;
        let connection = self.connect(Offer::AnyVersion, share).await?;
        if connection.version == HttpVersion::Http1 {
            return Err(UpstreamError::CHANGED_PROTOCOL);
        }
        self.start_http2(connection.io, connection.guard, pool).await
    }

    /// Shares a connection on which the server has chosen HTTP/2.
    pub(in crate::proxy::upstream) async fn share(
        &self,
        io: Box<dyn Io>,
        guard: ConnectionGuard,
    ) -> Result<(), UpstreamError> {
        let http2 = self.start_http2(io, guard, &self.http2).await?;
        self.http2.add(http2);
        self.version.set(Some(HttpVersion::Http2));
        self.may_speak_http2.set(true);
        Ok(())
    }

    /// Starts HTTP/2, and waits for the server's SETTINGS, because requests above its stream limit
    /// would be refused.
    async fn start_http2(
        &self,
        io: Box<dyn Io>,
        guard: ConnectionGuard,
        pool: &Rc<Http2Pool>,
    ) -> Result<Http2Connection, UpstreamError> {
        let pool = Rc::downgrade(pool);
        let update = move || pool.upgrade().iter().for_each(Http2Pool::update);
        let http2 = Http2Connection::start(io, guard, update).await.map_err(HttpError::from)?;
        let settings = timeout(self.upstream().connect_timeout, http2.first_settings()).await;
        if settings.is_err() {
            return Err(self.dialer.timed_out().into());
        }
        if http2.is_closed() {
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, "closed before its SETTINGS");
            let server = self.config().to_string();
            return Err(DialError::Connect { server, source }.into());
        }
        Ok(http2)
    }
}
