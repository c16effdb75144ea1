//! Notifies the service manager, such as systemd, of the state of the process and its threads.
//!
//! Without `NOTIFY_SOCKET`, nothing is sent. Failures are logged and never fatal. Protocol:
//! sd_notify(3).

use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, warn};

use super::heartbeat::HangingWorkers;

/// Maximum time to wait for room in the queue of the service manager, 2 s, on the main thread. A
/// watchdog notification waits for none, because the control thread must go on.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Notifies that the proxy serves, with `status` as the text that `systemctl status` shows.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies that all files are read again. [`ready`] ends this state.
pub fn reloading() {
    // With `Type=notify-reload`, systemd compares this time with the time of its own request.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => warn!(%error, "no monotonic time for the service manager"),
    }
}

/// Notifies that the process ends when its connections have drained.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Sends watchdog notifications while no worker hangs, if the service manager requires them.
///
/// The interval is half the time after which the service manager kills the process. The thread that
/// runs this function is watched as well, because it must run to send.
pub async fn keep_alive(hanging: HangingWorkers) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((period / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let worker = hanging.borrow().first().copied();
        match worker {
            None => notify_within(None, &[NotifyState::Watchdog]),
            Some(worker) => error!(worker, "a worker hangs, watchdog notifications stop"),
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    notify_within(Some(MAX_WAIT), states);
}

fn notify_within(wait: Option<Duration>, states: &[NotifyState<'_>]) {
    if let Err(error) = send(wait, states) {
        warn!(%error, "cannot notify the service manager");
    }
}

/// Sends a message, and waits at most `wait` for room. `sd_notify::notify` waits without a limit.
fn send(wait: Option<Duration>, states: &[NotifyState<'_>]) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        None => SocketAddr::from_pathname(path)?,
        Some(name) => SocketAddr::from_abstract_name(name)?,
    };
    let mut message = String::new();
    for state in states {
        writeln!(message, "{state}").map_err(io::Error::other)?;
    }
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(wait.is_none())?;
    socket.set_write_timeout(wait)?;
    socket.send_to_addr(message.as_bytes(), &address).map(|_| ())
}
