use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair, SanType,
};
use rustls::pki_types::UnixTime;

use super::*;
use crate::guard::AllowKind;
use crate::tls::{ClientVerifier, HandshakeResult, TrustAnchors, tls_error};

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Ca {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters(name).self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(parameters(name), key), certificate }
    }

    fn below(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters(name).signed_by(&key, &self.issuer).unwrap().der().clone();
        Self { issuer: Issuer::new(parameters(name), key), certificate }
    }

    fn cross_sign(&self, name: &str, other: &Self) -> CertificateDer<'static> {
        parameters(name).signed_by(other.issuer.key(), &self.issuer).unwrap().der().clone()
    }

    fn cross_sign_compressed(&self, name: &str, other: &Self) -> CertificateDer<'static> {
        struct Compressed(Vec<u8>);
        impl rcgen::PublicKeyData for Compressed {
            fn der_bytes(&self) -> &[u8] {
                &self.0
            }

            fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
                &rcgen::PKCS_ECDSA_P256_SHA256
            }
        }
        let point = rcgen::PublicKeyData::der_bytes(other.issuer.key());
        let compressed = Compressed([&[2 + (point[64] & 1)], &point[1..33]].concat());
        parameters(name).signed_by(&compressed, &self.issuer).unwrap().der().clone()
    }

    fn leaf(&self, names: &[SanType]) -> CertificateDer<'static> {
        let mut leaf = CertificateParams::default();
        leaf.subject_alt_names = names.to_vec();
        self.sign(leaf)
    }

    fn sign(&self, leaf: CertificateParams) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        leaf.signed_by(&key, &self.issuer).unwrap().der().clone()
    }
}

fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
}

