//! Requests that leave HTTP: `Upgrade` of HTTP/1.1 (RFC 9110, section 7.8), and extended CONNECT of
//! HTTP/2 (RFC 8441), which a server that speaks HTTP/1.1 gets as an upgrade.

use std::pin::pin;
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::ext::Protocol;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::error::UpstreamError;
use super::exchange::{Failed, exchange};
use super::http1::{self, Tunnel};
use super::http2::{self, Http2, Place};
use super::open::Open;
use super::request_body::{Outgoing, RequestBody};
use super::server::{Lease, On, Server};
use crate::config::Scheme;
use crate::proxy::dial::Io;
use crate::proxy::incoming::{HttpError, Incoming};

/// What a server answered, and what is left of the connection or stream if it has agreed.
pub(in crate::proxy) type Left = (Response<Incoming>, Lease, Option<Tunnel>);

/// How a server is asked to open a stream of bytes.
enum Way {
    Http1(Box<dyn Io>, Open),
    Http2(Http2, Place),
}

impl Server {
    /// Sends a request that is to leave HTTP, on a connection or stream of its own.
    pub(super) async fn send_upgrade(
        self: &Rc<Self>,
        mut request: Outgoing,
    ) -> Result<Left, Failed> {
        let is_connect = request.method() == Method::CONNECT;
        let way = if is_connect { self.way().await } else { self.http1_way().await };
        match way {
            Err(error) => Err(Failed::Unsent(request, error)),
            Ok(Way::Http2(http2, place)) => self.open_stream(http2, place, request).await,
            Ok(Way::Http1(io, open)) if !is_connect => self.upgrade(io, open, request).await,
            Ok(Way::Http1(io, open)) => {
                let Some(asked) = Asked::of(&mut request) else {
                    return Err(Failed::Sent(UpstreamError::NoConnect));
                };
                let outcome = self.upgrade(io, open, request).await;
                outcome.map_err(|failed| asked.undo(failed)).and_then(|left| asked.check(left))
            }
        }
    }

    /// Whichever way the server speaks.
    async fn way(&self) -> Result<Way, UpstreamError> {
        if !self.speaks_http2() {
            let (io, is_http2, open) = self.connect().await?;
            if !is_http2 {
                return Ok(Way::Http1(io, open));
            }
            self.share(io, open).await?;
        }
        let (http2, place) = self.tunnel_place().await?;
        let takes = timeout(self.timeouts().response, http2.takes_extended_connect()).await;
        match takes {
            Ok(true) => Ok(Way::Http2(http2, place)),
            Ok(false) | Err(_) if self.config().scheme == Scheme::H2c => {
                Err(UpstreamError::NoConnect)
            }
            Ok(false) | Err(_) => self.http1_way().await,
        }
    }

    /// A place for a stream of bytes. They last: nobody waits for the end of another, and a
    /// connection that is full or ending is left to those who are on it.
    async fn tunnel_place(&self) -> Result<(Http2, Place), UpstreamError> {
        let mut last = UpstreamError::TooMany;
        for _ in 0..2 {
            let mut http2 = self.tunnel_connection().await?;
            if http2.has_room() {
                match http2.place().await {
                    Ok(place) => return Ok((http2, place)),
                    Err(error) => last = error.into(),
                }
            }
            self.forget_tunnels(&http2);
        }
        Err(last)
    }

    async fn http1_way(&self) -> Result<Way, UpstreamError> {
        self.connect_http1().await.map(|(io, open)| Way::Http1(io, open))
    }

    /// On a connection of HTTP/1.1 of its own.
    async fn upgrade(
        self: &Rc<Self>,
        io: Box<dyn Io>,
        open: Open,
        mut request: Outgoing,
    ) -> Result<Left, Failed> {
        let mut lease = Lease::of(self);
        http1::prepare(&mut request);
        let (taker, tunnel) = oneshot::channel();
        let made = http1::start(io, open, Some(taker)).await;
        let mut http1 = made.map_err(|error| Failed::Sent(HttpError::from(error).into()))?;
        let response = self.exchange_http1(&mut http1, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            lease.keep(On::Http1(http1)); // the body comes on it
            return Ok((response, lease, None));
        }
        let tunnel = tunnel.await.map_err(|_| Failed::Sent(UpstreamError::NoConsent))?;
        Ok((response, lease, Some(tunnel)))
    }

