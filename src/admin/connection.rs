//! One connection of the admin server, bounded in time.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::debug;

use super::AdminState;
use super::routes::{AdminCommand, respond};

/// Maximum time to receive a request head; a slower connection is closed.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a connection is closed between two requests, 60 s, also if the peer reads
/// slowly or not at all.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Maximum time to finish the request in progress after [`MAX_AGE`], 10 s. A command, such as the
/// acceptance of a filter update, may take longer.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of requests and of responses that a connection buffers, 64 KiB.
const MAX_BUFFER: usize = 64 << 10;

/// Serves one connection of `peer` for [`MAX_AGE`] at most.
pub(super) async fn serve_connection(
    io: impl AsyncRead + AsyncWrite + Unpin,
    peer: String,
    state: AdminState,
    is_commanding: Rc<Cell<bool>>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (state, peer, is_commanding) = (state.clone(), peer.clone(), &is_commanding);
        async move {
            // Peers that pipeline requests take turns with the others.
            tokio::task::yield_now().await;
            is_commanding.set(AdminCommand::at(request.uri().path()).is_some());
            let response = respond(&state, peer, request).await;
            is_commanding.set(false);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let ended = match timeout(MAX_AGE, connection.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            loop {
                match timeout(LAST_REQUEST_TIMEOUT, connection.as_mut()).await {
                    Ok(ended) => break ended,
                    // Files are read before the response: minutes on a slow disk.
                    Err(_) if is_commanding.get() => {}
                    Err(_) => break Ok(()), // the peer does not read
                }
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "admin connection failed");
    }
}

/// The process at the other end of a Unix socket, for the log.
pub(super) fn unix_peer(io: &UnixStream) -> String {
    let Ok(credentials) = io.peer_cred() else { return "unix".to_owned() };
    let process = credentials.pid().map(|pid| format!(", process {pid}")).unwrap_or_default();
    format!("unix: user {}{process}", credentials.uid())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc::{self, Receiver};
    use tokio::sync::watch;
    use tokio::time::sleep;

    use super::*;
    use crate::admin::{AdminSources, Drain};
    use crate::config::AdminCommands;
    use crate::confirm::ConfirmStatus;
    use crate::key_uses::KeyUses;
    use crate::listen::AddressLoads;
    use crate::metrics::{ControlMetrics, Exposition};
    use crate::process::lifecycle::Lifecycle;
    use crate::proxy::ServerStates;
    use crate::recent_hits::RecentHits;
    use crate::snapshot::watch::Command;

    fn state() -> (AdminState, Receiver<Command>) {
        let (commands, received) = mpsc::channel(1);
        let control = ControlMetrics::new().unwrap();
        let drain = Drain::new(watch::Sender::new(Lifecycle::Serving), control.drained.clone());
        let exposition = Exposition::new(&control, &[]);
        let hanging = watch::Sender::default().subscribe();
        let (report, confirm) = (Arc::default(), ConfirmStatus::default());
        let sources = AdminSources {
            exposition,
            report,
            confirm,
            recent_hits: RecentHits::default(),
            key_uses: KeyUses::default(),
            servers: ServerStates::default(),
            loads: AddressLoads::default(),
            drain,
            hanging,
            commands,
            commands_from: AdminCommands::Anywhere,
        };
        (AdminState { takes_commands: true, ..AdminState::new(sources) }, received)
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_is_accepted_although_its_filter_is_read_for_minutes() {
        let (state, mut received) = state();
        let (mut peer, io) = tokio::io::duplex(4096);
        let connection = serve_connection(io, "peer".to_owned(), state, Rc::default());
        let body = format!("{{\"sha256\":\"{}\"}}", "0".repeat(64));
        let length = body.len();
        let request = format!(
            "POST /filters/lost/accept HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let peer = async {
            peer.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            peer.read_to_string(&mut response).await.unwrap();
            response
        };
        let loader = async {
            let Some(Command::Accept(update)) = received.recv().await else { panic!("no update") };
            sleep(3 * (MAX_AGE + LAST_REQUEST_TIMEOUT)).await;
            update.response.send(Ok(7)).unwrap();
        };
        let ((), response, ()) = tokio::join!(connection, peer, loader);
        assert!(response.contains("\"generation\":7"), "{response}");
    }

    #[tokio::test]
    async fn a_command_of_a_remote_peer_gets_403_with_the_remedy() {
        for path in ["/filters/lost/accept", "/reload", "/drain", "/status"] {
            let (local, _received) = state();
            let state = AdminState { takes_commands: false, ..local };
            let (mut peer, io) = tokio::io::duplex(1 << 16);
            let method = if path == "/status" { "GET" } else { "POST" };
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: keygate\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
            );
            let peer = async {
                peer.write_all(request.as_bytes()).await.unwrap();
                let mut response = String::new();
                peer.read_to_string(&mut response).await.unwrap();
                response
            };
            let ((), response) =
                tokio::join!(serve_connection(io, "peer".to_owned(), state, Rc::default()), peer);
            let is_rejected = response.starts_with("HTTP/1.1 403 ")
                && response.contains("set admin.commands = \"anywhere\"");
            assert_eq!(is_rejected, path != "/status", "{path}: {response}");
        }
    }
}