fn id(id: &str) -> SanType {
    SanType::URI(id.try_into().unwrap())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn email(address: &str) -> SanType {
    SanType::Rfc822Name(address.try_into().unwrap())
}

fn bounds(names: &[(AllowKind, &str)]) -> Arc<NameBounds> {
    let mut bounds = NameBounds::default();
    names.iter().for_each(|(kind, name)| bounds.add(*kind, name).unwrap());
    bounds.into()
}

/// A verifier of clients of `cas`, each with its bounds, and of the unbound `others`.
fn verifier(
    cas: &[(&Ca, &[(AllowKind, &str)])],
    others: &[&CertificateDer<'static>],
    kinds: NameKinds,
) -> ClientVerifier {
    let mut bound = BoundCas::new(kinds);
    cas.iter().for_each(|(ca, names)| {
        bound.bind(std::slice::from_ref(&ca.certificate), &bounds(names));
    });
    let anchors = cas.iter().map(|(ca, _)| &ca.certificate).chain(others.iter().copied());
    let anchors = TrustAnchors::new(anchors.cloned().collect()).unwrap();
    ClientVerifier::new(Arc::new(anchors)).with_bound_cas(bound)
}

const FOO: &[(AllowKind, &str)] = &[(AllowKind::Uri, "foo.example")];
const BAR: &[(AllowKind, &str)] = &[(AllowKind::Uri, "bar.example")];

fn verify(
    verifier: &ClientVerifier,
    leaf: &CertificateDer<'_>,
    presented: &[CertificateDer<'_>],
) -> Result<(), String> {
    match verifier.verify(leaf, presented, UnixTime::now()) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = tls_error(&error);
            let is_told = text.contains("may not vouch for");
            assert_eq!(HandshakeResult::of(&error) == HandshakeResult::NotVouched, is_told);
            Err(text)
        }
    }
}

#[test]
fn a_ca_vouches_for_its_own_trust_domain_only() {
    let (foo, bar) = (Ca::new("Foo CA"), Ca::new("Bar CA"));
    let both = verifier(&[(&foo, FOO), (&bar, BAR)], &[], NameKinds::default());
    let order = [id("spiffe://bar.example/orders")];
    assert_eq!(verify(&both, &bar.leaf(&order), &[]), Ok(()));
    let forged = foo.leaf(&order);
    let problem = verify(&both, &forged, &[]).unwrap_err();
    assert_eq!(problem, "CN=Foo CA may not vouch for the URI \"spiffe://bar.example/orders\"");
    // The hole: without bounds the same certificate is accepted.
    let anchors = vec![foo.certificate.clone(), bar.certificate.clone()];
    let unbound = ClientVerifier::new(Arc::new(TrustAnchors::new(anchors).unwrap()));
    assert_eq!(verify(&unbound, &forged, &[]), Ok(()));
    // A stranger's certificate has the reason of a stranger.
    let stranger = Ca::new("Foo CA").leaf(&order);
    assert!(verify(&both, &stranger, &[]).unwrap_err().contains("no trust anchor issued"));
}

#[test]
fn names_are_compared_in_canonical_form_and_fail_closed() {
    use AllowKind::{CommonName, Dns, Email, OrganizationalUnit, Uri};
    let names: &[_] = &[
        (Uri, "Foo.Example"),
        (Dns, "*.foo.example"),
        (Dns, "**.deep.example."),
        (Email, "foo.example"),
        (CommonName, "orders"),
        (OrganizationalUnit, "Batch"),
    ];
    let foo = Ca::new("Foo CA");
    let verifier = verifier(&[(&foo, names)], &[], NameKinds::default());
    let raw = |names: &[(u8, &[u8])]| {
        let names = names
            .iter()
            .flat_map(|(tag, name)| [&[*tag, u8::try_from(name.len()).unwrap()], *name].concat());
        let names: Vec<u8> = names.collect();
        let content = [&[0x30, u8::try_from(names.len()).unwrap()], &names[..]].concat();
        let mut leaf = CertificateParams::default();
        leaf.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], content)];
        leaf
    };
    let subject = |kind: DnType, value: &str| {
        let mut leaf = CertificateParams::default();
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        leaf.distinguished_name.push(kind, value);
        leaf
    };
    let with = |names: &[SanType]| {
        let mut leaf = subject(DnType::CommonName, "orders");
        leaf.subject_alt_names = names.to_vec();
        leaf
    };
    let common_name = |name| subject(DnType::CommonName, name);
    for (what, leaf, is_vouched) in [
        ("no name", with(&[]), true),
        ("case", with(&[id("SPIFFE://FOO.example/a"), dns("A.FOO.example")]), true),
        ("host of email", with(&[email("Ops@FOO.example")]), true),
        ("wildcard", with(&[dns("*.foo.example")]), true),
        ("wider wildcard", with(&[dns("*.example")]), false),
        ("parent", with(&[dns("foo.example")]), false),
        ("two labels", with(&[dns("a.b.foo.example")]), false),
        ("many labels", with(&[dns("a.b.deep.example"), dns("*.c.deep.example")]), true),
        ("ancestor", with(&[dns("deep.example")]), false),
        ("like an ancestor", with(&[dns("a.notdeep.example")]), false),
        ("one of two", with(&[dns("a.foo.example"), dns("a.bar.example")]), false),
        ("other domain", with(&[id("spiffe://foo.example.org/a")]), false),
        ("subdomain", with(&[id("spiffe://a.foo.example/a")]), false),
        ("two domains", with(&[id("spiffe://foo.example/a"), id("spiffe://bar.example/a")]), false),
        ("port", with(&[id("spiffe://foo.example:443/a")]), false),
        ("user", with(&[id("spiffe://bar@foo.example/a")]), false),
        ("dots", with(&[id("spiffe://foo.example/../a")]), false),
        ("escape", with(&[id("spiffe://foo.example/%61")]), false),
        ("empty domain", with(&[id("spiffe:///a")]), false),
        ("no scheme", with(&[id("//foo.example/a")]), false),
        ("space", with(&[id(" spiffe://bar.example/a")]), false),
        ("another scheme", with(&[id("https://bar.example/a")]), true),
        ("scheme and a control character", with(&[id("https://a\n/spiffe://b/")]), false),
        ("address as a host", with(&[dns("10.0.0.1")]), false),
        ("trailing dot", with(&[dns("a.foo.example.")]), false),
        ("NUL", without(raw(&[(0x82, b"a.foo.example\0.bar.example")])), false),
        ("NUL in front", without(raw(&[(0x82, b"a\0.foo.example")])), false),
        ("NUL in a URI", without(raw(&[(0x86, b"spiffe://foo.example\0/a")])), false),
        ("NUL in an address", without(raw(&[(0x81, b"a\0@foo.example")])), false),
        ("two hosts", without(raw(&[(0x81, b"a@bar.example@foo.example")])), false),
        ("unknown kind", without(raw(&[(0x82, b"a.foo.example"), (0x89, b"")])), false),
        ("readable", without(raw(&[(0x82, b"a.foo.example")])), true),
        ("common name", common_name("orders"), true),
        ("another common name", common_name("Orders"), false),
        ("unit", subject(DnType::OrganizationalUnitName, "Batch"), true),
        ("another unit", subject(DnType::OrganizationalUnitName, "Orders"), false),
    ] {
        let found = verify(&verifier, &foo.sign(leaf), &[]);
        assert_eq!(found.is_ok(), is_vouched, "{what}: {found:?}");
    }

    fn without(mut leaf: CertificateParams) -> CertificateParams {
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        leaf
    }
}

