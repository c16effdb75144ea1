//! Log lines about failed handshakes.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use keygate_core::guard::JudgedAt;
use keygate_core::printable::printable;
use keygate_core::spki::{self, Fingerprint};
use keygate_core::tls::{self, CertificateSummary, HandshakeResult};
use keygate_wire::permit::network_of;
use rustls::pki_types::CertificateDer;
use tracing::info;

use super::{LoggedClient, RefusalLog, bounded, log_dropped};
use crate::snapshot::Service;

/// Maximum keys and server names of one network and result that have a line of their own per
/// interval, because a client may invent any number of them.
const MAX_CAUSES: usize = 16;

/// The part of a failed handshake that differs from others of the same network.
#[derive(Debug, PartialEq, Eq, Hash)]
enum FailureCause {
    /// The key that the client presented.
    Key(Fingerprint),
    /// The server name that no service has.
    Name(String),
    /// Neither is known, or the network has shown too many of them.
    Unknown,
}

/// A handshake that failed.
pub(crate) struct FailedHandshake<'a> {
    pub(crate) peer: SocketAddr,
    pub(crate) service: Option<&'a Service>,
    /// The certificate that the client presented. Possession of its key is not proved.
    pub(crate) leaf: Option<&'a CertificateDer<'a>>,
    /// The server name that no service has.
    pub(crate) sni: Option<&'a str>,
    pub(crate) result: HandshakeResult,
    pub(crate) error: Option<&'a std::io::Error>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct LoggedFailure {
    network: IpAddr,
    result: &'static str,
    cause: FailureCause,
}

impl RefusalLog {
    /// Logs a failed handshake if a certificate or a server name is the cause.
    pub(crate) fn failure(&self, failed: &FailedHandshake<'_>) {
        if !is_of_client(failed.result) {
            return;
        }
        if let (HandshakeResult::NotVouched, Some(service), Some(leaf)) =
            (failed.result, failed.service, failed.leaf)
        {
            let (address, stage) = (Some(failed.peer.ip()), JudgedAt::FullHandshake);
            let error = failed.error.map(tls::explain).unwrap_or_default();
            self.remember_not_vouched(address, &service.config.name, leaf, stage, &error);
        }
        let now = Instant::now();
        let permitted = self.failures.permit(self.failure_key(failed, now), now);
        log_dropped(self.failures.take_dropped(now));
        let Some(left_out) = permitted else { return };
        let client = failed.leaf.map(CertificateSummary::new);
        let LoggedClient { subject, issuer, serial, fingerprint, dns_names, uris, .. } =
            LoggedClient::new(client.as_ref());
        let by_issuer = [HandshakeResult::Revoked, HandshakeResult::UnknownIssuer];
        if let (true, Some(service), Some(issuer)) =
            (by_issuer.contains(&failed.result), failed.service, issuer)
        {
            let issuer = printable(&bounded(issuer)).replace('`', "'"); // of a command in the status
            self.recent_hits.record_failed_issuer(&service.config.name, failed.result, issuer);
        }
        info!(
            target: "keygate::handshake",
            peer = %failed.peer,
            service = failed.service.map(|service| service.config.name.as_str()),
            sni = failed.sni.map(bounded),
            result = failed.result.as_str(),
            error = failed.error.map(|error| bounded(&tls::explain(error))),
            subject,
            issuer,
            serial,
            fingerprint,
            dns_names,
            uris,
            left_out,
            "handshake failed"
        );
    }

    /// The key by which lines about a failed handshake are limited.
    fn failure_key(&self, failed: &FailedHandshake<'_>, now: Instant) -> LoggedFailure {
        let leaf = failed.leaf.and_then(|leaf| spki::of_certificate(leaf).ok());
        let cause = match (leaf, failed.sni) {
            (Some(spki), _) => FailureCause::Key(Fingerprint::of(spki)),
            (None, Some(name)) => FailureCause::Name(bounded(name)),
            (None, None) => FailureCause::Unknown,
        };
        let (network, result) = (network_of(failed.peer.ip()), failed.result.as_str());
        let key = LoggedFailure { network, result, cause };
        let is_of_network =
            |other: &LoggedFailure| (other.network, other.result) == (network, result);
        if self.failures.is_tracked(&key)
            || self.failures.count_recent(now, is_of_network) < MAX_CAUSES
        {
            return key;
        }
        LoggedFailure { cause: FailureCause::Unknown, ..key }
    }
}

/// Whether a client's certificate, the lack of one, or a server name is the cause. Any scanner
/// causes the others.
fn is_of_client(result: HandshakeResult) -> bool {
    match result {
        HandshakeResult::BadSignature
        | HandshakeResult::Expired
        | HandshakeResult::NoCertificate
        | HandshakeResult::NotVouched
        | HandshakeResult::Revoked
        | HandshakeResult::UnknownIssuer
        | HandshakeResult::UnknownName
        | HandshakeResult::Unsuitable
        | HandshakeResult::Unsupported => true,
        HandshakeResult::ClientGone
        | HandshakeResult::Compromised
        | HandshakeResult::NotAllowed
        | HandshakeResult::NotTls
        | HandshakeResult::Ok
        | HandshakeResult::PlainHttp
        | HandshakeResult::ServiceRejected
        | HandshakeResult::Timeout => false,
    }
}
