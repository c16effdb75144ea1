//! Log lines about clients whose key was rejected or flagged.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use keygate_core::guard::{Decision, JudgedAt, Judgement, NameCheck};
use keygate_wire::permit::network_of;
use rustls::pki_types::CertificateDer;
use tracing::warn;

use super::{AskedClient, LoggedClient, RefusalLog, bounded, log_dropped};
use crate::recent_hits::RecentHit;
use crate::snapshot::Service;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct LoggedHit {
    service: String,
    fingerprint: String,
    verdict: &'static str,
    action: &'static str,
    result: Option<&'static str>,
    stage: &'static str,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct LoggedAnonymous {
    service: String,
    /// `None` if the host that asked did not send the address.
    network: Option<IpAddr>,
    action: &'static str,
    result: Option<&'static str>,
}

/// The other end of the connection on which a client was judged.
enum HitPeer<'a> {
    /// The host that asked an authorizer.
    Asker(&'a AskedClient<'a>),
    /// The client itself.
    Client(SocketAddr),
}

impl RefusalLog {
    /// Logs and remembers a client that was rejected or flagged. `path` is the verified path, leaf
    /// first.
    pub(crate) fn hit(
        &self,
        peer: SocketAddr,
        service: &Service,
        path: &[&CertificateDer<'_>],
        judgement: &Judgement,
        judged_at: JudgedAt,
    ) {
        let (address, service) = (Some(peer.ip()), &service.config.name);
        let hit = RecentHit::new(address, service, path, judgement, judged_at);
        self.log_and_remember(hit, &HitPeer::Client(peer), outcome(judgement, judged_at));
    }

    /// Logs and remembers a client that another proxy asked about, and that was rejected or
    /// flagged. `chain` is what was judged, leaf first. The host has verified the proof of
    /// possession.
    pub(crate) fn asked_hit(
        &self,
        asked: &AskedClient<'_>,
        chain: &[&CertificateDer<'_>],
        judgement: &Judgement,
    ) {
        let (address, authorizer, judged_at) = (asked.client, asked.authorizer, asked.stage);
        let hit = RecentHit::new(address, authorizer, chain, judgement, judged_at);
        self.log_and_remember(hit, &HitPeer::Asker(asked), outcome(judgement, judged_at));
    }

    /// Logs and remembers a client that is admitted with a certificate for servers only. `path` is the
    /// verified path, leaf first.
    pub(crate) fn server_auth(
        &self,
        peer: SocketAddr,
        service: &Service,
        path: &[&CertificateDer<'_>],
        judgement: &Judgement,
        judged_at: JudgedAt,
    ) {
        let (address, service) = (Some(peer.ip()), &service.config.name);
        let hit = RecentHit::new(address, service, path, judgement, judged_at);
        self.log_and_remember(hit.with_server_auth(), &HitPeer::Client(peer), FOR_SERVERS);
    }

    /// Logs and remembers such a client that another proxy asked about.
    pub(crate) fn asked_server_auth(
        &self,
        asked: &AskedClient<'_>,
        chain: &[&CertificateDer<'_>],
        judgement: &Judgement,
    ) {
        let (address, authorizer) = (asked.client, asked.authorizer);
        let hit = RecentHit::new(address, authorizer, chain, judgement, asked.stage);
        self.log_and_remember(hit.with_server_auth(), &HitPeer::Asker(asked), FOR_SERVERS);
    }

    fn log_and_remember(&self, hit: RecentHit, peer: &HitPeer<'_>, outcome: &str) {
        let now = Instant::now();
        let service = hit.service.clone();
        let (permitted, dropped) = match &hit.client {
            Some(client) => {
                let key = LoggedHit {
                    service,
                    fingerprint: client.fingerprint.clone(),
                    verdict: hit.verdict,
                    action: hit.action,
                    result: hit.result,
                    stage: hit.stage,
                };
                let limit = if hit.result.is_some() { &self.unnamed } else { &self.hits };
                (limit.permit(key, now), limit.take_dropped(now))
            }
            None => {
                let network = hit.address.map(network_of);
                let (action, result) = (hit.action, hit.result);
                let key = LoggedAnonymous { service, network, action, result };
                (self.anonymous.permit(key, now), self.anonymous.take_dropped(now))
            }
        };
        if let Some(left_out) = permitted {
            log_hit(peer, &hit, outcome, left_out);
        }
        log_dropped(dropped);
        self.recent_hits.record(hit);
    }
}

const FOR_SERVERS: &str = "certificate is for servers only";

fn outcome(judgement: &Judgement, judged_at: JudgedAt) -> &'static str {
    let is_live = judged_at == JudgedAt::Reload;
    match (judgement.decision, judgement.names) {
        (Decision::Admit | Decision::Annotate | Decision::Flag, _) => "key flagged",
        (Decision::Reject, NameCheck::NotAllowed) if is_live => "not allowed, closing connection",
        (Decision::Reject, NameCheck::NotAllowed) => "not allowed",
        (Decision::Reject, NameCheck::Allowed | NameCheck::NotChecked) if is_live => {
            "key rejected, closing connection"
        }
        (Decision::Reject, NameCheck::Allowed | NameCheck::NotChecked) => "key rejected",
    }
}

fn log_hit(peer: &HitPeer<'_>, hit: &RecentHit, outcome: &str, left_out: u64) {
    let (peer, asked) = match peer {
        HitPeer::Asker(asked) => (None, Some(asked)),
        HitPeer::Client(peer) => (Some(peer), None),
    };
    let client = LoggedClient::new(hit.client.as_ref());
    let LoggedClient { subject, issuer, serial, fingerprint, key_algorithm, .. } = client;
    let LoggedClient { dns_names, uris, emails, .. } = client;
    let found = &hit.source;
    let proof_of_key = found.proof.as_deref();
    let is_proved_to_host = hit.stage == JudgedAt::Asked.as_str();
    warn!(
        target: "keygate::client_key",
        peer = peer.map(tracing::field::display),
        service = hit.service,
        asker = asked.map(|asked| tracing::field::display(asked.asker)),
        client = asked.and_then(|asked| asked.client).map(tracing::field::display),
        sni = asked.and_then(|asked| asked.sni).map(bounded),
        object = asked.and_then(|asked| asked.object).map(bounded),
        subject,
        issuer,
        serial,
        fingerprint,
        key_algorithm,
        dns_names,
        uris,
        emails = emails.filter(|_| hit.result.is_some()),
        stage = hit.stage,
        result = hit.result,
        verdict = hit.verdict,
        action = hit.action,
        filter = found.filter,
        revision = found.revision,
        list = found.list,
        finding = found.finding,
        check = found.check,
        found_subject = found.found_subject,
        found_fingerprint = found.found_fingerprint,
        encoding = found.encoding,
        proof = if is_proved_to_host { Some("host") } else { proof_of_key },
        key_proof = proof_of_key.filter(|_| is_proved_to_host),
        false_positive_ratio = found.false_positive_ratio,
        left_out,
        "client {outcome}"
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::recent_hits::RecentHits;
    use keygate_core::guard::Verdict;
    use keygate_core::tls::CertificateSummary;

    #[test]
    fn clients_that_are_not_allowed_suppress_no_line_about_a_key() {
        let log = RefusalLog::new(RecentHits::default(), Duration::from_secs(3600));
        let peer = HitPeer::Client(SocketAddr::from(([127, 0, 0, 1], 1)));
        let record = |number: usize, names| {
            let decision = Decision::Reject;
            let verdict = Verdict::Unchecked;
            let judgement = Judgement { reason: verdict.kind(), verdict, decision, names };
            let hit = RecentHit::new(None, "s", &[], &judgement, JudgedAt::FullHandshake);
            let fingerprint = format!("{number:x}");
            let client = Some(CertificateSummary { fingerprint, ..Default::default() });
            log.log_and_remember(RecentHit { client, ..hit }, &peer, "test");
        };
        (0..5000).for_each(|number| record(number, NameCheck::NotAllowed));
        let lines = || log.hits.count_recent(Instant::now(), |_| true);
        assert_eq!(lines(), 0);
        record(5000, NameCheck::NotChecked);
        assert_eq!(lines(), 1);
    }
}
