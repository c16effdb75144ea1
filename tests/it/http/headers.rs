//! Identity headers from clients are removed in every spelling; the host must belong to the service
//! that the SNI selected.
//!
//! Guards: `remove_identity` in `src/proxy/http/request.rs`, `remove_identity` in
//! `src/proxy/message/body.rs` for trailers, `dash` in `src/proxy/message/headers.rs` for
//! spellings, `serves_host` in `src/proxy/http/request.rs` for host names.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::client::Client;
use crate::support::http2::{Came, DATA, END_HEADERS, END_STREAM, HEADERS, frame, request};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::{output_text, write_filter};

fn setting(origin: Origin, extra: &str) -> Running {
    Proxy::to(origin).service(extra).start()
}

const HEADER: &str = "policy = { on_probable = \"header\" }";

const FORGED: [&str; 32] = [
    "$WSCC",
    "$WSRU",
    "CF-Connecting-IP",
    "Proxy",
    "X-Cluster-Client-IP",
    "X-Forwarded",
    "X-Original-Forwarded-For",
    "X_Request_Id",
    "Client-Cert",
    "client_cert",
    "CLIENT-CERT-CHAIN",
    "Client-IP",
    "Client-Key-Status",
    "client_key_status",
    "Fastly-Client-IP",
    "Forwarded",
    "L5d-Client-Id",
    "Proxy_Client_IP",
    "SSL-Client-Verify",
    "SSL_CLIENT_S_DN",
    "WL-Proxy-Client-Cert",
    "X-Client-Cert",
    "X-Remote-Group",
    "X_Remote_Extra_Scopes",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-For",
    "X_Forwarded_For",
    "X-Forwarded-Host",
    "X-Forwarded-Tls-Client-Cert-Info",
    "X-Forwarded-User",
    "X-Real-IP",
    "X-SSL-Client-S-DN",
];

#[test]
fn no_forged_identity_reaches_the_origin() {
    let Running { pki: _pki, origin, keygate, good, .. } = setting(Origin::start(), HEADER);
    for http in ["--http1.1", "--http2"] {
        let forged = FORGED.map(|name| format!("{name}: forged"));
        let mut arguments = vec![http, "-A", "test", "-H", "Accept:", "-H", "X-Own: 1"];
        for header in &forged {
            arguments.extend(["-H", header, "-H", header]); // twice
        }
        let response = keygate.curl(&good, &arguments);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        let request = origin.next();
        assert!(!request.head.contains("forged"), "{http}: {}", request.head);
        let names = [
            "client-cert",
            "client-key-status",
            "host",
            "user-agent",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-own",
            "x-request-id",
        ];
        assert_eq!(request.names(), names, "{http}");
        assert_eq!(request.fields("client-key-status"), ["clean"], "{http}");
    }
}

#[test]
fn no_forged_identity_reaches_the_origin_in_a_trailer() {
    let Running { pki, origin, keygate, good, .. } = setting(Origin::start(), HEADER);
    let mut client = Client::connect(&pki, keygate.address(), &good);
    client.send(
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\
         Trailer: Client-Key-Status, X-Sum\r\n\r\n\
         2\r\nhi\r\n0\r\nClient-Key-Status: forged\r\nclient_cert: forged\r\nX-Sum: 1\r\n\r\n",
    );
    assert!(client.head().starts_with("HTTP/1.1 200 OK\r\n"));
    let request = origin.next();
    assert_eq!(String::from_utf8_lossy(&request.body), "hix-sum: 1\r\n");
}

#[test]
fn hop_by_hop_headers_are_removed() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: keep-alive, X-Hop\r\n\
              X-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Own: 1\r\n\r\n",
        )
    });
    let Running { pki, origin, keygate, good, .. } = setting(origin, "");
    let mut client = Client::connect(&pki, keygate.address(), &good);
    client.send(
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, x-hop, host, client-cert, x-request-id\r\n\
         X-Hop: 1\r\nTE: trailers, deflate\r\nUpgrade: other\r\nProxy-Authorization: secret\r\n\r\n",
    );
    let head = client.head().to_ascii_lowercase();
    assert!(
        head.contains("x-own: 1") && !head.contains("hop") && !head.contains("keep-alive"),
        "{head}"
    );
    let request = origin.next();
    assert_eq!(request.fields("te"), ["trailers"], "and nothing else of it");
    assert_eq!(request.fields("connection"), ["te"]);
    let names = [
        "client-cert",
        "connection",
        "host",
        "te",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-request-id",
    ];
    assert_eq!(request.names(), names);
}

