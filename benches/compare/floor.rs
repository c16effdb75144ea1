//! The floor of a row: the cryptography alone, as rustls with aws-lc does it.
//!
//! Client and server are in one thread and exchange their bytes in memory: no sockets, no HTTP, no
//! filter. The figure is the time in the server's half, on the core of the proxies, in a process of
//! its own. An interrupt or another process makes single handshakes longer, so that the median of
//! the handshakes is taken.

use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::harness::cores::{PROXY_CORE, on_core};
use super::harness::origin::MEBIBYTE;
use super::load::{Clients, provider};
use super::scenario::{Scenario, Shape};
use super::support::pki::{Kind, Party, Pki};

/// Handshakes of one measurement.
const HANDSHAKES: usize = 1_500;
/// MiB of one measurement.
const MEBIBYTES: usize = 128;
/// Bytes that are written at one time: a TLS record without its header and tag.
const RECORD: usize = 16 << 10;

/// Measures the floor of each scenario that has one, in microseconds for each unit.
pub fn measure() -> Vec<(Scenario, f64)> {
    let mut command = on_core(PROXY_CORE, std::env::current_exe().unwrap());
    let output = command.arg("--floor").stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the measurement of the floor failed");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let (scenario, figure) = line.split_once(' ').unwrap();
        (Scenario::from_str(scenario, false).unwrap(), figure.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Prints the floors: the work of the process that [`measure`] starts.
pub fn print() {
    let pki = Pki::new();
    let server = server_config(&pki, &pki.server("localhost"));
    let clients =
        Clients::new(&pki, pki.client("client", Kind::P256)).with_others(&pki, Kind::P256, 1);
    for scenario in Scenario::ALL {
        let figure = match scenario.shape() {
            Shape::Handshakes(handshakes) => {
                let client = clients.configs(handshakes).remove(0).remove(0);
                handshake_time(&client, &server)
            }
            Shape::Requests(requests) if requests.path == "/mebibyte" => {
                Pair::new(&Arc::new(clients.config(&TLS13, false)), &server).encryption_time()
            }
            Shape::Requests(requests) if requests.body == MEBIBYTE => {
                Pair::new(&Arc::new(clients.config(&TLS13, false)), &server).decryption_time()
            }
            Shape::Requests(_) => continue,
        };
        let name = scenario.to_possible_value().unwrap();
        println!("{} {:.2}", name.get_name(), figure.as_secs_f64() * 1e6);
    }
}

fn server_config(pki: &Pki, server: &Party) -> Arc<ServerConfig> {
    let mut anchors = RootCertStore::empty();
    anchors.add(pki.ca().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), provider());
    let (chain, key) = server.credentials();
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12, &TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

/// The median time of a handshake in the server.
fn handshake_time(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Duration {
    for _ in 0..20 {
        Pair::new(client, server); // the first ones load code, and the first of all is a full one
    }
    median((0..HANDSHAKES).map(|_| Pair::new(client, server).time))
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// A client and a server that have finished their handshake.
struct Pair {
    client: ClientConnection,
    server: ServerConnection,
    /// Bytes on their way.
    wire: Vec<u8>,
    /// Time in the server since it was reset.
    time: Duration,
}

impl Pair {
    fn new(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Self {
        let name = "localhost".try_into().unwrap();
        let client = ClientConnection::new(Arc::clone(client), name).unwrap();
        let start = Instant::now();
        let server = ServerConnection::new(Arc::clone(server)).unwrap();
        let time = start.elapsed();
        let mut pair = Self { client, server, wire: Vec::with_capacity(2 * RECORD), time };
        while pair.move_to_server() + pair.move_to_client() > 0 {}
        assert!(!pair.client.is_handshaking() && !pair.server.is_handshaking());
        pair
    }

    /// Moves what the client has to send. Returns the number of bytes.
    fn move_to_server(&mut self) -> usize {
        self.wire.clear();
        while self.client.wants_write() {
            self.client.write_tls(&mut self.wire).unwrap();
        }
        let mut bytes = self.wire.as_slice();
        let start = Instant::now();
        while !bytes.is_empty() {
            self.server.read_tls(&mut bytes).unwrap();
            self.server.process_new_packets().unwrap();
        }
        self.time += start.elapsed();
        self.wire.len()
    }

    /// Moves what the server has to send. Returns the number of bytes.
    fn move_to_client(&mut self) -> usize {
        self.wire.clear();
        let start = Instant::now();
        while self.server.wants_write() {
            self.server.write_tls(&mut self.wire).unwrap();
        }
        self.time += start.elapsed();
        let mut bytes = self.wire.as_slice();
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            self.client.process_new_packets().unwrap();
        }
        self.wire.len()
    }

    /// The time in which the server encrypts 1 MiB.
    fn encryption_time(mut self) -> Duration {
        let (data, mut sink) = (vec![b'x'; RECORD], vec![0; 2 * RECORD]);
        median((0..MEBIBYTES).map(|_| {
            self.time = Duration::ZERO;
            for _ in 0..MEBIBYTE / RECORD {
                let start = Instant::now();
                self.server.writer().write_all(&data).unwrap();
                self.time += start.elapsed();
                self.move_to_client();
                assert!(self.client.reader().read(&mut sink).unwrap() > 0);
            }
            self.time
        }))
    }

    /// The time in which the server decrypts 1 MiB.
    fn decryption_time(mut self) -> Duration {
        let (data, mut sink) = (vec![b'x'; RECORD], vec![0; 2 * RECORD]);
        median((0..MEBIBYTES).map(|_| {
            self.time = Duration::ZERO;
            for _ in 0..MEBIBYTE / RECORD {
                self.client.writer().write_all(&data).unwrap();
                self.move_to_server();
                let start = Instant::now();
                assert!(self.server.reader().read(&mut sink).unwrap() > 0);
                self.time += start.elapsed();
            }
            self.time
        }))
    }
}
