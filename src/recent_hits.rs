//! The clients that were refused or flagged: who they are, how often they came, and what was done.
//!
//! It answers "who would have been refused this week" and lives in memory alone: a restart forgets.
//! Bounded: of more than [`MOST`] clients those not seen for the longest time are forgotten, and
//! counted. Only hits come here, so that workers share it: a clean client never does.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::CertificateDer;
use serde::Serialize;

use crate::guard::{Decision, JudgedAt, Verdict};
use crate::spki::Encoding;
use crate::tls::CertificateSummary;
use crate::unix_time;

/// How many clients are remembered: some 2 MiB, and ten times that if all their names are as long as may be.
pub const MOST: usize = 2000;

/// The clients that were refused or flagged.
#[derive(Debug, Clone, Default)]
pub struct RecentHits(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    seen: HashMap<Key, Arc<RecentHit>>,
    forgotten: u64,
}

/// One client of a service with one verdict. Without a certificate a client is its address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    service: Arc<str>,
    fingerprint: String,
    address: Option<IpAddr>,
    verdict: &'static str,
    action: &'static str,
}

/// A client that was refused or flagged. Times are in seconds since the Unix epoch.
#[derive(Debug, Clone, Serialize)]
pub struct RecentHit {
    /// The service that it asked for.
    pub service: String,
    /// `probable`, `listed`, …
    pub verdict: &'static str,
    /// `reject`, `flag` or `header`.
    pub action: &'static str,
    /// When it was seen last, in a handshake, a resumed session, or on an open connection.
    pub stage: &'static str,
    /// Where it came from last.
    pub address: String,
    /// Of its certificate; nothing of a client without.
    #[serde(flatten)]
    pub client: Option<CertificateSummary>,
    /// What its key was found in.
    #[serde(flatten)]
    pub found: Found,
    /// When it was first seen.
    pub first_seen: u64,
    /// When it was last seen.
    pub last_seen: u64,
    /// How often.
    pub count: u64,
}

/// Where a key was found, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Found {
    /// The filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Its revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u32>,
    /// How often a key that is in none of the filters is taken for one that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_positive_ratio: Option<f64>,
    /// The list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// Which of the key's encodings was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<&'static str>,
    /// The certificate of the chain whose key it is, if that is not the client's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_subject: Option<String>,
    /// SHA-256 of its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_fingerprint: Option<String>,
}

impl Found {
    fn of(chain: &[CertificateDer<'_>], verdict: &Verdict) -> Self {
        // Of the client's own key the rest speaks.
        let issuer = verdict.position().filter(|position| *position > 0);
        let issuer = issuer.and_then(|position| chain.get(position)).map(CertificateSummary::of);
        let (found_subject, found_fingerprint) =
            issuer.map(|issuer| (issuer.subject, issuer.fingerprint)).unzip();
        let hit = verdict.hit();
        Self {
            filter: hit.map(|hit| hit.filter.to_string()),
            revision: hit.map(|hit| hit.revision),
            false_positive_ratio: hit.map(|hit| hit.false_positive_ratio),
            list: verdict.listing().map(|listing| listing.list.to_string()),
            encoding: verdict.encoding().map(Encoding::as_str),
            found_subject,
            found_fingerprint,
        }
    }
}

impl RecentHit {
    /// A client that is seen now.
    #[must_use]
    pub fn new(
        peer: SocketAddr,
        service: &str,
        chain: &[CertificateDer<'_>],
        verdict: &Verdict,
        judged_at: JudgedAt,
        decision: Decision,
    ) -> Self {
        let now = unix_time::now();
        Self {
            service: service.to_owned(),
            verdict: verdict.as_str(),
            action: decision.as_str(),
            stage: judged_at.as_str(),
            address: peer.ip().to_string(),
            client: chain.first().map(CertificateSummary::of),
            found: Found::of(chain, verdict),
            first_seen: now,
            last_seen: now,
            count: 1,
        }
    }

    /// SHA-256 of its key, in hex; empty without a certificate.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        self.client.as_ref().map_or("", |client| &client.fingerprint)
    }
}

impl RecentHits {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a client.
    pub fn note(&self, peer: IpAddr, sighting: RecentHit) {
        let fingerprint = sighting.fingerprint().to_owned();
        let key = Key {
            service: sighting.service.as_str().into(),
            address: fingerprint.is_empty().then_some(peer),
            fingerprint,
            verdict: sighting.verdict,
            action: sighting.action,
        };
        let mut inner = self.inner();
        if let Some(known) = inner.seen.get_mut(&key) {
            let (first_seen, count) = (known.first_seen, known.count.saturating_add(1));
            *known = Arc::new(RecentHit { first_seen, count, ..sighting });
            return;
        }
        if inner.seen.len() >= MOST {
            inner.forget_the_oldest();
        }
        inner.seen.insert(key, Arc::new(sighting));
    }

