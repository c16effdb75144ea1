//! Filters are swapped under full load: no client notices but the one whose key is in the new one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustls::{AlertDescription, ClientConfig, Error};

use crate::support::client::config;
use crate::support::load::{connect, send_get};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::Configuration;
use crate::support::{TIMEOUT, write_revision};

/// Connections that send one request after another.
const KEPT_ALIVE: usize = 8;
/// Threads that make a new connection for each request.
const NEW: usize = 2;
/// Filters that are put in use under load.
const SWAPS: u32 = 8;
/// Minimum numbers of requests of both kinds, new connections and handshakes between two swaps.
const REQUESTS_BETWEEN: u32 = 700;
const NEW_CONNECTIONS_BETWEEN: u32 = 20;
const HANDSHAKES_BETWEEN: u32 = 10;

enum Event {
    /// A request of the good client; whether on a new connection.
    Served { new: bool },
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
    /// Rejected in the handshake with the alert `access_denied`.
    Refused,
}

/// Events of the load between two reloads.
#[derive(Default)]
struct Seen {
    kept: u32,
    new: u32,
    tried: u32,
}

#[test]
fn no_request_fails_while_filters_are_swapped_and_every_listed_key_is_rejected() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (good, lost) = (pki.client("good", Kind::P256), pki.client("lost", Kind::P256));
    let path = pki.path("lost.pkbf");
    write_revision(&path, &[], 1);
    let keygate = Configuration::new(origin.address()).start(&pki);
    let address = keygate.address();
    let spki = lost.spki.clone();
    let (good, lost) = (Arc::new(config(&pki, &good)), Arc::new(config(&pki, &lost)));
    let stop = AtomicBool::new(false);
    let (sender, events) = channel();
    let (mut response, mut admitted) = (0, 0);

    std::thread::scope(|scope| {
        // Stops the load after a failure, which would otherwise wait for the load to end.
        let _stop = StopAtEnd(&stop);
        for _ in 0..KEPT_ALIVE {
            let (sender, config) = (sender.clone(), &good);
            scope.spawn(|| keep_requesting(address, config, &stop, sender));
        }
        for _ in 0..NEW {
            let (sender, config) = (sender.clone(), &good);
            scope.spawn(|| keep_connecting(address, config, &stop, sender));
        }
        scope.spawn(|| keep_trying(address, &lost, &stop, sender));

        for swap in 0..=SWAPS {
            let listed = swap % 2 == 1;
            if swap > 0 {
                // An emptied filter would wait for the operator.
                let mut keys = vec![&b"one"[..], b"two"];
                keys.extend(listed.then_some(&spki[..]));
                write_revision(&path, &keys, swap + 1);
                keygate.wait_for_generation(u64::from(swap) + 1);
            }
            let in_use = Instant::now();
            let mut seen = Seen::default();
            while seen.kept + seen.new < REQUESTS_BETWEEN
                || seen.new < NEW_CONNECTIONS_BETWEEN
                || seen.tried < HANDSHAKES_BETWEEN
            {
                match next(&events) {
                    Event::Served { new } => {
                        *(if new { &mut seen.new } else { &mut seen.kept }) += 1;
                        response += 1;
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
    // Requests that were in flight when the load stopped.
    for event in events {
        match event {
            Event::Served { .. } => response += 1,
            Event::Failed(error) => panic!("at the end: {error}"),
            Event::Tried { outcome, .. } => admitted += usize::from(outcome == Outcome::Admitted),
        }
    }
    assert!(response >= 5000, "{response} requests are no load");
    assert_eq!(origin.untaken(), response + admitted, "each request arrives once, no other does");
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
    events.recv_timeout(TIMEOUT).unwrap()
}

fn keep_requesting(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    stop: &AtomicBool,
    sender: Sender<Event>,
) {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let requested =
            connection.take().map_or_else(|| connect(address, config), Ok).and_then(|mut kept| {
                send_get(&mut kept, address, false).map(|reusable| reusable.then_some(kept))
            });
        let event = match requested {
            Ok(kept) => {
                connection = kept;
                Event::Served { new: false }
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
        let requested =
            connect(address, config).and_then(|mut new| send_get(&mut new, address, true));
        let event = match requested {
            Ok(_) => Event::Served { new: true },
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
        let requested =
            connect(address, config).and_then(|mut new| send_get(&mut new, address, true));
        let outcome = match requested {
            Ok(_) => Ok(Outcome::Admitted),
            Err(error) if is_refusal(&error) => Ok(Outcome::Refused),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(Outcome::Closed),
            Err(error) => Err(format!("the rejected client: {error}")),
        };
        let event = outcome.map_or_else(Event::Failed, |outcome| Event::Tried { since, outcome });
        let _ = sender.send(event);
    }
}

fn is_refusal(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(tls, Some(Error::AlertReceived(AlertDescription::AccessDenied)))
}
