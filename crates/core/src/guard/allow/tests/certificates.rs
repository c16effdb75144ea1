//! The names of a certificate: their place, their encoding, their number.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn subjects_are_compared_in_their_string_type() {
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    let utf32 = |text: &str| text.chars().flat_map(|it| u32::from(it).to_be_bytes()).collect();
    let names = [
        "orders",
        "Orders",
        "orders ",
        "b\u{fc}cher \u{4e66}",
        "bu\u{308}cher \u{4e66}", // the same in another normal form
        "orders\0",
        "\0orders",
        "ord\x1bers",
        "ord\u{85}ers",
        "\u{1f4a9}",
        "",
    ];
    for (kind, oid) in
        [(AllowKind::CommonName, COMMON_NAME), (AllowKind::OrganizationalUnit, ORGANIZATIONAL_UNIT)]
    {
        for rule in names {
            let mut one = AllowRules::default();
            let is_rule = !rule.is_empty() && !rule.chars().any(char::is_control);
            assert_eq!(one.add(kind, rule).is_ok(), is_rule, "{rule:?}");
            for name in names {
                let values: [(u8, Vec<u8>, bool); 6] = [
                    (UTF8, name.into(), true),
                    (PRINTABLE, name.into(), name.is_ascii()),
                    (IA5, name.into(), name.is_ascii()),
                    (BMP, utf16(name), !name.contains('\u{1f4a9}')),
                    (TELETEX, name.into(), false),
                    (UNIVERSAL, utf32(name), false),
                ];
                for (tag, value, is_comparable) in values {
                    let client = certificate(&[attribute(oid, tag, &value)], &[]);
                    let expected = is_rule && is_comparable && rule == name;
                    assert_eq!(admits(&one, &client), expected, "{rule:?} {name:?} {tag:#x}");
                }
            }
        }
        let client = |tag, value: &[u8]| certificate(&[attribute(oid, tag, value)], &[]);
        let one = rules(kind, &["a", "\u{fffd}"]);
        assert!(!admits(&one, &client(UTF8, b"\xff")), "not UTF-8");
        assert!(!admits(&one, &client(BMP, b"\0a\0")), "half a character");
        assert!(!admits(&one, &client(BMP, b"\xd8\x3d")), "a surrogate");
        assert!(!admits(&one, &client(BMP, &b"\0a".repeat(1025))), "too long");
        assert!(!admits(&one, &client(UTF8, &b"a".repeat(1025))), "too long");
    }
}

#[test]
fn a_certificate_with_several_uris_or_common_names_is_admitted_by_neither() {
    let by_uri = rules(AllowKind::Uri, &["spiffe://example.org/**"]);
    let one = uri("spiffe://example.org/a");
    assert!(admits(&by_uri, &with_names(&[dns("x"), one.clone(), email("x")])));
    let others = [one.clone(), uri("spiffe://example.org/b"), uri("https://example.org"), uri("")];
    for other in others {
        for names in [[one.clone(), other.clone()], [other, one.clone()]] {
            assert!(!admits(&by_uri, &with_names(&names)), "{names:?}");
        }
    }
    let by_name = rules(AllowKind::CommonName, &["a"]);
    let named = |name: &[u8]| attribute(COMMON_NAME, UTF8, name);
    assert!(admits(&by_name, &certificate(&[named(b"a")], &[])));
    for other in [b"a", b"b"] {
        assert!(!admits(&by_name, &certificate(&[named(b"a"), named(other)], &[])));
        assert!(!admits(&by_name, &certificate(&[named(other), named(b"a")], &[])));
    }
    // In one RDN, as "CN=a + CN=b".
    let pair = |name: &[u8]| tlv(0x30, &[tlv(6, COMMON_NAME), tlv(UTF8, name)].concat());
    let both = tlv(0x31, &[pair(b"a"), pair(b"b")].concat());
    assert!(!admits(&by_name, &certificate(&[both], &[])));
    // Any of several units, hosts and addresses.
    let units = [b"x", b"a"].map(|name| attribute(ORGANIZATIONAL_UNIT, UTF8, name));
    assert!(admits(&rules(AllowKind::OrganizationalUnit, &["a"]), &certificate(&units, &[])));
    let hosts = with_names(&[dns("x"), dns("a")]);
    assert!(admits(&rules(AllowKind::Dns, &["a"]), &hosts));
}