    /// Those that are remembered, the last first; and how many were forgotten.
    #[must_use]
    pub fn all(&self) -> (Vec<Arc<RecentHit>>, u64) {
        let inner = self.inner();
        let mut all: Vec<_> = inner.seen.values().cloned().collect();
        let forgotten = inner.forgotten;
        drop(inner);
        all.sort_by(|one, other| {
            let newest = other.last_seen.cmp(&one.last_seen);
            newest.then_with(|| one.fingerprint().cmp(other.fingerprint()))
        });
        (all, forgotten)
    }
}

impl Inner {
    /// A tenth at once: a flood of clients is not to look for the oldest with each of them. Those
    /// without a certificate first, if they are many: anybody can be that from many addresses.
    fn forget_the_oldest(&mut self) {
        let strangers = self.seen.keys().filter(|key| key.address.is_some()).count();
        let only_strangers = strangers >= MOST / 10;
        let goes = |key: &Key| !only_strangers || key.address.is_some();
        let candidates = self.seen.iter().filter(|(key, _)| goes(key));
        let mut times: Vec<u64> = candidates.map(|(_, sighting)| sighting.last_seen).collect();
        times.sort_unstable();
        let Some(limit) = times.get(MOST / 10 - 1).copied() else { return };
        let before = self.seen.len();
        let mut most = MOST / 10;
        self.seen.retain(|key, sighting| {
            let goes = goes(key) && sighting.last_seen <= limit && most > 0;
            most = most.saturating_sub(goes.into());
            !goes
        });
        let gone = before.saturating_sub(self.seen.len());
        self.forgotten = self.forgotten.saturating_add(gone as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: usize) -> SocketAddr {
        let number = u32::try_from(number).unwrap();
        SocketAddr::from((std::net::Ipv4Addr::from(number), 1))
    }

    fn without_certificate(from: usize, decision: Decision, last_seen: u64) -> RecentHit {
        let seen = RecentHit::new(
            peer(from),
            "s",
            &[],
            &Verdict::Unchecked,
            JudgedAt::FullHandshake,
            decision,
        );
        RecentHit { first_seen: last_seen, last_seen, ..seen }
    }

    #[test]
    fn a_client_is_one_however_often_it_comes() {
        let recent_hits = RecentHits::default();
        for last_seen in [5, 7, 9] {
            let seen = without_certificate(1, Decision::Flag, last_seen);
            recent_hits.note(peer(1).ip(), seen);
        }
        recent_hits.note(peer(2).ip(), without_certificate(2, Decision::Flag, 8));
        recent_hits.note(peer(1).ip(), without_certificate(1, Decision::Reject, 1));
        let (all, forgotten) = recent_hits.all();
        let all: Vec<_> = all
            .iter()
            .map(|seen| (&*seen.address, seen.action, seen.first_seen, seen.count))
            .collect();
        assert_eq!(
            all,
            [("0.0.0.1", "flag", 5, 3), ("0.0.0.2", "flag", 8, 1), ("0.0.0.1", "reject", 1, 1)]
        );
        assert_eq!(forgotten, 0);
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten_and_counted() {
        let recent_hits = RecentHits::default();
        for number in 0..3 * MOST {
            let seen = without_certificate(number, Decision::Reject, number as u64);
            recent_hits.note(peer(number).ip(), seen);
        }
        let (all, forgotten) = recent_hits.all();
        assert!((MOST * 9 / 10..=MOST).contains(&all.len()), "{}", all.len());
        assert_eq!(all.len() as u64 + forgotten, 3 * MOST as u64);
        let oldest = all.last().unwrap().last_seen;
        assert_eq!(oldest, 3 * MOST as u64 - all.len() as u64, "those that are left are the last");
    }

    #[test]
    fn strangers_do_not_push_out_those_who_have_shown_who_they_are() {
        let recent_hits = RecentHits::default();
        let known = RecentHit {
            client: Some(CertificateSummary { fingerprint: "ab".to_owned(), ..Default::default() }),
            ..without_certificate(1, Decision::Reject, 0)
        };
        recent_hits.note(peer(1).ip(), known);
        for number in 0..3 * MOST {
            recent_hits.note(peer(number).ip(), without_certificate(number, Decision::Reject, 1));
        }
        assert!(recent_hits.all().0.iter().any(|seen| seen.fingerprint() == "ab"));
    }

    #[test]
    fn many_of_one_moment_are_bounded_too() {
        let recent_hits = RecentHits::default();
        for number in 0..2 * MOST {
            recent_hits.note(peer(number).ip(), without_certificate(number, Decision::Reject, 1));
        }
        assert!(recent_hits.all().0.len() <= MOST);
    }
}
