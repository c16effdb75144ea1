//! Sessions that end with the certificate they were made with.
//!
//! rustls resumes a session as long as it knows it, and asks no verifier. Here every session is
//! kept with the end of its client's chain, and is not found after that: the client goes through a
//! full handshake, and is told there that its certificate has expired.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::server::{ProducesTickets, StoresServerSessions};

use crate::spki;

tokio::task_local! {
    /// The end of the chain of the client in the handshake that this task is at, in seconds since
    /// the Unix epoch: rustls does not tell a store whose session it gives.
    static CHAIN_END: Cell<Option<u64>>;
}

/// Drives a handshake whose sessions end with the client's chain.
pub(super) async fn ending_with_the_chain<T>(handshake: impl Future<Output = T>) -> T {
    CHAIN_END.scope(Cell::new(None), handshake).await
}

/// Notes the chain of the client in the present handshake: the first of its ends counts.
pub(super) fn note_chain(leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) {
    let chain = std::iter::once(leaf).chain(intermediates);
    let ends = chain.map(|cert| spki::not_after(cert).unwrap_or_default());
    note(ends.min().as_ref().map_or(0, Duration::as_secs));
}

fn note(end: u64) {
    let _ = CHAIN_END.try_with(|noted| noted.set(Some(end))); // or nobody keeps sessions by date
}

/// Tickets or stored sessions with the end of the client's chain before them.
#[derive(Debug)]
pub(super) struct Dated<S>(pub(super) S);

/// A session with its date: eight bytes, big-endian. A client without a certificate has none that
/// expires.
fn dated(session: &[u8]) -> Vec<u8> {
    let end = CHAIN_END.try_with(Cell::get).ok().flatten().unwrap_or(u64::MAX);
    [&end.to_be_bytes(), session].concat()
}

/// The session, if its date has not passed. A ticket that is issued with it has the same.
fn still_good(dated: &[u8]) -> Option<Vec<u8>> {
    let (end, session) = dated.split_first_chunk()?;
    let end = u64::from_be_bytes(*end);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if now.as_secs() > end {
        return None;
    }
    note(end);
    Some(session.to_vec())
}

impl ProducesTickets for Dated<Arc<dyn ProducesTickets>> {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(&dated(plain))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        still_good(&self.0.decrypt(cipher)?)
    }
}

impl StoresServerSessions for Dated<Arc<dyn StoresServerSessions>> {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.put(key, dated(&value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        still_good(&self.0.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        still_good(&self.0.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.0.can_cache()
    }
}
