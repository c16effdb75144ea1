//! Log lines about rejected and flagged clients and about failed handshakes, limited in rate
//! ([`RepeatLimit`]).
//!
//! Used on the data path of the proxy and of the authorizers. Each worker has its own log.

mod failed_handshake;
mod hit;
mod log_limit;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use keygate_core::guard::JudgedAt;
use keygate_core::spki::{self, Fingerprint};
use keygate_core::tls::CertificateSummary;
use keygate_wire::permit::{AskerKey, BufferClass, network_of};
use rustls::pki_types::CertificateDer;
use tracing::warn;

pub(crate) use self::failed_handshake::FailedHandshake;
use self::failed_handshake::LoggedFailure;
use self::hit::{LoggedAnonymous, LoggedHit};
pub(crate) use self::log_limit::RepeatLimit;
use crate::recent_hits::{RecentHit, RecentHits};
use crate::snapshot::Service;

/// The log of one worker.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    recent_hits: RecentHits,
    hits: RepeatLimit<LoggedHit>,
    /// Anonymous clients have their own limiter, so that a flood of them cannot suppress lines
    /// about known clients.
    anonymous: RepeatLimit<LoggedAnonymous>,
    /// Clients that no rule names, for the same reason: they may be all clients of a CA.
    unnamed: RepeatLimit<LoggedHit>,
    failures: RepeatLimit<LoggedFailure>,
    isolations: RepeatLimit<(String, IpAddr)>,
    misuses: RepeatLimit<LoggedMisuse>,
    over_share: RepeatLimit<(&'static str, IpAddr)>,
    unusable: RepeatLimit<LoggedUnusable>,
    /// Clients whose CA may not vouch for them, each by its key: the CA may invent any number.
    not_vouched: RepeatLimit<LoggedUnusable>,
    unauthorized: RepeatLimit<LoggedUnauthorized>,
}

/// A client that another proxy asked about.
#[derive(Clone, Copy)]
pub(crate) struct AskedClient<'a> {
    /// Name of the authorizer.
    pub(crate) authorizer: &'a str,
    /// The peer that asked.
    pub(crate) asker: &'a dyn Display,
    /// Address of the client, from the question.
    pub(crate) client: Option<IpAddr>,
    /// SNI of the client, from the question.
    pub(crate) sni: Option<&'a str>,
    /// The object that the question is about, if it is no client.
    pub(crate) object: Option<&'a str>,
    /// The moment of the judgement.
    pub(crate) stage: JudgedAt,
}

