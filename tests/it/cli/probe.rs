//! `keygate probe` against a real nginx, with the configuration of `deploy/authorizer/nginx`.

use std::io::Write;
use std::process::Output;

use serde_json::Value;

use crate::support::http_host::{HostScene, HttpHost, replaced};
use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::output_text;
use crate::support::program::reserved_address;

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

const BOTH: &[&str] = &["--path", "/", "--path", "/api", "--json"];

fn reports(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_host_that_judges_every_path_has_exit_code_0() {
    let Some(scene) = nginx(|text| text) else { return };
    let output = probe(&scene, &localhost(&scene), BOTH);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    for (report, path) in reports(&output).iter().zip(["/", "/api"]) {
        let expected = serde_json::json!({
            "path": path, "clean": "200", "compromised": "403", "finding": "judged",
            "field": "replaced",
        });
        assert_eq!(*report, expected);
    }
    let repeated = probe(&scene, &localhost(&scene), &["--for", "1s"]);
    assert_eq!(repeated.status.code(), Some(0), "{}", output_text(&repeated));
    let text = String::from_utf8_lossy(&repeated.stdout);
    assert!(text.contains("clean not served 0, compromised served 0"), "{text}");
}

#[test]
fn a_path_that_is_not_judged_and_a_forged_field_are_found() {
    // The authorizer is asked in one location only.
    let hole = |text: String| {
        let ask = "        auth_request     /keygate;\n";
        let status = "        proxy_set_header Client-Key-Status $key_status;\n";
        let text = replaced(&replaced(&text, ask, ""), status, "");
        replaced(&text, "location / {", &format!("location / {{\n{ask}{status}"))
    };
    let Some(scene) = nginx(hole) else { return };
    let output = probe(&scene, &localhost(&scene), BOTH);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let [root, api] = &reports(&output)[..] else { panic!("{}", output_text(&output)) };
    assert_eq!((&root["finding"], &root["field"]), (&"judged".into(), &"replaced".into()));
    assert_eq!((&api["finding"], &api["field"]), (&"not_judged".into(), &"kept".into()));
    assert_eq!(api["compromised"], "200");
    let text = probe(&scene, &localhost(&scene), &["--path", "/api"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("NOT JUDGED: the compromised client is served"), "{text}");
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
    assert_eq!(reports(&stopped)[0]["finding"], "unclear");
    let usage = probe(&scene, &localhost(&scene), &["--path", "/a b"]);
    assert_eq!(usage.status.code(), Some(2), "{}", output_text(&usage));
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
