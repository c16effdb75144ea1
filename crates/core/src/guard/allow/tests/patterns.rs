//! Rules about DNS names, email addresses and SPIFFE IDs, compared with the model.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

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
        "mailto:a@example.com",
        "a+b@example.com",
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
}
