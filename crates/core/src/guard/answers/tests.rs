use std::time::Duration;

use rcgen::PublicKeyData;

use super::*;
use crate::guard::{Exception, FingerprintList, NamedFilter};
use crate::pkbf::{Filter, Parameters};
use crate::spki::{Encoding, related};

fn filter(name: &str, keys: &[&[u8]]) -> Arc<NamedFilter> {
    let mut filter = Filter::new(Parameters::new(20, 20).unwrap()).unwrap();
    for key in keys {
        filter.insert(key);
    }
    filter.stamp(1_700_000_000);
    Arc::new(NamedFilter { name: name.into(), filter, sha256: [0; 32] })
}

fn key() -> Vec<u8> {
    rcgen::KeyPair::generate().unwrap().subject_public_key_info()
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

/// The verdict at [`now`] on `key`, by `filters` and answers about the filter `lost`.
fn verdict(
    key: &[u8],
    filters: &[&Arc<NamedFilter>],
    answer: impl FnOnce(&mut Answers),
) -> Verdict {
    let mut answers = Answers::new(["lost".into()]);
    answer(&mut answers);
    let guard = Guard::new(filters.iter().copied().cloned().collect());
    guard.with_answers(answers.into()).judge_key(key, now())
}

#[test]
fn a_hit_is_cleared_by_a_valid_answer_about_the_encoding_that_hits() {
    let key = key();
    for (encoding, form) in related(&key) {
        let lost = filter("lost", &[&form]);
        let clear = |answers: &mut Answers, spki: &[u8], until| {
            answers.clear(Fingerprint::of(spki), until);
        };
        let after = now() + Duration::from_nanos(1);
        let cleared = verdict(&key, &[&lost], |it| clear(it, &form, after));
        let Verdict::Cleared(hit) = cleared else { panic!("{encoding:?}: {cleared:?}") };
        assert_eq!((&*hit.filter, hit.encoding), ("lost", encoding));
        let expired = verdict(&key, &[&lost], |it| clear(it, &form, now()));
        assert!(matches!(expired, Verdict::Probable(_)), "an expired clearance");
        let foreign = verdict(&key, &[&lost], |it| clear(it, b"another key", after));
        assert!(matches!(foreign, Verdict::Probable(_)), "the clearance of another key");
    }
}

#[test]
fn every_encoding_that_hits_must_be_cleared() {
    let key = key();
    let forms = related(&key);
    let lost = filter("lost", &[&forms[0].1, &forms[2].1]);
    let after = now() + Duration::from_secs(1);
    let clear = |count: usize| {
        let forms = &forms;
        move |answers: &mut Answers| {
            for (_, form) in [&forms[0], &forms[2]].into_iter().take(count) {
                answers.clear(Fingerprint::of(form), after);
            }
        }
    };
    assert!(matches!(verdict(&key, &[&lost], clear(1)), Verdict::Probable(_)));
    assert!(matches!(verdict(&key, &[&lost], clear(2)), Verdict::Cleared(_)));
}

#[test]
fn a_hit_in_a_filter_of_which_the_source_knows_nothing_is_never_cleared() {
    let key = key();
    let (lost, own) = (filter("lost", &[&key]), filter("own", &[&key]));
    let empty = filter("own", &[]);
    let clear = |answers: &mut Answers| {
        answers.clear(Fingerprint::of(&key), now() + Duration::from_secs(1));
    };
    assert!(matches!(verdict(&key, &[&lost, &empty], clear), Verdict::Cleared(_)));
    assert!(matches!(verdict(&key, &[&lost, &own], clear), Verdict::Probable(_)));
    assert!(matches!(verdict(&key, &[&own, &lost], clear), Verdict::Probable(_)));
}

#[test]
fn a_proof_confirms_every_related_encoding_with_or_without_a_filter() {
    let key = key();
    let lost = filter("lost", &[&key]);
    for (encoding, form) in related(&key) {
        let confirm = |answers: &mut Answers| {
            answers.confirm(&form);
        };
        for filters in [&[&lost][..], &[&filter("lost", &[])], &[]] {
            let Verdict::Confirmed(found) = verdict(&key, filters, confirm) else {
                panic!("{encoding:?} was not found")
            };
            assert_eq!((found.proof, found.encoding), (Fingerprint::of(&form), encoding));
        }
        let hit = verdict(&key, &[&lost], confirm).hit().cloned().unwrap();
        assert_eq!(hit.encoding, Encoding::Presented, "the filter holds the presented key");
    }
    let cleared_too = |answers: &mut Answers| {
        for (_, form) in related(&key) {
            answers.clear(Fingerprint::of(&form), now() + Duration::from_secs(1));
        }
        answers.confirm(&related(&key)[1].1);
    };
    assert!(matches!(verdict(&key, &[&lost], cleared_too), Verdict::Confirmed(_)));
}

#[test]
fn a_key_in_an_unknown_encoding_is_never_cleared() {
    const EC_PUBLIC_KEY: [u8; 9] = [6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]; // RFC 5480
    let key = rcgen::KeyPair::generate().unwrap();
    let mut leaf = rcgen::CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
    let algorithm = leaf.windows(9).position(|window| window == EC_PUBLIC_KEY).unwrap();
    for (identifier, expected) in [(1, "cleared"), (9, "unchecked")] {
        leaf[algorithm + 8] = identifier;
        let spki = crate::spki::of_certificate(&leaf).unwrap();
        let mut answers = Answers::new(["lost".into()]);
        answers.clear(Fingerprint::of(spki), now() + Duration::from_secs(1));
        let guard = Guard::new(vec![filter("lost", &[spki])]).with_answers(answers.into());
        let verdict = guard.judge(&leaf.clone().into(), now());
        assert_eq!(verdict.as_str(), expected);
    }
}

#[test]
fn exceptions_and_lists_come_before_answers() {
    let key = key();
    let fingerprint = Fingerprint::of(&key);
    let mut answers = Answers::new(["lost".into()]);
    answers.confirm(&key);
    let list = FingerprintList::parse("march", &fingerprint.to_string()).unwrap();
    let guard = || Guard::new(vec![filter("lost", &[&key])]).with_answers(answers.clone().into());
    let listed = guard().with_lists(vec![Arc::new(list)]);
    assert!(matches!(listed.judge_key(&key, now()), Verdict::Listed(_)));
    let until = now() + Duration::from_secs(1);
    let exception =
        Exception { key: fingerprint.into(), until, reason: "replaced soon".to_owned() };
    assert_eq!(listed.with_exceptions([exception]).judge_key(&key, now()), Verdict::Allowed);
    assert!(matches!(guard().judge_key(&key, now()), Verdict::Confirmed(_)));
}

#[test]
fn a_confirmed_key_is_found_by_hash_and_by_fingerprint() {
    let mut answers = Answers::new(["lost".into()]);
    assert!(!answers.may_confirm(&[KeyHash::from_spki(b"0")]));
    for key in 0_u32..1000 {
        assert!(answers.confirm(&key.to_be_bytes()));
        assert!(!answers.confirm(&key.to_be_bytes()), "a second time");
        let [first, last] = [0, key].map(|key: u32| KeyHash::from_spki(&key.to_be_bytes()));
        assert!(answers.may_confirm(&[first]) && answers.may_confirm(&[last]));
    }
    for key in 0_u32..1000 {
        let spki = key.to_be_bytes();
        assert!(answers.may_confirm(&[KeyHash::from_spki(b"another"), KeyHash::from_spki(&spki)]));
        assert!(answers.is_confirmed(&Fingerprint::of(&spki)));
    }
    assert!(!answers.may_confirm(&[KeyHash::from_spki(b"another")]));
    assert_eq!(answers.confirmed().len(), 1000);
}

#[test]
fn a_clearance_ends_at_its_time_and_never_covers_a_confirmed_key() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    let mut answers = Answers::new(["lost".into()]);
    let fingerprint = Fingerprint::of(b"key");
    answers.clear(fingerprint, now);
    assert!(answers.is_cleared(&fingerprint, now - Duration::from_nanos(1)));
    assert!(!answers.is_cleared(&fingerprint, now));
    assert!(answers.confirm(b"key"));
    assert_eq!(answers.cleared().len(), 0);
    answers.clear(fingerprint, now);
    assert_eq!(answers.cleared_until(&fingerprint), None);
}

#[test]
fn answers_are_about_named_filters_and_a_clearance_can_be_withdrawn() {
    let mut answers = Answers::new(["lost".into()]);
    assert!(answers.covers_filter("lost") && !answers.covers_filter("los"));
    answers.clear(Fingerprint::of(b"key"), SystemTime::now());
    assert!(answers.withdraw_clearance(&Fingerprint::of(b"key")));
    assert!(!answers.withdraw_clearance(&Fingerprint::of(b"key")));
}