/// Sends `request` on a new connection, and returns the status line of the response.
fn status_of(setting: &Running, request: &str) -> String {
    let mut client = Client::connect(&setting.pki, setting.keygate.address(), &setting.good);
    client.send(request);
    client.head().lines().next().unwrap().to_owned()
}

#[test]
fn a_request_without_exactly_one_valid_host_is_rejected() {
    let setting = setting(Origin::start(), "");
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "405"),
    ] {
        let found = status_of(&setting, request);
        assert!(found.starts_with(&format!("HTTP/1.1 {status}")), "{request:?} got {found}");
    }
    assert_eq!(setting.origin.untaken(), 0);
}

#[test]
fn an_absolute_target_is_forwarded_as_path_and_host() {
    let setting = setting(Origin::start(), "");
    let found = status_of(&setting, "GET https://a.test/p?q HTTP/1.1\r\nHost: other\r\n\r\n");
    assert!(found.starts_with("HTTP/1.1 200"), "{found}");
    let request = setting.origin.next();
    assert!(request.head.starts_with("GET /p?q HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.fields("host"), ["a.test"]);
}

#[test]
fn an_http_1_0_request_without_a_host_gets_the_host_of_the_upstream() {
    let setting = setting(Origin::start(), "");
    let found = status_of(&setting, "GET / HTTP/1.0\r\n\r\n");
    assert!(found.contains(" 200 "), "{found}");
    assert_eq!(setting.origin.next().fields("host"), [setting.origin.address().to_string()]);
}

#[test]
fn a_content_length_is_forwarded_in_canonical_form() {
    let setting = setting(Origin::start(), "");
    let request = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0002\r\n\r\nhi";
    let status = status_of(&setting, request);
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    let received = setting.origin.next();
    assert_eq!(received.fields("content-length"), ["2"]);
    assert_eq!(received.body, b"hi");
    let request =
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9223372036854775808\r\n\r\n";
    let status = status_of(&setting, request);
    assert!(status.starts_with("HTTP/1.1 400"), "{status}");
    assert_eq!(setting.origin.untaken(), 0);
}

#[test]
fn two_equal_lengths_over_http2_are_forwarded_as_one() {
    let setting = setting(Origin::start(), "");
    for lengths in [&[("content-length", "2"); 2][..], &[("content-length", "02")]] {
        let mut client = setting.connect_http2();
        client.send(&frame(HEADERS, END_HEADERS, 1, &request("POST", lengths)));
        client.send(&frame(DATA, END_STREAM, 1, b"hi"));
        assert_eq!(client.next(), Came::Response(0x88, 1));
        let received = setting.origin.next();
        assert_eq!(received.fields("content-length"), ["2"]);
        assert_eq!(received.body, b"hi");
    }
}

#[test]
fn a_response_with_a_length_beside_chunked_is_not_cut_to_the_length() {
    let origin = Origin::responding(|_, tcp| {
        tcp.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n\
              5\r\nhello\r\n0\r\n\r\n",
        )
    });
    let setting = setting(origin, "");
    for http in ["--http1.1", "--http2"] {
        let response = setting.keygate.curl(&setting.good, &[http]);
        assert_eq!(response.stdout, b"hello", "{http}: {}", output_text(&response));
    }
}

#[test]
fn content_length_beside_chunked_does_not_reach_the_origin() {
    let setting = setting(Origin::start(), "");
    let request = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\
                   Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let status = status_of(&setting, request);
    if status.starts_with("HTTP/1.1 200") {
        let received = setting.origin.next();
        assert!(received.fields("content-length").is_empty(), "{}", received.head);
        assert_eq!(received.body, b"hi");
    } else {
        assert!(status.starts_with("HTTP/1.1 400"), "{status}");
    }
}

#[test]
fn cookies_split_by_http2_arrive_as_one() {
    let Running { pki: _pki, origin, keygate, good, .. } = setting(Origin::start(), "");
    let arguments = ["--http2", "-H", "Cookie: a=1", "-H", "Cookie: b=2"];
    let response = keygate.curl(&good, &arguments);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    assert_eq!(origin.next().fields("cookie"), ["a=1; b=2"]);
}

/// Two services on one address, `a.example` and `b.example`, each with its own origin.
fn two_services(pki: &Pki, first: &Origin, second: &Origin) -> Keygate {
    let other = second.address();
    Configuration::new(first.address())
        .service("server_names = [\"a.example\"]")
        .second_service(&format!(
            "server_names = [\"b.example\"], upstream = {{ servers = [\"http://{other}\"] }}"
        ))
        .start(pki)
}

/// `a.example.` in `server_names`, in the SNI, in Host and in `:authority` is the same name as
/// `A.example`. A name with an empty label belongs to no service, not to the default of the
/// address.
#[test]
fn a_trailing_dot_changes_no_name_and_an_empty_label_is_rejected() {
    let (pki, named, default) = (Pki::new(), Origin::start(), Origin::start());
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let other = default.address();
    let keygate = Configuration::new(named.address())
        .second_service(&format!("upstream = {{ servers = [\"http://{other}\"] }}"))
        .service("server_names = [\"A.example.\", \"*.b.example.\"]")
        .start(&pki);
    let port = keygate.address().port();
    let resolve = format!("*:{port}:127.0.0.1");
    let code = |http: &str, sni: &str, host: &str| {
        let (url, host) = (format!("https://{sni}:{port}/"), format!("Host: {host}"));
        let code = ["-o", "/dev/null", "-w", "%{http_code}", "--insecure"];
        let request = [http, "--resolve", &resolve, "-H", &host, &url];
        String::from_utf8(keygate.curl(&good, &[&code[..], &request].concat()).stdout).unwrap()
    };
    for http in ["--http1.1", "--http2"] {
        for (sni, host) in [
            ("a.example", "a.example."),
            ("a.example", "A.EXAMPLE.:443"),
            ("x.b.example", "x.b.example."),
        ] {
            assert_eq!(code(http, sni, host), "200", "{http} {host}");
            assert_eq!(named.next().fields("host"), [host]);
        }
        for (sni, host, expected) in [
            ("a.example", "a.example..", "400"),
            ("x.b.example", "x.b.example..", "400"),
            ("default.example", "x..b.example", "400"),
            ("default.example", "x.b.example..", "400"),
            ("default.example", ".b.example", "400"),
            ("default.example", "[a.example]", "400"),
            ("default.example", "a.example:65536", "400"),
            ("default.example", "a.example.", "421"),
            ("a.example", "default.example.", "421"),
        ] {
            assert_eq!(code(http, sni, host), expected, "{http} {sni} {host}");
        }
    }
    // curl and rustls remove the dot from the SNI, OpenSSL does not.
    let address = keygate.address().to_string();
    let party = [&good.certificate, &good.private_key].map(|path| path.to_str().unwrap());
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &address, "-servername", "a.example."])
        .args(["-cert", party[0], "-key", party[1]])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut request = openssl.stdin.take().unwrap();
    request.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
    let output = openssl.wait_with_output().unwrap();
    assert!(output.stdout.starts_with(b"HTTP/1.1 200 "), "{}", output_text(&output));
    assert_eq!(named.next().fields("host"), ["a.example"]);
    assert_eq!((named.untaken(), default.untaken()), (0, 0));
}

