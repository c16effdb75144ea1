//! Names × rules, against a model that shares no code with the rules.

use proptest::collection::vec;
use proptest::prelude::*;
use rustls::pki_types::CertificateDer;

use super::{AllowKind, AllowRuleError, AllowRules};
use crate::spki::Fingerprint;

const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const TELETEX: u8 = 0x14;
const IA5: u8 = 0x16;
const UNIVERSAL: u8 = 0x1c;
const BMP: u8 = 0x1e;

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const ORGANIZATIONAL_UNIT: &[u8] = &[0x55, 4, 11];

/// The SubjectPublicKeyInfo of each certificate; no rule reads it.
const SPKI: &[u8] = &[0x30, 2, 5, 0];

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = content.len().to_be_bytes();
    let header = match content.len() {
        ..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        0x100..0x1_0000 => vec![tag, 0x82, middle, low],
        _ => vec![tag, 0x83, high, middle, low],
    };
    [&header, content].concat()
}

fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    tlv(0x31, &tlv(0x30, &[tlv(6, kind), tlv(tag, value)].concat()))
}

fn extension(kind: &[u8], value: &[u8]) -> Vec<u8> {
    tlv(0x30, &[tlv(6, kind), tlv(4, value)].concat())
}

fn alternative_names(names: &[Vec<u8>]) -> Vec<u8> {
    extension(&[0x55, 29, 17], &tlv(0x30, &names.concat()))
}

/// A certificate with this content of its subject and of its extensions, without a signature.
fn certificate(subject: &[Vec<u8>], extensions: &[Vec<u8>]) -> CertificateDer<'static> {
    let sequence = || tlv(0x30, &[]);
    let mut fields = vec![
        tlv(0xa0, &[2, 1, 2]),
        tlv(2, &[1]),
        sequence(),
        sequence(),
        sequence(),
        tlv(0x30, &subject.concat()),
        SPKI.to_vec(),
    ];
    if !extensions.is_empty() {
        fields.push(tlv(0xa3, &tlv(0x30, &extensions.concat())));
    }
    tlv(0x30, &tlv(0x30, &fields.concat())).into()
}

fn with_names(names: &[Vec<u8>]) -> CertificateDer<'static> {
    certificate(&[], &[alternative_names(names)])
}

fn dns(name: impl AsRef<[u8]>) -> Vec<u8> {
    tlv(0x82, name.as_ref())
}

fn email(address: impl AsRef<[u8]>) -> Vec<u8> {
    tlv(0x81, address.as_ref())
}

fn uri(id: impl AsRef<[u8]>) -> Vec<u8> {
    tlv(0x86, id.as_ref())
}

fn rules(kind: AllowKind, rules: &[&str]) -> AllowRules {
    let mut all = AllowRules::default();
    rules.iter().for_each(|rule| all.add(kind, rule).unwrap_or_else(|it| panic!("{rule} {it}")));
    all
}

fn admits(rules: &AllowRules, certificate: &CertificateDer<'_>) -> bool {
    rules.admit(Some(certificate))
}

/// The specification, in the most literal way.
mod model {
    fn label(text: &str) -> bool {
        let letters: Vec<char> = text.chars().collect();
        let known = "abcdefghijklmnopqrstuvwxyz0123456789-_";
        !letters.is_empty()
            && letters.len() < 64
            && letters.iter().all(|letter| known.contains(*letter))
            && letters[0] != '-'
            && letters[letters.len() - 1] != '-'
    }

    fn host(text: &str) -> bool {
        let labels: Vec<&str> = text.split('.').collect();
        let number = labels[labels.len() - 1].chars().all(|letter| "0123456789".contains(letter));
        text.len() < 254 && labels.iter().all(|it| label(it)) && !number
    }

    pub(super) fn dns(rule: &str, name: &str) -> bool {
        let (rule, name) = (rule.to_ascii_lowercase(), name.to_ascii_lowercase());
        let rule = rule.trim_end_matches('.');
        if name.len() > 253 {
            return false;
        }
        match name.split_once('.') {
            Some(("*", parent)) => host(parent) && rule == name,
            _ if !host(&name) => false,
            Some((_, parent)) if rule == format!("*.{parent}") => true,
            Some(_) | None => rule == name,
        }
    }

