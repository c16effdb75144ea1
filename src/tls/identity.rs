//! The identity of a client: its address, and the chain that it proved to own in a handshake.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{HandshakeKind, ServerConnection};

use crate::guard::JudgedAt;
use crate::spki;

/// The identity of the client of a TLS connection.
#[derive(Debug)]
pub struct ClientIdentity {
    peer: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    /// Expiry of the leaf, since the Unix epoch.
    leaf_expiry: Duration,
    /// Time of the next verification, since the Unix epoch: the first expiry in the chain.
    next_check: Cell<Duration>,
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
        let expiries = chain.iter().map(|cert| spki::not_after(cert).unwrap_or_default());
        let next_check = Cell::new(expiries.clone().min().unwrap_or(Duration::MAX));
        let leaf_expiry = expiries.take(1).next().unwrap_or(Duration::MAX);
        Self { peer, chain, leaf_expiry, next_check, judged_at }
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

    /// Whether the client's chain has expired. rustls calls no verifier for resumed sessions and
    /// open connections, both of which can outlive the chain.
    ///
    /// The chain is verified again only when one of its certificates has expired, because the
    /// chain may not need that certificate.
    #[must_use]
    pub fn has_expired(&self, verifier: &dyn ClientCertVerifier, now: SystemTime) -> bool {
        if !self.is_due_for_check(now) {
            return false;
        }
        self.next_check.set(self.leaf_expiry);
        self.check(verifier, now).is_err()
    }

    /// Whether the next verification is due. A validity includes its last second.
    fn is_due_for_check(&self, now: SystemTime) -> bool {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        since_epoch.as_secs() > self.next_check.get().as_secs()
    }

    /// Verifies the chain again, with the CAs and revocation lists of `verifier`. The handshake
    /// verified the proof of possession.
    ///
    /// # Errors
    /// Returns the reason why `verifier` does not accept the chain.
    pub fn check(
        &self,
        verifier: &dyn ClientCertVerifier,
        now: SystemTime,
    ) -> Result<(), rustls::Error> {
        let Some((leaf, intermediates)) = self.chain.split_first() else {
            // The certificate may have been optional when the client connected.
            let is_mandatory = verifier.client_auth_mandatory();
            return if is_mandatory { Err(rustls::Error::NoCertificatesPresented) } else { Ok(()) };
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
    fn a_certificate_expires_after_the_last_second_of_its_validity() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let identity = ClientIdentity::from_chain(peer, vec![leaf()], JudgedAt::FullHandshake);
        let end = UNIX_EPOCH + Duration::from_secs(1_893_456_000); // 2030-01-01
        assert!(!identity.is_due_for_check(end + Duration::from_millis(999)));
        assert!(identity.is_due_for_check(end + Duration::from_secs(1)));
    }
}