#[test]
fn a_kind_counts_that_a_rule_or_an_entry_has_and_a_spiffe_id_always() {
    let (foo, bar) = (Ca::new("Foo CA"), Ca::new("Bar CA"));
    let web = [(AllowKind::Dns, "**.bar.example")];
    let leaf = foo.leaf(&[id("spiffe://foo.example/a"), dns("a.bar.example")]);
    let rules = NameKinds::default().with(AllowKind::Dns);
    let dns_by_rule = verifier(&[(&foo, FOO)], &[], rules);
    let dns_by_entry = verifier(&[(&foo, FOO), (&bar, &web)], &[], NameKinds::default());
    let dns_by_none = verifier(&[(&foo, FOO), (&bar, BAR)], &[], NameKinds::default());
    assert!(verify(&dns_by_rule, &leaf, &[]).unwrap_err().contains("\"a.bar.example\""));
    assert!(verify(&dns_by_entry, &leaf, &[]).unwrap_err().contains("\"a.bar.example\""));
    assert_eq!(verify(&dns_by_none, &leaf, &[]), Ok(()));
    let ids = verifier(&[(&bar, &web)], &[], NameKinds::default());
    let leaf = bar.leaf(&[id("spiffe://foo.example/a"), dns("a.bar.example")]);
    assert!(verify(&ids, &leaf, &[]).unwrap_err().contains("\"spiffe://foo.example/a\""));
}

#[test]
fn every_ca_on_the_path_is_bound_by_its_key() {
    let (foo, bar, any) = (Ca::new("Foo CA"), Ca::new("Bar CA"), Ca::new("Any CA"));
    let (below, own) = (bar.below("Below"), bar.leaf(&[id("spiffe://bar.example/a")]));
    let forged = bar.leaf(&[id("spiffe://foo.example/a")]);
    let cases = verifier(&[(&foo, FOO), (&bar, BAR)], &[&any.certificate], NameKinds::default());
    assert_eq!(verify(&cases, &own, &[]), Ok(()));
    assert!(verify(&cases, &forged, &[]).is_err());
    // A certificate of another CA for the same key changes nothing, whatever its name.
    for cross in [any.cross_sign("Bar CA", &bar), foo.cross_sign("Bar CA", &bar)] {
        assert_eq!(verify(&cases, &own, std::slice::from_ref(&cross)), Ok(()));
        let problem = verify(&cases, &forged, &[cross]).unwrap_err();
        assert!(problem.starts_with("CN=Bar CA may not vouch"), "{problem}");
    }
    // Nor does another encoding of the key.
    let cross = any.cross_sign_compressed("Bar CA", &bar);
    let cross = std::slice::from_ref(&cross);
    assert_eq!(verify(&cases, &own, cross), Ok(()));
    assert!(verify(&cases, &forged, cross).is_err());
    let only_any = TrustAnchors::new(vec![any.certificate.clone()]).unwrap();
    let by_any = ClientVerifier::new(Arc::new(only_any));
    assert_eq!(verify(&by_any, &forged, cross), Ok(()), "the encoding is accepted");
    let mut bound = BoundCas::new(NameKinds::default());
    bound.bind(std::slice::from_ref(&bar.certificate), &bounds(BAR));
    let problem = verify(&by_any.with_bound_cas(bound), &forged, cross).unwrap_err();
    assert!(problem.starts_with("CN=Bar CA may not vouch"), "{problem}");
    let forged = below.leaf(&[id("spiffe://foo.example/a")]);
    assert!(verify(&cases, &forged, std::slice::from_ref(&below.certificate)).is_err());
    let own = below.leaf(&[id("spiffe://bar.example/a")]);
    assert_eq!(verify(&cases, &own, std::slice::from_ref(&below.certificate)), Ok(()));
    // The unbound CA vouches for every name, but not for two trust domains at once.
    assert_eq!(verify(&cases, &any.leaf(&[id("spiffe://foo.example/a")]), &[]), Ok(()));
    let two = any.leaf(&[id("spiffe://foo.example/a"), id("spiffe://bar.example/a")]);
    assert!(verify(&cases, &two, &[]).unwrap_err().contains("two trust domains"));
    // An ID that cannot be read may be of any trust domain, also from an unbound CA.
    for other in ["spiffe://bar.example:443/a", "spiffe://x@bar.example/a", "spiffe:bar.example"] {
        for ids in [["spiffe://foo.example/a", other], [other, "spiffe://foo.example/a"]] {
            let found = verify(&cases, &any.leaf(&ids.map(id)), &[]);
            assert!(found.is_err_and(|it| it.contains("two trust domains")), "{ids:?}");
        }
        assert_eq!(verify(&cases, &any.leaf(&[id(other)]), &[]), Ok(()), "alone: {other}");
    }
    // Also behind a URI that is no SPIFFE ID.
    let ids = ["spiffe://x:1/", "spiffe://foo.example/a", "spiffe://bar.example/a"].map(id);
    assert!(verify(&cases, &any.leaf(&ids), &[]).unwrap_err().contains("two trust domains"));
}

