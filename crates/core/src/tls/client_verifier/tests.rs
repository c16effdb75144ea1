use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::*;
use crate::tls::AnchorCounts;
use crate::tls::path::PathRoute;

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

    /// A certificate of this CA for the key of another CA.
    fn cross_sign(&self, name: &str, other: &Self) -> CertificateDer<'static> {
        parameters(name).signed_by(other.0.key(), &self.0).unwrap().der().clone()
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
    assert_eq!(path.route().places[..], [0, 6, 5, 4, 3, 2, 1, PathRoute::FILE]);
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

/// The error for a client of `root`, with these certificates in the file and in its message.
fn error(file: &[&CertificateDer<'static>], chain: &[CertificateDer<'static>]) -> Option<String> {
    let file = file.iter().map(|certificate| (*certificate).clone()).collect();
    let verifier = ClientVerifier::new(Arc::new(TrustAnchors::new(file).unwrap()));
    let verified = verifier.verify(&chain[0], &chain[1..], UnixTime::now());
    verified.err().map(|error| error.to_string())
}

#[test]
fn a_search_ends_after_eight_signatures_that_do_not_verify() {
    let (root, anchor) = Ca::root("root");
    // CAs that claim to be issued by the root, and a client that claims to be issued by them.
    let forged = |_| Ca::new("root").certify("issuing");
    let (mut cas, mut chain): (Vec<_>, Vec<_>) = (0..9).map(forged).unzip();
    chain.insert(0, cas.remove(0).leaf());
    let problem = error(&[&anchor], &chain).unwrap();
    assert!(problem.contains("MaximumSignatureChecksExceeded"), "{problem}");
    // Seven of them do not keep the client of a good CA out.
    let (issuing, good) = root.certify("issuing");
    let chain = [&[issuing.leaf()], &chain[1..8], &[good]].concat();
    assert_eq!(error(&[&anchor], &chain), None);
    // Neither do many roots of one name, as SPIRE makes them.
    let (mut file, leaf) = (vec![anchor], root.leaf());
    file.splice(0..0, (0..20).map(|_| Ca::root("root").1));
    assert_eq!(error(&file.iter().collect::<Vec<_>>(), &[leaf]), None);
}

#[test]
fn a_cross_signed_ca_and_one_with_a_new_key_keep_working() {
    let ((old, old_root), (new, new_root)) = (Ca::root("old"), Ca::root("new"));
    let cross = old.cross_sign("new", &new);
    let leaf = new.leaf();
    assert_eq!(error(&[&old_root], &[leaf.clone(), cross.clone()]), None);
    assert_eq!(error(&[&old_root, &cross], std::slice::from_ref(&leaf)), None);
    assert_eq!(error(&[&new_root, &old_root, &cross], std::slice::from_ref(&leaf)), None);
    // The same name with a new key, certified by the old one.
    let renewed = Ca::new("old");
    let with_old = old.cross_sign("old", &renewed);
    assert_eq!(error(&[&old_root], &[renewed.leaf(), with_old]), None);
}

#[test]
fn cas_that_issued_each_other_have_one_root() {
    let (a, b) = (Ca::new("a"), Ca::new("b"));
    let (a_by_b, b_by_a) = (b.cross_sign("a", &a), a.cross_sign("b", &b));
    let (below, c) = a.certify("c");
    let file = vec![c, b_by_a, a_by_b];
    let anchors = TrustAnchors::new(file.clone()).unwrap();
    let counts = AnchorCounts { roots: 1, intermediates: 2, pins: 0 };
    assert_eq!(anchors.counts(), counts);
    for leaf in [a.leaf(), b.leaf(), below.leaf()] {
        assert_eq!(error(&file.iter().collect::<Vec<_>>(), &[leaf]), None);
    }
    let alone = TrustAnchors::new(vec![file[0].clone()]).unwrap();
    assert_eq!(alone.counts(), AnchorCounts { roots: 1, intermediates: 0, pins: 0 });
}