/// Why the HTTP/2 connection of a client is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Misuse {
    /// Too many frames that belong to no message.
    ControlFrames,
    /// Too many streams that were reset, or errors.
    Resets,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedMisuse {
    misuse: Misuse,
    service: String,
    network: IpAddr,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedUnusable {
    service: String,
    result: &'static str,
    reason: &'static str,
    fingerprint: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LoggedUnauthorized {
    service: String,
    asker: AskerKey,
    reason: &'static str,
}

/// The fields of a line that name a client; `None` without a certificate.
struct LoggedClient<'a> {
    subject: Option<&'a str>,
    issuer: Option<&'a str>,
    serial: Option<&'a str>,
    fingerprint: Option<&'a str>,
    key_algorithm: Option<&'a str>,
    dns_names: Option<String>,
    uris: Option<String>,
    emails: Option<String>,
}

impl<'a> LoggedClient<'a> {
    fn new(client: Option<&'a CertificateSummary>) -> Self {
        Self {
            subject: client.map(|client| client.subject.as_str()),
            issuer: client.map(|client| client.issuer.as_str()),
            serial: client.map(|client| client.serial.as_str()),
            fingerprint: client.map(|client| client.fingerprint.as_str()),
            key_algorithm: client.map(|client| client.key_algorithm.as_str()),
            dns_names: client.map(|client| client.dns_names.join(" ")),
            uris: client.map(|client| client.uris.join(" ")),
            emails: client.map(|client| client.emails.join(" ")),
        }
    }
}

/// Maximum length of `sni` and `error` in a line, in characters; the rest is cut off.
const MAX_TEXT: usize = 256;

impl RefusalLog {
    /// A log that repeats a line about one client after `interval` at the earliest.
    pub(crate) fn new(recent_hits: RecentHits, interval: Duration) -> Self {
        Self {
            recent_hits,
            hits: RepeatLimit::new(interval),
            anonymous: RepeatLimit::new(interval),
            unnamed: RepeatLimit::new(interval),
            failures: RepeatLimit::new(interval),
            isolations: RepeatLimit::new(interval),
            misuses: RepeatLimit::new(interval),
            over_share: RepeatLimit::new(interval),
            unusable: RepeatLimit::new(interval),
            not_vouched: RepeatLimit::new(interval),
            unauthorized: RepeatLimit::new(interval),
        }
    }

    /// Remembers a client whose CA may not vouch for a name of its certificate. The CA has signed
    /// the certificate, so it is remembered without a proof of possession.
    pub(crate) fn remember_not_vouched(
        &self,
        address: Option<IpAddr>,
        service: &str,
        leaf: &CertificateDer<'_>,
        stage: JudgedAt,
        error: &str,
    ) {
        self.recent_hits.record(RecentHit::not_vouched(
            address,
            service,
            leaf,
            stage,
            &bounded(error),
        ));
    }

    /// Logs a question whose certificate cannot be used. `reason` is in words, `leaf` is the
    /// certificate of the client if the question has one. `error` has the CA that may not vouch for
    /// the client.
    pub(crate) fn unusable(
        &self,
        asked: &AskedClient<'_>,
        leaf: Option<&CertificateDer<'_>>,
        (result, reason): (&'static str, &'static str),
        error: Option<&str>,
    ) {
        let now = Instant::now();
        let limit = if error.is_some() { &self.not_vouched } else { &self.unusable };
        let spki = leaf.filter(|_| error.is_some()).and_then(|it| spki::of_certificate(it).ok());
        let fingerprint = spki.map(|spki| Fingerprint::of(spki).to_string());
        let service = asked.authorizer.to_owned();
        let permitted = limit.permit(LoggedUnusable { service, result, reason, fingerprint }, now);
        log_dropped(limit.take_dropped(now));
        let Some(left_out) = permitted else { return };
        let leaf = leaf.map(CertificateSummary::new);
        let leaf = leaf.as_ref().filter(|leaf| !leaf.fingerprint.is_empty());
        let LoggedClient { subject, issuer, serial, fingerprint, dns_names, uris, emails, .. } =
            LoggedClient::new(leaf);
        warn!(
            target: "keygate::client_key",
            service = asked.authorizer,
            asker = %asked.asker,
            client = asked.client.map(tracing::field::display),
            sni = asked.sni.map(bounded),
            object = asked.object.map(bounded),
            subject,
            issuer,
            serial,
            fingerprint,
            dns_names,
            uris,
            emails,
            result,
            reason,
            error = error.map(bounded),
            left_out,
            "question denied, its certificate cannot be used"
        );
    }

    /// Logs a connection of a peer that may not ask. `reason` is the rule in words.
    pub(crate) fn unauthorized(
        &self,
        authorizer: &str,
        asker: &dyn Display,
        key: AskerKey,
        reason: &'static str,
    ) {
        let now = Instant::now();
        let key = LoggedUnauthorized { service: authorizer.to_owned(), asker: key, reason };
        let permitted = self.unauthorized.permit(key, now);
        log_dropped(self.unauthorized.take_dropped(now));
        if let Some(left_out) = permitted {
            warn!(
                service = authorizer,
                %asker, reason, left_out, "peer may not ask, closing connection"
            );
        }
    }

    /// Logs a connection of an asker that has all of its connections open.
    pub(crate) fn busy(&self, authorizer: &str, asker: &dyn Display, key: AskerKey) {
        let now = Instant::now();
        let key = LoggedUnauthorized { service: authorizer.to_owned(), asker: key, reason: "busy" };
        let permitted = self.unauthorized.permit(key, now);
        log_dropped(self.unauthorized.take_dropped(now));
        if let Some(left_out) = permitted {
            warn!(service = authorizer, %asker, left_out, "no free connection for an asker");
        }
    }

    /// Logs a connection that is closed, or gets 429, because its address has more than `limit`.
    pub(crate) fn limited(&self, peer: SocketAddr, limit: usize) {
        if let Some(left_out) = self.permit_over_share("connections", peer) {
            let remedy = "raise limits.max_connections_per_ip, or set accept_proxy if the address \
                          is a load balancer that sends a PROXY header";
            warn!(%peer, limit, remedy, left_out, "too many connections from one address");
        }
    }

    /// Logs a client that holds its share of the memory for buffers.
    pub(crate) fn over_share(
        &self,
        peer: SocketAddr,
        class: BufferClass,
        fingerprint: Option<&str>,
    ) {
        let class = class.as_str();
        if let Some(left_out) = self.permit_over_share(class, peer) {
            warn!(%peer, class, fingerprint, left_out, "client holds its share of the memory");
        }
    }

    /// Logs a connection that is closed because its client holds its share of the `limit`.
    pub(crate) fn over_share_of_places(&self, peer: SocketAddr, service: &str, limit: usize) {
        if let Some(left_out) = self.permit_over_share("places", peer) {
            let remedy = "raise limits.max_connections if one key has many clients";
            warn!(
                %peer, service, limit, remedy, left_out, "client holds its share of max_connections"
            );
        }
    }

    /// Whether a line about a share of `what` may be logged: the number of lines left out before it.
    fn permit_over_share(&self, what: &'static str, peer: SocketAddr) -> Option<u64> {
        let now = Instant::now();
        let permitted = self.over_share.permit((what, network_of(peer.ip())), now);
        log_dropped(self.over_share.take_dropped(now));
        permitted
    }

    /// Logs a client whose HTTP/2 connection is ended because of too many resets, errors or control
    /// frames.
    pub(crate) fn misuse(
        &self,
        peer: SocketAddr,
        service: &Service,
        fingerprint: Option<&str>,
        misuse: Misuse,
    ) {
        let now = Instant::now();
        let service = &service.config.name;
        let key = LoggedMisuse { misuse, service: service.clone(), network: network_of(peer.ip()) };
        let permitted = self.misuses.permit(key, now);
        log_dropped(self.misuses.take_dropped(now));
        let Some(left_out) = permitted else { return };
        match misuse {
            Misuse::ControlFrames => {
                warn!(%peer, %service, fingerprint, left_out, "too many control frames, closing connection");
            }
            Misuse::Resets => {
                warn!(%peer, %service, fingerprint, left_out, "too many reset streams, closing connection");
            }
        }
    }

    /// Logs a client that gets upstream connections of its own.
    pub(crate) fn isolation(&self, peer: SocketAddr, service: &Service, fingerprint: Option<&str>) {
        let now = Instant::now();
        let service = &service.config.name;
        let key = (service.clone(), network_of(peer.ip()));
        let permitted = self.isolations.permit(key, now);
        log_dropped(self.isolations.take_dropped(now));
        if let Some(left_out) = permitted {
            warn!(%peer, %service, fingerprint, left_out, "client ends upstream connections, isolating it");
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

fn log_dropped(dropped: Option<u64>) {
    if let Some(left_out) = dropped {
        warn!(left_out, "too many clients for the log, the metrics count all of them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_peers_that_may_not_ask_are_limited_for_each_network_and_user() {
        let log = RefusalLog::new(RecentHits::default(), Duration::from_secs(60));
        let reject = |key, reason| log.unauthorized("edge", &"asker", key, reason);
        let lines = || log.unauthorized.count_recent(Instant::now(), |_| true);
        for host in 0..1000 {
            let address = format!("2001:db8::{host:x}").parse().unwrap();
            reject(AskerKey::from_address(address), "its address is not in askers.from");
        }
        assert_eq!(lines(), 1, "one host may use all addresses of a /64");
        reject(AskerKey::from_address("192.0.2.1".parse().unwrap()), "it has no certificate");
        reject(AskerKey::User(Some(33)), "its user id is not in askers.uids");
        reject(AskerKey::User(Some(34)), "its user id is not in askers.uids");
        assert_eq!(lines(), 4);
    }
}
