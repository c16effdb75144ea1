//! The handshake in progress: its client verifier, session store and driver share it.
//!
//! A verifier that rejects a client can return only an error through rustls, and rustls passes no
//! handle of the connection to verifiers and session stores. A thread-local refers to the handshake
//! that this thread drives.

use std::cell::RefCell;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::VerifiedPath;
use super::path::StoredPath;
use crate::guard::Judgement;

/// A client that a [`KeyVerifier`](super::KeyVerifier) rejected in the handshake.
#[derive(Debug, Clone)]
pub struct RejectedClient {
    /// The verified path, leaf first, trust anchor last, as far as it was judged. If chain or
    /// signature failed verification, only the leaf that the client presented.
    pub chain: Vec<CertificateDer<'static>>,
    /// The judgement that rejects the client, whose verdict has a position in `chain`; the client
    /// has then proved that it holds the key of the leaf. `None` if chain or signature failed
    /// verification: the certificate may then be a copy.
    pub judgement: Option<Judgement>,
}

/// One handshake, and the facts that its verifier found out.
///
/// A verifier that judges whole paths needs it in every handshake, as in
/// [`KeyVerifier`](super::KeyVerifier).
#[derive(Debug, Default)]
pub struct Handshake {
    pub(super) verified: Option<VerifiedClient>,
    /// The client that the verifier rejected.
    pub rejected: Option<RejectedClient>,
    pub(super) stored: Option<StoredPath>,
    /// Whether a ticket was issued.
    pub(super) has_ticket: bool,
}

/// A client whose certificates are acceptable. It has not proved that it holds the key.
#[derive(Debug)]
pub(super) struct VerifiedClient {
    pub(super) path: VerifiedPath,
    /// The certificates that the client presented, leaf first.
    pub(super) presented: Arc<[CertificateDer<'static>]>,
    /// The cache that the chain belongs in, and the times in which it stays there. `None` if the
    /// chain is in the young generation of that cache, or must not be cached.
    pub(super) uncached: Option<(u64, Range<u64>)>,
}

impl VerifiedClient {
    pub(super) fn new(
        path: VerifiedPath,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Self {
        let presented = std::iter::once(leaf).chain(intermediates);
        let presented = presented.map(|certificate| certificate.clone().into_owned()).collect();
        Self { path, presented, uncached: None }
    }

    /// The path of the client whose certificate is `leaf`, leaf first, trust anchor last; `None` if
    /// the path is another certificate's.
    pub(super) fn path_of<'a>(
        &'a self,
        leaf: &CertificateDer<'_>,
    ) -> Option<impl Iterator<Item = &'a CertificateDer<'static>> + use<'a>> {
        let is_of_leaf = self.presented.first()? == leaf;
        is_of_leaf.then(|| self.path.certificates(&self.presented))
    }
}

thread_local! {
    /// The handshake that this thread drives now.
    static CURRENT: RefCell<Option<Handshake>> = const { RefCell::new(None) };
}

impl Handshake {
    /// Drives the handshake until `future` is complete.
    pub async fn drive<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        std::future::poll_fn(|context| self.step(|| future.as_mut().poll(context))).await
    }

    /// Takes one step of the handshake, such as
    /// [`complete_io`](rustls::ConnectionCommon::complete_io).
    pub fn step<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let outer = CURRENT.replace(Some(std::mem::take(self)));
        let _scope = HandshakeStep { handshake: self, outer };
        step()
    }
}

/// Ends a step, also if it panics.
struct HandshakeStep<'a> {
    handshake: &'a mut Handshake,
    outer: Option<Handshake>,
}

impl Drop for HandshakeStep<'_> {
    fn drop(&mut self) {
        if let Some(handshake) = CURRENT.replace(self.outer.take()) {
            *self.handshake = handshake;
        }
    }
}

/// Calls `use_handshake` with the handshake in progress; `None` outside one.
pub(super) fn with_current<T>(use_handshake: impl FnOnce(Option<&mut Handshake>) -> T) -> T {
    CURRENT.with_borrow_mut(|current| use_handshake(current.as_mut()))
}

/// Changes the handshake in progress; no effect outside one.
fn change_current(change: impl FnOnce(&mut Handshake)) {
    with_current(|handshake| handshake.map_or((), change));
}

/// Forgets what was found out about an earlier certificate of this handshake.
pub(super) fn forget_path() {
    change_current(|handshake| handshake.verified = None);
}

/// Records a client that has not yet proved possession.
pub(super) fn record_verified(client: impl FnOnce() -> VerifiedClient) {
    change_current(|handshake| handshake.verified = Some(client()));
}

/// Records a rejected client.
pub(super) fn record_rejected(chain: Vec<CertificateDer<'static>>, judgement: Option<Judgement>) {
    change_current(|handshake| handshake.rejected = Some(RejectedClient { chain, judgement }));
}
