//! Detection of TCP peers that have vanished: the machine lost power, or a firewall dropped the
//! connection. Such a peer sends neither FIN nor RST.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Time without a segment from the peer after which the kernel sends the first probe.
const IDLE: Duration = Duration::from_secs(15);
/// Time between two probes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Number of probes without an acknowledgement after which the connection ends with `ETIMEDOUT`.
const PROBES: u32 = 3;
/// Maximum of `TCP_USER_TIMEOUT`, some 25 days. Linux rejects longer ones with `EINVAL`, because it
/// reads the milliseconds as a signed number of 32 bits.
const MAX_UNACKNOWLEDGED: Duration = Duration::from_millis(i32::MAX.unsigned_abs() as u64);

/// Ends a connection with `ETIMEDOUT` if its peer has vanished. An idle connection ends after 30 s,
/// or after `unacknowledged` if that is longer. A connection with sent bytes that wait for an
/// acknowledgement ends after `unacknowledged`; with `None` after some 15 minutes
/// (`net.ipv4.tcp_retries2`).
///
/// `unacknowledged` (`TCP_USER_TIMEOUT`) also ends connections whose peer is alive and reads
/// nothing for as long. It should not be shorter than the timeout of the protocol above. On Linux
/// the connections that a listening socket accepts inherit both settings.
///
/// # Errors
/// Returns an error if the operating system rejects an option.
pub fn detect_dead_peer<'a>(
    socket: impl Into<SockRef<'a>>,
    unacknowledged: Option<Duration>,
) -> io::Result<()> {
    let socket = socket.into();
    let probes = TcpKeepalive::new().with_time(IDLE).with_interval(INTERVAL).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    match unacknowledged {
        Some(timeout) => set_unacknowledged(socket, timeout),
        None => Ok(()),
    }
}

/// Ends a connection with `ETIMEDOUT` if its peer acknowledges nothing for `timeout`. A longer
/// `timeout` than `MAX_UNACKNOWLEDGED` is that long.
///
/// # Errors
/// Returns an error if the operating system rejects the option.
pub fn set_unacknowledged<'a>(socket: impl Into<SockRef<'a>>, timeout: Duration) -> io::Result<()> {
    socket.into().set_tcp_user_timeout(Some(timeout.min(MAX_UNACKNOWLEDGED)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn accepted_connections_inherit_the_settings_of_their_listener() {
        let timeout = Duration::from_secs(60);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        detect_dead_peer(&listener, Some(timeout)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(timeout));
    }

    #[test]
    fn a_longer_timeout_than_the_kernel_accepts_is_the_maximum() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = SockRef::from(&listener);
        let a_year = Duration::from_secs(365 * 86_400);
        let step = Duration::from_millis(1);
        for timeout in [MAX_UNACKNOWLEDGED, MAX_UNACKNOWLEDGED + step, a_year] {
            detect_dead_peer(&listener, Some(timeout)).unwrap();
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(MAX_UNACKNOWLEDGED));
        }
        set_unacknowledged(&listener, MAX_UNACKNOWLEDGED - step).unwrap();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(MAX_UNACKNOWLEDGED - step));
        assert!(socket.set_tcp_user_timeout(Some(MAX_UNACKNOWLEDGED + step)).is_err());
    }
}
