//! Revocation of certificates at ACME servers that lie. `docs::after_a_hit` has a real server.
//!
//! Guards: `revoke` in `src/fetch/acme.rs`, `is_own` in `src/cli/revoke.rs`, `acme_request` in
//! `crates/core/src/jws.rs`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use data_encoding::BASE64URL_NOPAD;
use keygate_core::spki;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::bench::{Bench, problem};
use crate::support::{output_text, skip};

const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";
const BAD_NONCE: &str = r#"{"type":"urn:ietf:params:acme:error:badNonce","detail":"stale"}"#;

/// With `NAME.key` and `NAME.pem`, the certificate, of these algorithms of `openssl req`; `None`
/// skips the test.
fn bench(keys: &[(&str, &str)]) -> Option<Bench> {
    if skip::without("openssl") {
        return None;
    }
    let bench = Bench::new("revoke");
    for (name, algorithm) in keys {
        let made = format!(
            "req -x509 -newkey {algorithm} -noenc -keyout {name}.key -out {name}.pem -subj /CN={name}"
        );
        let mut openssl = Command::new("openssl");
        openssl.args(made.split_whitespace()).current_dir(bench.directory());
        let output = openssl.output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
    }
    Some(bench)
}

/// A response with a body.
fn response(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// The response of a server that revokes everything. `base` is its origin.
fn honest(base: &str, request: &str) -> String {
    let directory =
        json!({ "newNonce": format!("{base}/nonce"), "revokeCert": format!("{base}/revoke") });
    match request.split(' ').nth(1).unwrap() {
        "/dir" => response("200 OK", "", &directory.to_string()),
        "/nonce" => response("200 OK", "Replay-Nonce: first\r\n", ""),
        "/revoke" => response("200 OK", "Replay-Nonce: next\r\n", ""),
        path => panic!("{path}"),
    }
}

/// A server on loopback that responds to each request, and passes it on.
fn serve(respond: impl Fn(&str, &str) -> String + Send + 'static) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (origin, (sender, requests)) = (base.clone(), channel());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read_request(&stream);
            let _ = sender.send(request.clone()); // the test may have ended
            let _ = stream.write_all(respond(&origin, &request).as_bytes());
        }
    });
    (base, requests)
}

/// The head and the body of a request.
fn read_request(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut request, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        request += &line;
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    request + str::from_utf8(&body).unwrap()
}

/// Sends the revocation of `NAME.pem` to the server at `base`, which must end with `code`.
fn send(bench: &Bench, code: i32, name: &str, base: &str) -> Output {
    let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
    let url = format!("{base}/dir");
    bench.run(code, &[&certificate, "--key", &key, "--acme", &url, "--timeout", "10s", "--yes"])
}

fn body(request: &str) -> Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn decoded(value: &Value) -> Vec<u8> {
    BASE64URL_NOPAD.decode(value.as_str().unwrap().as_bytes()).unwrap()
}

/// The protected header of a request.
fn header(request: &str) -> Value {
    serde_json::from_slice(&decoded(&body(request)["protected"])).unwrap()
}

