//! The conditions that need attention, although every file is in use and every health check
//! succeeds.
//!
//! Guards: `record_failing`, `record_response` in `src/proxy/upstream/server_state.rs` (servers);
//! `failed_exchanges`, `full_address` in `src/admin/attention/traffic.rs`; `unsaved_state`,
//! `warned` in `src/admin/attention/files.rs`; `of_role` in
//! `src/sources/credential_files.rs`; `UNROUTED` in `src/admin/traffic.rs`.

use std::fs::{copy, create_dir, create_dir_all, remove_dir_all, remove_file};
use std::io::{Error, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rcgen::CertificateParams;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::program::reserved_address;
use crate::support::proof_source::canary as canary_of;
use crate::support::proxy::{Configure, Proxy};
use crate::support::{output_text, system, write_revision};

/// The condition of `subject` whose problem contains `part`: its level and its problem.
fn condition(status: &Value, subject: &str, part: &str) -> Option<(String, String)> {
    let mut items = status["attention"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let is_it = |it: &&Value| it["subject"] == subject && text(&it["problem"]).contains(part);
    items.find(is_it).map(|it| (text(&it["level"]), text(&it["problem"])))
}

fn wait_for_condition(keygate: &Keygate, subject: &str, part: &str) -> (String, String) {
    let is_shown = |status: &Value| condition(status, subject, part).is_some();
    condition(&keygate.wait_for_status(part, is_shown), subject, part).unwrap()
}

/// Port 9 has no listener.
#[test]
fn a_dead_server_without_health_checks_needs_attention() {
    let proxy = Proxy::before("http://127.0.0.1:9").workers(1).start();
    for _ in 0..5 {
        assert_eq!(proxy.code(&[]), "502");
    }
    let (level, problem) = wait_for_condition(&proxy, "service test", "upstream failed");
    assert_eq!(level, "red", "{problem}");
    let words: Vec<&str> = problem.split(' ').collect();
    assert_eq!(words[0], words[2], "all of them: {problem}");
    assert!(problem.contains("(connect: "), "{problem}");

    let (level, problem) = wait_for_condition(&proxy, "service test", "is failing since ");
    assert_eq!(level, "red", "{problem}");
    assert!(problem.starts_with("upstream server http://127.0.0.1:9 "), "{problem}");
    assert!(problem.contains("Connection refused"), "{problem}");
    let server = &proxy.status()["servers"][0];
    assert_eq!(server["state"], "failing");
    let (_, text) = proxy.admin("/status.txt");
    let line = text.lines().find(|line| line.starts_with("  server ")).unwrap();
    assert!(line.contains(": failing since 2") && line.contains("Connection refused"), "{line}");
    assert!(server["since"].is_u64(), "{server}");
}

#[test]
fn dead_servers_need_attention_between_their_ejections() {
    let servers = ["http://127.0.0.1:9", "http://127.0.0.1:10"];
    let proxy = Proxy::new()
        .servers(&servers)
        .upstream("max_failures = 1, retry_after = \"1s\"")
        .workers(1)
        .start();
    assert_eq!(proxy.code(&[]), "502");
    let status = proxy.wait_for_status("the end of the ejections", |status| {
        status["servers"].as_array().unwrap().iter().all(|server| server["state"] == "failing")
    });
    for server in servers {
        let (level, problem) = condition(&status, "service test", server).unwrap();
        assert_eq!(level, "red", "{problem}");
    }
}

#[test]
fn a_server_that_responds_again_and_some_failures_among_many_are_not_red() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    let origin = Origin::responding(move |_, tcp| match broken.load(Ordering::SeqCst) {
        true => Err(Error::other("closed without a response")),
        false => tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n"),
    });
    let proxy = Proxy::to(origin).upstream("max_failures = 1").workers(1).start();
    assert_eq!(proxy.code(&[]), "502");
    assert_eq!(wait_for_condition(&proxy, "service test", "is failing since ").0, "red");
    is_broken.store(false, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(proxy.code(&[]), "200");
    }
    let status = proxy.wait_for_status("a healthy server", |status| {
        status["servers"][0]["state"] == "healthy"
            && !status["attention"].to_string().contains("red")
    });
    assert_eq!(condition(&status, "service test", "is failing since "), None, "{status}");
}

#[test]
fn an_address_at_its_limit_of_connections_needs_attention() {
    let proxy = Proxy::new().limits("max_connections = 1").start();
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let (level, problem) = wait_for_condition(&proxy, "address 127.0.0.1:0", "max_connections");
    assert_eq!(level, "red");
    assert!(problem.starts_with("1 of 1 connections are open"), "{problem}");
    drop(client);
    proxy.wait_for_status("no condition", |status| status["attention"] == json!([]));
}

/// No service is known of a connection before its ClientHello.
#[test]
fn an_address_whose_connections_are_all_in_their_handshakes_needs_attention() {
    let proxy = Proxy::new().limits("max_connections = 2").start();
    let silent = [(); 2].map(|()| TcpStream::connect(proxy.address()).unwrap());
    let (level, problem) = wait_for_condition(&proxy, "address 127.0.0.1:0", "max_connections");
    assert_eq!(level, "red");
    assert!(problem.starts_with("2 of 2 connections are open"), "{problem}");
    let status = proxy.status();
    assert_eq!(status["attention"][0]["row"], "service-test");
    assert_eq!(status["traffic"]["test"]["connections"], 0.0);
    drop(silent);
    proxy.wait_for_status("no condition", |status| status["attention"] == json!([]));

    // A reload changes the limit, and adds an address.
    let second = reserved_address();
    let more = proxy.configuration.clone().limits("max_connections = 1");
    let more = more.second_service(&format!("listen = \"{second}\""));
    std::fs::write(proxy.pki.path("keygate.toml"), more.text()).unwrap();
    proxy.wait_for_generation(2);
    let _silent = TcpStream::connect(proxy.address()).unwrap();
    let (_, problem) = wait_for_condition(&proxy, "address 127.0.0.1:0", "max_connections");
    assert!(problem.starts_with("1 of 1 connections are open"), "{problem}");
    let _other = TcpStream::connect(second).unwrap();
    wait_for_condition(&proxy, &format!("address {second}"), "1 of 1 connections are open");
}

#[test]
fn an_authorizer_without_a_free_connection_needs_attention() {
    let limits = "client_auth = { trust_anchors = \"ca.pem\" }\nlimits = { max_connections = 4 }\n";
    let asked = AskedKeygate::start(&format!("{UNIX}{limits}"));
    // The address permits one more, for another asker.
    let _askers: [_; 4] = std::array::from_fn(|_| asked.connect());
    let subject = format!("address unix:{}", asked.pki.path("ask.sock").display());
    let (level, _) = wait_for_condition(&asked.keygate, &subject, "4 of 5 connections are open");
    assert_eq!(level, "red");
    assert_eq!(asked.keygate.status()["attention"][0]["row"], "authorizer-edge");
}

#[test]
fn lost_spans_need_attention_and_those_above_the_rate_do_not() {
    let nowhere = reserved_address();
    let settings =
        format!("endpoint = \"http://{nowhere}\"\ninterval = \"1ms\"\nmax_spans_per_second = 1");
    let proxy = Proxy::new().workers(1).add("traces", &settings).start();
    let is_above_rate = |_| {
        proxy.admits(&proxy.good);
        proxy.metric("keygate_trace_spans_dropped_total{reason=\"rate\"}") >= 2.0
    };
    assert!((0..100).any(is_above_rate), "a request takes less than two seconds");
    let (level, problem) = wait_for_condition(&proxy, "traces", "traces cannot be exported");
    assert_eq!(level, "amber");
    assert!(problem.starts_with("spans lost: "), "{problem}");
    assert!(problem.contains(" in the last five minutes (export: "), "{problem}");
    assert!(!problem.contains("rate"), "{problem}");
}

#[test]
fn a_state_directory_that_cannot_be_written_needs_attention() {
    let proxy = Proxy::new().global("state = { dir = \"state\" }");
    create_dir(proxy.pki.path("state")).unwrap();
    let proxy = proxy.start();
    let state = proxy.pki.path("state/filters.json");
    remove_file(&state).unwrap();
    create_dir_all(state.join("in the way")).unwrap();
    write_revision(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki], 2);
    let (level, problem) = wait_for_condition(&proxy, "state directory", "cannot be written: ");
    assert_eq!(level, "red");
    assert!(problem.contains("filters.json: "), "{problem}");

    remove_dir_all(&state).unwrap();
    proxy.signal("HUP");
    wait_for_condition(&proxy, "state directory", "writes failed in the last five minutes");
}

