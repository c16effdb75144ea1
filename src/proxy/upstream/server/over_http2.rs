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
use crate::proxy::upstream::http2::{self, Http2Connection};
use crate::proxy::upstream::http2_pool::{Http2Pool, PoolPurpose, StreamSlot};

impl UpstreamServer {
    /// Sends a request on a shared connection and waits for the head of the response.
    pub(super) async fn send_http2(
        self: &Rc<Self>,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        if self.isolation.contains(client) {
            return self.send_alone(client, request).await;
        }
        let (second, pool) = (SecondRequest::of(&request), &self.http2);
        let has_upload = request.body().upload().is_some();
        let slot = match self.request_slot(client, pool, has_upload).await {
            Ok(slot) => slot,
            Err(error) => return Err(SendError::NotSent(request, error)),
        };
        let http2 = slot.http2.id();
        let outcome = self.try_http2(client, slot, request).await;
        let (Err(SendError::MaybeSent(failure @ UpstreamError::Protocol(error))), Some(second)) =
            (&outcome, second)
        else {
            return outcome;
        };
        if !error.is_of_connection() && !error.is_refused() {
            return outcome;
        }
        let request = second.into_request();
        request.body().record_resend(self.config(), failure);
        if error.is_of_connection() {
            // The request may have ended the connection, so nobody else may be on the next one.
            pool.remove_failed(http2);
            Box::pin(self.send_alone(client, request)).await
        } else {
            match self.request_slot(client, pool, false).await {
                Ok(slot) => self.try_http2(client, slot, request).await,
                Err(error) => Err(SendError::NotSent(request, error)),
            }
        }
    }

    /// Sends a request on a connection of its own, which counts for the share of the client.
    async fn send_alone(
        self: &Rc<Self>,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let pool = Http2Pool::new(PoolPurpose::Requests, &self.isolation);
        let slot = match self.client_share(client) {
            Ok(share) => self.request_slot(client, &pool, false).await.map(|slot| (slot, share)),
            Err(error) => Err(error),
        };
        match slot {
            Ok((slot, share)) => {
                let mut response = self.try_http2(client, slot, request).await?;
                if let Carrier::Http2 { _share, .. } = &mut response.carrier {
                    *_share = Some(share);
                }
                Ok(response)
            }
            Err(error) => Err(SendError::NotSent(request, error)),
        }
    }

    async fn try_http2(
        &self,
        client: ClientKey,
        slot: StreamSlot,
        mut request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        self.prepare_http2(&mut request, &slot).map_err(SendError::MaybeSent)?;
        let upload = request.body().upload();
        let (http2, pool) = (slot.http2.id(), Rc::clone(slot.pool()));
        let response = pin!(Http2Connection::send((client, request), slot, self.options));
        let sent = exchange(response, upload.as_ref(), self.timeouts.response).await;
        if let Err(SendError::MaybeSent(UpstreamError::ResponseTimeout(_))) = &sent {
            pool.remove(http2); // a server that has crashed closes no connection
        }
        let (response, slot) = sent?;
        Ok(CarriedResponse { response, carrier: Carrier::Http2 { _slot: slot, _share: None } })
    }

    /// Converts a request to HTTP/2, within the limits of keygate and of the server.
    pub(in crate::proxy::upstream) fn prepare_http2(
        &self,
        request: &mut OutgoingRequest,
        slot: &StreamSlot,
    ) -> Result<(), UpstreamError> {
        let max_size = self.max_header_size.min(slot.http2.max_header_list());
        http2::prepare(request, &self.uri_scheme(), max_size)
    }

    /// Waits for a stream slot for a request.
    async fn request_slot(
        self: &Rc<Self>,
        client: ClientKey,
        pool: &Rc<Http2Pool>,
        has_upload: bool,
    ) -> Result<StreamSlot, UpstreamError> {
        let slot = pool.acquire(client, has_upload, || self.open_http2(pool));
        let slot = timeout(self.timeouts.response, slot).await;
        slot.unwrap_or(Err(UpstreamError::ConnectionLimit))
    }

    /// A stream slot for a tunnel. A tunnel waits for a connection at most, and not for the end of
    /// another tunnel. Each tunnel of an isolated client has a connection of its own.
    pub(in crate::proxy::upstream) async fn tunnel_slot(
        self: &Rc<Self>,
        client: ClientKey,
    ) -> Result<StreamSlot, UpstreamError> {
        let pool = if self.isolation.contains(client) {
            Http2Pool::new(PoolPurpose::Tunnels, &self.isolation)
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
