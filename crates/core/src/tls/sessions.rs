//! TLS sessions that expire with the path of the client certificate they were made with.
//!
//! rustls resumes every session in its store and calls no verifier. This module stores each session
//! with the verified path of its client and does not find the session after the path has expired.
//! The client then goes through a full handshake, which rejects the expired certificate. A resumed
//! session has the path of the full handshake, by position among the certificates that the session
//! contains.

use std::sync::Arc;

use rustls::server::{ProducesTickets, StoresServerSessions};

use super::handshake::{self, Handshake};
use super::path::{PathRoute, StoredPath};
use crate::unix_time;

/// Tickets or stored sessions, each preceded by its path.
///
/// The path is the expiry (eight bytes), the number of places (one byte), and each place (four
/// bytes). Integers are big-endian. The session of a client without a certificate has no places and
/// does not expire with a path.
#[derive(Debug)]
pub(super) struct ExpiringSessions<S>(pub(super) S);

/// The session with its path in front. A session outside a handshake has expired.
fn with_path(session: &[u8]) -> Vec<u8> {
    let path = handshake::with_current(|handshake| handshake.map(|it| stored_path(it)));
    let (expiry, places) = match &path {
        None => (0, &[][..]),
        Some(None) => (u64::MAX, &[][..]),
        Some(Some(path)) => (path.expiry, &path.route.places[..]),
    };
    let length = [u8::try_from(places.len()).unwrap_or(0)];
    let places = places.iter().flat_map(|place| place.to_be_bytes());
    let head = expiry.to_be_bytes().into_iter().chain(length).chain(places);
    head.chain(session.iter().copied()).collect()
}

/// The path of the handshake's client; `None` if it presented no certificate.
fn stored_path(handshake: &Handshake) -> Option<StoredPath> {
    match &handshake.verified {
        None => handshake.stored.clone(), // issued in a resumed session
        Some(verified) => Some(StoredPath {
            route: verified.path.route().clone(),
            expiry: verified.path.not_after().as_secs(),
        }),
    }
}

/// The session without its path; `None` if it has expired. The path becomes the path of the
/// handshake in progress, and of a ticket that is issued in the resumed connection.
fn unexpired(session: &[u8]) -> Option<Vec<u8>> {
    let (expiry, session) = session.split_first_chunk()?;
    let (length, session) = session.split_first()?;
    let (places, session) = session.split_at_checked(usize::from(*length).checked_mul(4)?)?;
    let expiry = u64::from_be_bytes(*expiry);
    if unix_time::now() > expiry {
        return None;
    }
    let (places, _) = places.as_chunks();
    let route = PathRoute { places: places.iter().map(|it| u32::from_be_bytes(*it)).collect() };
    let stored = (!route.places.is_empty()).then_some(StoredPath { route, expiry });
    handshake::with_current(|handshake| {
        handshake?.stored = stored;
        Some(session.to_vec())
    })
}

/// Maximum length of a ticket, in bytes. It comes back in a ClientHello, whose maximum is 16 KiB. A
/// client with more certificates gets no ticket, and a full handshake each time.
const MAX_TICKET: usize = 12 << 10;

/// Whether the connection is resumed and has its new ticket already. A client that resumes a
/// session uses one ticket and gets one; two, as after a full handshake, would cost 2 % of the
/// handshake. OpenSSL sends as many (`SSL_CTX_set_num_tickets`).
fn is_further_ticket_of_resumption() -> bool {
    handshake::with_current(|handshake| {
        let Some(handshake) = handshake else { return false };
        let is_first = !std::mem::replace(&mut handshake.has_ticket, true);
        !is_first && handshake.stored.is_some() && handshake.verified.is_none()
    })
}

impl ProducesTickets for ExpiringSessions<Arc<dyn ProducesTickets>> {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if is_further_ticket_of_resumption() {
            return None; // rustls sends no ticket then
        }
        let ticket = self.0.encrypt(&with_path(plain))?;
        (ticket.len() <= MAX_TICKET).then_some(ticket)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        unexpired(&self.0.decrypt(cipher)?)
    }
}

impl StoresServerSessions for ExpiringSessions<Arc<dyn StoresServerSessions>> {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.put(key, with_path(&value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        unexpired(&self.0.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        unexpired(&self.0.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.0.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    /// Tickets in plain text.
    #[derive(Debug)]
    struct PlainTickets;

    impl ProducesTickets for PlainTickets {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            60
        }

        fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
            Some(plain.to_vec())
        }

        fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
            Some(cipher.to_vec())
        }
    }

    #[test]
    fn a_resumed_connection_gets_one_ticket_and_a_full_handshake_all() {
        let tickets: Arc<dyn ProducesTickets> = Arc::new(PlainTickets);
        let tickets = ExpiringSessions(tickets);
        let issue = |handshake: &mut Handshake| {
            [(); 3].map(|()| handshake.step(|| tickets.encrypt(b"session")).is_some())
        };
        assert_eq!(issue(&mut Handshake::default()), [true; 3]);
        let mut full = Handshake::default();
        let route = PathRoute { places: smallvec![0, PathRoute::FILE] };
        full.stored = Some(StoredPath { route, expiry: u64::MAX });
        let ticket = full.step(|| tickets.encrypt(b"session")).unwrap();
        let mut resumed = Handshake::default();
        assert_eq!(resumed.step(|| tickets.decrypt(&ticket)).unwrap(), b"session");
        assert_eq!(issue(&mut resumed), [true, false, false]);
    }

    #[test]
    fn a_session_returns_with_the_path_it_was_stored_with() {
        let route = PathRoute { places: smallvec![0, 3, 1, 70_000] };
        let path = StoredPath { route, expiry: unix_time::now() + 60 };
        let mut first = Handshake { stored: Some(path.clone()), ..Handshake::default() };
        let stored = first.step(|| with_path(b"session"));
        let mut second = Handshake::default();
        assert_eq!(second.step(|| unexpired(&stored)).unwrap(), b"session");
        assert_eq!(second.stored, Some(path.clone()));
        for length in 0..stored.len() - b"session".len() {
            assert_eq!(second.step(|| unexpired(&stored[..length])), None, "{length}");
        }
        // A client without a certificate has no path.
        let anonymous = Handshake::default().step(|| with_path(b"session"));
        assert!(second.step(|| unexpired(&anonymous)).is_some());
        assert_eq!(second.stored, None);

        let expired = StoredPath { expiry: unix_time::now() - 1, ..path };
        let mut third = Handshake { stored: Some(expired), ..Handshake::default() };
        let stored = third.step(|| with_path(b"session"));
        assert_eq!(second.step(|| unexpired(&stored)), None);
        let outside = with_path(b"session");
        assert_eq!(second.step(|| unexpired(&outside)), None, "fails closed");
    }
}
