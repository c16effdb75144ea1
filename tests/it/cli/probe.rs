//! `keygate probe` against a real nginx, with the configuration of `deploy/authorizer/nginx`.

use std::io::Write;
use std::net::TcpListener;
use std::process::Output;

use crate::support::http_host::{HostScene, HttpHost, foreign_client, replaced};
use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::program::reserved_address;
use crate::support::{blocks, output_text, shell};

/// nginx in front of an application that responds with the head of the request.
fn nginx(change: impl Fn(String) -> String) -> Option<HostScene> {
    let mut authorizer = HttpHost::Nginx.authorizer();
    authorizer.origin = Origin::responding(|request, tcp| {
        let length = request.head.len();
        write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{}", request.head)
    });
    HttpHost::Nginx.start_with(authorizer, |text| {
        let text = change(text);
        let second = "location /api { proxy_pass http://app; }\n        location / {";
        replaced(&text, "location / {", second)
    })
}

fn probe(scene: &HostScene, host: &str, options: &[&str]) -> Output {
    let file = |name: &str| scene.pki.path(name).display().to_string();
    let [ca, good, good_key, lost, lost_key] =
        ["ca.pem", "good.pem", "good.key", "lost.pem", "lost.key"].map(file);
    let clients = ["--ca", &ca, "--clean", &good, &good_key, "--compromised", &lost, &lost_key];
    keygate(&[&["probe", host][..], &clients, options].concat())
}

fn localhost(scene: &HostScene) -> String {
    format!("localhost:{}", scene.address.port())
}

const BOTH: &[&str] = &["--path", "/", "--path", "/api"];

/// The line of each path.
fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_host_that_judges_every_path_has_exit_code_0() {
    let Some(scene) = nginx(|text| text) else { return };
    let output = probe(&scene, &localhost(&scene), BOTH);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    for (line, path) in lines(&output).iter().zip(["/", "/api"]) {
        let found = "clean: 200, compromised: 403: judged; Client-Key-Status is replaced";
        assert_eq!(*line, format!("{path}  {found}"));
    }
    let repeated = probe(&scene, &localhost(&scene), &["--for", "1s"]);
    assert_eq!(repeated.status.code(), Some(0), "{}", output_text(&repeated));
    let text = String::from_utf8_lossy(&repeated.stdout);
    assert!(text.contains("clean not served 0, compromised served 0"), "{text}");
}

/// The authorizer is asked in one location only.
fn hole(text: String) -> String {
    let ask = "        auth_request     /keygate;\n";
    let status = "        proxy_set_header Client-Key-Status $key_status;\n";
    let text = replaced(&replaced(&text, ask, ""), status, "");
    replaced(&text, "location / {", &format!("location / {{\n{ask}{status}"))
}

#[test]
fn the_job_of_the_page_fails_if_a_path_is_open_or_unknown() {
    let page = include_str!("../../../docs/authorizers.md");
    let job = blocks(page, "sh").into_iter().find(|block| block.contains("keygate probe"));
    let job = job.unwrap();
    let run = |scene: &HostScene| {
        for (file, used) in [("edge", "ca"), ("clean", "good"), ("compromised", "lost")] {
            for kind in ["pem", "key"] {
                let from = scene.pki.path(&format!("{used}.{kind}"));
                let _ = std::fs::copy(from, scene.pki.path(&format!("{file}.{kind}"))); // no CA key
            }
        }
        let host = localhost(scene);
        let script = format!("HOST={host}; code=0; (\n{job}) || code=$?; echo exit code $code");
        lines(&shell(scene.pki.directory(), &script))
    };
    let expect = |lines: Vec<String>, code: u8, line: &str| {
        assert!(lines.contains(&line.to_owned()), "{lines:?}");
        assert_eq!(*lines.last().unwrap(), format!("exit code {code}"), "{lines:?}");
    };
    let Some(mut closed) = nginx(|text| text) else { return };
    let silent = HttpHost::Nginx.start().unwrap();
    expect(run(&silent), 5, "every path is judged, no response shows the field");
    expect(run(&closed), 0, "every path is judged");
    closed.signal("KILL");
    closed.running.keygate.ended();
    expect(run(&closed), 3, "a result is unknown, the host or keygate may be down");
    expect(run(&nginx(hole).unwrap()), 1, "a path is open, stop the deployment");
}

#[test]
fn a_path_that_is_not_judged_and_a_forged_field_are_found() {
    let Some(scene) = nginx(hole) else { return };
    let output = probe(&scene, &localhost(&scene), BOTH);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let [root, api] = &lines(&output)[..] else { panic!("{}", output_text(&output)) };
    assert!(root.ends_with("403: judged; Client-Key-Status is replaced"), "{root}");
    assert!(api.contains("compromised: 200: NOT JUDGED"), "{api}");
    assert!(api.contains("REACHES THE APPLICATION"), "{api}");
}

#[test]
fn a_host_that_rejects_everybody_or_is_not_there_has_exit_code_3() {
    let Some(mut scene) = nginx(|text| text) else { return };
    let nobody = probe(&scene, &reserved_address().to_string(), &[]);
    assert_eq!(nobody.status.code(), Some(3), "{}", output_text(&nobody));
    scene.signal("TERM");
    scene.running.keygate.ended();
    let stopped = probe(&scene, &localhost(&scene), BOTH);
    assert_eq!(stopped.status.code(), Some(3), "{}", output_text(&stopped));
    assert!(output_text(&stopped).contains(": UNKNOWN"), "{}", output_text(&stopped));
    let usage = probe(&scene, &localhost(&scene), &["--path", "/a b"]);
    assert_eq!(usage.status.code(), Some(2), "{}", output_text(&usage));
}

