//! Requests that leave HTTP: `Upgrade` of HTTP/1.1 (RFC 9110, section 7.8), and extended CONNECT of
//! HTTP/2 (RFC 8441). A server that speaks HTTP/1.1 gets an extended CONNECT as an upgrade.

use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use data_encoding::BASE64;
use h2::ext::Protocol;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use keygate_wire::http2::duplex::Http2Duplex;
use keygate_wire::incoming::Incoming;
use keygate_wire::permit::{ClientKey, ShareGuard};

use super::dial::{HttpVersion, Io, Offer};
use super::error::{SendError, UpstreamError};
use super::http1::{Http1Connection, Tunnel};
use super::http2_pool::StreamSlot;
use super::server::{Carrier, Lease, ServerConnection, UpstreamServer, exchange, maybe_sent};
use super::{UpgradeResponse, UpstreamResponse};
use crate::config::Scheme;
use crate::proxy::message::body::{OutgoingRequest, RequestBody};

impl Io for Http2Duplex {}

/// The connection or stream on which a tunnel is requested.
enum UpgradeTransport {
    Http1(ServerConnection),
    Http2(StreamSlot),
}

impl UpstreamServer {
    /// Sends a request for an upgrade, on a connection or stream of its own.
    pub(crate) async fn send_upgrade(
        self: &Rc<Self>,
        client: ClientKey,
        mut request: OutgoingRequest,
    ) -> Result<UpgradeResponse, SendError> {
        let is_connect = request.method() == Method::CONNECT;
        let share = match self.client_share(client) {
            Ok(share) => share,
            Err(error) => return Err(SendError::NotSent(request, error)),
        };
        let transport = if is_connect {
            self.any_transport(client).await
        } else {
            self.connect(Offer::Http1Only, None).await.map(UpgradeTransport::Http1)
        };
        match transport {
            Err(error) => Err(SendError::NotSent(request, error)),
            Ok(UpgradeTransport::Http2(slot)) => self.open_stream(client, slot, request).await,
            Ok(UpgradeTransport::Http1(connection)) if !is_connect => {
                self.upgrade(connection, share, request).await
            }
            Ok(UpgradeTransport::Http1(connection)) => {
                let Some(connect) = ConnectRequest::convert(&mut request) else {
                    return Err(SendError::MaybeSent(UpstreamError::NO_EXTENDED_CONNECT));
                };
                let outcome = self.upgrade(connection, share, request).await;
                outcome
                    .map_err(|error| connect.restore(error))
                    .and_then(|response| connect.check(response))
            }
        }
    }

    /// A transport of the version that the server speaks.
    async fn any_transport(
        self: &Rc<Self>,
        client: ClientKey,
    ) -> Result<UpgradeTransport, UpstreamError> {
        if self.version() == HttpVersion::Http1 {
            let connection = self.connect(Offer::AnyVersion, None).await?;
            if connection.version == HttpVersion::Http1 {
                return Ok(UpgradeTransport::Http1(connection));
            }
            self.share(connection.io, connection.guard).await?;
        }
        let slot = self.tunnel_slot(client).await?;
        if slot.http2.supports_extended_connect() {
            Ok(UpgradeTransport::Http2(slot))
        } else if self.config().scheme == Scheme::H2c {
            Err(UpstreamError::NO_EXTENDED_CONNECT)
        } else {
            self.connect(Offer::Http1Only, None).await.map(UpgradeTransport::Http1)
        }
    }