    pub(super) fn email(rule: &str, address: &str) -> bool {
        let split = |text: &str| {
            let at = text.rfind('@')?;
            let (local, domain) = text.split_at(at);
            let (local, domain) = (local.to_owned(), domain.split_at(1).1.to_ascii_lowercase());
            let printable = local.chars().all(|letter| ('!'..='~').contains(&letter));
            (printable && !local.is_empty() && local.len() < 65 && host(&domain))
                .then_some((local, domain))
        };
        split(address).is_some_and(|address| Some(address) == split(rule))
    }

    fn id(text: &str) -> Option<Vec<String>> {
        if text.len() > 2048 || !text.to_ascii_lowercase().starts_with("spiffe://") {
            return None;
        }
        let mut parts: Vec<String> = text.split_at(9).1.split('/').map(str::to_owned).collect();
        parts[0].make_ascii_lowercase();
        Some(parts)
    }

    pub(super) fn uri(rule: &str, name: &str) -> bool {
        let (Some(rule), Some(name)) = (id(rule), id(name)) else { return false };
        let letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let part = |part: &String| !part.is_empty() && part.chars().all(letter);
        let dots = name[1..].iter().any(|segment| segment == "." || segment == "..");
        if !name.iter().all(part) || dots || name[0].len() > 255 {
            return false;
        }
        let (length, open) = match rule.last() {
            Some(last) if last == "**" => (rule.len() - 1, true),
            Some(_) | None => (rule.len(), false),
        };
        (if open { name.len() > length } else { name.len() == length })
            && (0..length).all(|index| rule[index] == "*" || rule[index] == name[index])
    }
}

const DNS_NAMES: [&str; 33] = [
    "",
    ".",
    "*",
    "*.",
    "*.*",
    "*.com",
    "*.example.com",
    "*.EXAMPLE.com",
    "*.*.example.com",
    "a.*.example.com",
    "a*.example.com",
    "*a.example.com",
    "a.example.com",
    "A.Example.COM",
    "b.example.com",
    "a.b.example.com",
    "example.com",
    "example.com.",
    "a.example.com.",
    ".example.com",
    "..example.com",
    "-a.example.com",
    "a-.example.com",
    "a_b.example.com",
    "xn--bcher-kva.example.com",
    "b\u{fc}cher.example.com",
    "\u{ff41}.example.com",
    "a\0.example.com",
    "a.example.com\0",
    "a.example.com\n",
    "a .example.com",
    "10.0.0.1",
    "localhost",
];

#[test]
fn dns_names_match_as_the_model_says() {
    let long = format!("{}.example.com", vec!["a".repeat(60); 3].join("."));
    let longest = format!("{}.{long}", "b".repeat(253 - long.len() - 1));
    let too_long = format!("{}.{long}", "b".repeat(254 - long.len() - 1));
    let label = format!("{}.example.com", "a".repeat(64));
    let names: Vec<&str> =
        DNS_NAMES.into_iter().chain([long.as_str(), &longest, &too_long, &label]).collect();
    let mut matches = 0;
    for rule in &names {
        let mut one = AllowRules::default();
        if one.add(AllowKind::Dns, rule).is_err() {
            continue;
        }
        for name in &names {
            let found = admits(&one, &with_names(&[dns(name)]));
            assert_eq!(found, model::dns(rule, name), "rule {rule:?}, name {name:?}");
            matches += usize::from(found);
        }
    }
    assert!(matches > 20, "{matches}");
}

#[test]
fn the_cases_of_a_wildcard_and_of_case_are_these() {
    let wildcard = rules(AllowKind::Dns, &["*.Example.com."]);
    for (name, is_admitted) in [
        ("a.example.com", true),
        ("A.EXAMPLE.COM", true),
        ("example.com", false),
        ("a.b.example.com", false),
        ("*.example.com", true),
        ("a*.example.com", false),
        ("a.example.com.", false),
        (".example.com", false),
        ("a.example.com\0", false),
    ] {
        assert_eq!(admits(&wildcard, &with_names(&[dns(name)])), is_admitted, "{name:?}");
    }
    let host = rules(AllowKind::Dns, &["a.example.com"]);
    assert!(!admits(&host, &with_names(&[dns("*.example.com")])), "a wildcard names all hosts");
}

