//! Requests to a server over HTTP/2, on one shared connection.

use std::pin::pin;

use tokio::time::timeout;

use super::{CarriedResponse, Carrier, UpstreamServer, exchange, try_clone};
use crate::proxy::message::body::{HttpError, OutgoingRequest};
use crate::proxy::upstream::dial::{ConnectionGuard, HttpVersion, Io};
use crate::proxy::upstream::error::{SendError, UpstreamError};
use crate::proxy::upstream::http2::{self, Http2Connection};
use crate::proxy::upstream::http2_pool::SharedHttp2;

impl UpstreamServer {
    /// Sends a request on the shared connection and waits for the head of the response.
    pub(super) async fn send_http2(
        &self,
        request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let http2 = match self.shared_connection().await {
            Ok(http2) => http2,
            Err(error) => return Err(SendError::NotSent(request, error)),
        };
        let second = try_clone(&request);
        let request = match (self.try_http2(http2.clone(), request).await, second) {
            // The connection was ending: nothing was sent.
            (Err(SendError::NotSent(unsent, UpstreamError::Protocol(_))), _) => unsent,
            (Err(SendError::MaybeSent(UpstreamError::Protocol(error))), Some(second))
                if error.is_of_connection() =>
            {
                second
            }
            (Err(SendError::MaybeSent(UpstreamError::Protocol(error))), Some(second))
                if error.is_refused() =>
            {
                return self.try_http2(http2, second).await;
            }
            (outcome, _) => return outcome,
        };
        self.http2.remove(&http2);
        match self.shared_connection().await {
            Ok(http2) => self.try_http2(http2, request).await,
            Err(error) => Err(SendError::NotSent(request, error)),
        }
    }

    async fn try_http2(
        &self,
        mut http2: Http2Connection,
        mut request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let permit = match timeout(self.timeouts.response, http2.stream_permit()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(error)) => return Err(SendError::NotSent(request, error.into())),
            Err(_) => return Err(SendError::NotSent(request, UpstreamError::ConnectionLimit)),
        };
        if http2::prepare(&mut request, &self.uri_scheme()).is_none() {
            return Err(SendError::MaybeSent(UpstreamError::Host));
        }
        let upload = request.body().upload();
        let response = pin!(http2.clone().send(request, permit));
        let sent = exchange(response, upload.as_ref(), self.timeouts.response).await;
        if let Err(SendError::MaybeSent(UpstreamError::ResponseTimeout(_))) = &sent {
            self.http2.remove(&http2); // a server that has crashed closes no connection
        }
        let (response, permit) = sent?;
        Ok(CarriedResponse { response, carrier: Carrier::Http2 { _permit: permit } })
    }

    /// The shared connection for requests; concurrent callers share one connection attempt.
    async fn shared_connection(&self) -> Result<Http2Connection, UpstreamError> {
        self.get(&self.http2).await
    }

    /// The shared connection for tunnels, which last: requests do not wait for their end.
    pub(in crate::proxy::upstream) async fn tunnel_connection(
        &self,
    ) -> Result<Http2Connection, UpstreamError> {
        self.get(&self.http2_tunnels).await
    }

    /// Removes a connection for tunnels, so that the next tunnel opens another one.
    pub(in crate::proxy::upstream) fn remove_tunnel_connection(&self, http2: &Http2Connection) {
        self.http2_tunnels.remove(http2);
    }

    async fn get(&self, shared: &SharedHttp2) -> Result<Http2Connection, UpstreamError> {
        match shared.open() {
            Some(http2) => Ok(http2),
            // Boxed, because its size would be part of every request's future.
            None => Box::pin(shared.get(self.connect_http2())).await,
        }
    }

    async fn connect_http2(&self) -> Result<Http2Connection, UpstreamError> {
        let connection = self.connect().await?;
        if connection.version == HttpVersion::Http1 {
            self.version.set(HttpVersion::Http1);
            return Err(UpstreamError::ChangedProtocol);
        }
        let started = Http2Connection::start(connection.io, connection.guard).await;
        Ok(started.map_err(HttpError::from)?)
    }

    /// Shares a connection on which the server has chosen HTTP/2.
    pub(in crate::proxy::upstream) async fn share(
        &self,
        io: Box<dyn Io>,
        guard: ConnectionGuard,
    ) -> Result<(), UpstreamError> {
        let http2 = Http2Connection::start(io, guard).await.map_err(HttpError::from)?;
        self.http2.set(http2).await;
        self.version.set(HttpVersion::Http2);
        Ok(())
    }
}
