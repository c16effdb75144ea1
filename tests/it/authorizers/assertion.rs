//! Assertions in the answers of authorizers, as each host passes them to its upstream with the
//! additions in `docs/assertion.md`.
//!
//! Guards: `ok_response` in `src/ask/grpc/check_response.rs`, `fields` in `src/ask/http/response.rs`,
//! `set_variables` in `src/ask/spop/notify.rs`, `cache_time` in `src/ask/http.rs`.

use rustls::ClientConfig;

use crate::support::assertion::{attacks, page, part, signing_key};
use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config, config_of};
use crate::support::envoy::{Envoy, GET};
use crate::support::haproxy::HaproxyFiles;
use crate::support::http_host::{HttpHost, replaced};
use crate::support::proxy::Configure;

/// A client's own copies.
const FORGED: &str = "Keygate-Assertion: forged\r\nkeygate_assertion: forged\r\n\
                      KEYGATE-ASSERTION: forged\r\nKeygate_Assertion: forged\r\n";

/// An authorizer with the name that the page has for the audience.
fn with_assertions(authorizer: Authorizer) -> Authorizer {
    signing_key(&authorizer.pki, "now.pem", "EC");
    authorizer.set("authorizers.name", "orders").asked_policy(
        "assertion = { issuer = \"https://keygate.example.com\", \
         signing_keys = [{ file = \"now.pem\" }] }",
    )
}

/// The text of the page, which must have it.
fn documented(text: &str) -> &str {
    assert!(page().contains(text), "the page has no {text}");
    text
}

/// A request with forged assertions, from `good`. The origin gets one assertion, which PyJWT and
/// jwcrypto accept.
fn passes_one_assertion(running: &RunningAuthorizer, send: impl Fn(&ClientConfig, &str) -> String) {
    let config = config(&running.pki, &running.good);
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{FORGED}\r\n");
    let _ = running.origin.untaken();
    let response = send(&config, &request);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let received = running.origin.next();
    let is_it = |name: &&String| name.replace('_', "-") == "keygate-assertion";
    assert_eq!(received.names().iter().filter(is_it).count(), 1, "{}", received.head);
    assert!(!received.head.contains("forged"), "{}", received.head);
    let assertion = received.fields("keygate-assertion")[0];
    assert_eq!(part(assertion, 1)["aud"], "orders");
    let (_, keys) = running.admin("/.well-known/jwks.json");
    let file = running.pki.path("now.pem");
    let Some(results) = attacks(assertion, &running.good, &keys, &file, &[]) else { return };
    assert_eq!(results[0].results, ["ok", "ok"]);
}

#[test]
fn envoy_passes_one_assertion_over_grpc() {
    let authorizer = with_assertions(Authorizer::of("envoy")).start();
    let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
    let Some(envoy) = Envoy::start("envoy", directory, origin, |text| text) else { return };
    passes_one_assertion(&authorizer, |config, request| envoy.exchange(config, request).text);
}

#[test]
fn envoy_removes_the_copies_of_a_client_without_a_certificate() {
    let authorizer = with_assertions(Authorizer::of("envoy"))
        .add("authorizers.client_auth", "mode = \"optional\"")
        .asked_policy("on_unchecked = \"flag\"")
        .start();
    let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
    let envoy = Envoy::start("envoy", directory, origin, |text| {
        replaced(&text, "require_client_certificate: true", "require_client_certificate: false")
    });
    let Some(envoy) = envoy else { return };
    // The answer about another client with the same status must not be used again.
    for client in [Some(&authorizer.good), None, Some(&authorizer.good), None] {
        let config = config_of(&authorizer.pki, rustls::ALL_VERSIONS, client);
        let request =
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{FORGED}\r\n");
        let response = envoy.exchange(&config, &request).text;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        let received = authorizer.origin.next();
        assert!(!received.head.contains("forged"), "{}", received.head);
        let count = received.fields("keygate-assertion").len();
        assert_eq!(count, usize::from(client.is_some()), "{}", received.head);
    }
}

/// The other spellings, by the regular expression of the page.
#[test]
fn envoy_removes_every_spelling_with_the_documented_expression() {
    let authorizer = with_assertions(Authorizer::of("envoy")).start();
    let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
    let expression = documented("client.key.status|keygate.assertion");
    let envoy = Envoy::start("envoy", directory, origin, |text| {
        replaced(&text, "regex: client.key.status", &format!("regex: {expression}"))
    });
    let Some(envoy) = envoy else { return };
    let forged: String = ["-", "_", ".", "~", "!", "#", "$", "%", "&", "'", "*", "+", "^", "|"]
        .iter()
        .map(|it| format!("Keygate{it}Assertion: forged\r\n"))
        .collect();
    let config = config(&authorizer.pki, &authorizer.good);
    let request = GET.replace("\r\n\r\n", &format!("\r\n{forged}\r\n"));
    assert!(envoy.exchange(&config, &request).text.starts_with("HTTP/1.1 200 "));
    let received = authorizer.origin.next();
    assert!(!received.head.contains("forged"), "{}", received.head);
    assert_eq!(received.fields("keygate-assertion").len(), 1, "{}", received.head);
}

