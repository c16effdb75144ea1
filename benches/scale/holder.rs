//! Processes that hold idle connections, because one address has too few ports for all of them.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::client::{client_config, connect_all};
use super::support::keygate::Keygate;
use super::support::pki::{Party, Pki};

/// Connections of one process: fewer than an address has ports for outgoing connections.
const HELD_BY_ONE: usize = 15_000;

/// Source addresses with their numbers of connections.
pub(crate) fn shares(count: usize) -> impl Iterator<Item = (Ipv4Addr, usize)> {
    (0..count).step_by(HELD_BY_ONE).zip(2..).map(move |(first, number)| {
        (Ipv4Addr::new(127, 0, 0, number), HELD_BY_ONE.min(count - first))
    })
}

/// A process that holds idle connections until it is dropped.
pub(crate) struct Holder(Child);

impl Holder {
    pub(crate) fn start(
        keygate: &Keygate,
        pki: &Pki,
        client: &Party,
        source: Ipv4Addr,
        count: usize,
    ) -> Self {
        assert_eq!(client.name, "good");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(format!("--hold={count}"));
        command.arg(format!("--address={}", keygate.address()));
        command.arg(format!("--source={source}"));
        command.arg(format!("--pki={}", pki.directory().display()));
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the connections are open.
    pub(crate) fn ready(mut self) -> Self {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        self
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait(); // it ends with its input
    }
}

/// The work of the process of a [`Holder`]: holds connections of the client whose files are in
/// `pki`.
pub(crate) async fn hold(address: SocketAddr, source: Option<Ipv4Addr>, pki: &Path, count: usize) {
    let config = client_config(&pki.join("ca.pem"), &pki.join("good.pem"), &pki.join("good.key"));
    let sockets = connect_all(address, source, &config, count, true).await;
    assert_eq!(sockets.len(), count);
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]); // until the parent closes it
}
