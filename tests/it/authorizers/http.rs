//! Questions over HTTP (`src/ask/http.rs`), byte by byte. No host should send these questions, but
//! its clients can cause them. The answer is 403 or a clean close, never an error of HTTP and never
//! 200.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::Path;

use bytes::Bytes;
use data_encoding::BASE64;
use hyper::{Request, StatusCode};
use tokio::net::UnixStream;

use crate::support::TIMEOUT;
use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::http_host::escaped_pem;
use crate::support::pki::Party;
use crate::support::proxy::Configure;

/// Sends bytes on a connection of their own and reads to its end.
fn exchange(socket: &Path, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = connect(socket);
    stream.write_all(bytes.as_ref()).unwrap();
    rest(&mut stream)
}

fn connect(socket: &Path) -> BlockingStream {
    let stream = BlockingStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn rest(stream: &mut BlockingStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The head of the next response.
fn head(stream: &mut BlockingStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A head of a question after which the connection closes.
fn closing(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: keygate\r\nConnection: close\r\n{fields}\r\n")
}

/// The fields of nginx.
fn fields(client: &Party) -> String {
    format!("X-SSL-Cert: {}\r\nX-SSL-Verify: SUCCESS\r\n", escaped_pem(&client.der))
}

/// An authorizer that reads the fields of nginx.
fn authorizer() -> Authorizer {
    Authorizer::of("nginx")
}

/// An authorizer that reads another place.
fn reading(source: &str) -> RunningAuthorizer {
    let from = format!("certificate_from = {source}");
    authorizer().unset("authorizers.certificate_from").add("authorizers", &from).start()
}

fn status(response: &str) -> &str {
    response.get(9..12).unwrap_or(response)
}

/// Name and value of the fields with a certificate, for every place that the configuration can
/// name.
fn places(client: &Party) -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let (base64, pem) = (BASE64.encode(&client.der), escaped_pem(&client.der));
    let header = |encoding: &str| match encoding {
        "escaped-pem" => "{ header = \"X-Cert\", encoding = \"escaped-pem\" }",
        "base64-der" => "{ header = \"X-Cert\", encoding = \"base64-der\" }",
        _ => "{ header = \"X-Cert\", encoding = \"rfc9440\" }",
    };
    vec![
        ("\"client-cert\"", vec![("Client-Cert", format!(":{base64}:"))]),
        ("\"xfcc\"", vec![("X-Forwarded-Client-Cert", format!("Hash=a;Cert=\"{pem}\""))]),
        ("\"traefik\"", vec![("X-Forwarded-Tls-Client-Cert", base64.clone())]),
        (
            "\"ingress-nginx\"",
            vec![("ssl-client-cert", pem.clone()), ("ssl-client-verify", "SUCCESS".to_owned())],
        ),
        (header("escaped-pem"), vec![("X-Cert", pem)]),
        (header("base64-der"), vec![("X-Cert", base64.clone())]),
        (header("rfc9440"), vec![("X-Cert", format!(":{base64}:"))]),
    ]
}

/// The authorizer reads the one place that its configuration names, and each field of it once. A
/// host may pass the fields of its client on. With two places the client could choose one.
#[test]
fn each_place_is_read_alone_and_each_of_its_fields_once() {
    let parties = authorizer();
    let count = places(&parties.good).len();
    for place in 0..count {
        let (source, _) = places(&parties.good)[place];
        let running = reading(source);
        let line = |(name, value): &(&str, String)| format!("{name}: {value}\r\n");
        let of =
            |client: &Party| -> Vec<String> { places(client)[place].1.iter().map(line).collect() };
        let ask = |fields: &str| exchange(&running.socket(), closing(fields));
        let [good, lost] = [&running.good, &running.lost].map(of);
        assert_eq!(status(&ask(&good.concat())), "200", "{source}");
        assert_eq!(status(&ask(&lost.concat())), "403", "{source}");
        // Other places are not read, neither beside the configured one nor alone.
        let mut others = String::new();
        for (other, fields) in places(&running.good) {
            if fields[0].0 != places(&running.good)[place].1[0].0 {
                others += &fields.iter().map(line).collect::<String>();
                assert_eq!(
                    status(&ask(&fields.iter().map(line).collect::<String>())),
                    "403",
                    "{other}"
                );
            }
        }
        assert_eq!(status(&ask(&(others + &lost.concat()))), "403", "{source}");
        // A field that occurs twice, in either order, or in two spellings.
        for (index, field) in good.iter().enumerate() {
            let (name, value) = field.split_once(": ").unwrap();
            let value = value.trim_end();
            for second in [
                format!("{name}: {value}\r\n"),
                format!("{}: {value}\r\n", name.replace('-', "_")),
                format!("{}: {value}\r\n", name.replace('-', ".").to_uppercase()),
                format!("{name}: \r\n"),
            ] {
                for fields in [good.concat() + &second, second.clone() + &good.concat()] {
                    let response = ask(&fields);
                    assert_eq!(status(&response), "403", "{source} {index}: {second}{response}");
                }
                if !second.starts_with(name) {
                    let spelled = good.concat().replace(field.as_str(), &second);
                    assert_eq!(status(&ask(&spelled)), "403", "{source}: {second}");
                }
            }
        }
    }
}

/// Path, method and version come from the client, so the answer never depends on them.
#[test]
fn every_path_method_and_version_is_judged_alike() {
    let running = authorizer().start();
    let socket = running.socket();
    for (client, expected) in [(&running.good, "200"), (&running.lost, "403")] {
        for method in ["GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "CONNECT", "PRI", "ANY"] {
            for path in ["/", "/healthz?a=1", "/metrics", "/readyz", "/livez", "*", "http://a/b"] {
                for version in ["1.0", "1.1"] {
                    let question = format!(
                        "{method} {path} HTTP/{version}\r\nConnection: close\r\n{}\r\n",
                        fields(client)
                    );
                    let response = exchange(&socket, &question);
                    assert_eq!(
                        status(&response),
                        expected,
                        "{method} {path} {version}: {response}"
                    );
                }
            }
        }
        let upgrade = "Upgrade: websocket\r\nSec-WebSocket-Key: a\r\n".to_owned() + &fields(client);
        assert_eq!(status(&exchange(&socket, closing(&upgrade))), expected);
    }
}

/// A host may admit on any response but 403: 400, 431 and a reset included.
#[test]
fn malformed_questions_are_denied() {
    // Without a certificate is admitted here, malformed is not.
    let authorizer = authorizer().asked_policy("on_unchecked = \"flag\"");
    let running = authorizer.add("authorizers.client_auth", "mode = \"optional\"").start();
    let socket = running.socket();
    assert_eq!(status(&exchange(&socket, closing("X-SSL-Verify: NONE\r\n"))), "200");
    let good = fields(&running.good);
    let pem = escaped_pem(&running.good.der);
    let with = |more: &str| closing(&(good.clone() + more));
    assert_eq!(status(&exchange(&socket, with(""))), "200");
    let verified =
        |value: &str| closing(&format!("X-SSL-Cert: {value}\r\nX-SSL-Verify: SUCCESS\r\n"));
    let questions: Vec<Vec<u8>> = [
        with(&format!("A: {}\r\n", "b".repeat(100 << 10))),
        with(&format!("A: {}\r\n", "b".repeat(2 << 20))),
        with(&"A: b\r\n".repeat(300)),
        with("A: b\r\n\tc\r\n"),
        with("A: \u{1}\r\n"),
        with("A : b\r\n"),
        with(" A: b\r\n"),
        with("no colon\r\n"),
        with("Content-Length: 1\r\nContent-Length: 2\r\n"),
        with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
        with("Content-Length: a\r\n"),
        with("").replace("HTTP/1.1", "HTTP/2.0"),
        with("").replace("GET / ", "GET / / "),
        verified(&format!("{pem}{pem}")),
        verified(&pem[..pem.len() - 20]),
        verified(&pem.replace("%0A", "\t")),
        verified(&pem.replace('%', "")),
        verified("%"),
        verified("a"),
        closing(&good.replace("SUCCESS", "FAILED:unable to verify the first certificate")),
        closing(&good.replace("SUCCESS", "NONE")),
        closing(&good.replace("SUCCESS", "success")),
        closing(&good.replace("SUCCESS", "")),
        closing("X-SSL-Verify: SUCCESS\r\n"),
        closing("X-SSL-Verify: FAILED:self-signed certificate\r\n"),
        closing(&format!("X-SSL-Cert: {pem}\r\n")),
    ]
    .map(String::into_bytes)
    .into_iter()
    .chain([
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n\r\n".to_vec(),
        [with("").replace("\r\n\r\n", "\r\nA: ").as_bytes(), b"\x00\xff\r\n\r\n"].concat(),
    ])
    .collect();
    for question in &questions {
        let response = exchange(&socket, question);
        let start = String::from_utf8_lossy(&question[question.len().saturating_sub(80)..]);
        assert_eq!(status(&response), "403", "{start}: {response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{start}: {response}");
        assert!(response.contains("\r\ncache-control: no-store\r\n"), "{start}: {response}");
        assert!(response.contains("\r\nclient-key-status: unchecked\r\n"), "{start}: {response}");
    }
    let result = |result: &str| {
        running.metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
    };
    assert_eq!(result("allowed"), 2.0);
    assert_eq!(result("denied"), 0.0);
    assert_eq!(result("oversize"), 2.0);
    let denied = result("malformed") + result("not_verified") + result("oversize");
    assert_eq!(denied, f64::from(u32::try_from(questions.len()).unwrap()));
}

/// Names in a certificate are the client's choice, and Envoy writes them without quotes.
#[test]
fn an_injected_element_of_xfcc_is_denied() {
    let running = reading("\"xfcc\"");
    let [good, lost] = [&running.good, &running.lost].map(|it| escaped_pem(&it.der));
    let ask = |value: String| {
        let field = format!("X-Forwarded-Client-Cert: {value}\r\n");
        exchange(&running.socket(), closing(&field))
    };
    for (value, expected) in [
        (format!("By=spiffe://a;Hash=b;Cert=\"{good}\";Subject=\"CN=\\\"a,b\\\"\""), "200"),
        (format!("Hash=b;Chain=\"{good}{lost}\""), "200"),
        (format!("Cert=\"{lost}\";URI=spiffe://x"), "403"),
        (format!("Cert=\"{lost}\";URI=spiffe://x,Cert=\"{good}\""), "403"),
        (format!("URI=spiffe://x;Cert=\"{good}\",Cert=\"{lost}\""), "403"),
        (format!("Cert=\"{lost}\";URI=spiffe://x;Cert=\"{good}\""), "403"),
        (format!("Cert=\"{lost}\";URI=spiffe://x;cert=\"{good}\""), "403"),
        (format!("Cert=\"{lost}\";URI=x;Chain=\"{good}\""), "403"),
        ("By=spiffe://a;Hash=b".to_owned(), "403"),
    ] {
        let response = ask(value.clone());
        assert_eq!(status(&response), expected, "{value}: {response}");
    }
}

/// The body of a question is discarded. Nothing in it is read as a question.
#[test]
fn a_body_never_becomes_a_question() {
    let running = authorizer().start();
    let (good, lost) = (fields(&running.good), fields(&running.lost));
    let get = |fields: &str| format!("GET / HTTP/1.1\r\nHost: keygate\r\n{fields}\r\n");
    let inner = get(&good);
    let sized = |fields: &str, body: &str| {
        let length = body.len();
        format!(
            "POST / HTTP/1.1\r\nHost: keygate\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        )
    };
    // Pipelined; the last question closes the connection.
    let statuses = |response: &str| -> Vec<String> {
        let lines = response.lines().filter(|line| line.starts_with("HTTP/1.1 "));
        lines.map(|line| line[9..12].to_owned()).collect()
    };
    let pipelined =
        sized(&lost, &inner) + &get(&lost) + &sized(&good, &get(&lost)) + &closing(&lost);
    let response = exchange(&running.socket(), pipelined);
    assert_eq!(statuses(&response), ["403", "403", "200", "403"], "{response}");
    // A body that is not read to its end closes the connection.
    for head in [
        format!(
            "POST / HTTP/1.1\r\nHost: keygate\r\n{lost}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        format!("POST / HTTP/1.1\r\nHost: keygate\r\n{lost}Content-Length: 9999999\r\n\r\n"),
        format!(
            "POST / HTTP/1.1\r\nHost: keygate\r\n{lost}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        ),
        format!("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n{lost}\r\n"),
        format!("GET / HTTP/1.0\r\n{lost}\r\n"),
    ] {
        let response = exchange(&running.socket(), format!("{head}{inner}"));
        assert_eq!(statuses(&response), ["403"], "{head}: {response}");
    }
    // A connection of HTTP/1.0 stays open if both sides send `Connection: keep-alive`.
    let old = format!("GET / HTTP/1.0\r\nConnection: keep-alive\r\n{good}\r\n");
    let response = exchange(&running.socket(), format!("{old}{}", closing(&lost)));
    assert_eq!(statuses(&response), ["200", "403"], "{response}");
    assert!(response.contains("connection: keep-alive"), "{response}");
}

#[test]
fn a_response_has_a_status_a_reason_and_a_maximum_age() {
    let running = authorizer().set("authorizers.cache_for", "90s").start();
    let ask = |fields: String| exchange(&running.socket(), closing(&fields));
    let allowed = ask(fields(&running.good));
    let (head, body) = allowed.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nclient-key-status: clean\r\n"), "{head}");
    assert!(head.contains("\r\ncache-control: max-age=90\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-length: 0") && body.is_empty(), "{allowed}");
    let denied = ask(fields(&running.lost));
    assert!(denied.contains("\r\nclient-key-status: probable\r\n"), "{denied}");
    assert!(denied.contains("\r\ncache-control: no-store\r\n"), "{denied}");
    assert!(denied.contains("\r\ncontent-type: text/plain; charset=utf-8\r\n"), "{denied}");
    assert!(denied.ends_with("replace key and certificate\n"), "{denied}");
    let json = ask(fields(&running.lost) + "Accept: application/json\r\n");
    let (_, body) = json.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["status"], 403);
    let head = exchange(&running.socket(), closing(&fields(&running.lost)).replace("GET", "HEAD"));
    assert!(head.ends_with("\r\n\r\n") && head.contains("content-length: 102"), "{head}");
}

/// An answer is not kept beyond the end of its verdict: an exception, a certificate, a revocation.
#[test]
fn an_answer_is_not_kept_longer_than_its_verdict() {
    let cached = || authorizer().set("authorizers.cache_for", "1h");
    let allowed = cached();
    let fingerprint = keygate_core::spki::Fingerprint::of(&allowed.lost.spki);
    let exception = format!(
        "[[exceptions]]\nfingerprint = \"{fingerprint}\"\nuntil = 2999-12-31\nreason = \"a\""
    );
    let running = allowed.global(&exception).start();
    let response = exchange(&running.socket(), closing(&fields(&running.lost)));
    assert!(response.contains("client-key-status: allowed"), "{response}");
    assert!(response.contains("cache-control: no-store"), "{response}");
    let mut parameters = rcgen::CertificateParams::default();
    let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(600);
    parameters.not_after = soon.into();
    let kind = crate::support::pki::Kind::P256;
    let brief = running.pki.client_with("brief", kind, parameters);
    let response = exchange(&running.socket(), closing(&fields(&brief)));
    let (_, seconds) = response.split_once("max-age=").expect(&response);
    let seconds: u32 = seconds.split("\r\n").next().unwrap().parse().unwrap();
    assert!((1..=600).contains(&seconds), "{response}");
    drop(running);
    let revoking = cached();
    revoking.pki.crl("clients.crl.pem", &[], std::time::Duration::from_secs(86_400));
    let checks = "trust_anchors = \"ca.pem\"\ncrls = [\"clients.crl.pem\"]";
    let running = revoking.add("authorizers.client_auth", checks).start();
    let response = exchange(&running.socket(), closing(&fields(&running.good)));
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("cache-control: no-store"), "{response}");
}

/// The address is for the log alone: an IP address or none.
#[test]
fn the_log_has_the_address_that_the_host_sends() {
    let running = authorizer().start();
    for (value, expected) in [("192.0.2.7", "192.0.2.7"), ("::1, 2001:db8::1", "2001:db8::1")] {
        let question = fields(&running.lost) + &format!("X-Real-IP: {value}\r\n");
        exchange(&running.socket(), closing(&question));
        running.wait_for_metric(
            "keygate_questions_total{result=\"denied\",service=\"edge\"}",
            if expected == "192.0.2.7" { 1.0 } else { 2.0 },
        );
    }
    let line = running.wait_for("a hit", |line| line["stage"] == "asked");
    assert_eq!((&line["client"], &line["proof"]), (&"192.0.2.7".into(), &"host".into()), "{line}");
    let question = fields(&running.good) + "X-Real-IP: a\"b\r\n";
    assert_eq!(status(&exchange(&running.socket(), closing(&question))), "200");
}

/// An incomplete question costs its bytes only. Other questions are answered meanwhile.
#[test]
fn many_incomplete_questions_cost_bounded_memory() {
    let running = authorizer().set("authorizers.limits.max_connections", 2000).start();
    let socket = running.socket();
    assert_eq!(status(&exchange(&socket, closing(&fields(&running.good)))), "200");
    let before = running.memory("VmRSS");
    let half = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(60 << 10));
    let connections: Vec<_> = (0..1000)
        .map(|_| {
            let mut stream = connect(&socket);
            stream.write_all(half.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(status(&exchange(&socket, closing(&fields(&running.good)))), "200");
    assert_eq!(status(&exchange(&socket, closing(&fields(&running.lost)))), "403");
    let grown = running.memory("VmRSS").saturating_sub(before);
    assert!(grown < 1000 * 160, "{grown} KiB");
    // Each connection is closed without a response when its time is over.
    for mut stream in connections {
        assert_eq!(rest(&mut stream), "");
    }
}

/// A draining process answers with `Connection: close`, and closes the connection.
#[test]
fn a_draining_connection_closes_after_its_next_answer() {
    let mut running = authorizer().start();
    let mut busy = connect(&running.socket());
    let mut idle = connect(&running.socket());
    let question = format!("GET / HTTP/1.1\r\nHost: keygate\r\n{}\r\n", fields(&running.good));
    for stream in [&mut busy, &mut idle] {
        stream.write_all(question.as_bytes()).unwrap();
        assert!(!head(stream).contains("connection: close"));
    }
    running.signal("TERM");
    running.wait_for("the drain", |line| {
        line["message"].as_str().is_some_and(|message| message.starts_with("draining"))
    });
    // The worker may see the end of the process a moment after the log line.
    loop {
        busy.write_all(question.as_bytes()).unwrap();
        let head = head(&mut busy);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        if head.contains("connection: close") {
            break;
        }
    }
    assert_eq!(rest(&mut busy), "");
    assert_eq!(rest(&mut idle), "");
    assert!(running.keygate.ended().success());
}

/// A client of HTTP/2 without TLS.
async fn http2(socket: &Path) -> h2::client::SendRequest<Bytes> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await; // ends with the test
    });
    client
}

async fn ask_http2(
    client: &h2::client::SendRequest<Bytes>,
    request: Request<()>,
    body: Option<Bytes>,
) -> (StatusCode, hyper::HeaderMap, Vec<u8>) {
    let mut client = client.clone().ready().await.unwrap();
    let (response, mut upload) = client.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        upload.send_data(body, true).unwrap();
    }
    let (head, mut body) = response.await.unwrap().into_parts();
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        text.extend(data.unwrap());
    }
    (head.status, head.headers, text)
}

