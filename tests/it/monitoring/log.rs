//! The logs while their readers stall, and the limits on repeated lines.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use rustls::ClientConnection;
use serde_json::Value;

use crate::support::client::{Client, config_of};
use crate::support::http2::Came;
use crate::support::keygate::{BINARY, Keygate};
use crate::support::pki::{Kind, Pki};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy};
use crate::support::{output_text, skip, system, wait_until, write_filter};

fn dropped(keygate: &Keygate, log: &str) -> u64 {
    let value = keygate.metric(&format!("keygate_log_lines_dropped_total{{log=\"{log}\"}}"));
    value.to_string().parse().unwrap()
}

fn send_signal(signal: &str, pid: &str) {
    assert!(system("kill", &["-s", signal, pid.trim()]).status.success());
}

#[test]
fn a_stalled_reader_of_the_access_log_costs_lines_which_are_counted() {
    let proxy = Proxy::new().global("access_log = { requests = \"all\" }");
    let fifo = proxy.pki.path("access");
    assert!(system("mkfifo", &[fifo.to_str().unwrap()]).status.success());
    // Open for both, because then no open of the FIFO waits.
    let reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let mut command = Command::new("sh");
    let script = format!("exec {BINARY} \"$@\" >{}", fifo.display());
    command.args(["-c", &script, "sh"]);
    let keygate = Keygate::run_by(command, &proxy.pki, &proxy.configuration.text());
    let mut client = Client::connect(&proxy.pki, keygate.address(), &proxy.good);
    let request =
        format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(2000)).repeat(20);
    let mut sent = 0;
    while dropped(&keygate, "access") == 0 {
        client.send(&request);
        for _ in 0..20 {
            assert!(client.head().starts_with("HTTP/1.1 200 "));
            assert_eq!(client.exactly(b"hello\n".len()), b"hello\n");
        }
        sent += 20;
        assert!(sent < 100_000, "no line was dropped");
    }
    let lost = dropped(&keygate, "access");
    let status = keygate.status();
    let mut conditions = status["attention"].as_array().unwrap().iter();
    let condition = conditions.find(|condition| condition["subject"] == "log").unwrap();
    assert_eq!(condition["level"], "amber");
    let problem = condition["problem"].as_str().unwrap();
    assert!(problem.starts_with("lines lost: "), "{problem}");
    assert!(problem.contains(" in the last five minutes (access: "), "{problem}");
    let mut lines = BufReader::new(reader).lines();
    for _ in 0..sent - lost {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["status"], 200);
    }
    let line = keygate.wait_for("the line", |line| line["message"] == "log lines dropped");
    assert_eq!((&line["log"], line["lines"].as_u64()), (&"access".into(), Some(lost)));
}

/// `LimitFSIZE=` of systemd. Without a handler, SIGXFSZ ends the process.
#[test]
fn a_maximum_file_size_costs_lines_of_the_access_log_which_are_counted() {
    if skip::without("prlimit") {
        return;
    }
    let proxy = Proxy::new().global("access_log = { requests = \"all\" }");
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let mut command = Command::new("sh");
    let log = proxy.pki.path("access.log");
    let script = format!("exec prlimit --fsize=4096 {BINARY} \"$@\" >{}", log.display());
    command.args(["-c", &script, "sh"]);
    let keygate = Keygate::run_by(command, &proxy.pki, &proxy.configuration.text());
    let mut client = Client::connect(&proxy.pki, keygate.address(), &proxy.good);
    while dropped(&keygate, "access") == 0 {
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(b"hello\n".len()), b"hello\n");
    }
    assert_eq!(std::fs::metadata(log).unwrap().len(), 4096);
}

