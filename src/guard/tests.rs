use std::time::Duration;

use num_bigint::BigUint;
use rcgen::PublicKeyData;

use super::*;
use crate::badkeys::Blocklist;
use crate::pkbf::Parameters;
use crate::spki::related;

fn guard(keys: &[&[u8]]) -> Guard {
    let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
    for key in keys {
        filter.insert(key);
    }
    filter.stamp(1_700_000_000);
    Guard::new(vec![Arc::new(NamedFilter { name: "lost".into(), filter, sha256: [0; 32] })])
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn certificate() -> (CertificateDer<'static>, Vec<u8>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    (certificate.der().clone(), key.subject_public_key_info())
}

#[test]
fn a_key_in_a_filter_is_probable_and_another_key_is_clean() {
    let (listed, spki) = certificate();
    let (other, _) = certificate();
    let guard = guard(&[&spki]);
    let Verdict::Probable(hit) = guard.judge(&[listed], Depth::Leaf, now()) else {
        panic!("not found")
    };
    assert_eq!((&*hit.filter, hit.revision, hit.encoding), ("lost", 1, Encoding::Presented));
    assert_eq!(guard.judge(&[other], Depth::Leaf, now()), Verdict::Clean);
}

#[test]
fn a_key_is_probable_when_any_related_encoding_is_in_a_filter() {
    let (leaf, spki) = certificate();
    for (encoding, other_form) in related(&spki) {
        let verdict = guard(&[&other_form]).judge(std::slice::from_ref(&leaf), Depth::Leaf, now());
        let Verdict::Probable(hit) = verdict else { panic!("{encoding:?} was not found") };
        assert_eq!(hit.encoding, encoding);
    }
}

#[test]
fn the_verdict_on_a_chain_is_the_worst_of_its_certificates() {
    let ((leaf, _), (issuer, spki)) = (certificate(), certificate());
    let guard = guard(&[&spki]);
    let chain = [leaf, issuer];
    assert_eq!(guard.judge(&chain, Depth::Leaf, now()), Verdict::Clean);
    assert!(guard.judge(&chain, Depth::Chain, now()).hit().is_some());
    let [leaf, issuer] = chain;
    assert!(guard.judge(&[issuer, leaf], Depth::Chain, now()).hit().is_some());
}

#[test]
fn a_key_that_cannot_be_checked_is_unchecked_and_never_clean() {
    let (leaf, _) = certificate();
    assert_eq!(
        Guard::default().judge(std::slice::from_ref(&leaf), Depth::Leaf, now()),
        Verdict::Unchecked
    );
    assert_eq!(guard(&[]).judge(&[], Depth::Leaf, now()), Verdict::Unchecked);
    let broken = CertificateDer::from(leaf[..20].to_vec());
    assert_eq!(guard(&[]).judge(&[broken], Depth::Leaf, now()), Verdict::Unchecked);
}

#[test]
fn exceptions_come_before_lists_and_lists_before_filters_in_every_encoding() {
    let (leaf, spki) = certificate();
    let until = now();
    for (encoding, form) in related(&spki) {
        let fingerprint = Fingerprint::of(&form);
        let list = FingerprintList::parse("march", &fingerprint.to_string()).unwrap();
        let exception =
            Exception { key: fingerprint.into(), until, reason: "replaced soon".to_owned() };
        let chain = std::slice::from_ref(&leaf);
        let guard = guard(&[&spki]);
        let also = Some(Box::new(guard.judge(chain, Depth::Leaf, now())));
        let guard = guard.with_lists(vec![Arc::new(list)]);
        let listing = Listing { list: "march".into(), finding: None, encoding, position: 0, also };
        assert_eq!(guard.judge(chain, Depth::Leaf, now()), Verdict::Listed(listing.clone()));
        // An exception expires at `until`.
        let guard = guard.with_exceptions([exception]);
        let before = until - Duration::from_nanos(1);
        assert_eq!(guard.judge(chain, Depth::Leaf, before), Verdict::Allowed);
        assert_eq!(guard.judge(chain, Depth::Leaf, until), Verdict::Listed(listing));
    }
    let other = FingerprintList::parse("other", &Fingerprint::of(b"x").to_string()).unwrap();
    let guard = guard(&[&spki]).with_lists(vec![Arc::new(other)]);
    assert!(guard.judge(std::slice::from_ref(&leaf), Depth::Leaf, now()).hit().is_some());
}

#[test]
fn the_false_positive_ratio_of_a_hit_covers_all_lookups() {
    let (leaf, spki) = certificate();
    let mut filter = Filter::new(Parameters::new(2, 12).unwrap()).unwrap();
    (0_u64..300).for_each(|key| {
        filter.insert(&key.to_be_bytes());
    });
    filter.insert(&spki);
    let one = filter.false_positive_ratio();
    let named = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
    let named = Arc::new(named);
    let guard = Guard::new(vec![Arc::clone(&named), named]);
    let verdict = guard.judge(&[leaf], Depth::Leaf, now());
    let reported = verdict.hit().unwrap().false_positive_ratio;
    let expected = 1.0 - (1.0 - one).powi(8); // four encodings, two filters
    assert!((reported - expected).abs() < 1e-12, "{reported} {expected}");
}

fn list(name: &str, lines: &[String]) -> Arc<FingerprintList> {
    Arc::new(FingerprintList::parse(name, &lines.join("\n")).unwrap())
}

/// A blocklist with the numbers of these keys, all of collection 1.
fn blocklist(name: &str, keys: &[&[u8]]) -> Arc<NamedBlocklist> {
    let mut records = Vec::new();
    for key in keys {
        PublicKey::parse(key).for_each_number(|encoding, digest| {
            if matches!(encoding, Encoding::EcX | Encoding::Presented | Encoding::RsaModulus) {
                records.push([&digest.sha256()[..15], &[1]].concat());
            }
        });
    }
    records.sort();
    let blocklist = Blocklist::parse(records.concat()).unwrap();
    let findings = [(1, "debianssl".into())].into_iter().collect();
    let sha256 = blocklist.sha256();
    Arc::new(NamedBlocklist {
        name: name.into(),
        blocklist,
        sha256,
        findings,
        date: None,
        is_deprecated: false,
    })
}

/// The lines of a list for a key: of its number, or of its SPKI if there is none.
fn number_line(spki: &[u8]) -> String {
    let mut line = Fingerprint::of(spki).to_string();
    PublicKey::parse(spki).for_each_number(|encoding, digest| {
        if matches!(encoding, Encoding::EcX | Encoding::RsaModulus) {
            line = digest.to_string();
        }
    });
    line
}

/// An RSA key with another exponent.
fn with_exponent(spki: &[u8], exponent: u32) -> Vec<u8> {
    let mut found = None;
    let exponents = RsaExponents::from_numbers(&[exponent]).unwrap();
    PublicKey::parse(spki).for_each_related(exponents, |_, spki| found = Some(spki.to_vec()));
    found.unwrap()
}

fn spki_of(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
    rcgen::KeyPair::generate_for(algorithm).unwrap().subject_public_key_info()
}

#[test]
fn a_digest_of_a_number_and_a_record_cover_every_form_of_the_key() {
    let [ec, rsa, ed25519, other] = [
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_RSA_SHA256,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_ECDSA_P256_SHA256,
    ]
    .map(spki_of);
    let exponents = [3, 5, 17, 35, 37, 257].map(|exponent| with_exponent(&rsa, exponent));
    let mut sums = Vec::new();
    PublicKey::parse(&ed25519).for_each_small_order_sum(|_, spki| sums.push(spki.to_vec()));
    assert_eq!(sums.len(), 14);
    for (key, forms) in [(&ec, vec![]), (&rsa, Vec::from(exponents)), (&ed25519, sums)] {
        let related = related(key).into_iter().map(|(_, form)| form);
        let forms: Vec<_> = related.chain(forms).collect();
        for listed in &forms {
            let by_line = Guard::default().with_lists([list("own", &[number_line(listed)])]);
            let by_record = Guard::default().with_lists([blocklist("badkeys", &[listed])]);
            let exception = Exception {
                key: KeyDigest::parse(&number_line(listed)).unwrap(),
                until: now() + Duration::from_secs(1),
                reason: "replaced soon".to_owned(),
            };
            let in_filter: Vec<_> = forms.iter().map(|form| &form[..]).collect();
            let excepted = guard(&in_filter).with_exceptions([exception]);
            for form in &forms {
                let listing = by_line.judge_key(form, now()).listing().cloned().unwrap();
                assert_eq!((&*listing.list, listing.finding), ("own", None));
                let listing = by_record.judge_key(form, now()).listing().cloned().unwrap();
                assert_eq!(listing.finding.as_deref(), Some("debianssl"));
                assert_eq!(excepted.judge_key(form, now()), Verdict::Allowed);
            }
            assert_eq!(by_line.judge_key(&other, now()), Verdict::Clean, "no filter is needed");
            assert_eq!(by_record.judge_key(&other, now()), Verdict::Clean);
            assert_eq!(Guard::default().judge_key(&other, now()), Verdict::Unchecked);
        }
    }
}

#[test]
fn the_first_list_with_any_form_of_a_key_gives_the_finding() {
    let key = spki_of(&rcgen::PKCS_ECDSA_P256_SHA256);
    let fingerprints: Vec<_> =
        related(&key).iter().map(|(_, form)| Fingerprint::of(form).to_string()).collect();
    let (presented, last) = (&fingerprints[..1], &fingerprints[3..]);
    let found = |lists: Vec<ExactList>| {
        let verdict = Guard::default().with_lists(lists).judge_key(&key, now());
        let listing = verdict.listing().unwrap();
        (listing.list.to_string(), listing.encoding)
    };
    let [one, two] = [list("one", last).into(), list("two", presented).into()];
    let badkeys: ExactList = blocklist("badkeys", &[&key]).into();
    let encoding = related(&key)[3].0;
    assert_eq!(found(vec![one, two.clone(), badkeys.clone()]), ("one".into(), encoding));
    let first = found(vec![two.clone(), badkeys.clone()]);
    assert_eq!(first, ("two".into(), Encoding::Presented));
    assert_eq!(found(vec![badkeys, two]), ("badkeys".into(), Encoding::EcX));
}

#[test]
fn an_rsa_key_is_looked_up_in_each_filter_with_its_exponents() {
    let key = spki_of(&rcgen::PKCS_RSA_SHA256);
    let (with_17, with_3) = (with_exponent(&key, 17), with_exponent(&key, 3));
    let filters = [("some", &with_17), ("usual", &with_3)].map(|(name, key)| {
        let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
        filter.insert(key);
        Arc::new(NamedFilter { name: name.into(), filter, sha256: [0; 32] })
    });
    let guard = |some: &[u32], usual: &[u32]| {
        let exponents = |numbers| RsaExponents::from_numbers(numbers).unwrap();
        Guard::new(filters.to_vec())
            .with_related_exponents("some", exponents(some))
            .with_related_exponents("usual", exponents(usual))
    };
    let hit = |guard: &Guard| {
        let recorded = guard.judge_recorded(&RecordedKey::new(&key, WeakChecks::NONE), now());
        let verdict = guard.judge_key(&key, now());
        assert_eq!(recorded, verdict, "a recorded client is judged in the same way");
        verdict.hit().map(|hit| (hit.filter.to_string(), hit.encoding))
    };
    let usual = Some(("usual".to_owned(), Encoding::RsaExponent3));
    assert_eq!(hit(&Guard::new(filters.to_vec())), usual);
    assert_eq!(hit(&guard(&[], &[3])), usual);
    assert_eq!(hit(&guard(&[3], &[17])), None, "each filter has its own exponents");
    assert_eq!(hit(&guard(&[], &[])), None);
    let some = Some(("some".to_owned(), Encoding::RsaExponent17));
    assert_eq!(hit(&guard(&[5, 17], &[3])), some);

    // A cleared hit is one that the filter is asked about.
    let mut answers = Answers::new(["some".into(), "usual".into()]);
    let until = now() + Duration::from_secs(1);
    answers.clear(Fingerprint::of(&with_17), until);
    let verdict = |guard: Guard, answers: &Answers| {
        guard.with_answers(answers.clone().into()).judge_key(&key, now()).kind()
    };
    assert_eq!(verdict(guard(&[17], &[17]), &answers), VerdictKind::Cleared);
    assert_eq!(verdict(guard(&[17], &[3]), &answers), VerdictKind::Probable);
    answers.confirm(&with_3);
    assert_eq!(verdict(guard(&[17], &[3]), &answers), VerdictKind::Confirmed);
    // A proof is exact, so that it counts for an exponent with which no filter is asked.
    assert_eq!(verdict(guard(&[], &[]), &answers), VerdictKind::Confirmed);
}

#[test]
fn the_false_positive_ratio_counts_the_exponents_of_each_filter() {
    let key = spki_of(&rcgen::PKCS_RSA_SHA256);
    let mut filter = Filter::new(Parameters::new(2, 12).unwrap()).unwrap();
    (0_u64..300).for_each(|key| {
        filter.insert(&key.to_be_bytes());
    });
    filter.insert(&key);
    let one = filter.false_positive_ratio();
    let named = Arc::new(NamedFilter { name: "lost".into(), filter, sha256: [0; 32] });
    for (exponents, lookups) in
        [(RsaExponents::NONE, 1), (RsaExponents::default(), 2), (RsaExponents::ALL, 7)]
    {
        let guard = Guard::new(vec![Arc::clone(&named)]).with_related_exponents("lost", exponents);
        let verdict = guard.judge_key(&key, now());
        let expected = 1.0 - (1.0 - one).powi(lookups);
        let reported = verdict.hit().unwrap().false_positive_ratio;
        assert!((reported - expected).abs() < 1e-12, "{lookups}: {reported} {expected}");
    }
}

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
    Verdict::Weak(Weakness { check, position: 0, also: None })
}

