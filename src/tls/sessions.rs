//! TLS sessions that expire with the client certificate they were made with.
//!
//! rustls resumes every session in its store and calls no verifier. This module stores each session
//! with the expiry of its client's chain and does not find the session after the expiry. The client then goes
//! through a full handshake, which rejects the expired certificate.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::server::{ProducesTickets, StoresServerSessions};

use crate::{spki, unix_time};

tokio::task_local! {
    /// Expiry of the client's chain in this task's handshake, in seconds since the Unix epoch.
    /// rustls does not pass the client of a session to the session store.
    static CHAIN_EXPIRY: Cell<Option<u64>>;
}

/// Drives a handshake whose sessions expire with the client's chain.
pub(super) async fn expiring_with_chain<T>(handshake: impl Future<Output = T>) -> T {
    CHAIN_EXPIRY.scope(Cell::new(None), handshake).await
}

/// Records the earliest expiry in the client's chain. A certificate that cannot be read has
/// expired.
pub(super) fn record_chain(leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) {
    let chain = std::iter::once(leaf).chain(intermediates);
    let expiries = chain.map(|cert| spki::not_after(cert).unwrap_or_default());
    record_expiry(expiries.min().as_ref().map_or(0, Duration::as_secs));
}

fn record_expiry(seconds: u64) {
    // Fails only outside `expiring_with_chain`, where no session is stored.
    let _ = CHAIN_EXPIRY.try_with(|expiry| expiry.set(Some(seconds)));
}

/// Tickets or stored sessions, each preceded by its expiry: eight bytes, big-endian.
#[derive(Debug)]
pub(super) struct ExpiringSessions<S>(pub(super) S);

/// The session with its expiry in front. A client without a certificate has no expiry.
fn with_expiry(session: &[u8]) -> Vec<u8> {
    let expiry = CHAIN_EXPIRY.try_with(Cell::get).ok().flatten().unwrap_or(u64::MAX);
    [&expiry.to_be_bytes(), session].concat()
}

/// The session without its expiry; `None` if it has expired. A ticket that is issued in the resumed
/// connection gets the same expiry.
fn unexpired(session: &[u8]) -> Option<Vec<u8>> {
    let (expiry, session) = session.split_first_chunk()?;
    let expiry = u64::from_be_bytes(*expiry);
    if unix_time::now() > expiry {
        return None;
    }
    record_expiry(expiry);
    Some(session.to_vec())
}

impl ProducesTickets for ExpiringSessions<Arc<dyn ProducesTickets>> {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(&with_expiry(plain))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        unexpired(&self.0.decrypt(cipher)?)
    }
}

impl StoresServerSessions for ExpiringSessions<Arc<dyn StoresServerSessions>> {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.put(key, with_expiry(&value))
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
