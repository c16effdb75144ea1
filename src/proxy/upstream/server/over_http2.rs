//! Requests to a server over HTTP/2, on the connections that they share.

use std::io;
use std::pin::pin;
use std::rc::Rc;

use tokio::time::timeout;

use super::{CarriedResponse, Carrier, UpstreamServer, exchange};
use crate::permit::ClientKey;
use crate::proxy::message::body::{OutgoingRequest, SecondRequest};
use crate::proxy::message::incoming::HttpError;
use crate::proxy::upstream::dial::{ConnectionGuard, DialError, HttpVersion, Io};
use crate::proxy::upstream::error::{SendError, UpstreamError};
use crate::proxy::upstream::http2::{self, ConnectionId, Http2Connection};
use crate::proxy::upstream::http2_pool::{Http2Pool, StreamSlot};

impl UpstreamServer {
    /// Sends a request on a shared connection and waits for the head of the response.
    pub(super) async fn send_http2(
        self: &Rc<Self>,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let second = SecondRequest::of(&request);
        let slot = match self.request_slot(client).await {
            Ok(slot) => slot,
            Err(error) => return Err(SendError::NotSent(request, error)),
        };
        let http2 = slot.http2.id();
        let request = match (self.try_http2(slot, request).await, second) {
            (Err(SendError::MaybeSent(UpstreamError::Protocol(error))), Some(second))
                if error.is_of_connection() =>
            {
                self.http2.remove(http2);
                second.into_request()
            }
            (Err(SendError::MaybeSent(UpstreamError::Protocol(error))), Some(second))
                if error.is_refused() =>
            {
                second.into_request()
            }
            (outcome, _) => return outcome,
        };
        match self.request_slot(client).await {
            Ok(slot) => self.try_http2(slot, request).await,
            Err(error) => Err(SendError::NotSent(request, error)),
        }
    }

    async fn try_http2(
        &self,
        slot: StreamSlot,
        mut request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        if http2::prepare(&mut request, &self.uri_scheme()).is_none() {
            return Err(SendError::MaybeSent(UpstreamError::Host));
        }
        let upload = request.body().upload();
        let http2 = slot.http2.id();
        let limit = self.timeouts.response;
        let response = pin!(Http2Connection::send(request, slot, limit));
        let sent = exchange(response, upload.as_ref(), limit).await;
        if let Err(SendError::MaybeSent(UpstreamError::ResponseTimeout(_))) = &sent {
            self.http2.remove(http2); // a server that has crashed closes no connection
        }
        let (response, slot) = sent?;
        Ok(CarriedResponse { response, carrier: Carrier::Http2 { _slot: slot } })
    }

    /// Waits for a stream slot for a request.
    async fn request_slot(self: &Rc<Self>, client: ClientKey) -> Result<StreamSlot, UpstreamError> {
        let slot = self.http2.acquire(client, || self.open_http2(&self.http2));
        let slot = timeout(self.timeouts.response, slot).await;
        slot.unwrap_or(Err(UpstreamError::ConnectionLimit))
    }

    /// A stream slot for a tunnel. A tunnel waits for a connection at most, and not for the end of
    /// another tunnel.
    pub(in crate::proxy::upstream) async fn tunnel_slot(
        self: &Rc<Self>,
        client: ClientKey,
    ) -> Result<StreamSlot, UpstreamError> {
        self.http2_tunnels.acquire(client, || self.open_http2(&self.http2_tunnels)).await
    }

    /// Removes a connection for tunnels, so that it gets no further ones.
    pub(in crate::proxy::upstream) fn remove_tunnel_connection(&self, http2: ConnectionId) {
        self.http2_tunnels.remove(http2);
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
        let connection = self.connect(None).await?;
        if connection.version == HttpVersion::Http1 {
            self.version.set(HttpVersion::Http1);
            return Err(UpstreamError::ChangedProtocol);
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
        self.version.set(HttpVersion::Http2);
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
        let settings = timeout(self.dialer.connect_timeout(), http2.first_settings()).await;
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
