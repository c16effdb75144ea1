//! Filters are swapped under full load: no client notices but the one whose key is in the new one.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

mod support;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, RootCertStore, StreamOwned};

use support::keygate::Keygate;
use support::origin::Origin;
use support::pki::{Kind, Party, Pki};
use support::{PATIENCE, write_revision};

/// Connections that ask one request after the other.
const KEPT_ALIVE: usize = 8;
/// Threads that make a new connection for each request.
const NEW: usize = 2;
/// Filters that are put in use under load.
const SWAPS: u32 = 8;
/// At least so many requests, of both kinds together, and handshakes are seen between two swaps.
const REQUESTS_BETWEEN: u32 = 700;
const NEW_CONNECTIONS_BETWEEN: u32 = 20;
const HANDSHAKES_BETWEEN: u32 = 10;

enum Event {
    /// A request of the good client; whether on a new connection.
    Answered { new: bool },
    /// A request of the good client that did not get what it should.
    Failed(String),
    /// A whole connection of the client whose key comes and goes.
    Tried { since: Instant, outcome: Outcome },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Admitted,
    /// Closed in an orderly way after the handshake: the filter changed in between.
    Closed,
    /// Refused in the handshake, by the alert `access_denied`.
    Refused,
}

/// What came of the load between two swaps.
#[derive(Default)]
struct Seen {
    kept: u32,
    new: u32,
    tried: u32,
}

#[test]
fn no_request_fails_while_filters_are_swapped_and_a_listed_key_gets_in_nowhere_any_more() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (good, lost) = (pki.client("good", Kind::P256), pki.client("lost", Kind::P256));
    let path = pki.path("lost.pkbf");
    write_revision(&path, &[], 1);
    let keygate = Keygate::start(&pki, &origin, "");
    let address = keygate.address();
    let spki = lost.spki.clone();
    let (good, lost) = (client(&pki, &good), client(&pki, &lost));
    let stop = AtomicBool::new(false);
    let (sender, events) = channel();
    let (mut answered, mut admitted) = (0, 0);

    std::thread::scope(|scope| {
        // Without this, a failure here would wait for the load to end, which waits for a word.
        let _stop = StopAtEnd(&stop);
        for _ in 0..KEPT_ALIVE {
            let (sender, config) = (sender.clone(), &good);
            scope.spawn(|| keep_asking(address, config, &stop, sender));
        }
        for _ in 0..NEW {
            let (sender, config) = (sender.clone(), &good);
            scope.spawn(|| keep_connecting(address, config, &stop, sender));
        }
        scope.spawn(|| keep_trying(address, &lost, &stop, sender));

        for swap in 0..=SWAPS {
            let listed = swap % 2 == 1;
            if swap > 0 {
                let keys: &[&[u8]] = if listed { &[&spki] } else { &[] };
                write_revision(&path, keys, swap + 1);
                keygate.wait_for_generation(u64::from(swap) + 1);
            }
            let in_use = Instant::now();
            let mut seen = Seen::default();
            while seen.kept + seen.new < REQUESTS_BETWEEN
                || seen.new < NEW_CONNECTIONS_BETWEEN
                || seen.tried < HANDSHAKES_BETWEEN
            {
                match next(&events) {
                    Event::Answered { new } => {
                        *(if new { &mut seen.new } else { &mut seen.kept }) += 1;
                        answered += 1;
                    }
                    Event::Failed(error) => panic!("after swap {swap}: {error}"),
                    Event::Tried { since, outcome } => {
                        admitted += usize::from(outcome == Outcome::Admitted);
                        // One that began before may have met either filter.
                        if since > in_use {
                            let expected =
                                if listed { Outcome::Refused } else { Outcome::Admitted };
                            assert_eq!(outcome, expected, "after swap {swap}");
                            seen.tried += 1;
                        }
                    }
                }
            }
        }
    });
    // What was still under way when the load was told to stop.
    for event in events {
        match event {
            Event::Answered { .. } => answered += 1,
            Event::Failed(error) => panic!("at the end: {error}"),
            Event::Tried { outcome, .. } => admitted += usize::from(outcome == Outcome::Admitted),
        }
    }
    assert!(answered >= 5000, "{answered} requests are no load");
    assert_eq!(origin.untaken(), answered + admitted, "each request arrives once, no other does");
    let status = keygate
        .wait_for_status("the last filter", |status| status["filters"][0]["revision"] == SWAPS + 1);
    assert_eq!(status["generation"], SWAPS + 1);
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(PATIENCE).unwrap()
}

/// A client as rustls makes it by default: it resumes sessions when it is let.
fn client(pki: &Pki, party: &Party) -> Arc<ClientConfig> {
    let mut trust_anchors = RootCertStore::empty();
    trust_anchors.add(pki.ca().clone()).unwrap();
    let (chain, key) = party.credentials();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trust_anchors)
        .with_client_auth_cert(chain, key);
    Arc::new(config.unwrap())
}

type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Connection> {
    let tls = ClientConnection::new(Arc::clone(config), address.ip().into()).unwrap();
    let tcp = TcpStream::connect(address)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_nodelay(true)?;
    Ok(BufReader::new(StreamOwned::new(tls, tcp)))
}

/// One request and its response; returns whether the connection may be used again.
fn ask(connection: &mut Connection, address: SocketAddr, close: bool) -> io::Result<bool> {
    let field = if close { "connection: close\r\n" } else { "" };
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\n{field}\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut reusable = !close;
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        // With close_notify; without, rustls has an error of its own.
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(format!("the answer begins with {line:?}")));
    }
    while line != "\r\n" {
        reusable &= !line.eq_ignore_ascii_case("connection: close\r\n");
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut body = [0; 6];
    connection.read_exact(&mut body)?;
    if &body == b"hello\n" { Ok(reusable) } else { Err(io::Error::other("another body")) }
}

fn keep_asking(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    stop: &AtomicBool,
    sender: Sender<Event>,
) {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let asked =
            connection.take().map_or_else(|| connect(address, config), Ok).and_then(|mut kept| {
                ask(&mut kept, address, false).map(|reusable| reusable.then_some(kept))
            });
        let event = match asked {
            Ok(kept) => {
                connection = kept;
                Event::Answered { new: false }
            }
            Err(error) => Event::Failed(format!("on a kept connection: {error}")),
        };
        let _ = sender.send(event); // the test may have failed
    }
}

fn keep_connecting(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    stop: &AtomicBool,
    sender: Sender<Event>,
) {
    while !stop.load(Ordering::Relaxed) {
        let asked = connect(address, config).and_then(|mut new| ask(&mut new, address, true));
        let event = match asked {
            Ok(_) => Event::Answered { new: true },
            Err(error) => Event::Failed(format!("on a new connection: {error}")),
        };
        let _ = sender.send(event);
    }
}

fn keep_trying(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    stop: &AtomicBool,
    sender: Sender<Event>,
) {
    while !stop.load(Ordering::Relaxed) {
        let since = Instant::now();
        let asked = connect(address, config).and_then(|mut new| ask(&mut new, address, true));
        let outcome = match asked {
            Ok(_) => Ok(Outcome::Admitted),
            Err(error) if is_refusal(&error) => Ok(Outcome::Refused),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(Outcome::Closed),
            Err(error) => Err(format!("of the client that comes and goes: {error}")),
        };
        let event = outcome.map_or_else(Event::Failed, |outcome| Event::Tried { since, outcome });
        let _ = sender.send(event);
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(tls, Some(Error::AlertReceived(AlertDescription::AccessDenied)))
}