#[test]
fn services_on_one_address_are_chosen_by_sni_and_the_host_must_match() {
    let (pki, first, second) = (Pki::new(), Origin::start(), Origin::start());
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let keygate = two_services(&pki, &first, &second);
    let port = keygate.address().port();
    let url = |name: &str| format!("https://{name}.example:{port}/");
    let resolve = |name: &str| format!("{name}.example:{port}:127.0.0.1");

    for (name, origin) in [("a", &first), ("b", &second)] {
        for http in ["--http1.1", "--http2"] {
            let response = keygate.curl(&good, &[http, "--resolve", &resolve(name), &url(name)]);
            assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
            assert_eq!(origin.next().fields("host"), [format!("{name}.example:{port}")]);
        }
    }
    for http in ["--http1.1", "--http2"] {
        let arguments = [
            http,
            "--resolve",
            &resolve("a"),
            "-H",
            "Host: b.example",
            "-w",
            "%{http_code}",
            &url("a"),
        ];
        let misdirected = keygate.curl(&good, &arguments);
        assert!(output_text(&misdirected).contains("421"), "{http}: {}", output_text(&misdirected));
    }
    let unknown = keygate.curl(&good, &["--resolve", &resolve("c"), &url("c")]);
    assert!(output_text(&unknown).contains("unrecognized name"), "{}", output_text(&unknown));
    let nameless = keygate.curl(&good, &[]);
    assert!(output_text(&nameless).contains("unrecognized name"), "{}", output_text(&nameless));
    assert_eq!((first.untaken(), second.untaken()), (0, 0));
}
