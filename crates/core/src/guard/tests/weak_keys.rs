//! Weak keys among the other findings on a key.

use num_bigint::BigUint;

use super::lists::{list, number_line};
use super::*;
use crate::guard::answers::Answers;
use crate::spki::KeyDigest;

/// An RSA key whose modulus is the product of two Mersenne primes.
fn rsa_key(exponents: [u32; 2]) -> Vec<u8> {
    let [p, q] = exponents.map(|exponent| (BigUint::from(1_u32) << exponent) - 1_u32);
    rsa_key_of(&(p * q), 65_537)
}

fn rsa_key_of(modulus: &BigUint, exponent: u32) -> Vec<u8> {
    let element = |tag: u8, value: &[u8]| {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        match length {
            [0, short @ 0..=0x7f] => [&[tag, short], value].concat(),
            [0, long] => [&[tag, 0x81, long], value].concat(),
            [high, low] => [&[tag, 0x82, high, low], value].concat(),
        }
    };
    let integer = |number: &BigUint| {
        let mut bytes = number.to_bytes_be();
        if bytes[0] >= 0x80 {
            bytes.insert(0, 0);
        }
        element(2, &bytes)
    };
    let key = element(0x30, &[integer(modulus), integer(&exponent.into())].concat());
    let algorithm = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00".to_vec();
    element(0x30, &[algorithm, element(3, &[vec![0], key].concat())].concat())
}

fn weak(check: WeakCheck) -> Verdict {
    Verdict::Weak(Weakness { check, position: 0, underlying: None })
}

#[test]
fn a_weak_key_is_weak_with_any_exponent_whatever_filters_and_answers_say() {
    let square = rsa_key([1279, 1279]);
    let strong = rsa_key([1279, 607]);
    let checks = |checks: &[WeakCheck]| checks.iter().copied().collect::<WeakChecks>();
    let judge = |guard: &Guard, key: &[u8]| {
        let recorded =
            guard.judge_recorded(&RecordedKey::new(key, guard.weak_checks()), None, now());
        let verdict = guard.judge_key(key, now());
        assert_eq!(recorded, verdict, "a recorded client is judged in the same way");
        verdict
    };
    let all = guard(&[&square]).with_weak_checks(WeakChecks::ALL);
    for exponent in [3, 17, 65_537] {
        let verdict = judge(&all, &with_exponent(&square, exponent));
        assert_eq!(verdict.weakness().map(|it| it.check), Some(WeakCheck::Invalid));
    }
    let even = rsa_key_of(&((BigUint::from(1_u32) << 1279) - 1_u32), 4);
    assert_eq!(judge(&all, &even), weak(WeakCheck::Invalid));
    assert_eq!(judge(&all, &strong), Verdict::Clean);
    assert_eq!(judge(&all, &spki_of(&rcgen::PKCS_RSA_SHA256)), Verdict::Clean);
    assert_eq!(judge(&all, &certificate().1), Verdict::Clean);
    let fermat = guard(&[]).with_weak_checks(checks(&[WeakCheck::Fermat, WeakCheck::Roca]));
    assert_eq!(judge(&fermat, &square), weak(WeakCheck::Fermat));
    let others = checks(&[WeakCheck::Roca, WeakCheck::SmallFactors, WeakCheck::Wiener]);
    assert_eq!(judge(&guard(&[]).with_weak_checks(others), &square), Verdict::Clean);
    assert!(judge(&guard(&[&square]), &square).hit().is_some(), "no check");

    let mut answers = Answers::new(["lost".into()]);
    let until = now() + Duration::from_secs(1);
    answers.clear(Fingerprint::of(&square), until);
    answers.confirm(&strong);
    let answered = guard(&[&square, &strong]).with_answers(answers.into());
    assert_eq!(judge(&answered, &square).kind(), VerdictKind::Cleared, "no check");
    let answered = answered.with_weak_checks(WeakChecks::ALL);
    let cleared = judge(&answered, &square);
    assert_eq!(cleared.kind(), VerdictKind::Weak, "a clearance clears no weak key");
    assert_eq!(cleared.underlying().map(Verdict::kind), Some(VerdictKind::Cleared));
    assert_eq!(judge(&answered, &strong).kind(), VerdictKind::Confirmed);
}

