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
        let exception = Exception { fingerprint, until, reason: "replaced soon".to_owned() };
        let guard = guard(&[&spki]).with_lists(vec![Arc::new(list)]);
        let listing = Listing { list: "march".into(), encoding, position: 0 };
        let chain = std::slice::from_ref(&leaf);
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
