//! The identity of a client: its address, and the path that was verified in a handshake.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CommonState, HandshakeKind};
use smallvec::SmallVec;

use super::handshake::VerifiedClient;
use super::{ClientVerifier, Handshake, VerifiedPath};
use crate::guard::{Guard, JudgedAt, Judgement, Policy};

/// The identity of the client of a TLS connection.
#[derive(Debug)]
pub struct ClientIdentity {
    peer: SocketAddr,
    /// The certificates that the client presented, leaf first. Another path may need those that are
    /// not on `path`. Shared by the connections of one client that the chain cache knows.
    presented: Arc<[CertificateDer<'static>]>,
    /// `None` if the client presented no certificate, or if the path is not known.
    path: RefCell<Option<VerifiedPath>>,
    /// Time of the next verification, since the Unix epoch: the first expiry on the path.
    next_check: Cell<Duration>,
    judged_at: JudgedAt,
}

/// The certificates of a path, leaf first.
type PathCertificates<'a> = SmallVec<[&'a CertificateDer<'a>; 4]>;

impl ClientIdentity {
    /// The identity of the client that completed `handshake` on `connection`, where `verifier`
    /// verified it.
    #[must_use]
    pub fn new(
        peer: SocketAddr,
        connection: &CommonState,
        mut handshake: Handshake,
        verifier: &ClientVerifier,
    ) -> Self {
        let presented = connection.peer_certificates().unwrap_or_default();
        match connection.handshake_kind() {
            Some(HandshakeKind::Resumed) => {
                let path = handshake.stored.take().and_then(|it| verifier.restore_path(it));
                let presented = verifier.copy_of(presented);
                Self::from_path(peer, presented, path, JudgedAt::Resumption)
            }
            Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
                // The path has positions among the certificates that it was verified with.
                let verified = handshake.verified.take().filter(|it| *it.presented == *presented);
                let (path, presented) = match verified {
                    Some(VerifiedClient { path, presented, .. }) => (Some(path), presented),
                    None => (None, verifier.copy_of(presented)),
                };
                Self::from_path(peer, presented, path, JudgedAt::FullHandshake)
            }
        }
    }

    /// The identity of an asker of an authorizer, which may not verify certificates.
    #[must_use]
    pub fn from_asker(
        peer: SocketAddr,
        connection: &CommonState,
        handshake: Handshake,
        verifier: Option<&ClientVerifier>,
    ) -> Self {
        match verifier {
            Some(verifier) => Self::new(peer, connection, handshake, verifier),
            None => Self::from_path(peer, Arc::default(), None, JudgedAt::FullHandshake),
        }
    }

    fn from_path(
        peer: SocketAddr,
        presented: Arc<[CertificateDer<'static>]>,
        path: Option<VerifiedPath>,
        judged_at: JudgedAt,
    ) -> Self {
        let path = path.filter(|_| !presented.is_empty());
        let next_check = match &path {
            Some(path) => path.not_after(),
            None if presented.is_empty() => Duration::MAX,
            None => Duration::ZERO, // the path is not known
        };
        let (path, next_check) = (RefCell::new(path), Cell::new(next_check));
        Self { peer, presented, path, next_check, judged_at }
    }

    /// The address that the client connected from.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The certificates that the client presented, leaf first.
    #[must_use]
    pub fn presented(&self) -> &[CertificateDer<'static>] {
        &self.presented
    }

    /// The client's own certificate, if it presented one.
    #[must_use]
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.presented.first()
    }

    /// Calls `use_path` with the certificates of the verified path, leaf first, trust anchor last.
    pub fn with_path<T>(&self, use_path: impl FnOnce(&[&CertificateDer<'_>]) -> T) -> T {
        let path = self.path.borrow();
        let Some(path) = &*path else {
            // The other certificates are not verified.
            let leaf: PathCertificates<'_> = self.leaf().into_iter().collect();
            return use_path(&leaf);
        };
        use_path(&path.certificates(&self.presented).collect::<PathCertificates<'_>>())
    }

    /// Calls `use_intermediates` with the certificates between the leaf and the trust anchor on the
    /// verified path, in order.
    pub fn with_intermediates<T>(
        &self,
        use_intermediates: impl FnOnce(&[&CertificateDer<'_>]) -> T,
    ) -> T {
        let path = self.path.borrow();
        let certificates: PathCertificates<'_> = match &*path {
            None => SmallVec::new(),
            Some(path) => path.without_anchor(&self.presented).skip(1).collect(),
        };
        use_intermediates(&certificates)
    }

    /// Judges the client by its verified path at `now`.
    #[must_use]
    pub fn judge(&self, guard: &Guard, policy: &Policy, now: SystemTime) -> Judgement {
        self.with_path(|path| Judgement::new(guard, policy, path.iter().copied(), now))
    }

    /// Number of certificates that a judgement looks up at most.
    #[must_use]
    pub fn path_length(&self) -> usize {
        self.with_path(|path| path.len())
    }

    /// The handshake that the client completed: full or resumed.
    #[must_use]
    pub fn judged_at(&self) -> JudgedAt {
        self.judged_at
    }

    /// Whether a certificate of the path has expired, the trust anchor included, and the client must
    /// be verified again. rustls calls no verifier for resumed sessions and open connections, both of
    /// which can outlive the path. A validity includes its last second.
    #[must_use]
    pub fn is_due_for_check(&self, now: SystemTime) -> bool {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        since_epoch.as_secs() > self.next_check.get().as_secs()
    }

    /// Finds a path again, with the CAs and revocation lists of `verifier`. The handshake verified
    /// the proof of possession.
    ///
    /// # Errors
    /// Returns the reason why `verifier` does not accept the client. The old path stays.
    pub fn verify_again(
        &self,
        verifier: &ClientVerifier,
        now: SystemTime,
    ) -> Result<(), rustls::Error> {
        let Some((leaf, intermediates)) = self.presented.split_first() else {
            // The certificate may have been optional when the client connected.
            let is_mandatory = verifier.client_auth_mandatory();
            return if is_mandatory { Err(rustls::Error::NoCertificatesPresented) } else { Ok(()) };
        };
        let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        let path = verifier.verify(leaf, intermediates, now)?;
        self.next_check.set(path.not_after());
        self.path.replace(Some(path));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::TrustAnchors;
    use super::super::path::PathRoute;
    use super::*;

    fn identity(path: Option<VerifiedPath>) -> ClientIdentity {
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let presented = Arc::new([leaf.der().clone()]);
        ClientIdentity::from_path(peer, presented, path, JudgedAt::FullHandshake)
    }

    #[test]
    fn a_path_expires_after_the_last_second_of_its_validity() {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let anchors = Arc::new(TrustAnchors::new(vec![ca.der().clone()]).unwrap());
        let route = PathRoute { places: SmallVec::from_slice(&[0, PathRoute::FILE]) };
        let end = Duration::from_secs(1_893_456_000); // 2030-01-01
        let identity = identity(Some(VerifiedPath::new(route, anchors, end)));
        assert!(!identity.is_due_for_check(UNIX_EPOCH + end + Duration::from_millis(999)));
        assert!(identity.is_due_for_check(UNIX_EPOCH + end + Duration::from_secs(1)));
        assert_eq!(identity.with_path(|path| path.len()), 2, "with its anchor");
    }

    #[test]
    fn a_client_whose_path_is_not_known_is_verified_at_once() {
        let identity = identity(None);
        assert!(identity.is_due_for_check(SystemTime::now()));
        assert_eq!(identity.with_path(|path| path.len()), 1);
    }
}
