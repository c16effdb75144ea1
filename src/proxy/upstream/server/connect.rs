//! New connections to a server, under the limit of its upstream and the shares of clients.

use keygate_wire::permit::{ClientKey, ShareGuard};

use super::{SharedByServers, UpstreamServer};
use crate::proxy::upstream::dial::{ConnectionGuard, Dialed, HttpVersion, Io, Offer};
use crate::proxy::upstream::error::UpstreamError;

/// A new connection to a server.
pub(crate) struct ServerConnection {
    pub(crate) io: Box<dyn Io>,
    pub(crate) version: HttpVersion,
    pub(crate) guard: ConnectionGuard,
}

impl UpstreamServer {
    /// Opens a connection, which holds `share` while it is open.
    pub(crate) async fn connect(
        &self,
        offer: Offer,
        share: Option<ShareGuard>,
    ) -> Result<ServerConnection, UpstreamError> {
        let guard = self.guard(share)?;
        let Dialed { io, version, key_exchange } = self.dialer.dial(offer).await?;
        let metrics = &self.shared.metrics;
        metrics.upstream_connections.inc();
        key_exchange.iter().for_each(|group| metrics.upstream_key_exchanges.of(*group).inc());
        if (offer, version) == (Offer::AnyVersion, HttpVersion::Http1)
            && self.version.replace(Some(version)).is_none()
        {
            self.may_speak_http2.set(false);
        }
        Ok(ServerConnection { io, version, guard })
    }

    /// Takes a connection from the share of a client.
    ///
    /// # Errors
    /// Returns an error if the client has its share.
    pub(crate) fn client_share(&self, client: ClientKey) -> Result<ShareGuard, UpstreamError> {
        self.shared.limit.share(client).ok_or(UpstreamError::CLIENT_SHARE)
    }

    /// Counts a new connection. Idle ones are closed for it: a burst of requests would otherwise
    /// keep out tunnels, which cannot reuse a connection, until `idle_timeout`.
    fn guard(&self, share: Option<ShareGuard>) -> Result<ConnectionGuard, UpstreamError> {
        let SharedByServers { limit, idle, metrics, .. } = &self.shared;
        while limit.is_reached() && idle.close_one() {}
        let metric = &metrics.upstream_connections_active;
        limit.enter(metric, &self.state, share).ok_or(UpstreamError::CONNECTION_LIMIT)
    }
}
