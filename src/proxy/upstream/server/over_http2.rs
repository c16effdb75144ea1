//! Requests to a server that speaks HTTP/2: all of them share a connection.

use std::pin::pin;
use std::rc::Rc;

use hyper::Response;
use tokio::time::timeout;

use super::Server;
use crate::proxy::dial::Io;
use crate::proxy::incoming::{HttpError, Incoming};
use crate::proxy::upstream::error::UpstreamError;
use crate::proxy::upstream::exchange::{Failed, exchange, repeated};
use crate::proxy::upstream::http2::{self, Http2, Place};
use crate::proxy::upstream::open::Open;
use crate::proxy::upstream::request_body::Outgoing;
use crate::proxy::upstream::shared::Shared;

impl Server {
    /// Sends a request on the connection that all share, and waits for the response head.
    pub(super) async fn send_http2(
        &self,
        request: Outgoing,
    ) -> Result<(Response<Incoming>, Rc<Place>), Failed> {
        let http2 = match self.shared_connection().await {
            Ok(http2) => http2,
            Err(error) => return Err(Failed::Unsent(request, error)),
        };
        let again = repeated(&request);
        let request = match (self.try_http2(http2.clone(), request).await, again) {
            // The connection was ending: nothing was sent.
            (Err(Failed::Unsent(unsent, UpstreamError::Protocol(_))), _) => unsent,
            (Err(Failed::Sent(UpstreamError::Protocol(error))), Some(again))
                if error.is_of_connection() =>
            {
                again
            }
            (Err(Failed::Sent(UpstreamError::Protocol(error))), Some(again))
                if error.is_refused() =>
            {
                return self.try_http2(http2, again).await;
            }
            (outcome, _) => return outcome,
        };
        self.shared.forget(&http2);
        match self.shared_connection().await {
            Ok(http2) => self.try_http2(http2, request).await,
            Err(error) => Err(Failed::Unsent(request, error)),
        }
    }

    async fn try_http2(
        &self,
        mut http2: Http2,
        mut request: Outgoing,
    ) -> Result<(Response<Incoming>, Rc<Place>), Failed> {
        let place = match timeout(self.timeouts.response, http2.place()).await {
            Ok(Ok(place)) => place,
            Ok(Err(error)) => return Err(Failed::Unsent(request, error.into())),
            Err(_) => return Err(Failed::Unsent(request, UpstreamError::TooMany)),
        };
        if http2::prepare(&mut request, &self.uri_scheme()).is_none() {
            return Err(Failed::Sent(UpstreamError::Host));
        }
        let progress = request.body().progress();
        let response = pin!(http2.clone().ask(request, place));
        let sent = exchange(response, &progress, self.timeouts.response).await;
        if let Err(Failed::Sent(UpstreamError::ResponseTimeout(_))) = &sent {
            self.shared.forget(&http2); // it may be dead without a word
        }
        sent
    }

    /// The one connection of HTTP/2, made if it is not there; everybody waits for the same.
    async fn shared_connection(&self) -> Result<Http2, UpstreamError> {
        self.get(&self.shared).await
    }

    /// The same for streams of bytes, which last: requests do not wait for their end.
    pub(in crate::proxy::upstream) async fn tunnel_connection(
        &self,
    ) -> Result<Http2, UpstreamError> {
        self.get(&self.tunnels).await
    }

    async fn get(&self, shared: &Shared) -> Result<Http2, UpstreamError> {
        match shared.present() {
            Some(http2) => Ok(http2),
            // Boxed: a future with room for a handshake would be moved with every request.
            None => Box::pin(shared.get(self.connect_http2())).await,
        }
    }

    /// Has the next stream of bytes make another connection.
    pub(in crate::proxy::upstream) fn forget_tunnels(&self, http2: &Http2) {
        self.tunnels.forget(http2);
    }

    async fn connect_http2(&self) -> Result<Http2, UpstreamError> {
        let (io, is_http2, open) = self.connect().await?;
        if !is_http2 {
            self.is_http2.set(false);
            return Err(UpstreamError::ChangedProtocol);
        }
        Ok(Http2::start(io, open).await.map_err(HttpError::from)?)
    }

    /// Has everybody use a connection on which the server has chosen HTTP/2.
    pub(in crate::proxy::upstream) async fn share(
        &self,
        io: Box<dyn Io>,
        open: Open,
    ) -> Result<(), UpstreamError> {
        let http2 = Http2::start(io, open).await.map_err(HttpError::from)?;
        self.shared.set(http2).await;
        self.is_http2.set(true);
        Ok(())
    }
}
