//! A judgement of a clean key allocates nothing, with any filters, lists, exceptions and answers.
//! A check of rules by name allocates nothing either. A list takes no more than its entries.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test fails where it stands")]

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::badkeys::Blocklist;
use keygate_core::guard::{
    AllowKind, AllowRules, Answers, Decision, ExactList, Exception, FingerprintList, Guard,
    Judgement, NameCheck, NamedBlocklist, NamedFilter, Policy, Verdict, WeakChecks,
};
use keygate_core::pkbf::{Filter, Parameters};
use keygate_core::spki::{Fingerprint, RsaExponents};

use rcgen::{CertificateParams, SanType};
use support::pki::{Kind, Pki};

/// A certificate with names of each kind.
fn names() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![
        SanType::URI("spiffe://example.org/a/b/c".try_into().unwrap()),
        SanType::Rfc822Name("a@example.com".try_into().unwrap()),
        SanType::DnsName("A.clients.example".try_into().unwrap()),
    ];
    parameters
}

/// A thousand rules of each kind, of which only `dns` can name the client.
fn rules(dns: &str) -> Arc<AllowRules> {
    let mut rules = AllowRules::default();
    rules.add(AllowKind::Dns, dns).unwrap();
    for number in 0..1000 {
        for (kind, rule) in [
            (AllowKind::CommonName, format!("client {number}")),
            (AllowKind::Dns, format!("host{number}.clients.example")),
            (AllowKind::Email, format!("a{number}@example.com")),
            (AllowKind::OrganizationalUnit, format!("unit {number}")),
            (AllowKind::Spki, Fingerprint::of(format!("{number}").as_bytes()).to_string()),
            (AllowKind::Uri, format!("spiffe://example.org/a/*/{number}")),
            (AllowKind::Uri, format!("spiffe://example.org/a/b/{number}/**")),
        ] {
            rules.add(kind, &rule).unwrap();
        }
    }
    Arc::new(rules)
}

#[test]
fn a_clean_key_is_judged_without_an_allocation() {
    let pki = Pki::new();
    let filters = ["one", "two"].map(|name| {
        let filter = Filter::new(Parameters::for_entries(1000, 1e-9).unwrap()).unwrap();
        Arc::new(NamedFilter { name: name.into(), filter, sha256: [0; 32] })
    });
    let other = Fingerprint::of(b"another key");
    let lines = format!("{other}\nrsa-modulus:{other}\nec-x:{other}");
    let list = Arc::new(FingerprintList::parse("march", &lines).unwrap());
    let blocklist = Arc::new(NamedBlocklist {
        name: "badkeys".into(),
        blocklist: Blocklist::parse(b"0123456789abcdef".to_vec()).unwrap(),
        sha256: [0; 32],
        findings: [(1, "debianssl".into())].into_iter().collect(),
        date: None,
        is_deprecated: false,
    });
    let exception = Exception {
        key: other.into(),
        until: SystemTime::now(),
        reason: "it is replaced soon".to_owned(),
    };
    let mut answers = Answers::new(["one".into()]);
    (0_u32..100).for_each(|key| {
        answers.confirm(&key.to_be_bytes());
        answers.clear(Fingerprint::of(&(key + 100).to_be_bytes()), SystemTime::now());
    });
    let products = FingerprintList::parse("products", "rsa-primes:2048:7").unwrap();
    let guards = [
        Guard::of_list(ExactList::from(Arc::new(products))),
        Guard::new(Vec::from(filters.clone())),
        Guard::new(Vec::from(filters.clone())).with_answers(answers.into()),
        Guard::new(Vec::from(filters.clone())).with_lists([Arc::clone(&blocklist)]),
        Guard::new(Vec::from(filters.clone())).with_weak_checks(WeakChecks::ALL),
        Guard::new(Vec::from(filters))
            .with_related_exponents("one", RsaExponents::ALL)
            .with_lists([ExactList::from(list), blocklist.into()])
            .with_weak_checks(WeakChecks::ALL)
            .with_exceptions([exception]),
    ];
    for kind in Kind::ALL.into_iter().chain([Kind::MlDsa65]) {
        let leaf = pki.client("client", kind).der;
        for guard in &guards {
            let now = SystemTime::now();
            let judge = || guard.judge(black_box(&leaf), now);
            let verdict = judge();
            assert!([Verdict::Clean, Verdict::Unchecked].contains(&verdict), "{verdict:?}");
            let counted = allocation_counter::measure(|| {
                black_box(judge());
            });
            assert_eq!(counted.count_total, 0, "{kind:?}: {counted:?}");
        }
    }
    let client = pki.client_with("client", Kind::P256, names());
    let guard = Guard::new(vec![]);
    let (allowed, other) = (rules("*.clients.example"), rules("*.others.example"));
    for (allow, expected) in [(allowed, NameCheck::Allowed), (other, NameCheck::NotAllowed)] {
        let policy =
            Policy { allow: Some(allow), on_unchecked: Decision::Admit, ..Policy::default() };
        let now = SystemTime::now();
        let judge = || Judgement::new(&guard, &policy, black_box([&client.der]), now);
        assert_eq!(judge().names, expected);
        let counted = allocation_counter::measure(|| {
            black_box(judge());
        });
        assert_eq!(counted.count_total, 0, "{expected:?}: {counted:?}");
    }
    // The counter itself works.
    assert!(allocation_counter::measure(|| drop(black_box(vec![0_u8; 64]))).count_total > 0);
}

/// A hash set takes three times as much at its peak, and so does a buffer that grows.
#[test]
fn a_list_takes_33_bytes_for_each_fingerprint_also_while_it_is_read() {
    const KEYS: u32 = 50_000;
    let lines = (0..KEYS).map(|key| format!("{}\n", Fingerprint::of(&key.to_be_bytes())));
    let text: String = lines.collect();
    let mut list = None;
    let counted = allocation_counter::measure(|| {
        list = Some(FingerprintList::parse("march", &text).unwrap());
    });
    assert_eq!(list.unwrap().len(), KEYS as usize);
    assert!(counted.bytes_max < 33 * u64::from(KEYS) + 1024, "{counted:?}");
}

/// The checks allocate, so that none is made. A swap judges thousands of open connections.
#[test]
fn a_guard_judges_a_known_key_without_the_checks_of_weak_keys() {
    let pki = Pki::new();
    let filter = || {
        let filter = Filter::new(Parameters::for_entries(1000, 1e-9).unwrap()).unwrap();
        Arc::new(NamedFilter { name: "one".into(), filter, sha256: [0; 32] })
    };
    for kind in [Kind::Rsa2048, Kind::Rsa4096] {
        let leaf = pki.client("client", kind).der;
        let now = SystemTime::now();
        let [new, known] = [(); 2].map(|()| {
            let products = FingerprintList::parse("products", "rsa-primes:2048:7").unwrap();
            let guard = Guard::new(vec![filter()]).with_weak_checks(WeakChecks::ALL);
            let guard = guard.with_lists([Arc::new(products)]);
            let counted = allocation_counter::measure(|| {
                let verdict = guard.judge(black_box(&leaf), now);
                assert_eq!(verdict, Verdict::Clean);
            });
            counted.count_total
        });
        assert!(known == 0 && new > 0, "{kind:?}: {known} {new}");
    }
}
