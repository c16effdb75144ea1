//! The handshake in progress: what its client verifier reports to the code that drives it.
//!
//! A verifier that rejects a client can return only an error through rustls. Task-locals carry the
//! certificates and the verdict, for one handshake. Without the feature `proxy` there is no task,
//! and reports are dropped.

#[cfg(feature = "proxy")]
use std::cell::RefCell;

use rustls::pki_types::CertificateDer;

#[cfg(feature = "proxy")]
use super::sessions;
use crate::guard::Verdict;

/// A client that a [`KeyVerifier`](super::KeyVerifier) rejected in the handshake.
#[cfg(feature = "proxy")]
#[derive(Debug, Clone)]
pub struct RejectedClient {
    /// The certificates that the client presented, leaf first. If the leaf's key was rejected, only
    /// the leaf; the client has then proved that it holds the key.
    pub chain: Vec<CertificateDer<'static>>,
    /// The verdict on the rejected key. `None` if chain or signature failed verification: the certificate
    /// may then be a copy.
    pub verdict: Option<Verdict>,
}

#[cfg(feature = "proxy")]
tokio::task_local! {
    /// The client that was rejected in this task's handshake.
    static REJECTED: RefCell<Option<RejectedClient>>;
}

/// Drives a handshake. Returns its outcome, and the client that a verifier rejected.
///
/// Sessions that the handshake creates expire with the client's chain.
#[cfg(feature = "proxy")]
pub async fn drive_handshake<T>(handshake: impl Future<Output = T>) -> (T, Option<RejectedClient>) {
    let observed = async { (handshake.await, REJECTED.with(RefCell::take)) };
    sessions::expiring_with_chain(REJECTED.scope(RefCell::default(), observed)).await
}

/// Reports a rejected client; no effect outside [`drive_handshake`].
#[cfg(feature = "proxy")]
pub(super) fn report_rejected(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    verdict: Option<Verdict>,
) {
    let _ = REJECTED.try_with(|rejected| {
        let chain = std::iter::once(leaf).chain(intermediates);
        let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
        rejected.replace(Some(RejectedClient { chain, verdict }))
    });
}

/// Reports a chain that the usual checks accepted; no effect outside [`drive_handshake`].
#[cfg(feature = "proxy")]
pub(super) fn report_verified(leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) {
    sessions::record_chain(leaf, intermediates);
}

#[cfg(not(feature = "proxy"))]
pub(super) fn report_rejected(
    _: &CertificateDer<'_>,
    _: &[CertificateDer<'_>],
    _: Option<Verdict>,
) {
}

#[cfg(not(feature = "proxy"))]
pub(super) fn report_verified(_: &CertificateDer<'_>, _: &[CertificateDer<'_>]) {}