#[test]
fn a_client_cannot_push_lines_about_security_out_of_the_log() {
    let proxy = Proxy::new()
        .global("log = { level = \"info,keygate::proxy=debug\", repeat_after = \"0s\" }")
        .service("server_names = [\"localhost\"]");
    let [fifo, pid] = ["log", "reader"].map(|name| proxy.pki.path(name));
    assert!(system("mkfifo", &[fifo.to_str().unwrap()]).status.success());
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki]);
    let mut command = Command::new("sh");
    let script = format!(
        "cat {0} >&2 & echo $! >{1}; exec {BINARY} \"$@\" 2>{0}",
        fifo.display(),
        pid.display()
    );
    command.args(["-c", &script, "sh"]);
    let keygate = Keygate::run_by(command, &proxy.pki, &proxy.configuration.text());
    let reader = std::fs::read_to_string(pid).unwrap();
    send_signal("STOP", &reader);

    let config = Arc::new(config_of(&proxy.pki, rustls::ALL_VERSIONS, None));
    let name = format!("{0}.{0}.{0}.example", "x".repeat(60));
    let mut hello = Vec::new();
    let mut client = ClientConnection::new(config, name.try_into().unwrap()).unwrap();
    client.write_tls(&mut hello).unwrap();
    let mut sent = 0;
    while dropped(&keygate, "main") == 0 {
        for _ in 0..100 {
            let mut tcp = TcpStream::connect(keygate.address()).unwrap();
            tcp.write_all(&hello).unwrap();
        }
        sent += 100;
        assert!(sent < 100_000, "no line was dropped");
    }
    let to = format!("::{}", keygate.address());
    let output = keygate.curl(&proxy.lost, &["--connect-to", &to, "https://localhost/"]);
    assert!(output_text(&output).contains("access denied"), "{}", output_text(&output));
    wait_until("the rejection to be counted", || {
        keygate.metric("keygate_connections_total{result=\"refused\",service=\"test\"}") >= 1.0
    });
    assert_eq!(dropped(&keygate, "security"), 0);
    assert!(keygate.lines("client key rejected").is_empty(), "the reader has not stalled");
    send_signal("CONT", &reader);
    keygate.wait_for("the rejected client", |line| line["message"] == "client key rejected");
    let line = keygate.wait_for("the count", |line| line["message"] == "log lines dropped");
    assert_eq!(line["log"], "main");
    assert!(line["lines"].as_u64().unwrap() > 0);
}

#[test]
fn a_failing_upstream_is_logged_once_per_interval_with_the_number_left_out() {
    let proxy = Proxy::before(format!("http://{}", reserved_address()))
        .workers(1)
        .global("log = { repeat_after = \"1s\" }")
        .start();
    let mut requests = 0;
    while proxy.lines("upstream failed").len() < 2 {
        assert_eq!(proxy.code(&[]), "502");
        requests += 1;
    }
    let lines = proxy.lines("upstream failed");
    assert_eq!(lines[0]["left_out"], 0);
    // The line of the last request follows its response.
    let left_out = lines[1]["left_out"].as_u64().unwrap();
    assert!(left_out > 0 && left_out <= requests - 2, "{left_out} of {requests} requests");
}

#[test]
fn failed_handshakes_of_one_address_do_not_hide_each_other() {
    let proxy = Proxy::new().workers(1).service("server_names = [\"localhost\"]").start();
    let to = format!("::{}", proxy.address());
    let other = Pki::named("Unknown CA");
    for name in ["one", "two"] {
        let stranger = other.client(name, Kind::P256);
        let output = proxy.curl(&stranger, &["--connect-to", &to, "https://localhost/"]);
        assert!(!output.status.success());
    }
    let lines = proxy.wait_for_lines("the strangers", 2, |line| line["result"] == "unknown_issuer");
    let subject = |line: &Value| line["subject"].as_str().unwrap().to_owned();
    let subjects: Vec<_> = lines.iter().map(subject).collect();
    assert!(subjects[0].contains("one") && subjects[1].contains("two"), "{subjects:?}");

    for name in 0..40 {
        let url = format!("https://name-{name}.example/");
        let output = proxy.curl(&proxy.good, &["--connect-to", &to, &url]);
        assert!(!output.status.success());
    }
    let series = "keygate_handshakes_total{result=\"unknown_name\",resumed=\"false\",service=\"\"}";
    proxy.wait_for_metric(series, 40.0);
    proxy.wait_for("the sixteenth", |line| line["sni"] == "name-15.example");
    let of_names = proxy.wait_for_lines("the rest", 17, |line| line["result"] == "unknown_name");
    assert_eq!(of_names.len(), 17, "16 names and one for all others");
    assert_eq!(of_names[0]["sni"], "name-0.example");
    assert_eq!(of_names[0]["error"], "no service of this address has the server name");
}

#[test]
fn the_access_log_has_the_version_of_each_request() {
    let proxy = Proxy::new().global("access_log = { requests = \"all\" }").start();
    let mut client = proxy.connect();
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        client.send(format!("GET / {version}\r\nHost: localhost\r\n\r\n"));
        assert!(client.head().contains(" 200 "));
        assert_eq!(client.exactly(6), b"hello\n");
    }
    assert_eq!(client.rest(), "");
    let mut client = proxy.connect_http2();
    client.send_get(1);
    assert!(matches!(client.next(), Came::Response(_, 1)));
    let lines = proxy.access_lines(3);
    let versions: Vec<_> = lines.iter().map(|line| line["protocol"].as_str().unwrap()).collect();
    assert_eq!(versions, ["HTTP/1.1", "HTTP/1.0", "HTTP/2"]);
}
