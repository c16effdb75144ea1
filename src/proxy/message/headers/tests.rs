use super::*;

const STATUS: HeaderName = HeaderName::from_static("x-key-verdict");
const ASSERTION: HeaderName = HeaderName::from_static("x-assertion");

fn left_of(names: &[&'static str]) -> Vec<String> {
    let mut headers = HeaderMap::new();
    for name in names {
        headers.append(*name, HeaderValue::from_static("forged"));
        headers.append(*name, HeaderValue::from_static("twice"));
    }
    let own = OwnNames { status: STATUS, assertion: Some(ASSERTION) };
    remove_identity(&mut headers, &own);
    headers.keys().map(ToString::to_string).collect()
}

#[test]
fn every_spelling_of_an_identity_field_is_removed() {
    let left = left_of(&[
        "client-cert",
        "client_cert",
        "client.cert",
        "keygate-assertion",
        "keygate_assertion",
        "x.assertion",
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
