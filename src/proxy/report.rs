//! The lines of the log about clients that are not let in as a matter of course. What is said of a
//! client once is not said again for a while ([`super::log_limit`]).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use tracing::{info, warn};

use super::log_limit::LogLimit;
use crate::guard::{Decision, JudgedAt, Verdict};
use crate::recent_hits::{RecentHit, RecentHits};
use crate::snapshot::Service;
use crate::tls::{CertificateSummary, HandshakeResult};

/// What a worker says of clients.
#[derive(Debug)]
pub(super) struct Reporter {
    recent_hits: RecentHits,
    hits: LogLimit<(String, String, &'static str, &'static str, &'static str)>,
    /// Of clients without a certificate, who can be anybody: they do not hush what is said of others.
    strangers: LogLimit<(String, IpAddr, &'static str)>,
    failures: LogLimit<(IpAddr, &'static str)>,
}

impl Reporter {
    pub(super) fn new(recent_hits: RecentHits, interval: Duration) -> Self {
        let (hits, strangers) = (LogLimit::new(interval), LogLimit::new(interval));
        Self { recent_hits, hits, strangers, failures: LogLimit::new(interval) }
    }

    /// Remembers a client whose key is not clean, and says so.
    pub(super) fn hit(
        &self,
        peer: SocketAddr,
        service: &Service,
        chain: &[CertificateDer<'_>],
        verdict: &Verdict,
        judged_at: JudgedAt,
        decision: Decision,
    ) {
        let seen = RecentHit::new(peer, &service.config.name, chain, verdict, judged_at, decision);
        let now = Instant::now();
        let service = seen.service.clone();
        let (said, lost) = match &seen.client {
            Some(client) => {
                let who = client.fingerprint.clone();
                let key = (service, who, seen.verdict, seen.action, seen.stage);
                (self.hits.ask(key, now), self.hits.lost(now))
            }
            None => {
                let key = (service, network_of(peer.ip()), seen.action);
                (self.strangers.ask(key, now), self.strangers.lost(now))
            }
        };
        if let Some(left_out) = said {
            say(peer, &seen, (decision, judged_at), left_out);
        }
        say_lost(lost);
        self.recent_hits.record(peer.ip(), seen);
    }

    /// Says why a handshake failed, if anybody can do anything about it: of which certificate, if
    /// there was one. Nobody has proved that it is theirs.
    pub(super) fn failure(
        &self,
        peer: SocketAddr,
        service: Option<&Service>,
        leaf: Option<&CertificateDer<'_>>,
        result: HandshakeResult,
        error: Option<&std::io::Error>,
    ) {
        if !is_of_certificate(result) {
            return;
        }
        let now = Instant::now();
        let said = self.failures.ask((network_of(peer.ip()), result.as_str()), now);
        say_lost(self.failures.lost(now));
        let Some(left_out) = said else { return };
        let client = leaf.map(CertificateSummary::of);
        let client = client.as_ref();
        info!(
            target: "keygate::handshake",
            %peer,
            service = service.map(|service| service.config.name.as_str()),
            result = result.as_str(),
            error = error.map(tracing::field::display),
            subject = client.map(|client| client.subject.as_str()),
            issuer = client.map(|client| client.issuer.as_str()),
            serial = client.map(|client| client.serial.as_str()),
            fingerprint = client.map(|client| client.fingerprint.as_str()),
            dns_names = client.map(|client| client.dns_names.join(" ")),
            uris = client.map(|client| client.uris.join(" ")),
            left_out,
            "handshake failed"
        );
    }
}

/// Whether a client's certificate, or the want of one, is the cause. What is not TLS, or goes away, comes from anybody.
fn is_of_certificate(result: HandshakeResult) -> bool {
    match result {
        HandshakeResult::BadSignature
        | HandshakeResult::Expired
        | HandshakeResult::NoCertificate
        | HandshakeResult::Revoked
        | HandshakeResult::UnknownIssuer
        | HandshakeResult::Unsupported => true,
        HandshakeResult::ClientGone
        | HandshakeResult::Compromised
        | HandshakeResult::NotTls
        | HandshakeResult::Ok
        | HandshakeResult::Timeout => false,
    }
}

/// Whoever has one address of IPv6 has 2^64 of them.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

fn say_lost(lost: Option<u64>) {
    if let Some(left_out) = lost {
        warn!(left_out, "more clients than the log has room for: the metrics count them");
    }
}

fn say(peer: SocketAddr, seen: &RecentHit, done: (Decision, JudgedAt), left_out: u64) {
    let what = match done {
        (Decision::Reject, JudgedAt::Reload) => "refused, its open connection ends",
        (Decision::Reject, JudgedAt::FullHandshake | JudgedAt::Resumption) => "refused",
        (Decision::Admit | Decision::Annotate | Decision::Flag, _) => "flagged",
    };
    let (client, found) = (seen.client.as_ref(), &seen.source);
    warn!(
        target: "keygate::client_key",
        %peer,
        service = seen.service,
        subject = client.map(|client| client.subject.as_str()),
        issuer = client.map(|client| client.issuer.as_str()),
        serial = client.map(|client| client.serial.as_str()),
        fingerprint = client.map(|client| client.fingerprint.as_str()),
        dns_names = client.map(|client| client.dns_names.join(" ")),
        uris = client.map(|client| client.uris.join(" ")),
        stage = seen.stage,
        verdict = seen.verdict,
        action = seen.action,
        filter = found.filter,
        revision = found.revision,
        list = found.list,
        found_subject = found.found_subject,
        found_fingerprint = found.found_fingerprint,
        encoding = found.encoding,
        false_positive_ratio = found.false_positive_ratio,
        left_out,
        "client key {what}"
    );
}