#[test]
fn a_name_counts_only_in_its_own_place() {
    let text = "a.example.com";
    let everywhere = |except: usize| {
        let names = [dns(text), email(text), uri(text)];
        let names = names.into_iter().enumerate().filter(|(index, _)| *index != except);
        let names: Vec<Vec<u8>> = names.map(|(_, name)| name).collect();
        let units = [COMMON_NAME, ORGANIZATION, ORGANIZATIONAL_UNIT].into_iter().enumerate();
        let units = units.filter(|(index, _)| index + 3 != except);
        let subject: Vec<Vec<u8>> =
            units.map(|(_, oid)| attribute(oid, UTF8, text.as_bytes())).collect();
        certificate(&subject, &[alternative_names(&names)])
    };
    for (kind, place) in
        [(AllowKind::Dns, 0), (AllowKind::CommonName, 3), (AllowKind::OrganizationalUnit, 5)]
    {
        let one = rules(kind, &[text]);
        assert!(admits(&one, &everywhere(usize::MAX)), "{kind:?}");
        assert!(!admits(&one, &everywhere(place)), "{kind:?}");
    }
}

#[test]
fn names_that_cannot_be_read_or_are_too_many_admit_nobody_but_a_pin_does() {
    let mut all = rules(AllowKind::Dns, &["a"]);
    all.add(AllowKind::CommonName, "a").unwrap();
    let name = || attribute(COMMON_NAME, UTF8, b"a");
    let good = alternative_names(&[dns("a")]);
    assert!(admits(&all, &certificate(&[name()], std::slice::from_ref(&good))));
    let broken: [(&str, CertificateDer<'_>); 8] = [
        ("two extensions", certificate(&[name()], &[good.clone(), good.clone()])),
        ("no sequence", certificate(&[name()], &[extension(&[0x55, 29, 17], &dns("a"))])),
        ("a tag that no name has", with_names(&[dns("a"), tlv(0x89, b"")])),
        ("a constructed name", with_names(&[dns("a"), tlv(0xa2, &dns("a"))])),
        ("a universal tag", with_names(&[dns("a"), tlv(0x0c, b"a")])),
        ("a cut name", with_names(&[dns("a"), vec![0x82, 5, b'a']])),
        ("bytes behind", {
            let value = [tlv(0x30, &dns("a")), vec![0]].concat();
            certificate(&[name()], &[extension(&[0x55, 29, 17], &value)])
        }),
        ("a broken subject", certificate(&[name(), vec![0x31, 9]], std::slice::from_ref(&good))),
    ];
    for (context, client) in &broken {
        assert!(!admits(&all, client), "{context}");
    }
    let many = |count| with_names(&vec![dns("a"); count]);
    assert!(admits(&all, &many(1024)));
    assert!(!admits(&all, &many(1025)));
    assert!(!admits(&all, &many(20_000)));
    let pin = rules(AllowKind::Spki, &[&Fingerprint::of(SPKI).to_string()]);
    assert!(broken.iter().all(|(_, client)| admits(&pin, client)));
    assert!(!admits(&all, &CertificateDer::from(vec![0x30, 0])), "no certificate");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut all = rules(AllowKind::Dns, &["a"]);
        all.add(AllowKind::Uri, "spiffe://a/**").unwrap();
        all.add(AllowKind::CommonName, "a").unwrap();
        all.add(AllowKind::Email, "a@a").unwrap();
        let whole = std::slice::from_ref(&bytes);
        let _ = admits(&all, &certificate(whole, whole));
        for name in [dns(&bytes), email(&bytes), uri(&bytes), bytes.clone()] {
            let _ = admits(&all, &with_names(&[name]));
        }
    }
}
