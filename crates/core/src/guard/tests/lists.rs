//! Exact lists and exceptions, for every form of a key.

use super::*;
use crate::badkeys::Blocklist;
use crate::spki::KeyDigest;

pub(super) fn list(name: &str, lines: &[String]) -> Arc<FingerprintList> {
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
pub(super) fn number_line(spki: &[u8]) -> String {
    let mut line = Fingerprint::of(spki).to_string();
    PublicKey::parse(spki).for_each_number(|encoding, digest| {
        if matches!(encoding, Encoding::EcX | Encoding::RsaModulus) {
            line = digest.to_string();
        }
    });
    line
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
        let guard = guard(&[&spki]);
        let underlying = Some(Box::new(guard.judge(&leaf, now())));
        let guard = guard.with_lists(vec![Arc::new(list)]);
        let list = "march".into();
        let listing = Listing { list, finding: None, encoding, position: 0, underlying };
        assert_eq!(guard.judge(&leaf, now()), Verdict::Listed(listing.clone()));
        // An exception expires at `until`.
        let guard = guard.with_exceptions([exception]);
        let before = until - Duration::from_nanos(1);
        assert_eq!(guard.judge(&leaf, before), Verdict::Allowed);
        assert_eq!(guard.judge(&leaf, until), Verdict::Listed(listing));
    }
    let other = FingerprintList::parse("other", &Fingerprint::of(b"x").to_string()).unwrap();
    let guard = guard(&[&spki]).with_lists(vec![Arc::new(other)]);
    assert!(guard.judge(&leaf, now()).hit().is_some());
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
fn lists_of_one_format_are_compared_by_their_keys_and_products() {
    let key = |number: u32| Fingerprint::of(&number.to_be_bytes()).to_string();
    let primes = |digit: &str| format!("rsa-primes:2048:{}", digit.repeat(768));
    let text = |lines: &[String]| ExactList::from(list("own", lines));
    let before = text(&[key(1), key(2), key(3), primes("f")]);
    assert_eq!(before.len(), 6);
    assert_eq!(before.difference(&before), Some((0, 0)));
    let after = text(&[key(1), key(4), key(5), key(6), key(7), primes("f")]);
    assert_eq!(before.difference(&after), Some((2, 4)));
    assert_eq!(before.difference(&text(&[key(1), key(2), key(3), primes("d")])), Some((3, 3)));
    let grown = format!("{}0{}", primes("f"), "f".repeat(768));
    assert_eq!(before.difference(&text(&[key(1), key(2), key(3), grown])), Some((0, 7)));
    let [one, two, three] = [0; 3].map(|_| spki_of(&rcgen::PKCS_ECDSA_P256_SHA256));
    let records = |keys: &[&[u8]]| ExactList::from(blocklist("badkeys", keys));
    let (lost, gained) = records(&[&one, &two, &three]).difference(&records(&[&one])).unwrap();
    assert!(lost > 0 && gained == 0, "{lost} {gained}");
    assert_eq!(before.difference(&records(&[&one])), None);
}

/// No related encoding of such a key is looked up, and the default rejects it.
#[test]
fn a_list_in_trial_admits_no_key_in_an_unknown_encoding() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let mut der = certificate.der().to_vec();
    // RSAES-OAEP in place of rsaEncryption.
    let rsa = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
    let position = der.windows(rsa.len()).position(|it| it == rsa).unwrap();
    der[position + 8] = 7;
    let leaf = CertificateDer::from(der);
    let judge = |guard: &Guard| guard.judge(&leaf, now());
    assert_eq!(judge(&guard(&[])), Verdict::Unchecked);
    let fingerprint = Fingerprint::of(spki::of_certificate(&leaf).unwrap());
    let list = FingerprintList::parse("march", &fingerprint.to_string()).unwrap();
    let listed = judge(&guard(&[]).with_lists(vec![Arc::new(list)]));
    assert_eq!(
        (listed.kind(), listed.underlying()),
        (VerdictKind::Listed, Some(&Verdict::Unchecked))
    );
    let policy = Policy { on_listed: Decision::Flag, ..Policy::default() };
    assert_eq!(policy.decide(&listed), Decision::Reject);
}
