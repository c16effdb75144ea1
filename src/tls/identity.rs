//! Who a client is: what it proved in the handshake, or in the one that it resumes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{HandshakeKind, ServerConnection};
use serde::Serialize;
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;
use x509_cert::{Certificate, TbsCertificate};

use crate::metrics::Stage;
use crate::spki::{self, Fingerprint};

/// The client at the other end of a finished handshake.
#[derive(Debug)]
pub struct ClientIdentity {
    peer: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    /// When the leaf expires, since the Unix epoch.
    leaf_end: Duration,
    /// When the verifier is to be asked again: as soon as any certificate of the chain has expired.
    next_look: Cell<Duration>,
    stage: Stage,
}

impl ClientIdentity {
    /// The identity of the client that completed a handshake on `connection`.
    #[must_use]
    pub fn of(peer: SocketAddr, connection: &ServerConnection) -> Self {
        let chain = connection.peer_certificates().unwrap_or_default();
        let chain = chain.iter().map(|cert| cert.clone().into_owned()).collect();
        let stage = match connection.handshake_kind() {
            Some(HandshakeKind::Resumed) => Stage::Resumed,
            Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
                Stage::Handshake
            }
        };
        Self::with(peer, chain, stage)
    }

    fn with(peer: SocketAddr, chain: Vec<CertificateDer<'static>>, stage: Stage) -> Self {
        let ends = chain.iter().map(|cert| spki::not_after(cert).unwrap_or_default());
        let next_look = Cell::new(ends.clone().min().unwrap_or(Duration::MAX));
        let leaf_end = ends.take(1).next().unwrap_or(Duration::MAX);
        Self { peer, chain, leaf_end, next_look, stage }
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

    /// Whether the session was resumed or is new.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
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

/// A certificate as a log line tells it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CertificateSummary {
    /// Distinguished name (RFC 4514).
    pub subject: String,
    /// The first common name in it.
    pub common_name: Option<String>,
    /// Distinguished name (RFC 4514).
    pub issuer: String,
    /// Lower-case hex.
    pub serial: String,
    /// SHA-256 of the public key; empty if the certificate cannot be read.
    pub fingerprint: String,
    /// Subject alternative names that are DNS names.
    pub dns_names: Vec<String>,
    /// Subject alternative names that are URIs.
    pub uris: Vec<String>,
}

/// Names are the issuer's choice; a log line has room for this many characters of each.
const MAX_NAME_LENGTH: usize = 256;

impl CertificateSummary {
    /// Decodes a certificate for people. What cannot be read is left empty.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let fingerprint = spki::of_certificate(certificate)
            .map(|spki| Fingerprint::of(spki).to_string())
            .unwrap_or_default();
        let Ok(certificate) = Certificate::from_der(certificate) else {
            return Self { fingerprint, ..Self::default() };
        };
        let certificate = certificate.tbs_certificate();
        let (dns_names, uris) = alternative_names(certificate);
        Self {
            dns_names,
            uris,
            subject: bounded(certificate.subject().to_string()),
            common_name: common_name(certificate.subject()).map(bounded),
            issuer: bounded(certificate.issuer().to_string()),
            serial: data_encoding::HEXLOWER.encode(certificate.serial_number().as_bytes()),
            fingerprint,
        }
    }
}

/// A certificate may have as many names as it likes; of each kind, so many are told.
const MAX_NAMES: usize = 16;

/// The DNS names and the URIs among the subject alternative names.
fn alternative_names(certificate: &TbsCertificate) -> (Vec<String>, Vec<String>) {
    let (mut dns_names, mut uris) = (Vec::new(), Vec::new());
    let names: Option<(bool, SubjectAltName)> = certificate.get_extension().ok().flatten();
    for name in names.map(|(_, names)| names.0).unwrap_or_default() {
        match name {
            GeneralName::DnsName(name) => dns_names.push(bounded(name.to_string())),
            GeneralName::UniformResourceIdentifier(uri) => uris.push(bounded(uri.to_string())),
            GeneralName::DirectoryName(_)
            | GeneralName::EdiPartyName(_)
            | GeneralName::IpAddress(_)
            | GeneralName::OtherName(_)
            | GeneralName::RegisteredId(_)
            | GeneralName::Rfc822Name(_) => {}
        }
    }
    dns_names.truncate(MAX_NAMES);
    uris.truncate(MAX_NAMES);
    (dns_names, uris)
}

/// The first common name (RFC 5280, appendix A.1: `id-at-commonName`).
fn common_name(name: &Name) -> Option<String> {
    const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
    let attribute = name.iter().find(|attribute| attribute.oid == COMMON_NAME)?;
    std::str::from_utf8(attribute.value.value()).ok().map(str::to_owned)
}

fn bounded(name: String) -> String {
    match name.char_indices().nth(MAX_NAME_LENGTH) {
        None => name,
        Some(_) => name.chars().take(MAX_NAME_LENGTH).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(name: &str) -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.serial_number = Some(rcgen::SerialNumber::from(0x2a_u64));
        parameters.not_after = rcgen::date_time_ymd(2030, 1, 1);
        parameters.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_summary_names_the_certificate_and_its_key() {
        let summary = CertificateSummary::of(&leaf("client \"one\"\n"));
        assert!(summary.subject.contains("client"), "{summary:?}");
        assert_eq!(summary.serial, "2a");
        assert_eq!(summary.fingerprint.len(), 64);
    }

    #[test]
    fn a_long_name_is_cut() {
        let summary = CertificateSummary::of(&leaf(&"é".repeat(10_000)));
        assert_eq!(summary.subject.chars().count(), MAX_NAME_LENGTH + 1);
    }

    #[test]
    fn a_certificate_expires_at_the_end_of_its_validity() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let identity = ClientIdentity::with(peer, vec![leaf("client")], Stage::Handshake);
        let end = UNIX_EPOCH + Duration::from_secs(1_893_456_000); // 2030-01-01
        assert!(!identity.is_to_be_looked_at(end + Duration::from_millis(999)));
        assert!(identity.is_to_be_looked_at(end + Duration::from_secs(1)));
    }
}