/// The certificate that replaces the one in use is valid, but for another name.
#[test]
fn a_certificate_without_a_server_name_needs_attention_and_is_a_warning_of_reload() {
    let proxy = Proxy::new().service("server_names = [\"a.example\"]").start();
    assert_eq!(proxy.status()["attention"], json!([]));
    let other = proxy.pki.server_for("other", &["b.example"]);
    copy(&other.certificate, proxy.pki.path("server.pem")).unwrap();
    copy(&other.private_key, proxy.pki.path("server.key")).unwrap();
    let part = "is not valid for server name \"a.example\"";
    let (level, problem) = wait_for_condition(&proxy, "service test", part);
    assert_eq!(level, "amber");
    let path = proxy.pki.path("server.pem");
    assert!(problem.starts_with(&format!("tls.certificate {}: ", path.display())), "{problem}");

    let warning = format!("warning: service \"test\": {problem}\n");
    let admin = proxy.pki.path("admin.toml");
    std::fs::write(&admin, format!("admin.listen = \"{}\"\n", proxy.admin_address())).unwrap();
    let reloaded = keygate(&["reload", "--config", admin.to_str().unwrap()]);
    assert_eq!(reloaded.status.code(), Some(0), "{}", output_text(&reloaded));
    assert!(output_text(&reloaded).contains(&warning), "{}", output_text(&reloaded));
    let output = keygate(&["reload", "--json", "--config", admin.to_str().unwrap()]);
    let reloaded: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = format!("service \"test\": {problem}");
    let expected = json!([{ "kind": "service", "name": "test", "text": text }]);
    assert_eq!(reloaded["warnings"], expected);
    let config = proxy.pki.path("keygate.toml");
    let validated = keygate(&["validate", "--json", "--config", config.to_str().unwrap()]);
    let validated: Value = serde_json::from_slice(&validated.stdout).unwrap();
    assert!(validated["warnings"].as_array().unwrap().contains(&expected[0]), "{validated}");
    let validated = keygate(&["validate", "--config", config.to_str().unwrap()]);
    assert!(output_text(&validated).contains(&warning), "{}", output_text(&validated));
}