const URIS: [&str; 40] = [
    "",
    "spiffe:",
    "spiffe://",
    "spiffe:///a",
    "spiffe://example.org",
    "spiffe://example.org/",
    "SPIFFE://EXAMPLE.org",
    "Spiffe://Example.Org/a",
    "spiffe://example.org/a",
    "spiffe://example.org/A",
    "spiffe://example.org/a/",
    "spiffe://example.org//a",
    "spiffe://example.org/a/b",
    "spiffe://example.org/a/B",
    "spiffe://example.org/a/b/c",
    "spiffe://example.org/a//c",
    "spiffe://example.org/a/./b",
    "spiffe://example.org/a/../b",
    "spiffe://example.org/a/...",
    "spiffe://example.org/%61",
    "spiffe://example.org/a?b",
    "spiffe://example.org/a#b",
    "spiffe://example.org/a\0",
    "spiffe://example.org/\u{e4}",
    "spiffe://example.org:443/a",
    "spiffe://user@example.org/a",
    "spiffe://example.org.evil/a",
    "spiffe://xexample.org/a",
    "https://example.org/a",
    "spiffes://example.org/a",
    " spiffe://example.org/a",
    "spiffe://example.org/*",
    "spiffe://example.org/**",
    "spiffe://example.org/a/*",
    "spiffe://example.org/*/b",
    "spiffe://example.org/a/**",
    "spiffe://example.org/*/**",
    "spiffe://example.org/*/*/c",
    "spiffe://exa_mple-2.org/a",
    "spiffe://*/a",
];

#[test]
fn spiffe_ids_match_as_the_model_says() {
    let path = |length: usize| format!("spiffe://example.org/{}", "x".repeat(length - 21));
    let domain = |length| format!("spiffe://{}/a", "d".repeat(length));
    let deep = format!("spiffe://example.org{}", "/s".repeat(1014));
    let long = [path(2048), path(2049), domain(255), domain(256), deep];
    let names: Vec<&str> = URIS.into_iter().chain(long.iter().map(String::as_str)).collect();
    let mut matches = 0;
    for rule in &names {
        let mut one = AllowRules::default();
        if one.add(AllowKind::Uri, rule).is_err() {
            continue;
        }
        for name in &names {
            let found = admits(&one, &with_names(&[uri(name)]));
            assert_eq!(found, model::uri(rule, name), "rule {rule:?}, name {name:?}");
            matches += usize::from(found);
        }
    }
    assert!(matches > 30, "{matches}");
}