    /// On a stream of the connection that all share.
    async fn open_stream(
        self: &Rc<Self>,
        http2: Http2,
        place: Place,
        mut request: Outgoing,
    ) -> Result<Left, Failed> {
        let mut lease = Lease::of(self);
        if http2::prepare(&mut request, &self.uri_scheme()).is_none() {
            return Err(Failed::Sent(UpstreamError::Host));
        }
        let progress = request.body().progress();
        let limit = self.timeouts().response;
        let sent = exchange(pin!(http2.clone().open(request)), &progress, limit).await;
        if sent.is_err() {
            self.forget_tunnels(&http2); // it may be ending, or dead without a word
        }
        let (response, stream) = sent?;
        lease.keep(On::Http2 { _place: Rc::new(place) });
        let tunnel =
            stream.map(|stream| Tunnel { io: Box::new(stream), read: Bytes::new(), open: None });
        Ok((response, lease, tunnel))
    }
}

/// An extended CONNECT that was made an upgrade.
struct Asked {
    protocol: Protocol,
    /// What a server that speaks WebSocket answers (RFC 6455, section 4.2.2).
    accept: Option<String>,
}

impl Asked {
    /// Makes an upgrade of an extended CONNECT; `None` if it is none.
    fn of(request: &mut Request<RequestBody>) -> Option<Self> {
        let protocol = request.extensions_mut().remove::<Protocol>()?;
        let name = HeaderValue::from_str(protocol.as_str()).ok()?;
        *request.method_mut() = Method::GET;
        let headers = request.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, name);
        let mut accept = None;
        if protocol.as_str().eq_ignore_ascii_case("websocket") {
            // A client of HTTP/2 has none. It is a nonce, not a secret.
            let key = STANDARD.encode(fastrand::u128(..).to_be_bytes());
            accept = Some(accept_of(&key));
            headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key).ok()?);
        }
        Some(Self { protocol, accept })
    }

    /// A request that nobody has read is an extended CONNECT again.
    fn undo(&self, failed: Failed) -> Failed {
        let Failed::Unsent(mut request, error) = failed else { return failed };
        *request.method_mut() = Method::CONNECT;
        for name in [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_KEY] {
            request.headers_mut().remove(name);
        }
        request.extensions_mut().insert(self.protocol.clone());
        Failed::Unsent(request, error)
    }

    /// The server has agreed to what the client asked for, or it has declined. Any other success
    /// would be taken for a consent that it is not.
    fn check(&self, left: Left) -> Result<Left, Failed> {
        let (response, _, tunnel) = &left;
        let is_sound = match tunnel {
            Some(_) => self.is_agreed(response.headers()),
            None => !response.status().is_success(),
        };
        if is_sound { Ok(left) } else { Err(Failed::Sent(UpstreamError::NoConsent)) }
    }

    fn is_agreed(&self, headers: &HeaderMap) -> bool {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let protocol = self.protocol.as_str();
        text(header::UPGRADE).is_some_and(|agreed| agreed.eq_ignore_ascii_case(protocol))
            && self
                .accept
                .as_deref()
                .is_none_or(|accept| text(header::SEC_WEBSOCKET_ACCEPT) == Some(accept))
    }
}

/// What a server makes of a key to show that it speaks WebSocket.
fn accept_of(key: &str) -> String {
    const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}{SUFFIX}").as_bytes(),
    );
    STANDARD.encode(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_key_is_that_of_the_standard() {
        // RFC 6455, section 1.3.
        assert_eq!(accept_of("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