#[test]
fn a_dry_run_prints_the_request_and_connects_to_no_server() {
    let Some(bench) = bench(&[("lost", P256)]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/dir", listener.local_addr().unwrap());
    let lines = bench.lines(0, &["lost.pem", "--key", "lost.key", "--acme", &url]).join("\n");
    for part in [
        "certificate of CN=lost",
        "ES256",
        &url,
        r#""reason":1"#,
        "nothing was sent",
        "Let's Encrypt",
    ] {
        assert!(lines.contains(part), "{part} is not in {lines}");
    }
    let accepted = listener.accept().map(|_| ());
    assert_eq!(accepted.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn the_request_is_signed_with_the_key_of_the_certificate() {
    let algorithms: [(_, _, _, &dyn VerificationAlgorithm); 5] = [
        ("p256", P256, "ES256", &ECDSA_P256_SHA256_FIXED),
        ("p384", "ec -pkeyopt ec_paramgen_curve:P-384", "ES384", &ECDSA_P384_SHA384_FIXED),
        ("p521", "ec -pkeyopt ec_paramgen_curve:P-521", "ES512", &ECDSA_P521_SHA512_FIXED),
        ("rsa", "rsa:2048", "RS256", &RSA_PKCS1_2048_8192_SHA256),
        ("ed25519", "ed25519", "EdDSA", &ED25519),
    ];
    let Some(bench) = bench(&algorithms.map(|(name, algorithm, ..)| (name, algorithm))) else {
        return;
    };
    let (base, requests) = serve(honest);
    for (name, _, algorithm, verification) in algorithms {
        let output = send(&bench, 0, name, &base);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.ends_with("revoked, with the reason keyCompromise\n"), "{printed}");
        let [directory, nonce, post] = [(); 3].map(|()| requests.recv().unwrap());
        assert!(directory.starts_with("GET /dir ") && nonce.starts_with("HEAD /nonce "));
        assert!(
            post.starts_with("POST /revoke ") && post.contains("application/jose+json"),
            "{post}"
        );
        let certificate =
            CertificateDer::from_pem_file(bench.path(&format!("{name}.pem"))).unwrap();
        let (jws, header) = (body(&post), header(&post));
        assert_eq!((&header["alg"], &header["nonce"]), (&json!(algorithm), &json!("first")));
        assert_eq!(header["url"], format!("{base}/revoke"));
        let payload: Value = serde_json::from_slice(&decoded(&jws["payload"])).unwrap();
        let encoded = BASE64URL_NOPAD.encode(&certificate);
        assert_eq!(payload, json!({ "certificate": encoded, "reason": 1 }));
        let spki = spki::of_certificate(&certificate).unwrap();
        let key = ParsedPublicKey::new(verification, spki).unwrap();
        let [protected, payload] = ["protected", "payload"].map(|it| jws[it].as_str().unwrap());
        let signed = format!("{protected}.{payload}");
        key.verify_sig(signed.as_bytes(), &decoded(&jws["signature"])).expect(name);
        // The certificate has the numbers of the JSON Web Key, too.
        for number in
            ["x", "y", "n"].map(|it| &header["jwk"][it]).into_iter().filter(|it| !it.is_null())
        {
            let number = decoded(number);
            assert!(spki.windows(number.len()).any(|window| window == number), "{name}");
        }
    }
}

#[test]
fn a_key_of_another_certificate_sends_nothing() {
    let Some(bench) = bench(&[("lost", P256), ("other", P256)]) else { return };
    let (base, requests) = serve(honest);
    let url = format!("{base}/dir");
    let output = bench.run(3, &["lost.pem", "--key", "other.key", "--acme", &url, "--yes"]);
    assert!(problem(&output).contains("give the key of the certificate"), "{}", problem(&output));
    assert!(requests.try_recv().is_err());
    for wrong in ["http://192.0.2.1/dir", "ftp://localhost/dir", "https://localhost"] {
        let output = bench.run(2, &["lost.pem", "--key", "lost.key", "--acme", wrong, "--yes"]);
        assert!(problem(&output).contains("not a URL with TLS"), "{}", problem(&output));
    }
}

#[test]
fn a_rejected_nonce_is_replaced_twice() {
    let Some(bench) = bench(&[("lost", P256)]) else { return };
    let rejected =
        |nonce| response("400 Bad Request", &format!("Replay-Nonce: {nonce}\r\n"), BAD_NONCE);
    let (base, requests) = serve(move |base, request| match request {
        post if post.starts_with("POST ") && header(post)["nonce"] == "first" => rejected("second"),
        post if post.starts_with("POST ") && header(post)["nonce"] == "second" => {
            honest(base, post)
        }
        other => honest(base, other),
    });
    send(&bench, 0, "lost", &base);
    let methods: Vec<_> =
        requests.try_iter().map(|it| it.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(methods, ["GET", "HEAD", "POST", "POST"]);

    // No specification limits the length of a nonce.
    let (base, requests) = serve(move |base, request| match request.split(' ').next() {
        Some("HEAD") => response("200 OK", &format!("Replay-Nonce: {}\r\n", "n".repeat(300)), ""),
        _ => honest(base, request),
    });
    send(&bench, 0, "lost", &base);
    let post = requests.try_iter().find(|it| it.starts_with("POST ")).unwrap();
    assert_eq!(header(&post)["nonce"], "n".repeat(300));

    let (base, requests) =
        serve(
            move |base, request| {
                if request.starts_with("POST ") { rejected("same") } else { honest(base, request) }
            },
        );
    let output = send(&bench, 3, "lost", &base);
    assert!(problem(&output).contains("error:badNonce: stale"), "{}", problem(&output));
    let posts = requests.try_iter().filter(|it| it.starts_with("POST ")).count();
    assert_eq!(posts, 3);
}

/// Asserts that a server with these responses is no success, and that the error has `expected`.
fn fails(bench: &Bench, expected: &str, respond: impl Fn(&str, &str) -> String + Send + 'static) {
    let (base, _requests) = serve(respond);
    let output = send(bench, 3, "lost", &base);
    assert!(problem(&output).contains(expected), "{expected}: {}", problem(&output));
}

#[test]
fn a_server_that_lies_is_an_error_with_its_url() {
    let Some(bench) = bench(&[("lost", P256)]) else { return };
    let page = || response("200 OK", "Content-Type: text/html\r\n", "<html>welcome</html>");
    let is = |request: &str, path| request.split(' ').nth(1) == Some(path);
    fails(&bench, "200 OK, no directory of an ACME server", move |_, _| page());
    fails(&bench, "/revoke: the CA does not revoke: 200 OK", move |base, request| {
        if is(request, "/revoke") { page() } else { honest(base, request) }
    });
    for nonce in ["", "Replay-Nonce: a b\r\n", "Replay-Nonce: \"\r\n"] {
        fails(&bench, "/nonce: no valid Replay-Nonce", move |base, request| {
            if is(request, "/nonce") {
                response("200 OK", nonce, "")
            } else {
                honest(base, request)
            }
        });
    }
    fails(&bench, "on another server", |_, _| {
        let other =
            json!({ "newNonce": "https://ca.invalid/n", "revokeCert": "https://ca.invalid/r" });
        response("200 OK", "", &other.to_string())
    });
    let gone = |base: &str| response("302 Found", &format!("Location: {base}/other\r\n"), "");
    fails(&bench, "302 Found, no directory", move |base, _| gone(base));
    fails(&bench, "does not revoke: 302 Found", move |base, request| {
        if is(request, "/revoke") { gone(base) } else { honest(base, request) }
    });
    let detail = "x".repeat(5000) + "\u{1b}[2J";
    let problem = json!({ "type": "urn:ietf:params:acme:error:alreadyRevoked", "detail": detail });
    fails(&bench, "error:alreadyRevoked: xxx", move |base, request| match is(request, "/revoke") {
        true => response("400 Bad Request", "", &problem.to_string()),
        false => honest(base, request),
    });
}

#[test]
fn a_response_without_an_end_is_cut_off() {
    let Some(bench) = bench(&[("lost", P256)]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&stream);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
        let mut sent = stream.write(head).unwrap();
        while let Ok(more) = stream.write(&[b' '; 1 << 16]) {
            sent += more;
        }
        sent
    });
    let output = send(&bench, 3, "lost", &base);
    assert!(problem(&output).contains("larger than 64 KiB"), "{}", problem(&output));
    let sent = server.join().unwrap();
    assert!(sent < 64 << 20, "{sent} bytes were read");
}

#[test]
fn the_requests_go_through_a_proxy() {
    let Some(bench) = bench(&[("lost", P256)]) else { return };
    // A name that only the proxy knows.
    let base = "http://localhost:1";
    let (proxy, requests) = serve(move |_, request| honest(base, &request.replace(base, "")));
    let url = format!("{base}/dir");
    let arguments = ["lost.pem", "--key", "lost.key", "--acme", &url, "--proxy", &proxy, "--yes"];
    bench.run(0, &arguments);
    let lines: Vec<_> =
        requests.try_iter().map(|it| it.lines().next().unwrap().to_owned()).collect();
    let targets = [
        "GET http://localhost:1/dir",
        "HEAD http://localhost:1/nonce",
        "POST http://localhost:1/revoke",
    ];
    assert_eq!(lines, targets.map(|it| format!("{it} HTTP/1.1")));
    let output =
        bench.run(2, &["lost.pem", "--key", "lost.key", "--acme", &url, "--proxy", "https://x"]);
    assert!(problem(&output).contains("not an HTTP proxy"), "{}", problem(&output));
}

#[test]
fn a_server_that_hangs_is_left_after_the_timeout() {
    let Some(bench) = bench(&[("lost", P256)]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/dir", listener.local_addr().unwrap());
    let arguments = ["lost.pem", "--key", "lost.key", "--acme", &url, "--timeout", "1s", "--yes"];
    let output = bench.run(3, &arguments);
    assert!(problem(&output).contains("not complete within 1s"), "{}", problem(&output));
}