#[test]
fn a_weak_key_is_weak_with_any_exponent_whatever_filters_and_answers_say() {
    let square = rsa_key([1279, 1279]);
    let strong = rsa_key([1279, 607]);
    let checks = |checks: &[WeakCheck]| checks.iter().copied().collect::<WeakChecks>();
    let judge = |guard: &Guard, key: &[u8]| {
        let recorded = guard.judge_recorded(&RecordedKey::new(key, guard.weak_checks()), now());
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
    assert_eq!(cleared.also().map(Verdict::kind), Some(VerdictKind::Cleared));
    assert_eq!(judge(&answered, &strong).kind(), VerdictKind::Confirmed);
}

/// A list or a check that is tried out with `flag` must not admit a key that a filter rejects.
#[test]
fn the_hardest_decision_on_a_key_wins_whatever_its_verdict_is() {
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
        let recorded = guard.judge_recorded(&RecordedKey::new(&square, guard.weak_checks()), now());
        assert_eq!(recorded, verdict);
        for on_listed in DECISIONS {
            for on_weak in DECISIONS {
                for on_probable in DECISIONS {
                    let policy = Policy { on_listed, on_weak, on_probable, ..Policy::default() };
                    let applied = [
                        Some(on_probable),
                        is_weak.then_some(on_weak),
                        is_listed.then_some(on_listed),
                    ];
                    let applied = applied.into_iter().flatten();
                    let hardest = applied.max_by_key(|decision| decision.hardness());
                    assert_eq!(Some(policy.decide(&verdict)), hardest, "{policy:?}");
                }
            }
        }
    }
}

/// No related encoding of such a key is looked up, and the default rejects it.
#[test]
fn a_list_in_trial_admits_no_key_in_an_unknown_encoding() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let mut der = certificate.der().to_vec();
    // RSASSA-PSS in place of rsaEncryption.
    let rsa = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
    let position = der.windows(rsa.len()).position(|it| it == rsa).unwrap();
    der[position + 8] = 10;
    let leaf = CertificateDer::from(der);
    let judge = |guard: &Guard| guard.judge(std::slice::from_ref(&leaf), Depth::Leaf, now());
    assert_eq!(judge(&guard(&[])), Verdict::Unchecked);
    let fingerprint = Fingerprint::of(spki::of_certificate(&leaf).unwrap());
    let list = FingerprintList::parse("march", &fingerprint.to_string()).unwrap();
    let listed = judge(&guard(&[]).with_lists(vec![Arc::new(list)]));
    assert_eq!((listed.kind(), listed.also()), (VerdictKind::Listed, Some(&Verdict::Unchecked)));
    let policy = Policy { on_listed: Decision::Flag, ..Policy::default() };
    assert_eq!(policy.decide(&listed), Decision::Reject);
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
