use keygate_core::guard::{Decision, JudgedAt, Judgement, NameCheck, Verdict, WeakCheck, Weakness};
use keygate_core::tls::CertificateSummary;
use rustls::pki_types::CertificateDer;

use super::hit::found_chain;
use super::*;

fn address(number: usize) -> IpAddr {
    IpAddr::from(std::net::Ipv4Addr::from(u32::try_from(number).unwrap()))
}

fn anonymous(from: usize, decision: Decision, last_seen: u64) -> RecentHit {
    let judged_at = JudgedAt::FullHandshake;
    let (verdict, names) = (Verdict::Unchecked, NameCheck::NotChecked);
    let judgement = Judgement { reason: verdict.kind(), verdict, decision, names };
    let hit = RecentHit::new(Some(address(from)), "s", &[], &judgement, judged_at);
    RecentHit { first_seen: last_seen, last_seen, ..hit }
}

fn record(hits: &RecentHits, from: usize, last_seen: u64) {
    hits.record(anonymous(from, Decision::Reject, last_seen));
}

#[test]
fn repeated_hits_of_a_client_are_counted() {
    let hits = RecentHits::default();
    for last_seen in [5, 7, 9] {
        hits.record(anonymous(1, Decision::Flag, last_seen));
    }
    hits.record(anonymous(2, Decision::Flag, 8));
    record(&hits, 1, 1);
    let all = hits.all();
    let found: Vec<_> =
        all.hits.iter().map(|hit| (hit.address, hit.action, hit.first_seen, hit.count)).collect();
    assert_eq!(
        found,
        [
            (Some(address(1)), "flag", 5, 3),
            (Some(address(2)), "flag", 8, 1),
            (Some(address(1)), "reject", 1, 1)
        ]
    );
    assert_eq!(all.evicted, 0);
}

#[test]
fn the_chain_of_a_hit_stays_when_the_key_is_seen_without_one() {
    let hits = RecentHits::default();
    let chain = || vec![Box::from([1, 2, 3])];
    for (last_seen, chain) in [(1, chain()), (2, Vec::new())] {
        hits.record(RecentHit { chain, ..anonymous(1, Decision::Reject, last_seen) });
    }
    let all = hits.all();
    assert_eq!((all.hits[0].last_seen, &all.hits[0].chain), (2, &chain()));
}

#[test]
fn the_addresses_of_one_ipv6_network_are_one_anonymous_client() {
    let hits = RecentHits::default();
    for address in ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"] {
        let address = Some(address.parse().unwrap());
        hits.record(RecentHit { address, ..anonymous(1, Decision::Reject, 1) });
    }
    let mut counts: Vec<_> = hits.all().hits.iter().map(|hit| hit.count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
}

#[test]
fn the_oldest_clients_are_evicted_and_counted() {
    let hits = RecentHits::default();
    for number in 0..3 * MAX_CLIENTS {
        record(&hits, number, number as u64);
    }
    let AllHits { hits, evicted } = hits.all();
    assert!((MAX_CLIENTS * 9 / 10..=MAX_CLIENTS).contains(&hits.len()), "{}", hits.len());
    assert_eq!(hits.len() as u64 + evicted, 3 * MAX_CLIENTS as u64);
    let oldest = hits.last().unwrap().last_seen;
    assert_eq!(oldest, 3 * MAX_CLIENTS as u64 - hits.len() as u64, "the newest remain");
}

#[test]
fn clients_without_a_certificate_do_not_evict_clients_with_one() {
    let hits = RecentHits::default();
    let certificate = CertificateSummary { fingerprint: "ab".to_owned(), ..Default::default() };
    let known = RecentHit { client: Some(certificate), ..anonymous(1, Decision::Reject, 0) };
    hits.record(known);
    for number in 0..3 * MAX_CLIENTS {
        record(&hits, number, 1);
    }
    assert!(hits.all().hits.iter().any(|hit| hit.fingerprint() == "ab"));
}

#[test]
fn clients_that_are_not_allowed_do_not_evict_clients_with_a_hit() {
    let hits = RecentHits::default();
    let with_key = |number: usize, result| {
        let fingerprint = format!("{number:x}");
        let client = Some(CertificateSummary { fingerprint, ..Default::default() });
        RecentHit { client, result, ..anonymous(1, Decision::Reject, number as u64) }
    };
    hits.record(with_key(0, None));
    for number in 1..3 * MAX_CLIENTS {
        hits.record(with_key(number, Some(NameCheck::NOT_ALLOWED)));
    }
    assert!(hits.all().hits.iter().any(|hit| hit.result.is_none()));
}

#[test]
fn many_clients_in_the_same_second_are_bounded() {
    let hits = RecentHits::default();
    for number in 0..2 * MAX_CLIENTS {
        record(&hits, number, 1);
    }
    assert!(hits.all().hits.len() <= MAX_CLIENTS);
}

#[test]
fn certificates_are_kept_of_a_found_key_only_and_are_bounded() {
    let certificates = [9000, 7000, 500].map(|size| CertificateDer::from(vec![0; size]));
    let chain: Vec<_> = certificates.iter().collect();
    let sizes = |verdict: Verdict| -> Vec<usize> {
        found_chain(&chain, &verdict).iter().map(|certificate| certificate.len()).collect()
    };
    let (check, position, underlying) = (WeakCheck::Roca, 0, None);
    assert_eq!(sizes(Verdict::Weak(Weakness { check, position, underlying })), [9000, 7000]);
    assert!(sizes(Verdict::Unchecked).is_empty());
}
