//! A connection of HTTP/1.1 to a server: one request at a time.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::open::Open;
use super::request_body::RequestBody;
use crate::proxy::dial::Io;
use crate::proxy::observed::{Observed, Observer};

/// A connection of HTTP/1.1.
#[derive(Debug)]
pub(super) struct Http1 {
    pub(super) send: http1::SendRequest<RequestBody>,
    /// Whether the server has said anything since the last request.
    pub(super) heard: Rc<Cell<bool>>,
    pub(super) made: Instant,
}

/// What is left of a connection once both sides have agreed on another protocol.
#[derive(Debug)]
pub(in crate::proxy) struct Tunnel {
    pub(in crate::proxy) io: Box<dyn Io>,
    /// What was read behind the response head.
    pub(in crate::proxy) read: Bytes,
    /// The connection is open as long as this lives; a stream has none of its own.
    pub(in crate::proxy) open: Option<Open>,
}

/// Speaks HTTP/1.1 on a connection. What is left of it goes to `taker`, if it is to leave HTTP.
pub(super) async fn start(
    io: Box<dyn Io>,
    open: Open,
    taker: Option<oneshot::Sender<Tunnel>>,
) -> hyper::Result<Http1> {
    let heard = Rc::new(Cell::new(false));
    let io = TokioIo::new(Observed::new(io, Ear(Rc::clone(&heard))));
    let (send, mut connection) = http1::handshake(io).await?;
    tokio::task::spawn_local(async move {
        if let Err(error) = poll_fn(|context| connection.poll_without_shutdown(context)).await {
            tracing::debug!(%error, "upstream connection ended");
        }
        if let Some(taker) = taker {
            let parts = connection.into_parts();
            let tunnel = Tunnel {
                io: parts.io.into_inner().into_inner(),
                read: parts.read_buf,
                open: Some(open),
            };
            let _ = taker.send(tunnel); // or the server did not agree
        }
    });
    Ok(Http1 { send, heard, made: Instant::now() })
}

/// Makes a request what HTTP/1.1 sends: `TE` is for one connection only and says so.
pub(super) fn prepare(request: &mut Request<RequestBody>) {
    if request.headers().contains_key(header::TE) {
        let connection = request.headers_mut().entry(header::CONNECTION);
        connection.or_insert(HeaderValue::from_static("te"));
    }
}

/// Notes that the server has said something.
#[derive(Debug)]
struct Ear(Rc<Cell<bool>>);

impl Observer for Ear {
    fn has_read(&self, _bytes: &[u8]) {
        self.0.set(true);
    }
}