#[test]
fn email_addresses_match_as_the_model_says() {
    let long = [
        format!("{}@example.com", "a".repeat(64)),
        format!("{}@example.com", "a".repeat(65)),
        format!("a@{}.com", vec!["b".repeat(60); 4].join(".")),
    ];
    let names = [
        "",
        "@",
        "a",
        "a@",
        "@example.com",
        "a@example.com",
        "A@example.com",
        "a@EXAMPLE.com",
        "a@example.com.",
        "a@sub.example.com",
        "a@b@example.com",
        "\"a@b\"@example.com",
        "a b@example.com",
        "a\0@example.com",
        "a@example.com\0",
        "\u{e4}@example.com",
        "a@[10.0.0.1]",
        "*@example.com",
    ];
    let names: Vec<&str> = names.into_iter().chain(long.iter().map(String::as_str)).collect();
    let mut matches = 0;
    for rule in &names {
        let mut one = AllowRules::default();
        if one.add(AllowKind::Email, rule).is_err() {
            continue;
        }
        for name in &names {
            let found = admits(&one, &with_names(&[email(name)]));
            assert_eq!(found, model::email(rule, name), "rule {rule:?}, name {name:?}");
            matches += usize::from(found);
        }
    }
    assert!(matches > 8, "{matches}");
}

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
fn a_pin_is_the_fingerprint_of_the_key_in_hex_or_base64() {
    let fingerprint = Fingerprint::of(SPKI);
    let hex = fingerprint.to_string();
    let digest: Vec<u8> = data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
    let base64 = data_encoding::BASE64.encode(&digest);
    let client = certificate(&[], &[]);
    for pin in [hex.clone(), hex.to_uppercase(), base64] {
        assert!(admits(&rules(AllowKind::Spki, &[&pin]), &client), "{pin}");
    }
    let other = Fingerprint::of(b"other").to_string();
    assert!(!admits(&rules(AllowKind::Spki, &[&other]), &client));
    assert!(!admits(&AllowRules::default(), &client), "no rule admits nobody");
    assert!(!rules(AllowKind::Spki, &[&hex]).admit(None), "nor one without a certificate");
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

#[test]
fn unusable_rules_are_rejected_with_a_remedy() {
    for (kind, rule, error) in [
        (AllowKind::Dns, "", AllowRuleError::Dns),
        (AllowKind::Dns, "*", AllowRuleError::DnsWildcard),
        (AllowKind::Dns, "*.", AllowRuleError::DnsWildcard),
        (AllowKind::Dns, "a*.example.com", AllowRuleError::DnsWildcard),
        (AllowKind::Dns, "*.*.example.com", AllowRuleError::DnsWildcard),
        (AllowKind::Dns, "b\u{fc}cher.example.com", AllowRuleError::DnsNotAscii),
        (AllowKind::Dns, "10.0.0.1", AllowRuleError::DnsAddress),
        (AllowKind::Dns, "::1", AllowRuleError::DnsAddress),
        (AllowKind::Dns, "[::1]", AllowRuleError::DnsAddress),
        (AllowKind::Dns, "https://example.com", AllowRuleError::Dns),
        (AllowKind::Dns, "a..b", AllowRuleError::Dns),
        (AllowKind::Email, "a", AllowRuleError::Email),
        (AllowKind::Email, "@example.com", AllowRuleError::Email),
        (AllowKind::Email, "*@example.com", AllowRuleError::Email),
        (AllowKind::Uri, "https://example.org/a", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/a?b", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://*/a", AllowRuleError::UriWildcard),
        (AllowKind::Uri, "spiffe://example.org/a*", AllowRuleError::UriWildcard),
        (AllowKind::Uri, "spiffe://example.org/**/a", AllowRuleError::UriWildcard),
        (AllowKind::Uri, "spiffe://example.org/**/**", AllowRuleError::UriWildcard),
        (AllowKind::Uri, "spiffe://example.org/***", AllowRuleError::UriWildcard),
        (AllowKind::CommonName, "", AllowRuleError::Subject),
        (AllowKind::CommonName, "a\0", AllowRuleError::Subject),
        (AllowKind::OrganizationalUnit, "a\n", AllowRuleError::Subject),
        (AllowKind::Spki, "9e03", AllowRuleError::Spki),
    ] {
        assert_eq!(AllowRules::default().add(kind, rule), Err(error), "{kind:?} {rule:?}");
    }
}

#[test]
fn ten_thousand_rules_admit_the_clients_that_they_name() {
    let mut all = AllowRules::default();
    for number in 0..10_000 {
        all.add(AllowKind::Uri, &format!("spiffe://example.org/ns/{number}/*/web")).unwrap();
        all.add(AllowKind::Dns, &format!("*.n{number}.example.com")).unwrap();
    }
    for (id, is_admitted) in [
        ("spiffe://example.org/ns/9999/sa/web", true),
        ("spiffe://example.org/ns/10000/sa/web", false),
        ("spiffe://example.org/ns/17/sa/db", false),
    ] {
        assert_eq!(admits(&all, &with_names(&[uri(id)])), is_admitted, "{id}");
    }
    assert!(admits(&all, &with_names(&[dns("a.n42.example.com")])));
}

proptest! {
    #[test]
    fn any_host_names_match_as_the_model_says(
        rule in "(\\*\\.)?[ab]{1,2}(\\.[aB-]{1,2}){0,2}",
        name in "[ab*]{0,2}(\\.[ab-]{1,2}){0,2}\\.?",
    ) {
        let mut one = AllowRules::default();
        if one.add(AllowKind::Dns, &rule).is_ok() {
            let found = admits(&one, &with_names(&[dns(&name)]));
            prop_assert_eq!(found, model::dns(&rule, &name), "{} {}", rule, name);
        }
    }

    #[test]
    fn any_spiffe_ids_match_as_the_model_says(
        rules in vec("spiffe://[tT]((/([ab]|\\*)){0,4}(/\\*\\*)?)", 1..4),
        name in "spiffe://[tT](/[ab.]{0,2}){0,5}",
    ) {
        let mut all = AllowRules::default();
        let rules: Vec<&String> =
            rules.iter().filter(|rule| all.add(AllowKind::Uri, rule).is_ok()).collect();
        let expected = rules.iter().any(|rule| model::uri(rule, &name));
        prop_assert_eq!(admits(&all, &with_names(&[uri(&name)])), expected, "{:?} {}", rules, name);
    }

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
