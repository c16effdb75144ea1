mod lists;
mod weak_keys;

use std::time::Duration;

use rcgen::PublicKeyData;

use super::*;
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
    let Verdict::Probable(hit) = guard.judge(&listed, now()) else { panic!("not found") };
    assert_eq!((&*hit.filter, hit.revision, hit.encoding), ("lost", 1, Encoding::Presented));
    assert_eq!(guard.judge(&other, now()), Verdict::Clean);
}

#[test]
fn a_key_is_probable_when_any_related_encoding_is_in_a_filter() {
    let (leaf, spki) = certificate();
    for (encoding, other_form) in related(&spki) {
        let verdict = guard(&[&other_form]).judge(&leaf, now());
        let Verdict::Probable(hit) = verdict else { panic!("{encoding:?} was not found") };
        assert_eq!(hit.encoding, encoding);
    }
}

#[test]
fn the_verdict_on_a_path_is_the_most_severe_of_its_certificates() {
    let ((leaf, _), (issuer, spki)) = (certificate(), certificate());
    let guard = guard(&[&spki]);
    let judge = |path: [&CertificateDer<'static>; 2], judge| {
        let policy = Policy { judge, ..Policy::default() };
        Judgement::new(&guard, &policy, path, now()).verdict
    };
    assert_eq!(judge([&leaf, &issuer], Depth::Leaf), Verdict::Clean);
    assert!(judge([&leaf, &issuer], Depth::Chain).hit().is_some());
    assert!(judge([&issuer, &leaf], Depth::Chain).hit().is_some());
}

#[test]
fn a_key_that_cannot_be_checked_is_unchecked_and_never_clean() {
    let (leaf, _) = certificate();
    assert_eq!(Guard::default().judge(&leaf, now()), Verdict::Unchecked);
    let broken = CertificateDer::from(leaf[..20].to_vec());
    assert_eq!(guard(&[]).judge(&broken, now()), Verdict::Unchecked);
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
    let verdict = guard.judge(&leaf, now());
    let reported = verdict.hit().unwrap().false_positive_ratio;
    let expected = 1.0 - (1.0 - one).powi(8); // four encodings, two filters
    assert!((reported - expected).abs() < 1e-12, "{reported} {expected}");
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
        let recorded = guard.judge_recorded(&RecordedKey::new(&key, WeakChecks::NONE), None, now());
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

    // An answer clears a hit only if the filter looks that encoding up.
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