#[test]
fn a_certificate_that_expires_soon_needs_attention_with_its_path() {
    let proxy = Proxy::new();
    let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let now = SystemTime::now();
    let day = Duration::from_secs(86_400);
    (parameters.not_before, parameters.not_after) = ((now - day * 80).into(), (now + day).into());
    proxy.pki.server_with("server", parameters);
    let proxy = proxy.start();
    let path = proxy.pki.path("server.pem").display().to_string();
    let (level, problem) = wait_for_condition(&proxy, "certificate of test", &path);
    assert_eq!(level, "amber");
    assert!(problem.starts_with("expires at 2"), "{problem}");
    assert_eq!(proxy.status()["attention"].as_array().unwrap().len(), 1);
}

#[test]
fn failed_handshakes_without_a_service_are_in_the_status_and_on_the_page() {
    let proxy = Proxy::new().start();
    assert_eq!(proxy.status()["unrouted_handshakes"], json!({}));
    system("curl", &["--silent", &format!("http://{}/", proxy.address())]);
    proxy.wait_for_status("the handshake", |status| {
        status["unrouted_handshakes"] == json!({"plain_http": 1.0})
    });
    for path in ["/", "/status.txt"] {
        let (_, shown) = proxy.admin(path);
        assert!(shown.contains("ailed handshakes without a service: plain_http: 1"), "{shown}");
    }
}

#[test]
fn a_search_that_finds_no_client_and_a_report_name_the_log() {
    let proxy = Proxy::new().start();
    let hint =
        "Clients with an expired, revoked, unknown or copied certificate are in the log only";
    assert!(proxy.admin("/?q=device").1.contains(hint));
    let admin = proxy.pki.path("admin.toml");
    std::fs::write(&admin, format!("admin.listen = \"{}\"\n", proxy.admin_address())).unwrap();
    let report = keygate(&["report", "--config", admin.to_str().unwrap()]);
    assert!(output_text(&report).contains(hint), "{}", output_text(&report));
}

#[test]
fn a_source_of_proofs_that_is_down_needs_attention_with_its_cause() {
    let nowhere = reserved_address();
    for canary in ["off", "canary.pem"] {
        let proxy = Proxy::new().policy("on_probable = \"flag\"");
        canary_of(&proxy.pki);
        let url = format!("url = \"http://{nowhere}\"\ncanary = \"{canary}\"\n");
        let proxy = proxy.add("confirm", &url).start();
        proxy.admits(&proxy.lost);
        let subject = format!("source of proofs http://{nowhere}");
        let status = proxy.wait_for_status("the condition", |status| {
            let items = status["attention"].as_array().unwrap();
            items.iter().any(|it| it["subject"].as_str().unwrap().starts_with(&subject))
        });
        let problem = status["attention"][0]["problem"].as_str().unwrap();
        assert!(problem.contains("Connection refused"), "{canary}: {status}");
        assert_eq!(status["attention"][0]["level"], "red", "{status}");
    }
}