#[test]
fn an_issuing_ca_in_the_file_has_its_own_bounds_below_its_root() {
    let root = Ca::new("Root");
    let issuing = root.below("Issuing CA");
    let all: &[_] = &[(AllowKind::Uri, "foo.example"), (AllowKind::Uri, "bar.example")];
    let verifier = verifier(&[(&root, all), (&issuing, BAR)], &[], NameKinds::default());
    assert_eq!(verify(&verifier, &issuing.leaf(&[id("spiffe://bar.example/a")]), &[]), Ok(()));
    let forged = issuing.leaf(&[id("spiffe://foo.example/a")]);
    let problem = verify(&verifier, &forged, &[]).unwrap_err();
    assert!(problem.starts_with("CN=Issuing CA may not vouch"), "{problem}");
    assert_eq!(verify(&verifier, &root.leaf(&[id("spiffe://foo.example/a")]), &[]), Ok(()));
}

/// The certificates of a file, and the names that its CAs may vouch for.
type CaFile<'a> = (&'a [&'a CertificateDer<'static>], &'a [(AllowKind, &'a str)]);

/// A verifier of clients of `cas`, and of the CAs in `unbound`.
fn verifier_of_files(unbound: &[&CertificateDer<'static>], cas: &[CaFile<'_>]) -> ClientVerifier {
    let owned = |file: &[&CertificateDer<'static>]| file.iter().copied().cloned().collect();
    let files: Vec<Vec<_>> = cas.iter().map(|(file, _)| owned(file)).collect();
    let mut bound = BoundCas::new(NameKinds::default());
    files.iter().zip(cas).for_each(|(file, (_, names))| bound.bind(file, &bounds(names)));
    let anchors = TrustAnchors::from_files(owned(unbound), files).unwrap();
    ClientVerifier::new(Arc::new(anchors)).with_bound_cas(bound)
}

#[test]
fn the_file_of_one_ca_takes_the_anchor_of_no_other() {
    let (foo, bar_root) = (Ca::new("Foo CA"), Ca::new("Bar Root"));
    let bar = bar_root.below("Bar CA");
    let key = KeyPair::generate().unwrap();
    let mut pin = CertificateParams::default();
    pin.subject_alt_names = vec![id("spiffe://bar.example/pin")];
    let pin = pin.signed_by(&key, &bar_root.issuer).unwrap().der().clone();
    let cross = foo.cross_sign("Bar CA", &bar);
    let own = bar.leaf(&[id("spiffe://bar.example/a")]);
    let forged = foo.leaf(&[id("spiffe://bar.example/a")]);
    let bar_file = [&bar.certificate, &pin];
    // The issuer of Bar CA, and a certificate for its key, are public.
    for foo_file in [
        &[&foo.certificate][..],
        &[&foo.certificate, &cross],
        &[&foo.certificate, &bar_root.certificate],
        &[&foo.certificate, &cross, &bar_root.certificate],
    ] {
        for cas in [[(foo_file, FOO), (&bar_file, BAR)], [(&bar_file, BAR), (foo_file, FOO)]] {
            let verifier = verifier_of_files(&[], &cas);
            assert_eq!(verify(&verifier, &own, &[]), Ok(()));
            assert_eq!(verify(&verifier, &pin, &[]), Ok(()));
            assert_eq!(verify(&verifier, &own, std::slice::from_ref(&cross)), Ok(()));
            assert!(verify(&verifier, &forged, &[]).is_err());
        }
    }
    // In one file, and below an unbound CA, it is an intermediate, which its root may revoke.
    let root = &bar_root.certificate;
    let ends = |verifier: &ClientVerifier| verifier.trust_anchors().counts().roots;
    assert_eq!(ends(&verifier_of_files(&[], &[(&[&bar.certificate, root], BAR)])), 1);
    let below = verifier_of_files(&[root], &[(&[&bar.certificate], BAR)]);
    assert_eq!((ends(&below), verify(&below, &own, &[])), (1, Ok(())));
}

#[test]
fn two_cas_with_the_same_subject_are_told_apart_by_their_keys() {
    let (one, two) = (Ca::new("CA"), Ca::new("CA"));
    for cas in [[(&one, FOO), (&two, BAR)], [(&two, BAR), (&one, FOO)]] {
        let verifier = verifier(&cas, &[], NameKinds::default());
        for (ca, domain, is_vouched) in
            [(&one, "foo", true), (&one, "bar", false), (&two, "foo", false), (&two, "bar", true)]
        {
            let leaf = ca.leaf(&[id(&format!("spiffe://{domain}.example/a"))]);
            assert_eq!(verify(&verifier, &leaf, &[]).is_ok(), is_vouched, "{domain}");
        }
    }
}

#[test]
fn a_ca_with_two_entries_vouches_for_the_names_of_either_and_not_of_both() {
    let foo = Ca::new("Foo CA");
    let web: &[_] = &[(AllowKind::Dns, "a.example")];
    let verifier = verifier(&[(&foo, FOO), (&foo, web)], &[], NameKinds::default());
    let (foo_id, web) = (id("spiffe://foo.example/a"), dns("a.example"));
    assert_eq!(verify(&verifier, &foo.leaf(std::slice::from_ref(&foo_id)), &[]), Ok(()));
    assert_eq!(verify(&verifier, &foo.leaf(std::slice::from_ref(&web)), &[]), Ok(()));
    assert!(verify(&verifier, &foo.leaf(&[foo_id, web]), &[]).is_err());
}

#[test]
fn a_pin_has_the_bounds_of_its_file() {
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![id("spiffe://foo.example/a")];
    let pin = leaf.self_signed(&key).unwrap().der().clone();
    for (names, is_vouched) in [(FOO, true), (BAR, false)] {
        let mut bound = BoundCas::new(NameKinds::default());
        bound.bind(std::slice::from_ref(&pin), &bounds(names));
        let anchors = Arc::new(TrustAnchors::new(vec![pin.clone()]).unwrap());
        let verifier = ClientVerifier::new(anchors).with_bound_cas(bound);
        assert_eq!(verify(&verifier, &pin, &[]).is_ok(), is_vouched);
    }
}

#[test]
fn a_chain_that_was_verified_with_other_bounds_is_not_found() {
    let foo = Ca::new("Foo CA");
    let leaf = foo.leaf(&[id("spiffe://foo.example/a")]);
    let anchors = TrustAnchors::new(vec![foo.certificate.clone()]).unwrap();
    let verifier = ClientVerifier::new(Arc::new(anchors)).with_chain_cache();
    let chain = std::slice::from_ref(&leaf);
    assert!(verifier.verify_presented(chain, UnixTime::now()).is_ok());
    let mut bound = BoundCas::new(NameKinds::default());
    bound.bind(std::slice::from_ref(&foo.certificate), &bounds(BAR));
    let verifier = verifier.with_bound_cas(bound);
    assert!(verifier.verify_presented(chain, UnixTime::now()).is_err());
}
