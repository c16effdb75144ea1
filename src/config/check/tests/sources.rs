//! URLs of sources, and the settings of what is fetched.

use std::time::Duration;

use super::problem_with;
use crate::config::example::{MINIMAL, changed, parse};
use crate::config::{FetchConfig, ListConfig, ListFormat, Rollback, Shrink, SourceUrl};

/// Checks that a secret is sent to this machine only if the URL that `table` gets has no TLS.
pub(super) fn assert_encrypted(table: impl Fn(&str) -> String) {
    for url in ["http://127.0.0.1", "http://localhost:8080", "http://[::1]"] {
        assert_eq!(problem_with(&table(url)), "", "{url}");
    }
    for url in ["http://a.example", "http://10.0.0.1:8080", "http://localhost.example"] {
        let found = problem_with(&table(url));
        assert!(found.contains("to another machine in clear text; use https://"), "{found}");
    }
}

#[test]
fn an_api_key_is_never_sent_to_another_machine_in_clear_text() {
    assert_encrypted(|url| format!("[confirm]\nurl = {url:?}\napi_key = \"k\""));
    let table = "[confirm]\nurl = \"https://a\"\ntrust_anchors = \"b\"\napi_key = \"c\"";
    assert_eq!(problem_with(table), "");
}

#[test]
fn headers_of_a_source_are_never_sent_to_another_machine_in_clear_text() {
    let table = |url: &str, proxy: &str| {
        let source = format!("source = {{ url = \"{url}/f\", headers = \"h\"{proxy} }}");
        format!("[[lists]]\nname = \"l\"\npath = \"l\"\nminisign_key = \"k\"\n{source}")
    };
    assert_encrypted(|url| table(url, ""));
    let found = problem_with(&table("http://127.0.0.1", ", proxy = \"http://c\""));
    assert!(found.contains("in clear text"), "a proxy would read them: {found}");
}

#[test]
fn the_url_of_a_source_has_a_scheme_and_a_host() {
    for (text, written) in [
        ("https://v1.pwnedkeys.com", "https://v1.pwnedkeys.com"),
        ("https://v1.pwnedkeys.com/", "https://v1.pwnedkeys.com"),
        ("https://mirror.example:8443/keys/", "https://mirror.example:8443/keys"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://[::1]:8080/a/b", "http://[::1]:8080/a/b"),
    ] {
        assert_eq!(SourceUrl::parse(text).unwrap().to_string(), written);
    }
    for text in [
        "",
        "/",
        "v1.pwnedkeys.com",
        "ftp://a",
        "https://",
        "https://a/?q",
        "https://a@b",
        "https://a/#b",
        "https://a:0",
        "https://a:x",
        "https://a b",
        "https:///a",
        "https://a:",
    ] {
        assert_eq!(SourceUrl::parse(text), None, "{text}");
    }
}

#[test]
fn a_url_is_shown_without_credentials() {
    for (text, shown) in [
        ("https://a/b", "https://a/b"),
        ("https://u:pw@a:1/b?q=@#f", "https://..."),
        ("https://u:pw@a:1/b?q#f", "https://a:1/b"),
        ("https://u:p?w@a", "https://..."),
        ("https://u:p#w@a/b", "https://..."),
        ("https://u:p/w@a/b", "https://a/b"),
        ("u:pw@a:1", "a:1"),
        ("u:pw@https://a", "https://a"),
        ("a?q", "a"),
    ] {
        assert_eq!(SourceUrl::without_credentials(text), shown, "{text}");
    }
}

#[test]
fn tls_and_loopback_are_authenticated() {
    for (text, expected) in [
        ("https://a.example", true),
        ("http://a.example", false),
        ("http://10.0.0.1", false),
        ("http://127.0.0.1", true),
        ("http://[::1]", true),
        ("http://LOCALHOST:1", true),
        ("http://localhost.example", false),
    ] {
        assert_eq!(SourceUrl::parse(text).unwrap().is_authenticated(), expected, "{text}");
    }
}

#[test]
fn a_source_of_a_file_has_defaults() {
    let source = |table: &str| {
        let keys = format!("path = \"lost.pkbf\"\n{table}");
        let config = parse(&changed("path = \"lost.pkbf\"", &keys)).unwrap();
        config.filters[0].source.clone().unwrap()
    };
    let found = source("source = { url = \"https://a.example:8443/b/lost.pkbf\" }");
    assert_eq!(found, FetchConfig::at(found.url.clone()));
    assert_eq!(found.url.to_string(), "https://a.example:8443/b/lost.pkbf");
    let hosts = "redirect_hosts = [\"C.example:443\", \"[::1]:8443\"]";
    let found = source(&format!("source = {{ url = \"https://a/b?sig=c\", {hosts} }}"));
    assert_eq!(found.redirect_hosts, ["c.example", "[::1]:8443"]);
    assert_eq!((found.url.to_string(), &*found.url.query), ("https://a/b".to_owned(), "?sig=c"));
    // A signed file needs no authenticated server.
    source("minisign_key = \"keys.pub\"\nsource = { url = \"http://a.example/a\" }");
    source("source = { url = \"http://localhost/a\" }");
}

#[test]
fn a_blocklist_has_settings_that_a_list_of_fingerprints_has_not() {
    let list = |keys: &str| -> ListConfig {
        let text = format!("{MINIMAL}\n[[lists]]\nname = \"l\"\npath = \"l.dat\"\n{keys}");
        parse(&text).unwrap().lists.remove(0)
    };
    let found = list("format = \"badkeys\"");
    assert_eq!((found.format, found.max_size), (ListFormat::Badkeys, 256 << 20));
    assert_eq!((found.max_age, found.rollback), (None, Rollback::Refuse));
    let found = list(
        "format = \"badkeys\"\nmax_size = \"1MiB\"\nmin_records = 7\nmax_age = \"30d\"\nrollback = \"allow\"\nshrink = \"allow\"",
    );
    let max_age = Some(Duration::from_secs(30 * 86_400));
    assert_eq!((found.format, found.max_size), (ListFormat::Badkeys, 1 << 20));
    assert_eq!((found.max_age, found.rollback), (max_age, Rollback::Allow));
    assert_eq!((found.min_records, found.shrink), (7, Shrink::Allow));
    let found = list("source = { url = \"https://a.example/blocklist.dat\" }");
    assert_eq!((found.format, found.max_size), (ListFormat::Fingerprints, 16 << 20));
    assert_eq!(list("max_size = \"256MiB\"").max_size, 256 << 20);
}
