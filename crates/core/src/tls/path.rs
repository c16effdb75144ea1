//! The certification path from a client's certificate to a trust anchor.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::TrustAnchors;

/// The path that a [`ClientVerifier`](super::ClientVerifier) verified: the leaf, the intermediates
/// that lead to a trust anchor, and that anchor. Other certificates that the client presented are
/// not on the path. A pinned certificate is a path by itself.
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
    /// The place of each certificate, leaf first: its position in the client's message, or
    /// [`PathRoute::FILE`] and its index among the trust anchors. The last one is the trust anchor,
    /// if the path has one.
    pub(super) places: SmallVec<[u32; 4]>,
}

impl PathRoute {
    /// The first place in the file of the trust anchors. Certificates of a message and
    /// of `client_auth.intermediates` have places below it.
    pub(super) const FILE: u32 = 0x1_0000;

    /// The place of the trust anchor at `index`.
    pub(super) fn in_file(index: usize) -> Option<u32> {
        u32::try_from(index).ok()?.checked_add(Self::FILE)
    }

    /// The index among the trust anchors of the certificate at `place`.
    fn index(place: u32) -> Option<usize> {
        usize::try_from(place.checked_sub(Self::FILE)?).ok()
    }
}

/// The verified path of a session's client.
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

    pub(super) fn route(&self) -> &PathRoute {
        &self.route
    }

    /// End of the earliest validity on the path, since the Unix epoch. The anchor counts.
    #[must_use]
    pub fn not_after(&self) -> Duration {
        self.not_after
    }

    /// Whether its trust anchors have each certificate that it names among them.
    pub(super) fn is_complete(&self) -> bool {
        let mut indexes = self.route.places.iter().filter_map(|place| PathRoute::index(*place));
        indexes.all(|index| index < self.anchors.certificates.len())
    }

    /// The trust anchor at the end of the path. A pinned certificate has none.
    #[must_use]
    pub fn anchor(&self) -> Option<&CertificateDer<'static>> {
        self.anchors.certificates.get(PathRoute::index(*self.route.places.last()?)?)
    }

    /// The certificates of the path, leaf first, trust anchor last. The client `presented` some of
    /// them.
    pub fn certificates<'a, 'der>(
        &'a self,
        presented: &'a [CertificateDer<'der>],
    ) -> impl DoubleEndedIterator<Item = &'a CertificateDer<'der>> + use<'a, 'der> {
        self.route.places.iter().filter_map(|place| match PathRoute::index(*place) {
            Some(index) => self.anchors.certificates.get(index),
            None => presented.get(usize::try_from(*place).ok()?),
        })
    }

    /// The certificates of the path without the trust anchor.
    pub fn without_anchor<'a, 'der>(
        &'a self,
        presented: &'a [CertificateDer<'der>],
    ) -> impl Iterator<Item = &'a CertificateDer<'der>> + use<'a, 'der> {
        let length = self.route.places.len().saturating_sub(self.anchor().iter().len());
        self.certificates(presented).take(length)
    }
}