/// A list or a check that is tried out with `flag` must not admit a key that a filter rejects.
#[test]
fn the_strictest_decision_on_a_key_applies_whatever_its_verdict_is() {
    const DECISIONS: [Decision; 4] =
        [Decision::Admit, Decision::Annotate, Decision::Flag, Decision::Reject];
    let square = rsa_key([1279, 1279]);
    let in_filter = |is_weak: bool, is_listed: bool| {
        let checks = if is_weak { WeakChecks::ALL } else { WeakChecks::NONE };
        let lists = is_listed.then(|| list("march", &[number_line(&square)]));
        guard(&[&square]).with_weak_checks(checks).with_lists(lists)
    };
    for (is_weak, is_listed) in [(false, false), (false, true), (true, false), (true, true)] {
        let guard = in_filter(is_weak, is_listed);
        let verdict = guard.judge_key(&square, now());
        let kind = match (is_listed, is_weak) {
            (true, _) => VerdictKind::Listed,
            (false, true) => VerdictKind::Weak,
            (false, false) => VerdictKind::Probable,
        };
        assert_eq!(verdict.kind(), kind);
        assert_eq!(verdict.weakness().is_some(), is_weak);
        assert!(verdict.hit().is_some_and(|hit| hit.position == 0));
        assert_eq!(verdict.clone().at(2).hit().map(|hit| hit.position), Some(2));
        let recorded =
            guard.judge_recorded(&RecordedKey::new(&square, guard.weak_checks()), None, now());
        assert_eq!(recorded, verdict);
        for on_listed in DECISIONS {
            for on_weak in DECISIONS {
                for on_probable in DECISIONS {
                    let policy = Policy { on_listed, on_weak, on_probable, ..Policy::default() };
                    let findings = [
                        is_listed.then_some((VerdictKind::Listed, on_listed)),
                        is_weak.then_some((VerdictKind::Weak, on_weak)),
                        Some((VerdictKind::Probable, on_probable)),
                    ];
                    let findings: Vec<_> = findings.into_iter().flatten().collect();
                    let strictest =
                        findings.iter().map(|(_, decision)| decision.strictness()).max();
                    let (reason, decision) = findings
                        .into_iter()
                        .find(|(_, decision)| Some(decision.strictness()) == strictest)
                        .unwrap();
                    assert_eq!(policy.decide(&verdict), decision, "{policy:?}");
                    assert_eq!(policy.deciding_finding(&verdict).kind(), reason, "{policy:?}");
                }
            }
        }
    }
}

#[test]
fn exceptions_and_lists_come_before_the_checks() {
    let square = rsa_key([1279, 1279]);
    let until = now() + Duration::from_secs(1);
    let checked = || guard(&[]).with_weak_checks(WeakChecks::ALL);
    let list = list("march", &[number_line(&square)]);
    let listed = checked().with_lists([list]);
    assert_eq!(listed.judge_key(&square, now()).kind(), VerdictKind::Listed);
    for key in [Fingerprint::of(&square).into(), KeyDigest::parse(&number_line(&square)).unwrap()] {
        let exception = Exception { key, until, reason: "replaced soon".to_owned() };
        let excepted = checked().with_exceptions([exception]);
        assert_eq!(excepted.judge_key(&square, now()), Verdict::Allowed);
        assert_eq!(excepted.judge_key(&square, until), weak(WeakCheck::Invalid));
    }
}

#[test]
fn a_key_that_is_too_large_for_the_checks_is_unchecked() {
    let [largest, larger] = [[4096, 4096], [4096, 4097]].map(|[p, q]| {
        ((BigUint::from(1_u32) << p) - 1_u32) * ((BigUint::from(1_u32) << q) - 1_u32)
    });
    let [largest, larger] = [&largest, &larger].map(|modulus| rsa_key_of(modulus, 65_537));
    let checked = |keys: &[&[u8]]| guard(keys).with_weak_checks(WeakChecks::ALL);
    assert_eq!(checked(&[]).judge_key(&largest, now()), weak(WeakCheck::Invalid));
    assert_eq!(checked(&[]).judge_key(&larger, now()), Verdict::Unchecked);
    assert!(checked(&[&larger]).judge_key(&larger, now()).hit().is_some(), "a hit stays one");
    assert_eq!(guard(&[]).judge_key(&larger, now()), Verdict::Clean, "without checks");
}

