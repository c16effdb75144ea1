//! New connections to a server, under the limit of its upstream and the shares of clients.

use keygate_wire::permit::{ClientKey, ShareGuard};

use super::UpstreamServer;
use crate::proxy::upstream::dial::{ConnectionGuard, HttpVersion, Io};
use crate::proxy::upstream::error::UpstreamError;

/// A new connection to a server.
pub(crate) struct ServerConnection {
    pub(crate) io: Box<dyn Io>,
    pub(crate) version: HttpVersion,
    pub(crate) guard: ConnectionGuard,
}

impl UpstreamServer {
    /// Opens a connection, over any version that the server speaks. It holds `share` while it is
    /// open.
    pub(crate) async fn connect(
        &self,
        share: Option<ShareGuard>,
    ) -> Result<ServerConnection, UpstreamError> {
        let guard = self.guard(share)?;
        let dialed = self.dialer.dial().await?;
        self.metrics.upstream_connections.inc();
        if dialed.version == HttpVersion::Http1
            && self.version.replace(Some(HttpVersion::Http1)).is_none()
        {
            self.may_speak_http2.set(false);
        }
        Ok(ServerConnection { io: dialed.io, version: dialed.version, guard })
    }

    /// Opens a connection for HTTP/1.1 that may become a tunnel.
    pub(crate) async fn connect_http1(&self) -> Result<ServerConnection, UpstreamError> {
        let guard = self.guard(None)?;
        let io = self.dialer.dial_http1().await?;
        self.metrics.upstream_connections.inc();
        Ok(ServerConnection { io, version: HttpVersion::Http1, guard })
    }

    /// Takes a connection from the share of a client.
    ///
    /// # Errors
    /// Returns an error if the client has its share.
    pub(crate) fn client_share(&self, client: ClientKey) -> Result<ShareGuard, UpstreamError> {
        self.limit.share(client).ok_or(UpstreamError::ClientShare)
    }

    /// Counts a new connection. Idle ones are closed for it: a burst of requests would otherwise
    /// keep out tunnels, which cannot reuse a connection, until `idle_timeout`.
    fn guard(&self, share: Option<ShareGuard>) -> Result<ConnectionGuard, UpstreamError> {
        while self.limit.is_reached() && self.idle.close_one() {}
        let metric = &self.metrics.upstream_connections_active;
        self.limit.enter(metric, &self.state, share).ok_or(UpstreamError::ConnectionLimit)
    }
}
