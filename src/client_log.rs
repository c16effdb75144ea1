//! Log lines about rejected and flagged clients and about failed handshakes, limited in rate
//! ([`RepeatLimit`]).
//!
//! Used on the data path of the proxy and of the authorizers. Each worker has its own log.

mod log_limit;

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use tracing::{info, warn};

pub(crate) use self::log_limit::RepeatLimit;
use crate::guard::{Decision, JudgedAt, Verdict};
use crate::permit::network_of;
use crate::recent_hits::{RecentHit, RecentHits};
use crate::snapshot::Service;
use crate::spki::{self, Fingerprint};
use crate::tls::{self, CertificateSummary, HandshakeResult};

/// The log of one worker.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    recent_hits: RecentHits,
    hits: RepeatLimit<LoggedHit>,
    /// Anonymous clients have their own limiter, so that a flood of them cannot suppress lines about
    /// known clients.
    anonymous: RepeatLimit<LoggedAnonymous>,
    failures: RepeatLimit<LoggedFailure>,
    misuses: RepeatLimit<LoggedMisuse>,
    unusable: RepeatLimit<LoggedUnusable>,
    unauthorized: RepeatLimit<LoggedUnauthorized>,
}

/// A client that another proxy asked about.
#[derive(Clone, Copy)]
pub(crate) struct AskedClient<'a> {
    /// Name of the authorizer.
    pub(crate) authorizer: &'a str,
    /// The peer that asked.
    pub(crate) asker: &'a dyn Display,
    /// Address of the client, as the asker names it.
    pub(crate) client: Option<IpAddr>,
    /// SNI of the client, as the asker names it.
    pub(crate) sni: Option<&'a str>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedHit {
    service: String,
    fingerprint: String,
    verdict: &'static str,
    action: &'static str,
    stage: &'static str,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedAnonymous {
    service: String,
    network: IpAddr,
    action: &'static str,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedFailure {
    network: IpAddr,
    result: &'static str,
    cause: FailureCause,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedMisuse {
    service: String,
    network: IpAddr,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedUnusable {
    service: String,
    result: &'static str,
    reason: &'static str,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedUnauthorized {
    service: String,
    asker: String,
}

/// The part of a failed handshake that tells it from others of the same network.
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

/// Maximum keys and server names of one network and result that have a line of their own per
/// interval, because a client may invent any number of them.
const MAX_CAUSES: usize = 16;
/// Maximum length of `sni` and `error` in a line, in characters; the rest is cut off.
const MAX_TEXT: usize = 256;

impl RefusalLog {
    /// A log that repeats a line about one client after `interval` at the earliest.
    pub(crate) fn new(recent_hits: RecentHits, interval: Duration) -> Self {
        Self {
            recent_hits,
            hits: RepeatLimit::new(interval),
            anonymous: RepeatLimit::new(interval),
            failures: RepeatLimit::new(interval),
            misuses: RepeatLimit::new(interval),
            unusable: RepeatLimit::new(interval),
            unauthorized: RepeatLimit::new(interval),
        }
    }

    /// Logs and remembers a client whose key was rejected or flagged. `path` is the verified path,
    /// leaf first.
    pub(crate) fn hit(
        &self,
        peer: SocketAddr,
        service: &Service,
        path: &[&CertificateDer<'_>],
        verdict: &Verdict,
        judged_at: JudgedAt,
        decision: Decision,
    ) {
        let hit = RecentHit::new(peer, &service.config.name, path, verdict, judged_at, decision);
        let now = Instant::now();
        let service = hit.service.clone();
        let (permitted, dropped) = match &hit.client {
            Some(client) => {
                let key = LoggedHit {
                    service,
                    fingerprint: client.fingerprint.clone(),
                    verdict: hit.verdict,
                    action: hit.action,
                    stage: hit.stage,
                };
                (self.hits.permit(key, now), self.hits.take_dropped(now))
            }
            None => {
                let network = network_of(peer.ip());
                let key = LoggedAnonymous { service, network, action: hit.action };
                (self.anonymous.permit(key, now), self.anonymous.take_dropped(now))
            }
        };
        if let Some(left_out) = permitted {
            log_hit(peer, &hit, outcome(decision, judged_at), left_out);
        }
        log_dropped(dropped);
        self.recent_hits.record(peer.ip(), hit);
    }

    /// Logs and remembers a client that another proxy asked about, and whose key was rejected or
    /// flagged. `chain` is what was judged, leaf first. The host has verified the proof of
    /// possession.
    pub(crate) fn asked_hit(
        &self,
        asked: &AskedClient<'_>,
        chain: &[&CertificateDer<'_>],
        verdict: &Verdict,
        decision: Decision,
    ) {
        let judged_at = JudgedAt::Asked;
        let peer = asked.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let hit = RecentHit::new(
            SocketAddr::from((peer, 0)),
            asked.authorizer,
            chain,
            verdict,
            judged_at,
            decision,
        );
        // Without an address from the host, there is none to show.
        let address = asked.client.map_or_else(String::new, |client| client.to_string());
        let hit = RecentHit { address, ..hit };
        let now = Instant::now();
        let service = hit.service.clone();
        let (permitted, dropped) = match &hit.client {
            Some(client) => {
                let key = LoggedHit {
                    service,
                    fingerprint: client.fingerprint.clone(),
                    verdict: hit.verdict,
                    action: hit.action,
                    stage: hit.stage,
                };
                (self.hits.permit(key, now), self.hits.take_dropped(now))
            }
            None => {
                let network = network_of(peer);
                let key = LoggedAnonymous { service, network, action: hit.action };
                (self.anonymous.permit(key, now), self.anonymous.take_dropped(now))
            }
        };
        if let Some(left_out) = permitted {
            log_asked_hit(asked, &hit, outcome(decision, judged_at), left_out);
        }
        log_dropped(dropped);
        self.recent_hits.record(peer, hit);
    }

    /// Logs a question whose certificate cannot be used. `reason` is in words.
    pub(crate) fn unusable(
        &self,
        asked: &AskedClient<'_>,
        result: &'static str,
        reason: &'static str,
    ) {
        let now = Instant::now();
        let key = LoggedUnusable { service: asked.authorizer.to_owned(), result, reason };
        let permitted = self.unusable.permit(key, now);
        log_dropped(self.unusable.take_dropped(now));
        let Some(left_out) = permitted else { return };
        warn!(
            target: "keygate::client_key",
            service = asked.authorizer,
            asker = %asked.asker,
            client = asked.client.map(tracing::field::display),
            sni = asked.sni.map(bounded),
            result,
            reason,
            left_out,
            "question denied, its certificate cannot be used"
        );
    }

    /// Logs a connection of a peer that may not ask.
    pub(crate) fn unauthorized(&self, authorizer: &str, asker: &dyn Display) {
        let now = Instant::now();
        let key = LoggedUnauthorized { service: authorizer.to_owned(), asker: asker.to_string() };
        let permitted = self.unauthorized.permit(key, now);
        log_dropped(self.unauthorized.take_dropped(now));
        if let Some(left_out) = permitted {
            warn!(service = authorizer, %asker, left_out, "peer may not ask, closing connection");
        }
    }

    /// Logs a client whose HTTP/2 connection is ended because of too many resets or errors.
    pub(crate) fn misuse(&self, peer: SocketAddr, service: &Service, fingerprint: Option<&str>) {
        let now = Instant::now();
        let service = &service.config.name;
        let key = LoggedMisuse { service: service.clone(), network: network_of(peer.ip()) };
        let permitted = self.misuses.permit(key, now);
        log_dropped(self.misuses.take_dropped(now));
        if let Some(left_out) = permitted {
            warn!(%peer, %service, fingerprint, left_out, "too many reset streams, closing connection");
        }
    }

    /// Logs a failed handshake if a certificate or a server name is the cause.
    pub(crate) fn failure(&self, failed: &FailedHandshake<'_>) {
        if !is_of_client(failed.result) {
            return;
        }
        let now = Instant::now();
        let permitted = self.failures.permit(self.failure_key(failed, now), now);
        log_dropped(self.failures.take_dropped(now));
        let Some(left_out) = permitted else { return };
        let client = failed.leaf.map(CertificateSummary::of);
        let client = client.as_ref();
        info!(
            target: "keygate::handshake",
            peer = %failed.peer,
            service = failed.service.map(|service| service.config.name.as_str()),
            sni = failed.sni.map(bounded),
            result = failed.result.as_str(),
            error = failed.error.map(|error| bounded(&tls::explain(error))),
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

fn bounded(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Whether a client's certificate, the lack of one, or a server name is the cause. Any scanner
/// causes the others.
fn is_of_client(result: HandshakeResult) -> bool {
    match result {
        HandshakeResult::BadSignature
        | HandshakeResult::Expired
        | HandshakeResult::NoCertificate
        | HandshakeResult::Revoked
        | HandshakeResult::UnknownIssuer
        | HandshakeResult::UnknownName
        | HandshakeResult::Unsupported => true,
        HandshakeResult::ClientGone
        | HandshakeResult::Compromised
        | HandshakeResult::NotTls
        | HandshakeResult::Ok
        | HandshakeResult::PlainHttp
        | HandshakeResult::Timeout => false,
    }
}

fn log_dropped(dropped: Option<u64>) {
    if let Some(left_out) = dropped {
        warn!(left_out, "too many clients for the log, the metrics count all of them");
    }
}

fn outcome(decision: Decision, judged_at: JudgedAt) -> &'static str {
    match (decision, judged_at) {
        (Decision::Reject, JudgedAt::Reload) => "rejected, closing connection",
        (Decision::Reject, JudgedAt::Asked | JudgedAt::FullHandshake | JudgedAt::Resumption) => {
            "rejected"
        }
        (Decision::Admit | Decision::Annotate | Decision::Flag, _) => "flagged",
    }
}

fn log_hit(peer: SocketAddr, hit: &RecentHit, outcome: &str, left_out: u64) {
    let (client, found) = (hit.client.as_ref(), &hit.source);
    warn!(
        target: "keygate::client_key",
        %peer,
        service = hit.service,
        subject = client.map(|client| client.subject.as_str()),
        issuer = client.map(|client| client.issuer.as_str()),
        serial = client.map(|client| client.serial.as_str()),
        fingerprint = client.map(|client| client.fingerprint.as_str()),
        dns_names = client.map(|client| client.dns_names.join(" ")),
        uris = client.map(|client| client.uris.join(" ")),
        stage = hit.stage,
        verdict = hit.verdict,
        action = hit.action,
        filter = found.filter,
        revision = found.revision,
        list = found.list,
        found_subject = found.found_subject,
        found_fingerprint = found.found_fingerprint,
        encoding = found.encoding,
        proof = found.proof,
        false_positive_ratio = found.false_positive_ratio,
        left_out,
        "client key {outcome}"
    );
}

fn log_asked_hit(asked: &AskedClient<'_>, hit: &RecentHit, outcome: &str, left_out: u64) {
    let (client, found) = (hit.client.as_ref(), &hit.source);
    warn!(
        target: "keygate::client_key",
        service = hit.service,
        asker = %asked.asker,
        client = asked.client.map(tracing::field::display),
        sni = asked.sni.map(bounded),
        proof = "host",
        subject = client.map(|client| client.subject.as_str()),
        issuer = client.map(|client| client.issuer.as_str()),
        serial = client.map(|client| client.serial.as_str()),
        fingerprint = client.map(|client| client.fingerprint.as_str()),
        dns_names = client.map(|client| client.dns_names.join(" ")),
        uris = client.map(|client| client.uris.join(" ")),
        stage = hit.stage,
        verdict = hit.verdict,
        action = hit.action,
        filter = found.filter,
        revision = found.revision,
        list = found.list,
        found_subject = found.found_subject,
        found_fingerprint = found.found_fingerprint,
        encoding = found.encoding,
        false_positive_ratio = found.false_positive_ratio,
        left_out,
        "client key {outcome}"
    );
}