    /// Requests an upgrade on an HTTP/1.1 connection of its own.
    async fn upgrade(
        self: &Rc<Self>,
        connection: ServerConnection,
        share: ShareGuard,
        request: OutgoingRequest,
    ) -> Result<UpgradeResponse, SendError> {
        let lease = Lease::new(self);
        let requested = request.headers().get(header::UPGRADE).cloned();
        let http1 = Http1Connection::new(connection.io, connection.guard, false);
        let upload = request.body().upload.clone();
        http1.begin(request).map_err(maybe_sent)?;
        let response = self.exchange_http1(&http1, upload.as_ref()).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            // The response's body follows.
            let lease = lease.with_share(share).with(Carrier::Http1(http1));
            return Ok(UpgradeResponse {
                response: UpstreamResponse { response, lease },
                tunnel: None,
            });
        }
        if !is_requested(requested.as_ref(), response.headers()) {
            return Err(SendError::MaybeSent(UpstreamError::UNEXPECTED_UPGRADE));
        }
        let response = response.map(|_| Incoming::Empty);
        let sending = pin!(http1.into_tunnel());
        let tunnel = exchange(sending, upload.as_ref(), self.upstream().response_timeout).await?;
        let mut tunnel = tunnel.ok_or(SendError::MaybeSent(UpstreamError::UPGRADE_REFUSED))?;
        if let Some(guard) = &mut tunnel.guard {
            guard.hold(share);
        }
        Ok(UpgradeResponse { response: UpstreamResponse { response, lease }, tunnel: Some(tunnel) })
    }

    /// Requests a tunnel on a stream of the shared connection.
    async fn open_stream(
        self: &Rc<Self>,
        client: ClientKey,
        mut slot: StreamSlot,
        mut request: OutgoingRequest,
    ) -> Result<UpgradeResponse, SendError> {
        let lease = Lease::new(self);
        self.prepare_http2(&mut request, &slot).map_err(SendError::MaybeSent)?;
        let upload = request.body().upload.clone();
        let limit = self.upstream().response_timeout;
        let sent = {
            let connecting = pin!(slot.http2.connect(client, request));
            exchange(connecting, upload.as_ref(), limit).await
        };
        if sent.is_err() {
            slot.remove_connection(); // ending, or its server has crashed
        }
        let (response, stream) = sent?;
        let lease = lease.with(Carrier::Http2 { slot: Rc::new(slot) });
        let tunnel =
            stream.map(|stream| Tunnel { io: Box::new(stream), read: Bytes::new(), guard: None });
        Ok(UpgradeResponse { response: UpstreamResponse { response, lease }, tunnel })
    }
}

/// Whether the one `Upgrade` field of a response names only protocols of the request's field.
fn is_requested(requested: Option<&HeaderValue>, response: &HeaderMap) -> bool {
    let mut fields = response.get_all(header::UPGRADE).iter();
    let (Some(accepted), None) = (fields.next(), fields.next()) else { return false };
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_ascii_lowercase);
    let (Some(requested), Some(accepted)) = (requested.and_then(text), text(accepted)) else {
        return false;
    };
    accepted.split(',').all(|it| requested.split(',').any(|other| other.trim() == it.trim()))
}

/// An extended CONNECT that was converted to an upgrade.
struct ConnectRequest {
    protocol: Protocol,
    /// The expected `Sec-WebSocket-Accept` (RFC 6455, section 4.2.2).
    accept: Option<String>,
}

impl ConnectRequest {
    /// Converts an extended CONNECT; `None` for any other request.
    fn convert(request: &mut Request<RequestBody>) -> Option<Self> {
        let protocol = request.extensions_mut().remove::<Protocol>()?;
        let name = HeaderValue::from_str(protocol.as_str()).ok()?;
        *request.method_mut() = Method::GET;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, name);
        let mut accept = None;
        if protocol.as_str().eq_ignore_ascii_case("websocket") {
            // WebSocket over HTTP/2 has no key. The key is a nonce and not a secret.
            let key = BASE64.encode(&fastrand::u128(..).to_be_bytes());
            accept = Some(websocket_accept(&key));
            headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key).ok()?);
        }
        Some(Self { protocol, accept })
    }

    /// Converts an unsent request back to an extended CONNECT.
    fn restore(&self, error: SendError) -> SendError {
        let SendError::NotSent(mut request, error) = error else { return error };
        *request.method_mut() = Method::CONNECT;
        for name in [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_KEY] {
            request.headers_mut().remove(name);
        }
        request.extensions_mut().insert(self.protocol.clone());
        SendError::NotSent(request, error)
    }

    /// Checks that the server has accepted the client's protocol, or has declined. Any other
    /// success would look to the client like an acceptance.
    fn check(&self, upgrade: UpgradeResponse) -> Result<UpgradeResponse, SendError> {
        let response = &upgrade.response.response;
        let is_valid = match upgrade.tunnel {
            Some(_) => self.is_accepted(response.headers()),
            None => !response.status().is_success(),
        };
        if is_valid {
            Ok(upgrade)
        } else {
            Err(SendError::MaybeSent(UpstreamError::UPGRADE_REFUSED))
        }
    }

    fn is_accepted(&self, headers: &HeaderMap) -> bool {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let protocol = self.protocol.as_str();
        text(header::UPGRADE).is_some_and(|accepted| accepted.eq_ignore_ascii_case(protocol))
            && self
                .accept
                .as_deref()
                .is_none_or(|accept| text(header::SEC_WEBSOCKET_ACCEPT) == Some(accept))
    }
}

/// The `Sec-WebSocket-Accept` of a key.
fn websocket_accept(key: &str) -> String {
    const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}{SUFFIX}").as_bytes(),
    );
    BASE64.encode(digest.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_value_is_that_of_the_standard() {
        // RFC 6455, section 1.3.
        assert_eq!(websocket_accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