/// An RSA key in the place of the key of a certificate.
struct WeakPublicKey<'a>(&'a [u8]);

impl PublicKeyData for WeakPublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        &self.0[24..] // the content of the BIT STRING
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_RSA_SHA256
    }
}

#[test]
fn a_listed_or_weak_key_is_asked_about_only_if_an_answer_can_change_its_decision() {
    let spki = rsa_key([1279, 1279]);
    let issuer_key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(rcgen::CertificateParams::default(), issuer_key);
    let leaf = rcgen::CertificateParams::default().signed_by(&WeakPublicKey(&spki), &issuer);
    let leaf = leaf.unwrap().der().clone();
    let line = Fingerprint::of(&spki).to_string();
    let lost = || guard(&[&spki]).with_answers(Answers::new(["lost".into()]).into());
    let listed = lost().with_lists(vec![list("deny", &[line])]);
    let weak = lost().with_weak_checks(WeakChecks::ALL);
    const DECISIONS: [Decision; 4] =
        [Decision::Admit, Decision::Annotate, Decision::Flag, Decision::Reject];
    for on_other in DECISIONS {
        for on_probable in DECISIONS {
            for on_confirmed in DECISIONS {
                for on_cleared in DECISIONS {
                    let policy = Policy {
                        on_listed: on_other,
                        on_weak: on_other,
                        on_probable,
                        on_confirmed,
                        on_cleared,
                        ..Policy::default()
                    };
                    let [present, confirmed, cleared] = [on_probable, on_confirmed, on_cleared]
                        .map(|decision| on_other.stricter(decision));
                    let expected = present != confirmed || present != cleared;
                    for guard in [&listed, &weak] {
                        let open = guard.open_questions(&policy, &[&leaf], now());
                        assert_eq!(open.keys.len(), usize::from(expected), "{policy:?}");
                        assert!(expected || !open.is_decisive);
                    }
                    let open = lost().open_questions(&policy, &[&leaf], now());
                    assert_eq!(open.keys.len(), 1, "a key that only filters know");
                }
            }
        }
    }
}

/// A guard of a list with products of Mersenne primes for moduli of these sizes.
fn with_products(products: &[(u32, u32)]) -> Guard {
    let line = |(bits, exponent): &(u32, u32)| {
        format!("rsa-primes:{bits}:{:x}", (BigUint::from(1_u32) << *exponent) - 1_u32)
    };
    let lines: Vec<_> = products.iter().map(line).collect();
    Guard::of_list(list("products", &lines).into())
}

/// No key of another kind or size is looked up in such a list.
#[test]
fn a_list_of_products_alone_leaves_other_keys_unchecked() {
    let products = || with_products(&[(3482, 1279)]);
    let [weak_key, other_size, strong] = [[1279, 2203], [1279, 2281], [607, 2281]].map(rsa_key);
    let found = products().judge_key(&weak_key, now());
    assert_eq!(found.weakness().map(|it| it.check), Some(WeakCheck::SharedPrimes));
    for key in [&other_size, &strong, &certificate().1] {
        assert_eq!(products().judge_key(key, now()), Verdict::Unchecked);
        let Guard { shared_primes, weak_checks, .. } = products();
        let with_filter = Guard { shared_primes, weak_checks, ..guard(&[]) };
        assert_eq!(with_filter.judge_key(key, now()), Verdict::Clean);
        assert!(products().has_products_alone() && !with_filter.has_products_alone());
    }
    let digest = number_line(&other_size);
    let both = list("both", &[digest, format!("rsa-primes:3482:{:x}", 3)]);
    let both = Guard::of_list(both.into());
    assert_eq!(both.judge_key(&certificate().1, now()), Verdict::Clean);
    assert!(!both.has_products_alone());
    let empty = Guard::of_list(list("empty", &[]).into());
    assert_eq!(empty.judge_key(&strong, now()), Verdict::Clean, "as a list of digests");
}