#[tokio::test]
async fn questions_over_http_2_are_judged_by_the_same_rules() {
    let running = authorizer().start();
    let client = http2(&running.socket()).await;
    let builder = |party: &Party| {
        Request::builder()
            .method("POST")
            .uri("http://a.example/healthz?b=1")
            .header("x-ssl-cert", escaped_pem(&party.der))
            .header("x-ssl-verify", "SUCCESS")
    };
    let (good, lost) = (&running.good, &running.lost);
    let (status, fields, body) = ask_http2(&client, builder(good).body(()).unwrap(), None).await;
    assert_eq!((status, body.len()), (StatusCode::OK, 0));
    assert_eq!(fields["client-key-status"], "clean");
    assert_eq!(fields["cache-control"], "no-store");
    let (status, fields, body) = ask_http2(&client, builder(lost).body(()).unwrap(), None).await;
    assert_eq!(
        (status, &fields["client-key-status"]),
        (StatusCode::FORBIDDEN, &"probable".parse().unwrap())
    );
    assert!(body.ends_with(b"replace key and certificate\n"));
    let hello = Some(Bytes::from_static(b"hello"));
    let (status, ..) = ask_http2(&client, builder(lost).body(()).unwrap(), hello).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    for request in [
        builder(good).header("x-ssl-cert", escaped_pem(&good.der)),
        builder(good).header("x_ssl_cert", escaped_pem(&good.der)),
        builder(good).header("a", "b".repeat(100 << 10)),
        builder(good).header("a", "b".repeat(1 << 20)),
    ] {
        let (status, ..) = ask_http2(&client, request.body(()).unwrap(), None).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    }
    let many = (0..1000).fold(builder(good), |request, _| request.header("a", "b"));
    let (status, ..) = ask_http2(&client, many.body(()).unwrap(), None).await;
    assert_eq!(status, StatusCode::OK, "a thousand small fields fit");
}

/// h2 resets a stream whose `:authority` is malformed. Hosts that take it from the client's `Host`
/// must use HTTP/1.1, where the value does not matter (docs/security.md).
#[test]
fn a_question_with_a_malformed_host_field_is_judged_over_http_1() {
    let running = authorizer().start();
    for host in ["a|b", "a:b:c", "", "\u{e9}"] {
        for (client, expected) in [(&running.good, "200"), (&running.lost, "403")] {
            let question = format!(
                "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{}\r\n",
                fields(client)
            );
            assert_eq!(status(&exchange(&running.socket(), question)), expected, "{host}");
        }
    }
}
