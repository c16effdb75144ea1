//! The certification path from a client's certificate to a trust anchor.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::TrustAnchors;

/// The path that a [`ClientVerifier`](super::ClientVerifier) verified: the leaf, the intermediates
/// that lead to a trust anchor, and that anchor. Certificates that the client presented besides are
/// not on the path.
#[derive(Debug, Clone)]
pub struct VerifiedPath {
    route: PathRoute,
    anchors: Arc<TrustAnchors>,
    /// End of the earliest validity on the path, since the Unix epoch.
    not_after: Duration,
}

/// A path by position. It fits into a session, which has the presented certificates itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathRoute {
    /// Positions in the client's message, leaf first, without the anchor.
    pub(super) presented: SmallVec<[u8; 8]>,
    /// Index of the trust anchor.
    pub(super) anchor: u32,
}

/// The verified path of a session's client.
#[cfg(feature = "proxy")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredPath {
    pub(super) route: PathRoute,
    /// End of the earliest validity on the path, in seconds since the Unix epoch.
    pub(super) expiry: u64,
}

impl VerifiedPath {
    /// The path by `route`, whose anchor is one of `anchors`.
    pub(super) fn new(route: PathRoute, anchors: Arc<TrustAnchors>, not_after: Duration) -> Self {
        Self { route, anchors, not_after }
    }

    #[cfg(feature = "proxy")]
    pub(super) fn route(&self) -> &PathRoute {
        &self.route
    }

    /// End of the earliest validity on the path, since the Unix epoch. The anchor counts.
    #[must_use]
    pub fn not_after(&self) -> Duration {
        self.not_after
    }

    /// The trust anchor at the end of the path.
    #[must_use]
    pub fn anchor(&self) -> Option<&CertificateDer<'static>> {
        let index = usize::try_from(self.route.anchor).ok()?;
        self.anchors.certificates.get(index)
    }

    /// Positions of leaf and intermediates among the certificates that the client presented.
    pub(super) fn positions(&self) -> impl Iterator<Item = u8> + use<'_> {
        self.route.presented.iter().copied()
    }

    /// The leaf and the intermediates of the path, in order, out of the certificates that the
    /// client `presented`.
    pub fn without_anchor<'a, 'der>(
        &'a self,
        presented: &'a [CertificateDer<'der>],
    ) -> impl Iterator<Item = &'a CertificateDer<'der>> + use<'a, 'der> {
        self.positions().filter_map(|position| presented.get(usize::from(position)))
    }
}
