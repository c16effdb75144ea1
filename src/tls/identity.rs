//! Who a client is: what it proved in the handshake, or in the one that it resumes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{HandshakeKind, ServerConnection};

use crate::guard::JudgedAt;
use crate::spki;

/// The client at the other end of a finished handshake.
#[derive(Debug)]
pub struct ClientIdentity {
    peer: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    /// When the leaf expires, since the Unix epoch.
    leaf_end: Duration,
    /// When the verifier is to be asked again: as soon as any certificate of the chain has expired.
    next_look: Cell<Duration>,
    judged_at: JudgedAt,
}

impl ClientIdentity {
    /// The identity of the client that completed a handshake on `connection`.
    #[must_use]
    pub fn new(peer: SocketAddr, connection: &ServerConnection) -> Self {
        let chain = connection.peer_certificates().unwrap_or_default();
        let chain = chain.iter().map(|cert| cert.clone().into_owned()).collect();
        let judged_at = match connection.handshake_kind() {
            Some(HandshakeKind::Resumed) => JudgedAt::Resumption,
            Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
                JudgedAt::FullHandshake
            }
        };
        Self::from_chain(peer, chain, judged_at)
    }

    fn from_chain(
        peer: SocketAddr,
        chain: Vec<CertificateDer<'static>>,
        judged_at: JudgedAt,
    ) -> Self {
        let ends = chain.iter().map(|cert| spki::not_after(cert).unwrap_or_default());
        let next_look = Cell::new(ends.clone().min().unwrap_or(Duration::MAX));
        let leaf_end = ends.take(1).next().unwrap_or(Duration::MAX);
        Self { peer, chain, leaf_end, next_look, judged_at }
    }

    /// The address that the client connected from.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The certificates that the client presented, leaf first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The client's own certificate, if it presented one.
    #[must_use]
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// The handshake that the client completed: full or resumed.
    #[must_use]
    pub fn judged_at(&self) -> JudgedAt {
        self.judged_at
    }

    /// Whether the client's certificate, or one that it depends on, has expired: a resumed session
    /// can be older than that, and an open connection becomes so, and rustls asks no verifier again.
    /// `verifier` is asked only once there is a reason to: what a client presents besides its leaf it
    /// may not need.
    #[must_use]
    pub fn has_expired(&self, verifier: &dyn ClientCertVerifier, now: SystemTime) -> bool {
        if !self.is_to_be_looked_at(now) {
            return false;
        }
        self.next_look.set(self.leaf_end);
        self.check(verifier, now).is_err()
    }

    /// Validity ends in whole seconds, and the last of them counts.
    fn is_to_be_looked_at(&self, now: SystemTime) -> bool {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        since_epoch.as_secs() > self.next_look.get().as_secs()
    }

    /// Whether a client that `verifier` has not seen would be accepted by it: CAs and revocation
    /// lists change while connections are open. The proof of possession was given in the handshake.
    ///
    /// # Errors
    /// Why it would not be.
    pub fn check(
        &self,
        verifier: &dyn ClientCertVerifier,
        now: SystemTime,
    ) -> Result<(), rustls::Error> {
        let Some((leaf, intermediates)) = self.chain.split_first() else {
            // It came when no certificate was needed.
            let is_needed = verifier.client_auth_mandatory();
            return if is_needed { Err(rustls::Error::NoCertificatesPresented) } else { Ok(()) };
        };
        let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        verifier.verify_client_cert(leaf, intermediates, now).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf() -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_after = rcgen::date_time_ymd(2030, 1, 1);
        parameters.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_expires_at_the_end_of_its_validity() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let identity = ClientIdentity::from_chain(peer, vec![leaf()], JudgedAt::FullHandshake);
        let end = UNIX_EPOCH + Duration::from_secs(1_893_456_000); // 2030-01-01
        assert!(!identity.is_to_be_looked_at(end + Duration::from_millis(999)));
        assert!(identity.is_to_be_looked_at(end + Duration::from_secs(1)));
    }
}