/// Each list may have half of the room, and three lists have too much.
#[test]
fn too_many_products_leave_keys_of_the_size_unchecked() {
    let key = rsa_key([1279, 2203]);
    let lists = |count: u32| {
        let product =
            |it: u32| (BigUint::from(1_u32) << ((1_u64 << 32) / 3482 / 2 - u64::from(it))) - 1_u32;
        let list = |it| list("products", &[format!("rsa-primes:3482:{:x}", product(it))]);
        let guard = guard(&[]).with_lists((0..count).map(list));
        guard.with_weak_checks(WeakChecks::ALL)
    };
    assert_eq!(lists(2).judge_key(&key, now()), Verdict::Clean);
    assert_eq!(lists(3).judge_key(&key, now()), Verdict::Unchecked);
    assert_eq!(lists(3).judge_key(&rsa_key([1279, 2281]), now()), Verdict::Clean);
    let square = rsa_key([1741, 1741]);
    assert_eq!(lists(3).judge_key(&square, now()).kind(), VerdictKind::Weak, "the other checks");
    let off = [WeakCheck::Roca].into_iter().collect();
    assert_eq!(lists(3).with_weak_checks(off).judge_key(&key, now()), Verdict::Clean);
}

#[test]
fn products_and_the_other_checks_of_a_key_are_one_check() {
    let key = rsa_key([1279, 2203]);
    let judge = |guard: Guard| {
        let before = keys_checked();
        let verdict = guard.with_weak_checks(WeakChecks::ALL).judge_key(&key, now());
        (verdict.weakness().map(|it| it.check), keys_checked() - before)
    };
    let weak = Some(WeakCheck::SharedPrimes);
    assert_eq!(judge(with_products(&[(3482, 607)])), (None, 1));
    assert_eq!(judge(with_products(&[(3482, 607)])), (None, 0));
    assert_eq!(judge(guard(&[])), (None, 0));
    assert_eq!(judge(with_products(&[(3482, 1279)])), (weak, 1));
    assert_eq!(judge(with_products(&[(3482, 1279)])), (weak, 0));
}

/// The path counts, trust anchor included, which no client presents.
#[test]
fn a_product_rejects_a_recorded_client_by_the_keys_of_its_path() {
    let issuer_key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(rcgen::CertificateParams::default(), issuer_key);
    let [leaf, anchor, other] = [[1279, 2203], [1279, 2281], [607, 2281]].map(|primes| {
        let spki = rsa_key(primes);
        let parameters = rcgen::CertificateParams::default();
        parameters.signed_by(&WeakPublicKey(&spki), &issuer).unwrap().der().clone()
    });
    let recent = RecentClients::new(1);
    let presented = [leaf.clone(), other];
    let shard = recent.shard(0).unwrap();
    shard.record_path(0, WeakChecks::ALL, &[&leaf, &anchor], &presented, String::new);
    let [of_leaf, of_chain] =
        [Depth::Leaf, Depth::Chain].map(|judge| Policy { judge, ..Policy::default() });
    let rejects = |guard: &Guard, policy: &Policy| {
        recent.matching(0, |_, client| client.is_rejected(guard, policy, now())).count == 1
    };
    for (products, leaf_is_hit, path_is_hit) in [
        (&[(3482, 1279)][..], true, true),
        (&[(3560, 1279)], false, true),
        (&[(2888, 607), (2888, 2281)], false, false),
        (&[(3482, 607)], false, false),
    ] {
        let Guard { shared_primes, weak_checks, .. } = with_products(products);
        let guard = Guard { shared_primes, weak_checks, ..guard(&[]) };
        assert_eq!(rejects(&guard, &of_leaf), leaf_is_hit, "{products:?}");
        assert_eq!(rejects(&guard, &of_chain), path_is_hit, "{products:?}");
        let flag = Policy { on_weak: Decision::Flag, ..of_chain.clone() };
        assert!(
            !rejects(&guard, &flag)
                && !rejects(&guard.with_weak_checks(WeakChecks::NONE), &of_chain)
        );
    }
}
