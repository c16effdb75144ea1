use super::*;

#[test]
fn an_authority_has_a_name_or_is_invalid() {
    for (authority, name) in [
        ("a.example", Some("a.example")),
        ("a.example:8443", Some("a.example")),
        ("[::1]:8443", Some("::1")),
        ("127.0.0.1", Some("127.0.0.1")),
        ("a.example:", Some("a.example")),
        ("A.Example.", Some("A.Example.")),
        ("a.example.:08443", Some("a.example.")),
        ("xn--bcher-kva.example", Some("xn--bcher-kva.example")),
        ("a_b.example", Some("a_b.example")),
        ("a.example..", None),
        ("a..example", None),
        (".a.example", None),
        (".", None),
        ("..", None),
        ("[a.example]", None),
        ("[::1]x", None),
        ("[127.0.0.1]", None),
        ("::1", None),
        ("a.example:65536", None),
        ("a.example:+1", None),
        ("a.example:1:2", None),
        ("a%2eexample", None),
        ("*.example", None),
        ("a.example,b.example", None),
        ("", None),
        (":8443", None),
        ("user@a.example", None),
        ("a.example:https", None),
        ("a.example/..", None),
        ("[::1", None),
        ("a b", None),
    ] {
        assert_eq!(name_of(authority), name, "{authority:?}");
    }
}

#[test]
fn a_tunnel_never_carries_http() {
    for (name, may) in [
        ("websocket", true),
        ("connect-udp", true),
        ("h2c", false),
        ("H2C", false),
        ("HTTP/2.0", false),
        ("http", false),
        ("web socket", false),
        ("websocket\n", false),
        ("websocket, h2c", false),
        ("websocket/13", true),
        ("HTTP/2.0", false),
        ("TLS/1.0", false),
        ("h2c/", false),
        ("websocket/", false),
        ("h2", false),
        ("h2c-14", false),
        ("H2-17", false),
        ("h3-29", false),
        ("SPDY/3.1", false),
        ("é", false),
        ("", false),
    ] {
        assert_eq!(is_other_protocol(name), may, "{name:?}");
    }
}

#[test]
fn an_absolute_target_becomes_its_path() {
    for (target, origin) in [
        ("https://a.example/path?query", "/path?query"),
        ("https://a.example", "/"),
        ("/path", "/path"),
        ("*", "*"),
    ] {
        assert_eq!(origin_form(target.parse().unwrap()), origin, "{target}");
    }
}