#[test]
fn a_reason_names_the_certificate_and_the_rule() {
    let (root, anchor) = Ca::root("root");
    let issue = |change: fn(&mut CertificateParams)| {
        let mut client = CertificateParams::default();
        client.distinguished_name = rcgen::DistinguishedName::new();
        client.distinguished_name.push(DnType::CommonName, "client");
        client.subject_alt_names = vec![SanType::URI("spiffe://a/b".try_into().unwrap())];
        change(&mut client);
        let key = KeyPair::generate().unwrap();
        let certificate = client.signed_by(&key, &root.0).unwrap();
        error(&[&anchor], &[certificate.der().clone()])
    };
    assert_eq!(issue(|_| {}), None);
    let problem = issue(|it| it.key_usages = vec![KeyUsagePurpose::KeyEncipherment]).unwrap();
    assert!(problem.contains("CN=client must not be a TLS client: its key usage"), "{problem}");
    let problem = issue(|it| it.serial_number = Some(vec![1; 22].into())).unwrap();
    assert!(problem.contains("CN=client has a serial number of more than 20 octets"), "{problem}");
    assert_eq!(issue(|it| it.serial_number = Some(vec![0xff; 20].into())), None);
    let mut issuing = parameters("issuing");
    issuing.serial_number = Some(vec![1; 22].into());
    let key = KeyPair::generate().unwrap();
    let certificate = issuing.signed_by(&key, &root.0).unwrap().der().clone();
    let leaf = Ca(Issuer::new(issuing, key)).leaf();
    let problem = error(&[&anchor], &[leaf, certificate]).unwrap();
    assert!(problem.contains("CN=issuing has a serial number of more than 20 octets"), "{problem}");

    let mut limited = parameters("limited");
    let directory = rcgen::GeneralSubtree::DirectoryName(rcgen::DistinguishedName::new());
    let permitted_subtrees = vec![directory];
    limited.name_constraints =
        Some(rcgen::NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    let key = KeyPair::generate().unwrap();
    let limited_root = limited.self_signed(&key).unwrap().der().clone();
    let leaf = Ca(Issuer::new(limited, key)).leaf();
    let problem = error(&[&limited_root], &[leaf]).unwrap();
    assert!(problem.contains("CN=limited has name constraints"), "{problem}");
}

#[test]
fn many_issuing_cas_of_one_name_keep_no_client_of_one_of_them_out() {
    let (root, anchor) = Ca::root("root");
    for (has_identifiers, count) in [(true, 40), (false, 12)] {
        let (mut cas, mut file): (Vec<_>, Vec<_>) =
            (0..count).map(|_| root.certify("issuing")).unzip();
        file.push(anchor.clone());
        let mut client = CertificateParams::default();
        client.use_authority_key_identifier_extension = has_identifiers;
        let key = KeyPair::generate().unwrap();
        let leaf = client.signed_by(&key, &cas.pop().unwrap().0).unwrap().der().clone();
        assert_eq!(error(&file.iter().collect::<Vec<_>>(), &[leaf]), None, "{count}");
    }
}

#[test]
fn a_path_may_have_any_certificate_of_a_large_file() {
    let (root, anchor) = Ca::root("root");
    let mut presented: Vec<_> = (0..300).map(|it| root.certify(&format!("ca {it}")).1).collect();
    let (issuing, certificate) = root.certify("issuing");
    presented.push(certificate.clone());
    let (leaf, now) = (issuing.leaf(), UnixTime::now());
    let path = verifier(&anchor).find_path(&leaf, &presented, now).unwrap();
    let chain: Vec<_> = std::iter::once(leaf).chain(presented).collect();
    let path: Vec<_> = path.certificates(&chain).collect();
    assert_eq!(path, [&chain[0], &certificate, &anchor]);
}

#[test]
fn another_certificate_of_an_intermediate_and_a_new_key_of_a_root_end_no_path() {
    let ((root, root_certificate), (other, _)) = (Ca::root("root"), Ca::root("other"));
    let (issuing, certificate) = root.certify("issuing");
    let cross = other.cross_sign("issuing", &issuing);
    let renewed = root.cross_sign("root", &Ca::new("root"));
    let file = vec![cross, renewed, certificate, root_certificate.clone()];
    let anchors = TrustAnchors::new(file).unwrap();
    let roots = anchors.with_kind().filter(|(_, kind)| *kind == crate::tls::AnchorKind::Root);
    assert_eq!(roots.map(|(root, _)| root).collect::<Vec<_>>(), [&root_certificate]);
}

#[test]
fn certificates_for_servers_are_accepted_on_the_whole_path_until_the_last_second() {
    let now = UnixTime::now();
    let until = UNIX_EPOCH + Duration::from_secs(now.as_secs() + 60);
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() + seconds));
    let for_servers = |mut parameters: CertificateParams| {
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters
    };
    let [key, below, leaf_key] = [(); 3].map(|()| KeyPair::generate().unwrap());
    let root = for_servers(parameters("root")).self_signed(&key).unwrap().der().clone();
    let plain_root = parameters("root").self_signed(&key).unwrap().der().clone();
    let issuer = Issuer::new(parameters("root"), key);
    let ca = for_servers(parameters("ca")).signed_by(&below, &issuer).unwrap().der().clone();
    let issuing = Issuer::new(parameters("ca"), below);
    let leaf = for_servers(CertificateParams::default());
    let of_root = leaf.clone().signed_by(&leaf_key, &issuer).unwrap().der().clone();
    let of_ca = leaf.clone().signed_by(&leaf_key, &issuing).unwrap().der().clone();
    let plain = CertificateParams::default().signed_by(&leaf_key, &issuing).unwrap().der().clone();
    let pin = leaf.self_signed(&leaf_key).unwrap().der().clone();
    for (anchor, chain) in [
        (&plain_root, vec![of_root.clone()]),
        (&plain_root, vec![of_ca, ca.clone()]),
        (&plain_root, vec![plain, ca]),
        (&root, vec![of_root]),
        (&pin, vec![pin.clone()]),
    ] {
        let (leaf, others) = chain.split_first().unwrap();
        let verify = |verifier: &ClientVerifier, now| verifier.verify(leaf, others, now);
        let error = verify(&verifier(anchor), now).unwrap_err();
        let error = crate::tls::tls_error(&error);
        assert!(error.contains("client_auth.accept_server_auth_until"), "{error}");
        let accepting = verifier(anchor).with_chain_cache().accept_server_auth_until(until);
        let path = verify(&accepting, at(59)).unwrap();
        assert_eq!(path.not_after().as_secs(), now.as_secs() + 59);
        assert!(verify(&accepting, at(60)).is_err());
        assert!(accepting.verify_presented(&chain, now).is_ok());
        assert!(accepting.verify_presented(&chain, at(60)).is_err(), "out of the cache");
    }
    // A further purpose is no exception.
    use ExtendedKeyUsagePurpose::{CodeSigning, ServerAuth};
    for purposes in [vec![CodeSigning], vec![ServerAuth, CodeSigning]] {
        let mut leaf = CertificateParams::default();
        leaf.extended_key_usages = purposes;
        let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap();
        let accepting = verifier(&plain_root).accept_server_auth_until(until);
        assert!(accepting.verify(leaf.der(), &[], now).is_err());
    }
}
