//! Connections and streams that leave HTTP for something else.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};
use tracing::debug;

use super::answer;
use super::response_body::{RequestInFlight, ResponseBody};
use super::{LAST_WORD, Session};
use crate::proxy::activity::Activity;
use crate::proxy::observed::{Observed, Observer};
use crate::proxy::stream::Duplex;
use crate::proxy::tunnel::{self, BUFFER};
use crate::proxy::upstream::{Lease, Tunnel};

/// Carries what client and server say to each other from now on.
pub(super) async fn connection<IO>(
    mut client: IO,
    early: Bytes,
    (tunnel, request): (Tunnel, RequestInFlight),
    activity: &Activity,
) where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    activity.become_tunnel();
    let Tunnel { mut io, read, open } = tunnel;
    // What either has said already, behind the head.
    let said = async {
        io.write_all(&early).await?;
        client.write_all(&read).await?;
        client.flush().await
    };
    let is_complete = timeout(LAST_WORD, said).await.is_ok_and(|said| said.is_ok())
        && tunnel::carry(&mut client, &mut io, activity).await;
    drop(open);
    if let Some(record) = request.record() {
        let (read, written) = activity.carried();
        record.request_body.replace(None); // it was no body
        record.request_bytes.set(read.saturating_add(early.len() as u64));
        record.response_bytes.set(written);
        record.is_complete.set(is_complete);
    }
}

/// Answers an extended CONNECT that the server has agreed to, and carries bytes between the two
/// streams until both have ended, nothing moves for `idle_timeout`, or the client's connection ends.
pub(super) fn stream(
    session: &Rc<Session>,
    client: oneshot::Receiver<Duplex>,
    (response, lease): (Response<()>, Lease),
    tunnel: Tunnel,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let in_flight = in_flight.leaving();
    if let Some(record) = in_flight.record() {
        record.status.set(Some(StatusCode::OK.as_u16()));
    }
    let idle = session.service.config.limits.idle_timeout;
    let stream = Stream::of(Rc::clone(&session.standing.activity));
    tokio::task::spawn_local(async move {
        if let Ok(client) = client.await {
            let traffic = Rc::new(Traffic::new());
            let client = Observed::new(client, Rc::clone(&traffic));
            let is_complete = carry(client, tunnel, &traffic, idle, stream.0.end_of_life()).await;
            if let Some(record) = in_flight.record() {
                record.request_body.replace(None); // it was no body
                record.request_bytes.set(traffic.read.get());
                record.response_bytes.set(traffic.written.get());
                record.is_complete.set(is_complete);
            }
        }
        drop((stream, lease));
    });
    answer::connected(response.map(|()| ResponseBody::nothing()))
}

/// As long as this lives, a request is a stream of bytes.
struct Stream(Rc<Activity>);

impl Stream {
    fn of(activity: Rc<Activity>) -> Self {
        activity.stream_began();
        Self(activity)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.stream_ended();
    }
}

/// How long a server may be silent once the client says no more: its stream may count for the client's
/// no longer, and whoever ends one after the other keeps none.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Carries bytes; whether that came to its end.
async fn carry<IO>(
    mut client: IO,
    tunnel: Tunnel,
    traffic: &Traffic,
    idle: Duration,
    end_of_life: Option<Instant>,
) -> bool
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let Tunnel { mut io, open, .. } = tunnel;
    let mut carried = pin!(async {
        client.write_all(&tunnel.read).await?;
        copy_bidirectional_with_sizes(&mut client, &mut io, BUFFER, BUFFER).await
    });
    let due = || {
        let idle = if traffic.has_ended.get() { idle.min(LAST_WORDS) } else { idle };
        let silent = traffic.moved.get() + idle;
        end_of_life.map_or(silent, |end| end.min(silent))
    };
    let is_complete = loop {
        // That the client has ended is noticed with the next look.
        let look = due().min(Instant::now() + LAST_WORDS);
        tokio::select! {
            outcome = &mut carried => {
                break outcome.inspect_err(|error| debug!(%error, "stream ended")).is_ok();
            }
            () = sleep_until(look.into()) => {
                if due() <= Instant::now() {
                    break false;
                }
            }
        }
    };
    drop(open);
    is_complete
}

/// What has gone through a stream, and when the last of it did.
#[derive(Debug)]
struct Traffic {
    moved: Cell<Instant>,
    read: Cell<u64>,
    written: Cell<u64>,
    /// The client says no more.
    has_ended: Cell<bool>,
}

impl Traffic {
    fn new() -> Self {
        Self {
            moved: Cell::new(Instant::now()),
            read: Cell::new(0),
            written: Cell::new(0),
            has_ended: Cell::new(false),
        }
    }

    fn add(&self, sum: &Cell<u64>, count: usize) {
        sum.set(sum.get().saturating_add(count as u64));
        self.moved.set(Instant::now());
    }
}

impl Observer for Rc<Traffic> {
    fn has_read(&self, bytes: &[u8]) {
        self.add(&self.read, bytes.len());
    }

    fn has_ended(&self) {
        self.has_ended.set(true);
    }

    fn has_written(&self, count: usize) {
        self.add(&self.written, count);
    }
}
