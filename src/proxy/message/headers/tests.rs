use super::*;
use crate::config::example::{MINIMAL, parse};

const STATUS: HeaderName = HeaderName::from_static("x-key-verdict");

fn left_of(names: &[&'static str]) -> Vec<String> {
    let mut headers = HeaderMap::new();
    for name in names {
        headers.append(*name, HeaderValue::from_static("forged"));
        headers.append(*name, HeaderValue::from_static("twice"));
    }
    remove_identity(&mut headers, &STATUS);
    headers.keys().map(ToString::to_string).collect()
}

#[test]
fn every_spelling_of_an_identity_field_is_removed() {
    let left = left_of(&[
        "client-cert",
        "client_cert",
        "client.cert",
        "x-amzn-mtls-clientcert-leaf",
        "x~ssl!client-verify",
        "remote-user",
        "true-client-ip",
        "client-cert-chain",
        "client_key-status",
        "x-key-verdict",
        "x_key_verdict",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded",
        "x_request_id",
        "x-request-id",
        "proxy",
        "cf-connecting-ip",
        "x-cluster-client-ip",
        "x_original_forwarded_for",
        "x_forwarded_client_cert",
        "x-forwarded-tls-client-cert-info",
        "x-forwarded-user",
        "x-ssl-client-s-dn",
        "ssl-client-verify",
        "ssl_client_s_dn",
        "l5d-client-id",
        "x-real-ip",
        "client_ip",
        "fastly-client-ip",
        "fly-client-ip",
        "proxy-client-ip",
        "wl-proxy-client-cert",
        "wl_proxy_client_ip",
        "x-azure-clientip",
        "x-envoy-external-address",
        "x-remote-group",
        "x-remote-user",
        "$wscc",
    ]);
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn other_fields_stay() {
    let names =
        ["accept", "cookie", "client", "x-request", "ssl", "x-forward", "forwarding", "proxy-x"];
    assert_eq!(left_of(&names).len(), names.len());
}

#[test]
fn fields_that_connection_names_are_removed() {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close, X-Hop , ,bad name"));
    headers.append(header::CONNECTION, HeaderValue::from_static("x-other"));
    headers.append(header::CONNECTION, HeaderValue::from_bytes(b"\xff, x-latin").unwrap());
    for name in ["x-hop", "x-other", "x-latin", "te", "upgrade", "keep-alive", "x-stays"] {
        headers.insert(name, HeaderValue::from_static("1"));
    }
    remove_hop_by_hop(&mut headers);
    assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-stays"]);
}

#[test]
fn a_content_length_becomes_one_field_in_canonical_form() {
    let of = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_LENGTH, HeaderValue::from_static(value));
        }
        let length = normalize_content_length(&mut headers);
        let left = headers.get_all(header::CONTENT_LENGTH).iter().cloned().collect::<Vec<_>>();
        (length, left)
    };
    assert_eq!(of(&[]), (Ok(None), Vec::new()));
    for values in [&["5"][..], &["5, 5"], &["5", "5"], &["5,5", "05"], &["0005"]] {
        assert_eq!(of(values), (Ok(Some(5)), vec!["5".parse().unwrap()]), "{values:?}");
    }
    for (value, length) in [("0", 0), ("00", 0), ("9223372036854775807", i64::MAX as u64)] {
        assert_eq!(of(&[value]), (Ok(Some(length)), vec![length.into()]), "{value}");
    }
    for values in
        [&["5, 6"][..], &["5", "6"], &["5", ""], &["5,"], &["+5"], &["9223372036854775808"]]
    {
        assert_eq!(of(values).0, Err(InvalidContentLength), "{values:?}");
    }
}

#[test]
fn cookies_of_http2_are_joined() {
    let mut headers = HeaderMap::new();
    headers.append(header::COOKIE, HeaderValue::from_static("a=1"));
    headers.append(header::COOKIE, HeaderValue::from_static("b=2"));
    headers.append(header::COOKIE, HeaderValue::from_static("c=3"));
    join_cookies(&mut headers);
    assert_eq!(headers.get_all(header::COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
}

fn named(ids: &[&str], is_trusted: bool) -> String {
    let mut headers = HeaderMap::new();
    for id in ids {
        headers.append(X_REQUEST_ID, HeaderValue::from_str(id).unwrap());
    }
    let id = request_id(&headers, is_trusted).unwrap();
    id.to_str().unwrap().to_owned()
}

#[test]
fn a_request_id_is_kept_from_trusted_peers_and_generated_for_others() {
    assert_eq!(named(&["abc-1"], true), "abc-1");
    let long = "x".repeat(MAX_REQUEST_ID_LENGTH + 1);
    for (ids, is_trusted) in [
        (&["abc-1"][..], false),
        (&[], true),
        (&["a b"], true),
        (&[&long], true),
        (&["a", "b"], true),
    ] {
        let made = named(ids, is_trusted);
        assert!(made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{made}");
    }
}

#[test]
fn the_policy_header_cannot_have_the_name_of_another_field_of_keygate_or_of_credentials() {
    let reserved = [
        CLIENT_CERT,
        CLIENT_CERT_CHAIN,
        XFCC,
        X_FORWARDED_FOR,
        X_FORWARDED_HOST,
        X_FORWARDED_PROTO,
        X_REQUEST_ID,
        header::FORWARDED,
        header::HOST,
        header::COOKIE,
        header::AUTHORIZATION,
        header::PROXY_AUTHORIZATION,
    ];
    for name in reserved {
        for name in [name.as_str(), &name.as_str().replace('-', "_")] {
            let problem = parse(&format!("{MINIMAL}policy = {{ header = \"{name}\" }}"));
            let problem = problem.unwrap_err().to_string();
            assert!(problem.contains(&format!("{name:?} is reserved")), "{problem}");
        }
    }
}

#[test]
fn empty_cookies_are_left_out_of_the_joined_one() {
    for (cookies, joined) in
        [(["", "a=1", ""], "a=1"), (["a=1", "", "b=2"], "a=1; b=2"), ([""; 3], "")]
    {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(header::COOKIE, HeaderValue::from_static(cookie));
        }
        join_cookies(&mut headers);
        assert!(headers.get_all(header::COOKIE).iter().eq([joined]), "{headers:?}");
    }
}

#[test]
fn padded_trailers_are_removed() {
    let mut trailers = HeaderMap::new();
    for (name, value) in [("x-a", " 1"), ("x-b", "1\t"), ("x-c", "1 2"), ("x-d", "")] {
        trailers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    remove_forbidden_trailers(&mut trailers);
    let left: std::collections::BTreeSet<_> = trailers.keys().map(HeaderName::as_str).collect();
    assert!(left.into_iter().eq(["x-c", "x-d"]), "{trailers:?}");
}
