//! Protocols on top of HTTP with third-party programs: gRPC, WebSocket, the HTTP/2 of nghttp2.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use crate::support::assertion::{POLICY, part, signing_key};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::python_with;
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::{output_text, skip, system, write_filter};

/// One of the programs beside the tests, which serves on a port that it prints. Ends with the test.
struct Server {
    child: Child,
    port: u16,
}

fn program(name: &str) -> String {
    format!("{}/tests/programs/{name}.py", env!("CARGO_MANIFEST_DIR"))
}

impl Server {
    fn start(python: &str, name: &str) -> Self {
        let mut child = Command::new(python)
            .args([&program(name), "serve"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn scene(server: &str, extra: &str) -> Running {
    Proxy::before(server).global("access_log = { requests = \"all\" }").service(extra).start()
}

impl Running {
    /// One of the programs as a client.
    fn run_program(&self, python: &str, name: &str, target: &str, client: &Party) -> Output {
        let ca = self.pki.path("ca.pem");
        let files = [&ca, &client.certificate, &client.private_key];
        let files = files.map(|path| path.to_str().unwrap());
        system(python, &[&[program(name).as_str(), "call", target][..], &files].concat())
    }
}

#[test]
fn grpc_is_forwarded_with_streams_trailers_and_status() {
    let Some(python) = python_with("grpc") else { return };
    let server = Server::start(python, "grpc_echo");
    let scene = scene(&format!("h2c://127.0.0.1:{}", server.port), "");
    let target = format!("localhost:{}", scene.keygate.address().port());
    let response = scene.run_program(python, "grpc_echo", &target, &scene.good);
    assert!(output_text(&response).contains("all is well"), "{}", output_text(&response));
    let refused = scene.run_program(python, "grpc_echo", &target, &scene.lost);
    assert!(output_text(&refused).contains("UNAVAILABLE"), "{}", output_text(&refused));
}

#[test]
fn a_grpc_server_gets_one_assertion() {
    let Some(python) = python_with("grpc") else { return };
    let server = Server::start(python, "grpc_echo");
    let proxy = Proxy::before(format!("h2c://127.0.0.1:{}", server.port)).service(POLICY);
    signing_key(&proxy.pki, "now.pem", "EC");
    let scene = proxy.start();
    let target = format!("localhost:{}", scene.keygate.address().port());
    let output = output_text(&scene.run_program(python, "grpc_echo", &target, &scene.good));
    let line = output.lines().find_map(|line| line.strip_prefix("assertions: "));
    let assertion = line.unwrap_or_else(|| panic!("{output}"));
    assert_eq!(part(assertion, 1)["aud"], "test", "{output}");
    assert!(output.contains("all is well"), "{output}");
}

#[test]
fn a_websocket_is_forwarded_in_both_directions_until_it_is_closed() {
    let Some(python) = python_with("websockets") else { return };
    let server = Server::start(python, "websocket_echo");
    let scene = scene(&format!("http://127.0.0.1:{}", server.port), "");
    let port = scene.keygate.address().port().to_string();
    let response = scene.run_program(python, "websocket_echo", &port, &scene.good);
    assert!(output_text(&response).contains("closed with 1000"), "{}", output_text(&response));
    let line = scene.keygate.access_line();
    assert_eq!((&line["status"], &line["target"]), (&101.into(), &"/echo".into()));
    let refused = scene.run_program(python, "websocket_echo", &port, &scene.lost);
    assert!(output_text(&refused).contains("ALERT_ACCESS_DENIED"), "{}", output_text(&refused));
}

/// Opens a WebSocket over HTTP/2. Returns the output of the client and the access log line.
fn websocket_over_http2(server: &str) -> Option<(String, serde_json::Value)> {
    let python = python_with("hypercorn, h2, wsproto")?;
    let scene = scene(server, "");
    let port = scene.keygate.address().port().to_string();
    let refused = scene.run_program(python, "websocket_http2", &port, &scene.lost);
    assert!(output_text(&refused).contains("ALERT_ACCESS_DENIED"), "{}", output_text(&refused));
    let response = scene.run_program(python, "websocket_http2", &port, &scene.good);
    Some((output_text(&response), scene.keygate.access_line()))
}

#[test]
fn a_websocket_over_http2_reaches_a_server_that_supports_it() {
    let Some(python) = python_with("hypercorn, h2, wsproto") else { return };
    let server = Server::start(python, "websocket_http2");
    let url = format!("h2c://127.0.0.1:{}", server.port);
    let (response, line) = websocket_over_http2(&url).unwrap();
    assert!(response.contains("closed with 1000"), "{response}");
    assert_eq!((&line["status"], &line["method"]), (&200.into(), &"CONNECT".into()), "{line}");
    assert_eq!(line["upstream"], url);
    for bytes in [&line["request_bytes"], &line["response_bytes"]] {
        assert!(bytes.as_u64().unwrap() > 3_000_000, "{line}");
    }
}

#[test]
fn a_websocket_over_http2_is_an_upgrade_for_an_http1_server() {
    let Some(python) = python_with("websockets") else { return };
    let server = Server::start(python, "websocket_echo");
    let outcome = websocket_over_http2(&format!("http://127.0.0.1:{}", server.port));
    let Some((response, line)) = outcome else { return };
    assert!(response.contains("closed with 1000"), "{response}");
    assert_eq!((&line["status"], &line["method"]), (&200.into(), &"CONNECT".into()), "{line}");
}

#[test]
fn no_tunnel_opens_without_the_consent_of_the_server() {
    let Some(python) = python_with("grpc") else { return };
    let server = Server::start(python, "grpc_echo");
    let outcome = websocket_over_http2(&format!("h2c://127.0.0.1:{}", server.port));
    let Some((response, line)) = outcome else { return };
    assert!(response.contains("status 501"), "{response}");
    assert_eq!(line["status"], 501);
    // The origin ignores the upgrade, and its 200 must not count as consent.
    let origin = Origin::start();
    let (response, _) = websocket_over_http2(&format!("http://{}", origin.address())).unwrap();
    assert!(response.contains("status 502"), "{response}");
    assert_eq!(origin.next().fields("upgrade"), ["websocket"]);
}

#[test]
fn nghttp_and_h2load_are_served() {
    if skip::without("nghttp") || skip::without("h2load") {
        return;
    }
    let origin = Origin::start();
    let optional = "policy = { on_unchecked = \"flag\" }";
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text =
        Configuration::new(origin.address()).service(optional).client_auth("mode = \"optional\"");
    let keygate = text.start(&pki);
    let url = format!("https://{}/", keygate.address());
    let cert = format!("--cert={}", good.certificate.display());
    let key = format!("--key={}", good.private_key.display());
    let response = system("nghttp", &["--no-verify-peer", "-v", &cert, &key, &url]);
    let text = output_text(&response);
    assert!(text.contains(":status: 200") && text.contains("hello"), "{text}");
    // A client with `Expect: 100-continue` gets the 100 before it sends its body.
    let body = pki.path("body");
    std::fs::write(&body, "body").unwrap();
    let data = ["--expect-continue", "-d", body.to_str().unwrap()];
    let requested = [&["--no-verify-peer", "-v", &cert, &key][..], &data, &[&url]].concat();
    let text = output_text(&system("nghttp", &requested));
    let (before, after) = text.split_once(":status: 100").unwrap();
    assert!(!before.contains("send DATA") && after.contains("send DATA"), "{text}");
    assert!(after.contains(":status: 200"), "{text}");
    assert_eq!(origin.next().fields("expect"), [""; 0]);
    assert_eq!(origin.next().body, b"body");
    // h2load has no certificate to show.
    let load = system("h2load", &["-n", "2000", "-c", "8", "-m", "10", &url]);
    let text = output_text(&load);
    assert!(text.contains("2000 succeeded, 0 failed, 0 errored"), "{text}");
    assert_eq!(origin.untaken(), 2000);
}
