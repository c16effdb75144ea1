use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

/// Certificates of one CA, with names of its own choice.
struct Ca(Issuer<'static, KeyPair>);

impl Ca {
    fn new(name: &str) -> Self {
        Self(Issuer::new(parameters(name), KeyPair::generate().unwrap()))
    }

    fn root(name: &str) -> (Self, CertificateDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters(name).self_signed(&key).unwrap();
        (Self(Issuer::new(parameters(name), key)), certificate.der().clone())
    }

    fn certify(&self, name: &str) -> (Self, CertificateDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters(name).signed_by(&key, &self.0).unwrap();
        (Self(Issuer::new(parameters(name), key)), certificate.der().clone())
    }

    fn leaf(&self) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::default().signed_by(&key, &self.0).unwrap();
        leaf.der().clone()
    }
}

fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
}

fn verifier(root: &CertificateDer<'static>) -> ClientVerifier {
    ClientVerifier::new(Arc::new(TrustAnchors::new(vec![root.clone()]).unwrap()))
}

#[test]
fn the_path_has_the_certificates_that_lead_to_the_anchor_in_order() {
    let (root, anchor) = Ca::root("root");
    let (mut ca, mut chain) = (root, Vec::new());
    for position in 0..6 {
        let (next, certificate) = ca.certify(&format!("ca {position}"));
        chain.push(certificate);
        ca = next;
    }
    let leaf = ca.leaf();
    let (_, unrelated) = Ca::root("unrelated");
    let intermediates = [&chain[..], &[unrelated.clone(), anchor.clone()]].concat();
    let path = verifier(&anchor).verify(&leaf, &intermediates, UnixTime::now()).unwrap();
    assert_eq!(path.positions().collect::<Vec<_>>(), [0, 6, 5, 4, 3, 2, 1]);
    assert_eq!(path.anchor(), Some(&anchor));
    let presented = [&[leaf.clone()][..], &intermediates].concat();
    let expected: Vec<_> = std::iter::once(&leaf).chain(chain.iter().rev()).collect();
    assert_eq!(path.without_anchor(&presented).collect::<Vec<_>>(), expected);
    assert!(verifier(&unrelated).verify(&leaf, &intermediates, UnixTime::now()).is_err());
}

#[test]
fn a_search_in_a_circle_of_names_ends() {
    let (_, anchor) = Ca::root("root");
    // Three names in a circle with three keys each: any three lead to any other three.
    let names = ["a", "b", "c"];
    let circle = (0..9).map(|index| Ca::new(names[(index + 1) % 3]).certify(names[index % 3]).1);
    let leaf = Ca::new("a").leaf();
    let intermediates: Vec<_> = circle.collect();
    let error = verifier(&anchor).verify(&leaf, &intermediates, UnixTime::now()).unwrap_err();
    assert!(error.to_string().contains("MaximumPathBuildCallsExceeded"), "{error}");
}

#[test]
fn too_many_certificates_are_rejected_before_any_is_parsed() {
    let (_, anchor) = Ca::root("root");
    let garbage = CertificateDer::from(vec![0; 8]);
    let error = |count: usize| {
        let intermediates = vec![garbage.clone(); count - 1];
        let verified = verifier(&anchor).verify(&garbage, &intermediates, UnixTime::now());
        verified.unwrap_err().to_string()
    };
    assert!(error(MAX_CERTIFICATES + 1).contains("presented 11 certificates; at most 10"));
    assert!(error(MAX_CERTIFICATES).contains("BadEncoding"), "{}", error(MAX_CERTIFICATES));
}

#[cfg(feature = "proxy")]
#[test]
fn a_presented_chain_is_found_within_its_dates_only() {
    let (root, anchor) = Ca::root("root");
    let (issuing, intermediate) = root.certify("issuing");
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    (parameters.not_before, parameters.not_after) =
        (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2026, 2, 1));
    let leaf = parameters.signed_by(&key, &issuing.0).unwrap().der().clone();
    let at = |seconds: u64| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let (within, after) = (at(1_767_916_800), at(1_770_508_800)); // 9 January, 8 February
    let verifier = verifier(&anchor).with_chain_cache();
    let alone = std::slice::from_ref(&leaf);
    assert!(verifier.verify_presented(alone, within).is_err(), "its issuer is unknown");
    let verifier = verifier.with_intermediates(vec![intermediate.clone()]);
    for _ in 0..2 {
        let path = verifier.verify_presented(alone, within).unwrap();
        let path: Vec<_> = path.certificates().cloned().collect();
        assert_eq!(path, [leaf.clone(), intermediate.clone(), anchor.clone()]);
    }
    assert_eq!(verifier.chains.as_ref().unwrap().len(), 1);
    assert!(verifier.verify_presented(alone, after).is_err(), "the leaf has expired");
    let both = [leaf.clone(), intermediate.clone()];
    assert!(verifier.verify_presented(&both, within).is_ok(), "another chain");
    let many = vec![leaf.clone(); MAX_CERTIFICATES + 1];
    assert!(verifier.verify_presented(&many, within).is_err());
    assert!(verifier.verify_presented(&[], within).is_err());
}
