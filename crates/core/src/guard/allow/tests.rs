//! Names × rules, against a model that shares no code with the rules.

mod certificates;
mod model;
mod patterns;

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
fn unusable_rules_are_rejected_with_a_remedy() {
    for (kind, rule, error) in [
        (AllowKind::Dns, "", AllowRuleError::Dns),
        (AllowKind::Dns, "*", AllowRuleError::Dns),
        (AllowKind::Dns, "*.", AllowRuleError::Dns),
        (AllowKind::Dns, "a*.example.com", AllowRuleError::Dns),
        (AllowKind::Dns, "*.*.example.com", AllowRuleError::Dns),
        (AllowKind::Dns, "b\u{fc}cher.example.com", AllowRuleError::Dns),
        (AllowKind::Dns, "10.0.0.1", AllowRuleError::Dns),
        (AllowKind::Dns, "::1", AllowRuleError::Dns),
        (AllowKind::Dns, "[::1]", AllowRuleError::Dns),
        (AllowKind::Dns, "https://example.com", AllowRuleError::Dns),
        (AllowKind::Dns, "a..b", AllowRuleError::Dns),
        (AllowKind::Email, "a", AllowRuleError::Email),
        (AllowKind::Email, "@example.com", AllowRuleError::Email),
        (AllowKind::Email, "*@example.com", AllowRuleError::Email),
        (AllowKind::Email, "mailto:a@example.com", AllowRuleError::Email),
        (AllowKind::Email, "a@example.com,b@example.com", AllowRuleError::Email),
        (AllowKind::Email, "<a@example.com>", AllowRuleError::Email),
        (AllowKind::Uri, "https://example.org/a", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/a?b", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://*/a", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/a*", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/**/a", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/**/**", AllowRuleError::Uri),
        (AllowKind::Uri, "spiffe://example.org/***", AllowRuleError::Uri),
        (AllowKind::CommonName, "", AllowRuleError::Subject),
        (AllowKind::CommonName, "a\0", AllowRuleError::Subject),
        (AllowKind::OrganizationalUnit, "a\n", AllowRuleError::Subject),
        (AllowKind::Spki, "9e03", AllowRuleError::Spki),
    ] {
        assert_eq!(AllowRules::default().add(kind, rule), Err(error), "{kind:?} {rule:?}");
    }
    let longest = [&"a".repeat(63), &"b".repeat(63), &"c".repeat(63), &*"d".repeat(61)].join(".");
    let mut rules = AllowRules::default();
    assert_eq!(rules.add(AllowKind::Dns, &longest), Ok(()));
    assert_eq!(rules.add(AllowKind::Dns, &format!("*.{longest}")), Err(AllowRuleError::Dns));
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