/// Makes the additions of the page to the configuration of a host: `(before, after)`.
fn passes_with(host: HttpHost, additions: &[(&str, &str)]) {
    let change = |text: String| {
        additions.iter().fold(text, |text, (before, after)| text.replace(before, after))
    };
    for (before, after) in additions {
        assert_ne!(before, after);
    }
    let Some(scene) = host.start_with(with_assertions(host.authorizer()), change) else { return };
    passes_one_assertion(&scene, |config, request| scene.exchange(config, request).text);
}

#[test]
fn nginx_passes_one_assertion() {
    let set = documented("auth_request_set $assertion $upstream_http_keygate_assertion;");
    let pass = documented("proxy_set_header Keygate-Assertion $assertion;");
    let place = "auth_request_set $key_status $upstream_http_client_key_status;";
    passes_with(HttpHost::Nginx, &[(place, &format!("{place}\n{set}\n{pass}"))]);
}

#[test]
fn traefik_passes_one_assertion() {
    documented("`Keygate-Assertion` in `authResponseHeaders`");
    let list = "authResponseHeaders: [Client-Key-Status";
    passes_with(HttpHost::Traefik, &[(list, &format!("{list}, Keygate-Assertion"))]);
}

#[test]
fn caddy_passes_one_assertion() {
    documented("`Keygate-Assertion` in `copy_headers`");
    let up = documented("header_up Keygate-Assertion {http.request.header.Keygate-Assertion}");
    let known = "header_up Client-Key-Status {http.request.header.Client-Key-Status}";
    let copied = "copy_headers Client-Key-Status";
    let additions =
        [(copied, format!("{copied} Keygate-Assertion")), (known, format!("{known}\n{up}"))];
    let additions: Vec<_> = additions.iter().map(|(it, with)| (*it, with.as_str())).collect();
    passes_with(HttpHost::Caddy, &additions);
}

#[test]
fn envoy_passes_one_assertion_over_http() {
    let item = documented("{ exact: keygate-assertion }");
    let list = "allowed_upstream_headers: { patterns: [{ exact: client-key-status }";
    let expression = documented("client.key.status|keygate.assertion");
    let removed = ("regex: client.key.status", format!("regex: {expression}"));
    let additions = [(list, &format!("{list}, {item}")), (removed.0, &removed.1)];
    let additions: Vec<_> = additions.iter().map(|(it, with)| (*it, with.as_str())).collect();
    passes_with(HttpHost::EnvoyHttp, &additions);
}

#[test]
fn haproxy_passes_one_assertion() {
    let authorizer = with_assertions(Authorizer::of("haproxy"));
    let files = HaproxyFiles::of("haproxy", &authorizer.pki, authorizer.origin.address());
    let Some(files) = files else { return };
    let delete = documented("http-request del-header ^keygate.assertion$ -m reg");
    let set = documented("http-request set-header Keygate-Assertion %[var(txn.keygate.assertion)]");
    let place = "http-request set-header Client-Key-Status %[var(txn.keygate.status)]";
    let files = files.replace(place, &format!("{place}\n    {delete}\n    {set}"));
    let running = authorizer.start();
    let haproxy = files.start(&running.pki);
    // HAProxy may not know yet that keygate answers.
    let good = config(&running.pki, &running.good);
    crate::support::wait_for("an answer", || {
        let mut client = Client::with(good.clone(), haproxy.address);
        client.send(GET);
        let response = client.whatever_comes();
        if response.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(response) }
    });
    passes_one_assertion(&running, |config, request| {
        let mut client = Client::with(config.clone(), haproxy.address);
        client.send(request);
        client.whatever_comes()
    });
}

/// A cached answer must not outlast its assertion: `cache_for` is an hour here.
#[test]
fn an_answer_is_cached_for_half_of_the_life_of_its_assertion() {
    use std::io::{Read, Write};
    let authorizer = with_assertions(Authorizer::of("nginx"))
        .set("authorizers.cache_for", "1h")
        .set("authorizers.certificate_from", "client-cert")
        .start();
    let mut socket = std::os::unix::net::UnixStream::connect(authorizer.socket()).unwrap();
    let certificate = data_encoding::BASE64.encode(&authorizer.good.der);
    let request =
        format!("GET / HTTP/1.1\r\nConnection: close\r\nClient-Cert: :{certificate}:\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.contains("cache-control: max-age=30\r\n"), "{response}");
    assert!(response.contains("keygate-assertion: "), "{response}");
}