/// A rejection of such a certificate says nothing about its key.
#[test]
fn an_expired_or_foreign_compromised_certificate_is_an_error() {
    let Some(scene) = nginx(|text| text) else { return };
    let mut parameters = rcgen::CertificateParams::default();
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let expired = scene.pki.client_with("expired", Kind::P256, parameters);
    let (_foreign, foreign) = foreign_client();
    for (client, cause) in [(expired, "has expired"), (foreign, "different issuers")] {
        let file = |path: &std::path::Path| path.display().to_string();
        let [certificate, key] = [&client.certificate, &client.private_key].map(|it| file(it));
        let [ca, good, good_key] =
            ["ca.pem", "good.pem", "good.key"].map(|name| file(&scene.pki.path(name)));
        let host = localhost(&scene);
        let clients = ["--clean", &good, &good_key, "--compromised", &certificate, &key];
        let output = keygate(&[&["probe", &host, "--ca", &ca][..], &clients].concat());
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains(cause), "{}", output_text(&output));
    }
}

#[test]
fn mistakes_of_the_caller_are_named() {
    let Some(scene) = nginx(|text| text) else { return };
    let file = |name: &str| scene.pki.path(name).display().to_string();
    let [ca, good, good_key, lost, lost_key] =
        ["ca.pem", "good.pem", "good.key", "lost.pem", "lost.key"].map(file);
    let other = Pki::named("Other CA");
    let other_ca = other.path("ca.pem").display().to_string();
    let (host, url) = (localhost(&scene), format!("https://{}/", localhost(&scene)));
    let mismatch = format!("{good_key}: not the private key of {lost}");
    for (host, ca, [clean, clean_key, compromised, compromised_key], code, problem) in [
        (&host, &ca, [&lost, &lost_key, &good, &good_key], 1, "200: NOT JUDGED: the compromised"),
        (&host, &other_ca, [&good, &good_key, &lost, &lost_key], 3, "name its CA with --ca"),
        (&host, &ca, [&good, &good_key, &lost, &good_key], 3, mismatch.as_str()),
        (&url, &ca, [&good, &good_key, &lost, &lost_key], 2, "is a URL; give HOST or HOST:PORT"),
    ] {
        let clients = ["--clean", clean, clean_key, "--compromised", compromised, compromised_key];
        let output = keygate(&[&["probe", host, "--ca", ca][..], &clients].concat());
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(code), "{problem}: {text}");
        assert!(text.contains(problem), "{problem}: {text}");
        assert!(text.matches("invalid peer").count() <= 1, "{text}");
    }
}

/// A response that does not show whether the key decides is neither "judged" nor "not judged".
#[test]
fn a_response_for_another_reason_is_unknown() {
    let condition = |test: &'static str| {
        move |text: String| {
            replaced(
                &text,
                "location / {",
                &format!("if ({test}) {{ return 400; }}\n        location / {{"),
            )
        }
    };
    for (test, finding, field) in [
        // Both clients, the compromised one, and a request with the header in `Connection`.
        ("$request_method = GET", ": UNKNOWN", "Status UNKNOWN"),
        ("$ssl_client_s_dn ~ lost", ": UNKNOWN", "is replaced"),
        ("$http_connection ~ Client-Key", ": UNKNOWN", "Status UNKNOWN"),
    ] {
        let Some(scene) = nginx(condition(test)) else { return };
        let output = probe(&scene, &localhost(&scene), &[]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(3), "{test}: {text}");
        assert!(text.contains(finding) && text.contains(field), "{test}: {text}");
    }
}

/// The application responds with 200 to one path, and with 404 to the other ones. Guards: `Unproved`,
/// `has_passed`, `is_timeout` in `src/cli/probe.rs` and `src/cli/probe/client.rs`.
#[test]
fn a_response_without_the_field_proves_the_key_and_not_the_field() {
    let mut authorizer = HttpHost::Nginx.authorizer();
    authorizer.origin = Origin::responding(|request, tcp| {
        let status =
            if request.head.starts_with("GET /found ") { "200 OK" } else { "404 Not Found" };
        write!(tcp, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")
    });
    let Some(scene) = HttpHost::Nginx.start_with(authorizer, |text| text) else { return };
    let output = probe(&scene, &localhost(&scene), &["--path", "/found", "--path", "/none"]);
    let field =
        "compromised: 403: judged; Client-Key-Status is UNPROVED, because the response does";
    for (line, clean) in lines(&output).iter().zip(["/found  clean: 200", "/none  clean: 404"]) {
        assert!(line.starts_with(&format!("{clean}, {field}")), "{line}");
    }
    assert_eq!(output.status.code(), Some(5), "{}", output_text(&output));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap().to_string();
    let output = probe(&scene, &host, &["--timeout", "200ms"]);
    let text = output_text(&output);
    assert!(text.contains("clean: no response within 200ms, compromised: no response"), "{text}");
    assert_eq!(output.status.code(), Some(3), "{text}");
}

#[test]
fn the_demo_writes_the_clients_of_a_probe() {
    let directory = tempfile::TempDir::new().unwrap();
    let clients = directory.path().join("clients");
    let path = |name: &str| clients.join(name).display().to_string();
    let written = keygate(&["demo", "--write", &clients.display().to_string()]);
    assert_eq!(written.status.code(), Some(0), "{}", output_text(&written));
    for (name, code) in [("good.pem", 0), ("mallory.pem", 1)] {
        let query = keygate(&["filter", "query", &path("compromised.pkbf"), &path(name)]);
        assert_eq!(query.status.code(), Some(code), "{}", output_text(&query));
    }
    let again = keygate(&["demo", "--write", &clients.display().to_string()]);
    assert_eq!(again.status.code(), Some(3), "an existing directory stays as it is");
}
