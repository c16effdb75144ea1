//! Connections and streams that have left HTTP and carry bytes.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode};
use keygate_wire::http2::duplex::Http2Duplex;
use keygate_wire::io_events::{IoEvents, WithIoEvents};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};
use tracing::debug;

use super::in_flight::{AcceptedUpgrade, HttpConnection, RequestInFlight};
use super::response::{self, ResponseBody};
use crate::proxy::open_connection::state::{ConnectionState, TunnelBytes};
use crate::proxy::tunnel::{self, TunnelEnd};
use crate::proxy::upstream::UpstreamResponse;
use crate::proxy::upstream::http1::Tunnel;

/// Time to forward the bytes that both sides sent directly after the upgrade.
const EARLY_BYTES_TIMEOUT: Duration = Duration::from_secs(1);

/// Carries the bytes of an HTTP/1.1 connection that has upgraded, until it ends. `early` are the
/// bytes that the client sent after its request.
pub(crate) async fn carry_connection<IO>(
    mut client: IO,
    early: Bytes,
    accepted: AcceptedUpgrade,
    state: &ConnectionState,
) where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    state.become_tunnel();
    let AcceptedUpgrade { tunnel, record } = accepted;
    let Tunnel { mut io, read, guard } = tunnel;
    let forwarded = async {
        io.write_all(&early).await?;
        client.write_all(&read).await?;
        client.flush().await
    };
    let end = match timeout(EARLY_BYTES_TIMEOUT, forwarded).await {
        Ok(Ok(())) => tunnel::carry(&mut client, &mut io, state).await,
        Ok(Err(_)) | Err(_) => TunnelEnd::Aborted,
    };
    drop(guard);
    if let Some(record) = record {
        record.set_tunnel(state.tunnel_bytes.get().plus(early.len(), 0), end);
    }
}

/// Responds to an extended CONNECT that the server has accepted. Carries bytes between both streams
/// until both have ended, `idle_timeout` expires, or the client's connection closes.
pub(crate) fn begin_stream(
    http: &Rc<HttpConnection>,
    client: oneshot::Receiver<Http2Duplex>,
    accepted: UpstreamResponse,
    tunnel: Tunnel,
    mut in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    in_flight.become_tunnel(StatusCode::OK);
    let http = Rc::clone(http);
    let UpstreamResponse { response, lease } = accepted;
    let idle_timeout = http.service.config.limits.idle_timeout;
    let end_of_life = http.open.state.end_of_life();
    tokio::task::spawn_local(async move {
        if let Ok(client) = client.await {
            let traffic = Rc::new(Traffic::new(&http));
            let client = WithIoEvents::new(client, Rc::clone(&traffic));
            let end = carry_stream(client, tunnel, &traffic, idle_timeout, end_of_life).await;
            if let Some(record) = in_flight.record() {
                record.set_tunnel(traffic.bytes.get(), end);
            }
        }
        drop((in_flight, lease));
    });
    response::connected(response)
}

/// Maximum silence of a server after the client has closed its side. A half-closed stream may no
/// longer count against the client's stream limit, so a client could pile them up.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(5);

async fn carry_stream<IO>(
    mut client: IO,
    tunnel: Tunnel,
    traffic: &Traffic,
    idle_timeout: Duration,
    end_of_life: Option<Instant>,
) -> TunnelEnd
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let Tunnel { mut io, read, guard } = tunnel;
    let mut carried = pin!(async {
        client.write_all(&read).await?;
        tunnel::copy_both(&mut client, &mut io).await
    });
    let deadline = || {
        let half_closed = traffic.client_has_closed.get();
        let timeout =
            if half_closed { idle_timeout.min(HALF_CLOSED_TIMEOUT) } else { idle_timeout };
        let silent = traffic.last_byte.get() + timeout;
        end_of_life.map_or(silent, |end| end.min(silent))
    };
    let end = loop {
        // A half-close moves the deadline, and is noticed at the next wake-up.
        let wake_up = deadline().min(Instant::now() + HALF_CLOSED_TIMEOUT);
        tokio::select! {
            outcome = &mut carried => break match outcome {
                Ok(()) => TunnelEnd::Complete,
                Err(error) => {
                    debug!(%error, "stream ended");
                    TunnelEnd::Aborted
                }
            },
            () = sleep_until(wake_up.into()) => {
                if deadline() <= Instant::now() {
                    break TunnelEnd::Aborted;
                }
            }
        }
    };
    drop(guard);
    end
}

/// The traffic of a stream's client.
struct Traffic {
    http: Rc<HttpConnection>,
    bytes: Cell<TunnelBytes>,
    last_byte: Cell<Instant>,
    /// Whether the client has closed its side.
    client_has_closed: Cell<bool>,
}

impl Traffic {
    fn new(http: &Rc<HttpConnection>) -> Self {
        Self {
            http: Rc::clone(http),
            bytes: Cell::default(),
            last_byte: Cell::new(Instant::now()),
            client_has_closed: Cell::new(false),
        }
    }

    fn add(&self, from_client: usize, to_client: usize) {
        self.bytes.set(self.bytes.get().plus(from_client, to_client));
        self.last_byte.set(Instant::now());
        self.http.glitches.record_piece();
    }
}

impl IoEvents for Traffic {
    fn on_read(&self, bytes: &[u8]) {
        self.add(bytes.len(), 0);
    }

    fn on_eof(&self) {
        self.client_has_closed.set(true);
    }

    fn on_write(&self, count: usize) {
        self.add(0, count);
    }
}
